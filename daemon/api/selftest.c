/* daemon/api/selftest.c - POST /api/v1/selftest: does what must work really work?
 *
 * A row is written into the state on the control thread; a worker then walks the
 * journal's chain, looks at the disk and lets every model generate one token. The worker
 * waits for the tokens with a deadline; sinks of those that come later live on. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/queue.h"
#include "daemon/api/conn.h"
#include "daemon/api/handler.h"
#include "daemon/api/pool.h"
#include "daemon/api/server.h"
#include "daemon/ctrl/router.h"
#include "daemon/serve/tokenizer.h"
#include "state/store.h"

enum {
    CHECKS_MAX = 72,
    MODELS_MAX = 64,
    WAIT_US = 60000000,
    LOOK_US = 200000, /* for a client that left */
    FREE_MIB = 256,
};

struct check {
    char name[96], message[512];
    bool done, ok;
    uint64_t id; /* of its request, 0 none */
    struct selftest *t;
};

struct selftest {
    atomic_int refs; /* the worker's and one a sink */
    struct queue *done;
    pthread_mutex_t lock; /* the checks */
    int n;
    struct check check[CHECKS_MAX];
};

static void unref(struct selftest *t)
{
    if (atomic_fetch_sub(&t->refs, 1) != 1)
        return;
    queue_free(t->done);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

static struct check *begin(struct selftest *t, const char *what, const char *of)
{
    struct check *k = &t->check[t->n++];

    k->t = t;
    snprintf(k->name, sizeof(k->name), "%s%s%.80s", what, of[0] ? " " : "", of);
    return k;
}

static void end(struct check *k, bool ok, const char *message)
{
    pthread_mutex_lock(&k->t->lock);
    if (!k->done) {
        k->done = true;
        k->ok = ok;
        snprintf(k->message, sizeof(k->message), "%s", message);
    }
    pthread_mutex_unlock(&k->t->lock);
}

/* ---- the checks ---- */

static void check_journal(struct selftest *t, struct store *s)
{
    struct check *k = begin(t, "journal", "");
    struct store *view;
    int64_t rows = 0;
    char said[64];
    struct err e;
    int rc = store_view(s, &view, &e);

    if (rc == 0) {
        rc = journal_verify(view, &rows, &e);
        store_close(view);
    }
    snprintf(said, sizeof(said), "%lld rows, the chain is whole", (long long)rows);
    end(k, rc == 0, rc < 0 ? e.msg : said);
}

static void check_disk(struct selftest *t, const char *dir)
{
    struct check *k = begin(t, "disk", "");
    struct statvfs v;
    char said[128];
    uint64_t mib;

    if (statvfs(dir, &v) < 0) {
        end(k, false, "the state folder cannot be looked at");
        return;
    }
    mib = (uint64_t)v.f_bavail * v.f_frsize >> 20;
    snprintf(said, sizeof(said), "%llu MiB free in the state folder%s",
             (unsigned long long)mib, mib < FREE_MIB ? ", which is too little" : "");
    end(k, mib >= FREE_MIB, said);
}

static void on_tokens(void *arg, const struct step_token *toks, int n, bool scored)
{
    (void)arg, (void)toks, (void)n, (void)scored;
}

static void on_finish(void *arg, const struct gen_finish *f)
{
    struct check *k = arg;
    struct selftest *t = k->t;
    char said[128];
    bool ok = f->reason == FINISH_LENGTH || f->reason == FINISH_STOP;

    snprintf(said, sizeof(said), "a token after %.1f ms",
             (double)(f->queue_us + f->prefill_us) / 1e3);
    end(k, ok,
        ok         ? said
        : f->error ? f->error->msg
                   : "the request was ended by the server");
    queue_push(t->done, k);
    unref(t);
}

/* True when a finish will come. */
static bool generate(struct selftest *t, struct conn *c, const struct served *m)
{
    struct check *k = begin(t, "generate", m->name);
    struct tok_ids ids = {0};
    struct gen_submit s = {.sink = {on_tokens, on_finish, k}, .label = c->req_id};
    struct err e;
    int rc = tokenizer_encode(m->tok, "Hello", 5, TOK_ADD_BOS, 0, &c->cancel, &ids, &e);

    if (rc == 0 && ids.n == 0)
        tok_ids_add(&ids, 0);
    s.params = (struct gen_params){.top_p = 1, .repetition = 1, .max_tokens = 1};
    s.params.n_top = -1;
    s.params.no_cache = true;
    s.params.ignore_eos = true;
    s.params.n_prompt = (int32_t)ids.n;
    s.prompt = ids.v;
    atomic_fetch_add(&t->refs, 1);
    if (rc == 0)
        rc = router_submit(c->h->router, m, &s, 1, &k->id, &e);
    if (rc < 0) {
        end(k, false, e.msg);
        unref(t);
    }
    tok_ids_done(&ids);
    return rc == 0;
}

static void check_models(struct selftest *t, struct conn *c)
{
    const struct served *m[MODELS_MAX];
    int n = router_models(c->h->router, m, MODELS_MAX), left = 0;
    int64_t until = clock_now_us(clock_real()) + WAIT_US;
    struct err e;

    if (n == 0) {
        bool ready = router_ready(c->h->router, &e) == 0;

        end(begin(t, "generate", ""), ready, ready ? "there is no model" : e.msg);
    }
    for (int i = 0; i < n; i++) {
        left += generate(t, c, m[i]);
        router_unref(c->h->router, m[i]);
    }
    while (left && !atomic_load(&c->cancel) && clock_now_us(clock_real()) < until)
        left -= queue_pop_wait(t->done, LOOK_US) != NULL;
    for (int i = 0; i < t->n && left; i++) {
        struct check *k = &t->check[i];

        if (k->id)
            router_cancel(c->h->router, k->id);
        end(k, false, "no token within 60 s");
    }
}

/* ---- the request ---- */

static void answer(struct selftest *t, struct conn *c)
{
    struct reply r;
    bool ok = true;

    pthread_mutex_lock(&t->lock);
    for (int i = 0; i < t->n; i++)
        ok = ok && t->check[i].ok;
    reply_open(&r);
    jw_kbool(&r.w, "ok", ok);
    jw_key(&r.w, "checks");
    jw_arr(&r.w);
    for (int i = 0; i < t->n; i++) {
        jw_obj(&r.w);
        jw_kstr(&r.w, "name", t->check[i].name);
        jw_kbool(&r.w, "ok", t->check[i].ok);
        jw_kstr(&r.w, "message", t->check[i].message);
        jw_obj_end(&r.w);
    }
    jw_arr_end(&r.w);
    pthread_mutex_unlock(&t->lock);
    reply_send(c, &r, 200);
}

static void selftest_job(struct conn *c)
{
    struct selftest *t = c->carry;

    check_journal(t, c->h->cfg.store);
    check_disk(t, c->h->cfg.state_dir);
    check_models(t, c);
    answer(t, c);
    atomic_store(&c->h->selftesting, false);
}

static void carry_free(void *carry) { unref(carry); }

void control_selftest(struct conn *c)
{
    struct err e, written;
    struct selftest *t;
    json_t *root;
    int rc;

    if (!handler_store(c))
        return;
    if (body_object(c, "", &root, &e) < 0) {
        conn_answer_err(c, &e);
        return;
    }
    json_decref(root);
    if (atomic_exchange(&c->h->selftesting, true)) {
        err_set(&e, ERR_CONFLICT, "a self-test is running already");
        conn_answer_err(c, &e);
        return;
    }
    t = xcalloc(1, sizeof(*t));
    atomic_init(&t->refs, 1);
    pthread_mutex_init(&t->lock, NULL);
    c->carry = t;
    c->carry_free = carry_free;
    rc = handler_note(c, "selftest", "", "ok", "", &written);
    end(begin(t, "state", ""), rc == 0, rc < 0 ? written.msg : "a row was written");
    if (queue_new(CHECKS_MAX, &t->done, &e) < 0 ||
        pool_push(c->h->pool, c, selftest_job, &e) < 0) {
        atomic_store(&c->h->selftesting, false);
        conn_answer_err(c, &e);
    }
}
