/* daemon/api/infer.c - chat and text completions, /tokenize and /detokenize.
 *
 * On a worker thread, the connection parked: check the body, find the model, turn text
 * into ids, check the lengths; then gen.c. Everything that can be refused is refused
 * here, before a stream begins. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "daemon/api/access.h"
#include "daemon/api/conn.h"
#include "daemon/api/gen.h"
#include "daemon/api/params.h"
#include "daemon/api/route.h"
#include "daemon/api/rules.h"
#include "daemon/api/server.h"
#include "daemon/ctrl/router.h"
#include "daemon/serve/metrics.h"

/* Date in the words of the Llama 3 template. */
static void today(char *to, size_t cap)
{
    time_t now = (time_t)(clock_wall_ms() / 1000);
    struct tm tm;

    if (!gmtime_r(&now, &tm) || !strftime(to, cap, "%d %b %Y", &tm))
        to[0] = '\0';
}

static int encode_chat(const struct params *p, const struct served *m,
                       const atomic_bool *cancel, struct tok_ids *out, struct err *e)
{
    char date[32];

    if (m->chat == TEMPLATE_NONE)
        return err_param(e, ERR_UNSUPPORTED, "messages",
                         "model '%s' has no chat template that this server knows; use "
                         "/v1/completions",
                         m->name);
    today(date, sizeof(date));
    const struct template_how how = {.today = date, .effort = p->effort};
    return template_render(m->chat, m->tok, p->msgs, p->n_msgs, &how, (size_t)m->n_ctx,
                           cancel, out, e);
}

static int encode_prompt(const struct params_prompt *p, const struct served *m,
                         const atomic_bool *cancel, struct tok_ids *out, struct err *e)
{
    if (p->text)
        return tokenizer_encode(m->tok, p->text, p->n, TOK_ADD_BOS, (size_t)m->n_ctx,
                                cancel, out, e);
    if (p->n > (size_t)m->n_ctx)
        return err_set(e, ERR_CONTEXT, "too long");
    out->v = xmalloc(p->n * sizeof(*out->v));
    memcpy(out->v, p->ids, p->n * sizeof(*out->v));
    out->n = out->cap = p->n;
    return 0;
}

/* The answer's room beside a prompt of n ids. */
static int fit(const struct params *p, const struct served *m, size_t n, int *ret_max,
               struct err *e)
{
    const char *field = p->kind == PARAMS_CHAT ? "messages" : "prompt";
    int64_t room = m->n_ctx - (int64_t)n;

    if (n == 0)
        return err_param(e, ERR_INVALID, field, "%s holds no token", field);
    if (room < 1 || p->max_tokens > room)
        return err_param(e, ERR_CONTEXT, field,
                         "the context is %d tokens, but the prompt has %zu and %lld more "
                         "are asked for",
                         m->n_ctx, n, (long long)(p->max_tokens > 0 ? p->max_tokens : 1));
    *ret_max = (int)(p->max_tokens >= 0 ? p->max_tokens : room);
    return 0;
}

static int encode_all(struct conn *c, struct gen_cfg *g, struct err *e)
{
    const struct params *p = g->p;
    const struct served *m = g->m;
    const char *field = p->kind == PARAMS_CHAT ? "messages" : "prompt";
    int rc;

    for (int i = 0; i < g->n_prompts; i++) {
        if (p->kind == PARAMS_CHAT)
            rc = encode_chat(p, m, &c->cancel, &g->prompts[i], e);
        else
            rc = encode_prompt(&p->prompts[i], m, &c->cancel, &g->prompts[i], e);
        if (rc < 0 && e->code == ERR_CONTEXT)
            return err_param(e, ERR_CONTEXT, field,
                             "%s is longer than the context of %d tokens", field,
                             m->n_ctx);
        if (rc < 0 || fit(p, m, g->prompts[i].n, &g->max_tokens[i], e) < 0)
            return -1;
    }
    return 0;
}

static void note_unknown(struct conn *c, const struct params *p)
{
    if (!p->n_unknown)
        return;
    http_count(c->h, M_UNKNOWN_FIELDS, 0, p->n_unknown);
    for (int i = 0; i < p->n_unknown && i < 16; i++)
        http_note_key(c->h, params_unknown(p, i));
}

static void infer(struct conn *c, enum params_kind kind)
{
    struct gen_cfg g = {.c = c};
    struct served_hot hot;
    struct err e;

    if (params_parse(c->body.len ? c->body.p : "", c->body.len, kind, &g.p, &e) < 0)
        goto fail;
    http_log_content(c, "request", c->body.p, c->body.len);
    conn_drop_body(c);
    note_unknown(c, g.p);
    g.m = router_model(c->h->router, g.p->model, &e);
    if (g.m)
        c->page = router_model_page(c->h->router, g.m->name);
    if (!g.m || params_check_model(g.p, g.m->n_vocab, &e) < 0)
        goto fail;
    if (account_name(c, g.m->instance, g.p->slo_class, &e) < 0)
        goto fail;
    router_hot(c->h->router, g.m, &hot);
    if (hot.trial && access_may(&c->who, ACCESS_ADMIN, &e) < 0) {
        err_set(&e, ERR_DENIED,
                "model '%s' is on trial with settings that change its output: it answers "
                "administrators alone",
                g.m->name);
        goto fail;
    }
    params_sampling(g.p, hot.temperature, hot.top_p);
    g.n_prompts = kind == PARAMS_CHAT ? 1 : g.p->n_prompts;
    g.prompts = xcalloc((size_t)g.n_prompts, sizeof(*g.prompts));
    g.max_tokens = xcalloc((size_t)g.n_prompts, sizeof(*g.max_tokens));
    if (encode_all(c, &g, &e) < 0)
        goto fail;
    g.p->gen.salt =
        access_salt(c->h->cfg.access, &c->who, rules_isolate(c->rules, g.m->name));
    gen_start(&g);
    return;

fail:
    conn_answer_err(c, &e);
    for (int i = 0; g.prompts && i < g.n_prompts; i++)
        tok_ids_done(&g.prompts[i]);
    free(g.prompts);
    free(g.max_tokens);
    params_free(g.p);
    if (g.m)
        router_unref(c->h->router, g.m);
}

void api_chat(struct conn *c) { infer(c, PARAMS_CHAT); }

void api_text(struct conn *c) { infer(c, PARAMS_TEXT); }

/* ---- tokens ---- */

/* The JSON object of a body and the model that it names. */
static int read_object(struct conn *c, json_t **ret, const struct served **ret_m,
                       struct err *e)
{
    const struct js_limits lim = {0, PARAMS_MAX_DEPTH};
    const char *model = NULL;
    json_t *root;

    if (js_parse(c->body.len ? c->body.p : "", c->body.len, &lim, &root, e) < 0)
        return err_wrap(e, "body");
    if (!json_is_object(root)) {
        json_decref(root);
        return err_set(e, ERR_INVALID, "the body must be a JSON object");
    }
    if (js_get_str(root, "model", &model, NULL, e) < 0 ||
        !(*ret_m = router_model(c->h->router, model, e))) {
        json_decref(root);
        return -1;
    }
    *ret = root;
    return 0;
}

static int read_text(const json_t *root, const char **ret, size_t *ret_n, struct err *e)
{
    int got = js_get_str(root, "text", ret, ret_n, e);
    int more = got < 0 ? -1 : js_get_str(root, "prompt", ret, ret_n, e);

    if (more < 0)
        return -1;
    if (got == 0 && more == 0)
        return err_param(e, ERR_INVALID, "prompt", "prompt (or text) is required");
    return 0;
}

void api_tokenize(struct conn *c)
{
    const struct served *m = NULL;
    json_t *root = NULL;
    struct tok_ids ids = {0};
    const char *text;
    size_t n;
    bool special = true;
    struct err e;
    struct buf b;
    struct jw w;

    buf_init(&b, 0);
    if (read_object(c, &root, &m, &e) < 0 || read_text(root, &text, &n, &e) < 0 ||
        js_get_bool(root, "add_special_tokens", &special, &e) < 0 ||
        tokenizer_encode(m->tok, text, n, special ? TOK_ADD_BOS : 0, 0, &c->cancel, &ids,
                         &e) < 0) {
        conn_answer_err(c, &e);
        goto done;
    }
    jw_init(&w, &b);
    jw_obj(&w);
    jw_kint(&w, "count", (int64_t)ids.n);
    jw_kint(&w, "max_model_len", m->n_ctx);
    jw_key(&w, "tokens");
    jw_arr(&w);
    for (size_t i = 0; i < ids.n; i++)
        jw_int(&w, ids.v[i]);
    jw_arr_end(&w);
    jw_obj_end(&w);
    conn_answer(c, 200, "application/json", &b);

done:
    buf_done(&b);
    tok_ids_done(&ids);
    json_decref(root);
    if (m)
        router_unref(c->h->router, m);
}

static int check_ids(const int32_t *ids, size_t n, int n_vocab, struct err *e)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= n_vocab)
            return err_param(e, ERR_RANGE, "tokens",
                             "token id %d is not in the vocabulary of %d tokens",
                             (int)ids[i], n_vocab);
    return 0;
}

void api_detokenize(struct conn *c)
{
    const struct served *m = NULL;
    struct params_block *blocks = NULL;
    json_t *root = NULL;
    int32_t *ids;
    size_t n;
    struct err e;
    struct buf b, text;
    struct jw w;

    buf_init(&b, 0);
    buf_init(&text, 0);
    if (read_object(c, &root, &m, &e) < 0 ||
        params_ids(&blocks, json_object_get(root, "tokens"), "tokens", &ids, &n, &e) <
            0 ||
        check_ids(ids, n, m->n_vocab, &e) < 0) {
        conn_answer_err(c, &e);
        goto done;
    }
    tokenizer_decode(m->tok, ids, n, true, &text);
    jw_init(&w, &b);
    jw_obj(&w);
    jw_key(&w, "prompt");
    jw_strn(&w, text.len ? text.p : "", text.len);
    jw_key(&w, "text");
    jw_strn(&w, text.len ? text.p : "", text.len);
    jw_obj_end(&w);
    conn_answer(c, 200, "application/json", &b);

done:
    buf_done(&b);
    buf_done(&text);
    params_blocks_free(blocks);
    json_decref(root);
    if (m)
        router_unref(c->h->router, m);
}
