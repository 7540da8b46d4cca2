/* daemon/serve/wire_msg.c - the messages of wire.h: made, and checked as they come in. */
#include "daemon/serve/wire.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/serve/wire_experts.h"
#include "daemon/serve/wire_impl.h"
#include "daemon/serve/wire_kv.h"

/* ---- messages that are one struct ---- */

/* Fields that need more than the right size: strings end inside their array, doubles are
 * finite numbers. */
enum wire_check { CHECK_STR, CHECK_F64 };
static const struct wire_field {
    enum wire_kind kind;
    enum wire_check check;
    size_t off, n;
    const char *name;
} wire_fields[] = {
#define FIELD(kind, check, type, f)                                                      \
    {                                                                                    \
        WIRE_##kind, CHECK_##check, offsetof(struct type, f),                            \
            sizeof(((struct type *)0)->f), #f                                            \
    }
    FIELD(LOADING, F64, wire_loading, done),  FIELD(READY, STR, wire_ready, isa),
    FIELD(READY, STR, wire_ready, layout),    FIELD(READY, STR, wire_ready, kv_type),
    FIELD(READY, STR, wire_ready, main_type), FIELD(READY, STR, wire_ready, family),
    FIELD(READY, STR, wire_ready, format),    FIELD(READY, STR, wire_ready, name),
    FIELD(NOTE, STR, wire_note, action),      FIELD(NOTE, STR, wire_note, text),
    FIELD(FAIL, STR, wire_fail, msg),         FIELD(FINISH, STR, wire_finish, msg),
#undef FIELD
};

static size_t wire_struct_bytes(enum wire_kind kind)
{
    switch (kind) {
    case WIRE_HELLO:
        return sizeof(struct wire_hello);
    case WIRE_LOADING:
        return sizeof(struct wire_loading);
    case WIRE_READY:
        return sizeof(struct wire_ready);
    case WIRE_NOTE:
        return sizeof(struct wire_note);
    case WIRE_FAIL:
        return sizeof(struct wire_fail);
    case WIRE_CANCEL:
        return sizeof(uint64_t);
    case WIRE_SPIN:
        return sizeof(uint32_t);
    case WIRE_POLICY:
        return sizeof(struct wire_policy);
    case WIRE_FINISH:
        return sizeof(struct wire_finish);
    case WIRE_MOVED:
        return sizeof(struct wire_moved);
    default:
        return wire_kv_bytes((int)kind);
    }
}

static bool wire_field_ok(const struct wire_field *f, const uint8_t *p)
{
    double d;

    if (f->check == CHECK_STR)
        return memchr(p + f->off, 0, f->n) != NULL;
    memcpy(&d, p + f->off, sizeof(d));
    return isfinite(d);
}

static int wire_check_policy(const void *payload, struct err *e)
{
    struct wire_policy p;

    memcpy(&p, payload, sizeof(p));
    if (p.order >= SCHED_BY_AGE && p.order <= SCHED_BY_SLACK && p.refuse_late >= 0 &&
        p.refuse_late <= 1 && p.prefill_run >= 1)
        return 0;
    return err_set(e, ERR_SYNTAX, "a POLICY message has a value out of range");
}

static int wire_check_note(const void *payload, struct err *e)
{
    struct wire_note n;

    memcpy(&n, payload, sizeof(n));
    if (n.alarm >= 0 && n.alarm < WIRE_ALARM_COUNT)
        return 0;
    return err_set(e, ERR_SYNTAX, "a NOTE message has a value out of range");
}

int wire_parse(enum wire_kind kind, const void *p, size_t n, void *ret, struct err *e)
{
    size_t want = wire_struct_bytes(kind);

    if (n != want)
        return err_set(e, ERR_SYNTAX, "a %s message has %zu bytes instead of %zu",
                       wire_kind_name(kind), n, want);
    for (size_t i = 0; i < sizeof(wire_fields) / sizeof(wire_fields[0]); i++) {
        const struct wire_field *f = &wire_fields[i];
        if (f->kind == kind && !wire_field_ok(f, p))
            return err_set(e, ERR_SYNTAX, "field %s of a %s message is not well-formed",
                           f->name, wire_kind_name(kind));
    }
    if (kind == WIRE_MOVED && wire_check_moved(p, e) < 0)
        return -1;
    if (kind == WIRE_POLICY && wire_check_policy(p, e) < 0)
        return -1;
    if (kind == WIRE_NOTE && wire_check_note(p, e) < 0)
        return -1;
    if (wire_kv_bytes((int)kind) && wire_kv_check((int)kind, p, e) < 0)
        return -1;
    if (n)
        memcpy(ret, p, n);
    return 0;
}

/* ---- FAIL ---- */

static size_t append_str(char *out, size_t at, size_t cap, const char *s)
{
    while (*s && at + 1 < cap)
        out[at++] = *s++;
    return at;
}

size_t wire_fail_frame(uint8_t *out, uint32_t code, const char *a, const char *b)
{
    struct wire_head h = {sizeof(struct wire_fail), WIRE_FAIL, WIRE_VERSION};
    struct wire_fail f = {.code = code};
    size_t at = append_str(f.msg, 0, sizeof(f.msg), a);

    append_str(f.msg, at, sizeof(f.msg), b);
    memset(out, 0, WIRE_FAIL_BYTES);
    memcpy(out, &h, sizeof(h));
    memcpy(out + sizeof(h), &f, sizeof(f));
    return sizeof(h) + wire_padded(sizeof(f));
}

/* ---- ADD ---- */

int wire_send_add(struct wire_conn *c, const struct wire_add *a, struct err *e)
{
    const struct gen_params *g = &a->params;
    struct wire_part parts[] = {
        {g, sizeof(*g)},
        {a->prompt, sizeof(int32_t) * ((size_t)g->n_prompt + (size_t)g->n_gen)},
        {a->stops, sizeof(int32_t) * (size_t)g->n_stop},
        {a->biases, sizeof(struct step_bias) * (size_t)g->n_bias},
    };
    return wire_send(c, WIRE_ADD, parts, 4, e);
}

/* Bytes that are read as bool must be 0 or 1 before anything reads them as such. */
static bool wire_bools_ok(const uint8_t *p)
{
    static const size_t at[] = {offsetof(struct gen_params, ignore_eos),
                                offsetof(struct gen_params, prompt_logprobs),
                                offsetof(struct gen_params, no_cache)};
    for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++)
        if (p[at[i]] > 1)
            return false;
    return p[offsetof(struct gen_params, handoff)] < GEN_HANDOFF_COUNT;
}

static bool wire_time_ok(int64_t us) { return us >= 0 && us <= GEN_MAX_US; }

static const char *wire_bad_param(const struct gen_params *g)
{
    if (!(g->temperature >= 0) || !isfinite(g->temperature))
        return "temperature";
    if (!(g->top_p >= 0 && g->top_p <= 1))
        return "top_p";
    if (!(g->min_p >= 0 && g->min_p <= 1))
        return "min_p";
    if (!(g->repetition > 0) || !isfinite(g->repetition))
        return "repetition_penalty";
    if (!isfinite(g->presence))
        return "presence_penalty";
    if (!isfinite(g->frequency))
        return "frequency_penalty";
    if (g->top_k < 0)
        return "top_k";
    if (g->n_top < -1 || g->n_top > STEP_TOP_MAX)
        return "top_logprobs";
    return NULL;
}

int wire_parse_add(const void *p, size_t n, struct wire_add *ret, struct err *e)
{
    struct wire_add a;
    const uint8_t *b = p;

    if (n < sizeof(a.params) || !wire_bools_ok(b))
        return err_set(e, ERR_SYNTAX, "an ADD message of %zu bytes is not well-formed",
                       n);
    memcpy(&a.params, b, sizeof(a.params));
    const struct gen_params *g = &a.params;
    if (!wire_time_ok(g->ttft_us) || !wire_time_ok(g->tpot_us) ||
        !wire_time_ok(g->age_us))
        return err_set(e, ERR_SYNTAX, "an ADD message has a time out of range");
    if (g->n_prompt < 0 || g->n_stop < 0 || g->n_bias < 0 || g->n_gen < 0)
        return err_set(e, ERR_SYNTAX, "an ADD message has a negative count");
    /* at least one id is the prompt's, whose first is never scored */
    if (g->n_scored < 0 || (g->n_scored && g->n_scored >= g->n_prompt))
        return err_set(e, ERR_SYNTAX, "an ADD message of %d ids has %d scores",
                       g->n_prompt, g->n_scored);
    size_t np = sizeof(int32_t) * ((size_t)g->n_prompt + (size_t)g->n_gen);
    size_t ns = sizeof(int32_t) * (size_t)g->n_stop;
    size_t nb = sizeof(struct step_bias) * (size_t)g->n_bias;
    if (n != sizeof(a.params) + np + ns + nb)
        return err_set(e, ERR_SYNTAX,
                       "an ADD message has %zu bytes, its counts ask for %zu", n,
                       sizeof(a.params) + np + ns + nb);
    b += sizeof(a.params);
    a.prompt = (const int32_t *)(const void *)b;
    a.stops = (const int32_t *)(const void *)(b + np);
    a.biases = (const struct step_bias *)(const void *)(b + np + ns);
    const char *bad = wire_bad_param(g);
    for (int32_t i = 0; !bad && i < g->n_bias; i++)
        if (!isfinite(a.biases[i].bias))
            bad = "logit_bias";
    *ret = a;
    if (bad)
        return err_param(e, ERR_RANGE, bad, "%s is out of range", bad);
    return 0;
}

/* ---- TOKENS ---- */

/* One token on the wire: this, then n_top ids, then n_top log-probabilities. */
struct wire_tok {
    int32_t id;
    float logprob;
    int32_t n_top;
};

static size_t wire_pack_tok(uint8_t *out, const struct step_token *t)
{
    struct wire_tok w = {t->id, t->logprob, t->n_top};
    size_t n = sizeof(int32_t) * (size_t)t->n_top;

    memcpy(out, &w, sizeof(w));
    memcpy(out + sizeof(w), t->top_id, n);
    memcpy(out + sizeof(w) + n, t->top_logprob, n);
    return sizeof(w) + 2 * n;
}

int wire_send_tokens(struct wire_conn *c, uint64_t id, bool scored,
                     const struct step_token *toks, int n, struct err *e)
{
    while (n > 0) {
        int m = n < WIRE_TOK_MAX ? n : WIRE_TOK_MAX;
        size_t need = (size_t)m * sizeof(struct step_token), len = 0;
        if (c->pack_cap < need) {
            c->pack = xrealloc(c->pack, need);
            c->pack_cap = need;
        }
        for (int i = 0; i < m; i++)
            len += wire_pack_tok(c->pack + len, &toks[i]);
        struct wire_tokens h = {id, m, scored};
        struct wire_part parts[] = {{&h, sizeof(h)}, {c->pack, len}};
        if (wire_send(c, WIRE_TOKENS, parts, 2, e) < 0)
            return -1;
        toks += m;
        n -= m;
    }
    return 0;
}

/* Takes one token off *p; false when it does not fit or holds something odd. */
static bool wire_unpack_tok(const uint8_t **p, const uint8_t *end, struct step_token *ret)
{
    struct wire_tok w;

    if ((size_t)(end - *p) < sizeof(w))
        return false;
    memcpy(&w, *p, sizeof(w));
    *p += sizeof(w);
    if (w.n_top < 0 || w.n_top > STEP_TOP_MAX || !isfinite(w.logprob))
        return false;
    size_t n = sizeof(int32_t) * (size_t)w.n_top;
    if ((size_t)(end - *p) < 2 * n)
        return false;
    *ret = (struct step_token){.id = w.id, .logprob = w.logprob, .n_top = w.n_top};
    memcpy(ret->top_id, *p, n);
    memcpy(ret->top_logprob, *p + n, n);
    *p += 2 * n;
    for (int i = 0; i < w.n_top; i++)
        if (!isfinite(ret->top_logprob[i]))
            return false;
    return true;
}

int wire_parse_tokens(const void *p, size_t n, struct wire_tokens *ret,
                      struct step_token **buf, size_t *buf_cap, struct err *e)
{
    struct wire_tokens h;
    const uint8_t *b = p, *end = b + n;

    if (n < sizeof(h))
        return err_set(e, ERR_SYNTAX, "a TOKENS message has %zu bytes", n);
    memcpy(&h, b, sizeof(h));
    b += sizeof(h);
    if (h.n < 0 || h.n > WIRE_TOK_MAX || (h.scored != 0 && h.scored != 1) ||
        (size_t)h.n > (n - sizeof(h)) / sizeof(struct wire_tok))
        return err_set(e, ERR_SYNTAX, "a TOKENS message of %zu bytes claims %d tokens", n,
                       h.n);
    if (*buf_cap < (size_t)h.n) {
        struct step_token *q = try_realloc(*buf, sizeof(*q) * (size_t)h.n);
        if (!q)
            return err_set(e, ERR_NOMEM, "no memory for %d tokens", h.n);
        *buf = q;
        *buf_cap = (size_t)h.n;
    }
    for (int i = 0; i < h.n; i++)
        if (!wire_unpack_tok(&b, end, &(*buf)[i]))
            return err_set(e, ERR_SYNTAX,
                           "token %d of a TOKENS message is not well-formed", i);
    if (b != end)
        return err_set(e, ERR_SYNTAX, "a TOKENS message has %td bytes too many", end - b);
    *ret = h;
    return 0;
}
