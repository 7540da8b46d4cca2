/* daemon/serve/wire.c - framing and checking of what daemon and engine say to each other.
 *
 * A frame on the socket is struct wire_head, the payload and zero bytes up to a multiple
 * of 8: the next head and every payload then stand aligned in the input buffer, and the
 * arrays of an ADD can be borrowed from it. Both buffers grow with what really arrives or
 * waits, never with what a head promises, and shrink again after a large message.
 *
 * Lifecycle: wire_conn_new takes the descriptor; the first fault marks the connection
 * dead, after which every call fails with the same sentence; wire_conn_free closes. */
#include "daemon/serve/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/serve/wire_fd.h"
#include "daemon/serve/wire_experts.h"
#include "daemon/serve/wire_kv.h"

enum { READ_STEP = 64 << 10, READ_PASS = 1 << 20, KEEP_BYTES = 256 << 10 };

/* Bytes off..len of p are waiting. */
struct wire_buf {
    uint8_t *p;
    size_t off, len, cap;
};

struct wire_conn {
    int fd;
    size_t max_out;
    struct wire_buf in, out;
    uint64_t sent; /* bytes of the stream before out.off */
    struct wire_fds in_fds, out_fds;
    int frame_fd; /* of the frame that wire_next gave last; -1 */
    bool dead, corked;
    struct err why; /* of the death */
    uint8_t *pack;  /* scratch of wire_send_tokens */
    size_t pack_cap;
};

const char *wire_kind_name(enum wire_kind kind)
{
    static const char *const names[] = {
#define X(id) #id,
        WIRE_MAP(X)
#undef X
    };
    return (unsigned)kind < WIRE_COUNT ? names[kind] : "unknown";
}

/* ---- buffers ---- */

static size_t wire_padded(size_t n) { return (n + 7) & ~(size_t)7; }

/* Room for n more bytes behind len. */
static int wire_buf_room(struct wire_buf *b, size_t n, struct err *e)
{
    size_t held = b->len - b->off;

    if (b->off && (b->off == b->len || b->off >= b->cap / 2)) {
        memmove(b->p, b->p + b->off, held);
        b->off = 0;
        b->len = held;
    }
    if (b->cap - b->len >= n)
        return 0;
    size_t cap = b->cap ? b->cap : 4096;
    while (cap - b->len < n)
        cap *= 2;
    uint8_t *p = try_realloc(b->p, cap);
    if (!p)
        return err_set(e, ERR_NOMEM, "no memory for %zu bytes of a message", cap);
    b->p = p;
    b->cap = cap;
    return 0;
}

static void wire_buf_trim(struct wire_buf *b)
{
    if (b->off != b->len || b->cap <= KEEP_BYTES)
        return;
    free(b->p);
    *b = (struct wire_buf){0};
}

static void wire_buf_put(struct wire_buf *b, const void *p, size_t n)
{
    if (n)
        memcpy(b->p + b->len, p, n);
    b->len += n;
}

/* ---- connection ---- */

struct wire_conn *wire_conn_new(int fd, size_t max_out_bytes)
{
    struct wire_conn *c = xcalloc(1, sizeof(*c));

    c->fd = fd;
    c->frame_fd = -1;
    c->max_out = max_out_bytes;
    int fl = fcntl(fd, F_GETFL);
    if (fl >= 0)
        fcntl(fd, F_SETFL, fl | O_NONBLOCK);
    return c;
}

void wire_conn_free(struct wire_conn *c)
{
    if (!c)
        return;
    if (c->fd >= 0)
        close(c->fd);
    if (c->frame_fd >= 0)
        close(c->frame_fd);
    wire_fds_done(&c->in_fds);
    wire_fds_done(&c->out_fds);
    free(c->in.p);
    free(c->out.p);
    free(c->pack);
    free(c);
}

int wire_conn_fd(const struct wire_conn *c) { return c->fd; }

/* Remember why: the sentence is *e already. */
static int wire_die(struct wire_conn *c, const struct err *e)
{
    c->dead = true;
    c->why = *e;
    return -1;
}

static int wire_dead(const struct wire_conn *c, struct err *e)
{
    if (e)
        *e = c->why;
    return -1;
}

/* ---- output ---- */

bool wire_wants_write(const struct wire_conn *c)
{
    return !c->dead && c->out.len > c->out.off;
}

static int wire_write_some(struct wire_conn *c, struct err *e)
{
    while (c->out.off < c->out.len) {
        size_t n = c->out.len - c->out.off;
        ssize_t w = wire_fds_send(&c->out_fds, c->fd, c->out.p + c->out.off, n, c->sent);
        if (w >= 0) {
            c->out.off += (size_t)w;
            c->sent += (size_t)w;
            continue;
        }
        if (errno == EINTR)
            continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            return 0;
        return err_errno(e, ERR_IO, "write to the other process");
    }
    wire_buf_trim(&c->out);
    return 0;
}

int wire_flush(struct wire_conn *c, struct err *e)
{
    struct err why;

    if (c->dead)
        return wire_dead(c, e);
    if (wire_write_some(c, &why) < 0) {
        wire_die(c, &why);
        return wire_dead(c, e);
    }
    size_t left = c->out.len - c->out.off;
    if (left > c->max_out) {
        err_set(&why, ERR_TOOBIG, "the other process does not read: %zu bytes wait",
                left);
        wire_die(c, &why);
        return wire_dead(c, e);
    }
    return 0;
}

int wire_send(struct wire_conn *c, enum wire_kind kind, const struct wire_part *parts,
              int n_parts, struct err *e)
{
    static const uint8_t zero[8];
    size_t n = 0;
    struct err why;

    if (c->dead)
        return wire_dead(c, e);
    for (int i = 0; i < n_parts; i++)
        if (size_add(n, parts[i].n, &n) < 0 || n > WIRE_MAX)
            return err_set(e, ERR_TOOBIG, "a %s message is over %d bytes",
                           wire_kind_name(kind), WIRE_MAX);
    struct wire_head h = {(uint32_t)n, (uint16_t)kind, WIRE_VERSION};
    if (wire_buf_room(&c->out, sizeof(h) + wire_padded(n), &why) < 0) {
        wire_die(c, &why);
        return wire_dead(c, e);
    }
    wire_buf_put(&c->out, &h, sizeof(h));
    for (int i = 0; i < n_parts; i++)
        wire_buf_put(&c->out, parts[i].p, parts[i].n);
    wire_buf_put(&c->out, zero, wire_padded(n) - n);
    if (c->corked && c->out.len - c->out.off <= KEEP_BYTES)
        return 0;
    return wire_flush(c, e);
}

void wire_cork(struct wire_conn *c) { c->corked = true; }

int wire_uncork(struct wire_conn *c, struct err *e)
{
    c->corked = false;
    return wire_flush(c, e);
}

/* ---- input ---- */

int wire_fill(struct wire_conn *c, struct err *e)
{
    size_t got = 0;
    struct err why;

    if (c->dead)
        return wire_dead(c, e);
    while (got < READ_PASS) {
        /* the owner takes frames after each fill: more than one cannot pile up */
        if (c->in.len - c->in.off > 2u * WIRE_MAX) {
            err_set(&why, ERR_TOOBIG, "messages pile up unread");
            goto fail;
        }
        if (wire_buf_room(&c->in, READ_STEP, &why) < 0)
            goto fail;
        ssize_t r =
            wire_fds_recv(&c->in_fds, c->fd, c->in.p + c->in.len, c->in.cap - c->in.len);
        if (r > 0) {
            c->in.len += (size_t)r;
            got += (size_t)r;
            continue;
        }
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        if (r < 0 && errno != ECONNRESET) {
            err_errno(&why, ERR_IO, "read from the other process");
            goto fail;
        }
        return got ? 0 : 1; /* the end is still there at the next call */
    }
    return 0;

fail:
    wire_die(c, &why);
    return wire_dead(c, e);
}

int wire_attach_fd(struct wire_conn *c, int fd, struct err *e)
{
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);

    if (own < 0)
        return err_errno(e, ERR_IO, "a descriptor for the other process");
    return wire_fds_push(&c->out_fds, own, c->sent + (c->out.len - c->out.off), e);
}

int wire_take_fd(struct wire_conn *c)
{
    int fd = c->frame_fd;

    c->frame_fd = -1;
    return fd;
}

int wire_next(struct wire_conn *c, enum wire_kind *kind, const void **payload, size_t *n,
              struct err *e)
{
    struct wire_head h;
    struct err why;

    if (c->dead)
        return wire_dead(c, e);
    size_t held = c->in.len - c->in.off;
    if (held < sizeof(h)) {
        wire_buf_trim(&c->in);
        return 0;
    }
    memcpy(&h, c->in.p + c->in.off, sizeof(h));
    if (h.version != WIRE_VERSION || h.kind >= WIRE_COUNT || h.bytes > WIRE_MAX) {
        err_set(
            &why, ERR_SYNTAX,
            "not a message: version %u, kind %u, %u bytes (version %d, kind below %d, "
            "at most %d bytes would be right)",
            h.version, h.kind, h.bytes, WIRE_VERSION, WIRE_COUNT, WIRE_MAX);
        wire_die(c, &why);
        return wire_dead(c, e);
    }
    size_t whole = sizeof(h) + wire_padded(h.bytes);
    if (held < whole)
        return 0;
    if (c->frame_fd >= 0)
        close(c->frame_fd);
    c->frame_fd =
        h.kind == WIRE_ARENA || h.kind == WIRE_PEER ? wire_fds_pop(&c->in_fds) : -1;
    *kind = (enum wire_kind)h.kind;
    *payload = c->in.p + c->in.off + sizeof(h);
    *n = h.bytes;
    c->in.off += whole;
    return 1;
}

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
