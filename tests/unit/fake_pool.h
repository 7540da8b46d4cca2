/* tests/unit/fake_pool.h - engines of a prefill and of a decode pool that are the test
 * program itself, as fake_engine.h, speaking the messages of wire_kv.h.
 *
 * Of whatever model ends in "pool". The k-th token of every answer is 100 + k, so that a
 * test sees what is missing, doubled or out of order. The prompt's first two ids say what
 * the prefill and the decode engine do with the request (the enums below); what kills an
 * engine does it once in a test, for the file "<model>.died" is there afterwards. */
#ifndef TESTS_FAKE_POOL_H
#define TESTS_FAKE_POOL_H

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "daemon/serve/wire_kv.h"
#include "kernels/backend.h"
#include "tests/unit/fake_engine.h"

enum pool_p {
    P_WELL = 1,
    P_DIES_AT_ADD,
    P_DIES_BEFORE_TOKEN, /* the last EXPORT was sent */
    P_DIES_AFTER_TOKEN,  /* but not its finish */
    P_SILENT,            /* until it is cancelled */
    P_FAILS,             /* ERROR */
    P_WHOLE,             /* the first token ends the answer */
    P_STOPS,             /* by SIGSTOP */
    P_RETURNS
};
enum pool_d {
    D_WELL = 1,
    D_DIES_AT_ADD,
    D_DIES_RESERVED,
    D_DIES_AT_LAST, /* EXPORT */
    D_DIES_AFTER_TOKEN,
    D_LOSES,     /* LOST in place of the last PULLED */
    D_HAS_NO_KV, /* never reserved, until it is cancelled */
    D_STOPS,     /* when it has reserved */
    D_HOLDS,     /* one token, until it is cancelled */
    D_CLAIMS,    /* PULLED in the name of another reader */
    D_READS_ON   /* the last PULLED comes when it is asked again */
};

struct pool_req {
    uint64_t id, peer;
    int p, d, max, n_gen;
    bool import, whole;
};

struct pool {
    struct fake f;
    enum engine_role role;
    uint64_t me, peers[16];
    int n_peers, n_req;
    struct wire_pulled owed; /* id 0: none */
    struct pool_req req[256];
    char died[512], late[512];
};

/* Once only. */
static void pool_die(struct pool *x, int sig)
{
    int fd = open(x->died, O_CREAT | O_EXCL | O_WRONLY, 0600);

    if (fd < 0)
        return;
    close(fd);
    wire_flush(x->f.c, NULL);
    raise(sig);
}

static void pool_token(struct pool *x, uint64_t id, int k)
{
    struct step_token tok = {.id = 100 + k};

    wire_send_tokens(x->f.c, id, false, &tok, 1, NULL);
    metric_add(x->f.page, M_STEPS, 0, 1);
}

static struct pool_req *pool_find(struct pool *x, uint64_t id)
{
    for (int i = 0; i < x->n_req; i++)
        if (x->req[i].id == id)
            return &x->req[i];
    return NULL;
}

static void pool_forget(struct pool *x, struct pool_req *q) { *q = x->req[--x->n_req]; }

/* From the token n_gen on. */
static void pool_answer(struct pool *x, struct pool_req *q)
{
    for (int k = q->n_gen; k < q->max; k++) {
        pool_token(x, q->id, k);
        if (q->d == D_HOLDS)
            return;
        if (q->d == D_DIES_AFTER_TOKEN)
            pool_die(x, SIGKILL);
    }
    fake_finish(&x->f, q->id, FINISH_LENGTH, q->max);
    pool_forget(x, q);
}

static void pool_export(struct pool *x, uint64_t id, int n_prompt, bool last)
{
    static const int32_t gen = 100;
    static const struct wire_block block = {.id = 0, .gen = 1};
    const struct wire_offer o = {.h = {.id = id,
                                       .incarnation = x->me,
                                       .n = 1,
                                       .upto = last ? n_prompt : 1,
                                       .n_tok = n_prompt,
                                       .block_tok = 4096,
                                       .n_gen = last,
                                       .last = last},
                                 .blocks = &block,
                                 .gen = &gen};

    if (wire_send_export(x->f.c, &o, NULL) < 0)
        _exit(12);
}

static void pool_prefill(struct pool *x, struct pool_req *q, int n_prompt)
{
    if (q->p == P_DIES_AT_ADD)
        pool_die(x, SIGKILL);
    if (q->p == P_STOPS)
        pool_die(x, SIGSTOP);
    if (q->p == P_SILENT)
        return;
    if (q->p == P_FAILS || q->p == P_RETURNS || q->p == P_WHOLE) {
        if (q->p == P_WHOLE)
            pool_token(x, q->id, 0);
        fake_finish(&x->f, q->id,
                    q->p == P_FAILS     ? FINISH_ERROR
                    : q->p == P_RETURNS ? FINISH_RETURNED
                                        : FINISH_STOP,
                    q->p == P_WHOLE);
        pool_forget(x, q);
        return;
    }
    metric_add(x->f.page, M_HANDOFF_EXPORTS, 0, q->d == D_READS_ON);
    pool_export(x, q->id, n_prompt, false);
    pool_export(x, q->id, n_prompt, true);
    if (q->p == P_DIES_BEFORE_TOKEN)
        pool_die(x, SIGKILL);
    pool_token(x, q->id, 0);
    if (q->p == P_DIES_AFTER_TOKEN)
        pool_die(x, SIGKILL);
    fake_finish(&x->f, q->id, FINISH_HANDOFF, 1);
    pool_forget(x, q);
}

static void pool_import(struct pool *x, struct pool_req *q)
{
    struct wire_reserved r = {.id = q->id};
    bool known = false;

    for (int i = 0; i < x->n_peers; i++)
        known = known || x->peers[i] == q->peer;
    if (!known)
        _exit(11); /* nobody has introduced it */
    if (q->d == D_DIES_AT_ADD)
        pool_die(x, SIGKILL);
    if (q->d == D_HAS_NO_KV)
        return;
    fake_send(&x->f, WIRE_RESERVED, &r, sizeof(r));
    if (q->d == D_DIES_RESERVED)
        pool_die(x, SIGKILL);
    if (q->d == D_STOPS)
        pool_die(x, SIGSTOP);
}

static void pool_add(struct pool *x, const struct wire_add *a)
{
    const struct gen_params *p = &a->params;
    struct pool_req *q;

    if (x->n_req == 256 || pool_find(x, p->id))
        _exit(18); /* more than any test has, or an id twice */
    if (x->owed.id)
        fake_send(&x->f, WIRE_PULLED, &x->owed, sizeof(x->owed));
    x->owed.id = 0;
    q = &x->req[x->n_req++];
    *q = (struct pool_req){.id = p->id,
                           .peer = p->peer,
                           .p = a->prompt[0],
                           .d = a->prompt[1],
                           .max = p->max_tokens,
                           .n_gen = p->n_gen,
                           .import = p->handoff == GEN_IMPORT};
    for (int i = 0; i < p->n_gen; i++)
        if (a->prompt[p->n_prompt + i] != 100 + i)
            _exit(13);
    metric_add(x->f.page, M_STEPS, 0, 1);
    if (p->handoff == GEN_EXPORT)
        pool_prefill(x, q, p->n_prompt);
    else if (q->import)
        pool_import(x, q);
    else
        pool_answer(x, q);
}

static void pool_offered(struct pool *x, const struct wire_offer *o)
{
    struct pool_req *q = pool_find(x, o->h.id);
    struct wire_pulled m = {.id = o->h.id,
                            .incarnation = o->h.incarnation,
                            .reader = x->me + (q && q->d == D_CLAIMS),
                            .bytes = 64};
    struct wire_lost lost = {.id = o->h.id, .code = ERR_TIMEOUT, .msg = "too late"};

    if (!q || !q->import)
        return;
    m.upto = o->h.upto;
    m.final = o->h.last;
    if (o->h.last && q->d == D_DIES_AT_LAST)
        pool_die(x, SIGKILL);
    if (o->h.last && q->d == D_LOSES) {
        fake_send(&x->f, WIRE_LOST, &lost, sizeof(lost));
        return;
    }
    if (o->h.last && q->d == D_READS_ON)
        x->owed = m;
    else
        fake_send(&x->f, WIRE_PULLED, &m, sizeof(m));
    if (!o->h.last)
        return;
    q->import = false;
    q->n_gen = o->h.n_gen;
    pool_answer(x, q);
}

static void pool_recompute(struct pool *x, const void *p, size_t n)
{
    struct wire_recompute r;
    const int32_t *ids;
    struct pool_req *q;

    if (wire_parse_recompute(p, n, &r, &ids, NULL) < 0)
        _exit(14);
    q = pool_find(x, r.id);
    if (!q || !q->import) /* it has all */
        return;
    q->import = false;
    q->n_gen = r.n_gen;
    pool_answer(x, q);
}

static void pool_peer(struct pool *x, bool here, uint64_t who)
{
    int k = 0;

    for (int i = 0; i < x->n_peers; i++)
        if (x->peers[i] != who)
            x->peers[k++] = x->peers[i];
    x->n_peers = k;
    if (here)
        x->peers[x->n_peers++ % 16] = who;
}

static void pool_cancel(struct pool *x, uint64_t id)
{
    struct pool_req *q = pool_find(x, id);

    if (!q)
        return;
    fake_finish(&x->f, id, FINISH_ABORT, q->n_gen);
    pool_forget(x, q);
}

static void pool_frame(struct pool *x, enum wire_kind kind, const void *p, size_t n)
{
    union {
        struct wire_arena arena;
        struct wire_pulled pulled;
        uint64_t id;
    } m;
    struct wire_offer o;
    struct wire_add a;
    int fd;

    if (kind == WIRE_ADD && wire_parse_add(p, n, &a, NULL) == 0) {
        if (a.params.id >= (uint64_t)1 << 62)
            fake_warm(&x->f, &a);
        else
            pool_add(x, &a);
    } else if (kind == WIRE_EXPORT && wire_parse_export(p, n, &o, NULL) == 0) {
        pool_offered(x, &o);
    } else if (kind == WIRE_PULLED && wire_parse(kind, p, n, &m, NULL) == 0) {
        if (m.pulled.final)
            metric_set(x->f.page, M_HANDOFF_EXPORTS, 0, 0);
    } else if (kind == WIRE_RECOMPUTE) {
        pool_recompute(x, p, n);
    } else if (kind == WIRE_PEER && wire_parse(kind, p, n, &m, NULL) == 0) {
        fd = wire_take_fd(x->f.c);
        if (fd < 0)
            _exit(15);
        close(fd);
        pool_peer(x, true, m.arena.incarnation);
    } else if (kind == WIRE_PEER_GONE && wire_parse(kind, p, n, &m, NULL) == 0) {
        if (x->role == ENGINE_BOTH)
            _exit(17); /* it knows of none */
        pool_peer(x, false, m.id);
    } else if (kind == WIRE_CANCEL && wire_parse(kind, p, n, &m, NULL) == 0) {
        pool_cancel(x, m.id);
    } else if (kind == WIRE_PING) {
        fake_send(&x->f, WIRE_PONG, NULL, 0);
    } else if (kind == WIRE_STOP) {
        _exit(0);
    }
}

static void pool_ready(struct pool *x)
{
    struct wire_ready ready = {.n_ctx = 64, .n_vocab = 8, .load_us = 1000};
    struct wire_arena a = {.incarnation = x->me,
                           .bytes = 4096,
                           .n_arenas = 2,
                           .n_blocks = 4,
                           .n_layer = 1,
                           .all_layers = 1,
                           .n_head = 1,
                           .all_heads = 1,
                           .head_dim = 64,
                           .cp = 1,
                           .block_tok = KV_BLOCK_TOK};
    int fd = memfd_create("arena", MFD_CLOEXEC);

    ready.incarnation = x->me;
    ready.role = x->role;
    ready.n_arenas = x->role == ENGINE_PREFILL ? 2 : 0;
    fake_send(&x->f, WIRE_READY, &ready, sizeof(ready));
    for (a.rank = -1; a.rank < ready.n_arenas - 1; a.rank++)
        if (wire_send_arena(x->f.c, false, &a, fd, NULL) < 0)
            _exit(16);
    close(fd);
}

static void pool_run(struct pool *x)
{
    struct wire_hello hello = {WIRE_VERSION, (uint32_t)getpid()};
    int rc = 0;

    x->f.c = wire_conn_new(3, 64 << 20);
    if (metric_page_map(metrics_defs, METRICS_N, 4, &x->f.page, NULL) < 0)
        _exit(8);
    x->me = (uint64_t)getpid() << 20 | 1;
    fake_send(&x->f, WIRE_HELLO, &hello, sizeof(hello));
    while (x->role == ENGINE_PREFILL && access(x->late, F_OK) == 0)
        poll(NULL, 0, 5);
    pool_ready(x);
    while (rc != 1 && rc != -1) {
        struct pollfd p = {wire_conn_fd(x->f.c), POLLIN, 0};
        enum wire_kind kind;
        const void *at;
        size_t n;

        if (wire_wants_write(x->f.c))
            p.events |= POLLOUT;
        poll(&p, 1, -1);
        wire_flush(x->f.c, NULL);
        rc = wire_fill(x->f.c, NULL);
        while (wire_next(x->f.c, &kind, &at, &n, NULL) == 1)
            pool_frame(x, kind, at, n);
    }
    _exit(0);
}

/* Does not return in an engine of such a model. */
static void fake_pool_main(int argc, char **argv)
{
    static struct pool x;
    bool is_pool = false;

    if (argc < 2 || strncmp(argv[1], "--fd=", 5))
        return;
    x.f.act = "pool";
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--role=prefill")) {
            x.role = ENGINE_PREFILL;
        } else if (!strcmp(argv[i], "--role=decode")) {
            x.role = ENGINE_DECODE;
        } else if (!strncmp(argv[i], "--model=", 8)) {
            is_pool = !strcmp(strrchr(argv[i], '/'), "/pool");
            snprintf(x.died, sizeof(x.died), "%s.died", argv[i] + 8);
            snprintf(x.late, sizeof(x.late), "%s.late", argv[i] + 8);
        }
    if (is_pool)
        pool_run(&x);
}

#endif
