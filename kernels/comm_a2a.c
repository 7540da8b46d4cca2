/* kernels/comm_a2a.c - all-to-all of rows, flat or in two hops, whole or in halves.
 *
 * A piece of a member's stage: how many rows it sends to whom, a tag and a mark of
 * sameness for each row, then rows. Each row has a `hop`: the member that reads it. Flat,
 * that is its destination. In two levels a row for another host changes once: where equal
 * rows are marked it crosses to a member there, the one that stands as its sender does,
 * once for all destinations on that host, and is handed out inside (dispatch); where they
 * are not it is collected inside by the member that stands as its destination does, and
 * crosses with all others for that destination in one message (the way home). Rows for
 * the own host go straight. What changed goes in a second row of pieces, ordered by
 * destination, then by sender, so that everybody finds his rows from the counts alone.
 *
 * Rows land in y by member and in the order they were sent, whatever the path. The first
 * half of a call puts the first piece and returns; the second half reads it and does the
 * rest. Each call in flight has a lane of rounds of its own (comm_impl.h). */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"
#include "kernels/comm_impl.h"

enum { LINE = 64 };
enum { X, Y, SEND, RECV, TAG_X }; /* buffers of the op; then tag_y, same, those given */
enum { HAS_TAG = 1, HAS_SAME = 2 };

struct a2a {
    const char *x;
    char *y;
    const int32_t *send, *tag_x, *same;
    int32_t *recv, *tag_y;
    int64_t row, max_recv, x_bytes; /* row: bytes; x_bytes: of its buffer */
    int64_t head, step;             /* bytes before a piece's rows; rows in a piece */
    int64_t mine;                   /* rows that I send */
    const int16_t *via;             /* [from][to]; NULL when flat */
    /* scratch */
    int32_t *counts; /* [from][to] */
    int32_t *passed; /* [through][to]: rows that change once, by who passes them on */
    int64_t *base;   /* [from]: where its rows begin in y */
    int64_t *relay;  /* [from][to]: where its rows begin in what I pass on */
    const char **pass;
    int32_t *pass_tag;
    const char **seen; /* of each sender's rows, by its mark */
    int64_t *seen_at;  /* [from] */
    char *kept;        /* rows that I pass on */
    int64_t n_kept, n_pass;
};

static int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t sum(const int32_t *v, int n)
{
    int64_t all = 0;

    for (int i = 0; i < n; i++)
        all += v[i];
    return all;
}

/* ---- who reads a row ---- */

/* The how-manieth member of its host a member is, and the member of a host that is so. */
static int place_in_host(const struct comm_group *g, int member)
{
    int at = 0;

    for (int m = 0; m < member; m++)
        at += g->host[m] == g->host[member];
    return at;
}

static int at_place(const struct comm_group *g, int host, int place)
{
    int n = 0, at = -1;

    for (int m = 0; m < g->n; m++)
        n += g->host[m] == host;
    place %= n;
    while (place >= 0)
        place -= g->host[++at] == host;
    return at;
}

int16_t *comm_via_new(const struct comm_group *g)
{
    int16_t *via;
    int p = g->n;

    if (!g->two_level)
        return NULL;
    via = malloc(sizeof(*via) * 2 * (size_t)(p * p));
    for (int s = 0; via && s < p; s++)
        for (int d = 0; d < p; d++) {
            bool away = g->host[s] != g->host[d];
            via[s * p + d] =
                (int16_t)(away ? at_place(g, g->host[s], place_in_host(g, d)) : d);
            via[(p + s) * p + d] =
                (int16_t)(away ? at_place(g, g->host[d], place_in_host(g, s)) : d);
        }
    return via;
}

static int hop(const struct a2a *r, int p, int from, int to)
{
    return r->via ? r->via[from * p + to] : to;
}

/* ---- pieces ---- */

static int32_t *piece_marks(char *stage, const struct comm *c)
{
    return (int32_t *)stage + ((size_t)c->p + 15) / 16 * 16;
}

static int measure(struct comm *c, struct a2a *r, struct err *e)
{
    int64_t chunk = (int64_t)c->f->head->chunk;
    int64_t counts = (c->p + 15) / 16 * LINE;
    int64_t room = chunk - counts - LINE;

    r->step = r->row > 0 ? room / (r->row + 8) : 0;
    if (r->step < 1)
        return err_set(e, ERR_RANGE, "rows of %lld bytes: 1 to %lld", (long long)r->row,
                       (long long)room - 8);
    r->head = counts + (r->step * 8 + LINE - 1) / LINE * LINE;
    return 0;
}

/* A list of rows by destination, list[d] of each, in pieces. */
static int64_t n_pieces(const struct a2a *r, int p, const int32_t *list)
{
    int64_t n = sum(list, p), room = r->step > p ? r->step - p : r->step;

    return (n + room - 1) / room;
}

/* Rows of a list for destination d in piece k: from..from+n-1 of them, at row `at` of the
 * piece. A part of each destination's, in proportion; where a piece has hardly room for a
 * row of each, the list as it stands. */
struct slice {
    int64_t from, n, at;
};

static struct slice slice_of(const struct a2a *r, int p, const int32_t *list, int d,
                             int64_t k)
{
    int64_t all = n_pieces(r, p, list), first = 0;
    struct slice s = {0};

    if (k >= all)
        return s;
    if (r->step > p) {
        for (int i = 0; i < d; i++)
            s.at += list[i] * (k + 1) / all - list[i] * k / all;
        s.from = list[d] * k / all;
        s.n = list[d] * (k + 1) / all - s.from;
        return s;
    }
    for (int i = 0; i < d; i++)
        first += list[i];
    int64_t lo = max_i64(first, k * r->step);
    int64_t hi = min_i64(first + list[d], (k + 1) * r->step);
    return (struct slice){lo - first, max_i64(hi - lo, 0), lo - k * r->step};
}

/* Piece k of my rows of x into the stage. */
static int put_first(struct comm *c, const struct a2a *r, int64_t k, struct err *e)
{
    int64_t first = 0;
    int32_t *marks;
    char *stage;

    if (comm_round_open(c, &stage, e) < 0)
        return -1;
    memcpy(stage, r->send, (size_t)c->p * sizeof(int32_t));
    marks = piece_marks(stage, c);
    for (int d = 0; d < c->p; first += r->send[d++]) {
        struct slice s = slice_of(r, c->p, r->send, d, k);
        int64_t from = first + s.from;

        for (int64_t i = 0; i < s.n; i++) {
            marks[2 * (s.at + i)] = r->tag_x ? r->tag_x[from + i] : 0;
            marks[2 * (s.at + i) + 1] = r->same ? r->same[from + i] : 0;
        }
        if (s.n)
            memcpy(stage + r->head + s.at * r->row, r->x + from * r->row,
                   (size_t)(s.n * r->row));
    }
    comm_round_arrive(c);
    return 0;
}

/* Piece k of what I pass on. */
static int put_second(struct comm *c, const struct a2a *r, int64_t k, struct err *e)
{
    const int32_t *list = r->passed + c->me * c->p;
    int64_t first = 0;
    int32_t *marks;
    char *stage;

    if (comm_round_open(c, &stage, e) < 0)
        return -1;
    marks = piece_marks(stage, c);
    for (int d = 0; d < c->p; first += list[d++]) {
        struct slice s = slice_of(r, c->p, list, d, k);

        for (int64_t i = 0; i < s.n; i++) {
            int64_t from = first + s.from + i;
            marks[2 * (s.at + i)] = r->pass_tag[from];
            memcpy(stage + r->head + (s.at + i) * r->row, r->pass[from], (size_t)r->row);
        }
    }
    comm_round_arrive(c);
    return 0;
}

/* ---- scratch ---- */

/* Everything that is as long as the counts say, in one piece of memory. */
static int lay_out(struct comm *c, struct a2a *r, struct err *e)
{
    int64_t p = c->p, total = 0, at = 0;

    memset(r->passed, 0, (size_t)(p * p) * sizeof(int32_t));
    for (int m = 0; r->via && m < p; m++) {
        total += sum(r->counts + m * p, c->p);
        for (int d = 0; d < p; d++) {
            int v = hop(r, c->p, m, d);
            if (v != d)
                r->passed[v * p + d] += r->counts[m * p + d];
        }
    }
    r->n_pass = sum(r->passed + c->me * p, c->p);
    size_t list = (size_t)r->n_pass * sizeof(char *);
    size_t all = list + (size_t)total * sizeof(char *) +
                 (size_t)r->n_pass * (size_t)r->row + (size_t)r->n_pass * 4;
    if (all > c->scratch_bytes) {
        char *more = realloc(c->scratch, all);
        if (!more)
            return err_set(e, ERR_NOMEM, "no memory for %lld rows that are passed on",
                           (long long)r->n_pass);
        c->scratch = more;
        c->scratch_bytes = all;
    }
    r->pass = (const char **)c->scratch;
    r->seen = r->pass + r->n_pass;
    r->pass_tag = (int32_t *)(r->seen + total);
    r->kept = (char *)(r->pass_tag + r->n_pass);
    r->n_kept = 0;
    if (total)
        memset(r->seen, 0, (size_t)total * sizeof(char *));
    for (int d = 0; r->via && d < p; d++)
        for (int m = 0; m < p; m++)
            if (d != c->me && hop(r, c->p, m, d) == c->me) {
                r->relay[m * p + d] = at;
                at += r->counts[m * p + d];
            }
    total = at = 0;
    for (int m = 0; m < p; m++) {
        r->base[m] = at;
        at += r->counts[m * p + c->me];
        r->seen_at[m] = total;
        total += r->via ? sum(r->counts + m * p, c->p) : 0;
    }
    return 0;
}

/* What everybody said in the first piece. */
static int hear_counts(struct comm *c, struct a2a *r, struct err *e)
{
    int64_t total = 0;

    for (int m = 0; m < c->p; m++) {
        const char *peer;
        int64_t at_us;

        if (comm_round_peer(c, m, &peer, &at_us, e) < 0)
            return -1;
        memcpy(r->counts + m * c->p, peer, (size_t)c->p * sizeof(int32_t)); /* free */
        r->recv[m] = r->counts[m * c->p + c->me];
        total += r->recv[m];
    }
    if (total <= r->max_recv)
        return lay_out(c, r, e);
    struct err why;
    err_set(&why, ERR_DEVICE, "rank %d was sent %lld rows and takes %lld", c->cfg.rank,
            (long long)total, (long long)r->max_recv);
    comm_abort(c->f, &why);
    return comm_fabric_error(c->f, e);
}

/* ---- reading ---- */

/* A run of rows of a piece, from member `from` for member `to`. */
struct span {
    int from, to;
    const char *rows;
    const int32_t *marks;
    int64_t at, n; /* of the rows from `from` to `to` */
};

static void keep_tags(const struct a2a *r, const struct span *s, int32_t *tags)
{
    for (int64_t i = 0; i < s->n && tags; i++)
        tags[s->at + i] = s->marks[2 * i];
    (void)r;
}

/* Into y; returns bytes. */
static int64_t take_mine(const struct a2a *r, const struct span *s)
{
    int64_t first = r->base[s->from];

    memcpy(r->y + (first + s->at) * r->row, s->rows, (size_t)(s->n * r->row));
    keep_tags(r, s, r->tag_y ? r->tag_y + first : NULL);
    return s->n * (r->row + (r->tag_y ? 4 : 0));
}

/* Row by row: into y or what I pass on, equal ones once. Returns bytes, -1 for a mark
 * that is none. */
static int64_t take_marked(struct comm *c, struct a2a *r, const struct span *s, bool same)
{
    bool mine = s->to == c->me;
    int64_t first = mine ? r->base[s->from] : r->relay[s->from * c->p + s->to];
    int64_t rows = sum(r->counts + s->from * c->p, c->p), bytes = 0;

    for (int64_t i = 0; i < s->n; i++) {
        int32_t mark = same ? s->marks[2 * i + 1] : 0;
        const char **seen = same ? &r->seen[r->seen_at[s->from] + mark] : NULL;

        if (mark < 0 || mark >= rows)
            return -1;
        const char *from = seen && *seen ? *seen : s->rows + i * r->row;
        char *to = mine ? r->y + (first + s->at + i) * r->row : r->kept;
        if (!mine && seen && *seen) {
            r->pass[first + s->at + i] = *seen;
        } else if (!mine) {
            to += r->n_kept++ * r->row;
            r->pass[first + s->at + i] = to;
        }
        bytes += (seen && *seen ? 0 : r->row) + (r->tag_y ? 4 : 0) + (same ? 4 : 0);
        if (mine || !seen || !*seen)
            memcpy(to, from, (size_t)r->row);
        if (seen && !*seen)
            *seen = to;
    }
    keep_tags(r, s, mine ? (r->tag_y ? r->tag_y + first : NULL) : r->pass_tag + first);
    return bytes;
}

/* Where row `at` of a piece stands. */
static struct span span_at(const struct a2a *r, const struct comm *c, const char *peer,
                           int64_t at)
{
    return (struct span){.rows = peer + r->head + at * r->row,
                         .marks = piece_marks((char *)(uintptr_t)peer, c) + 2 * at};
}

/* What piece k of member m's rows has for me; it is waited for only if it has. */
static int read_first(struct comm *c, struct a2a *r, int m, int64_t k, struct err *e)
{
    const struct comm_group *g = &c->g->g;
    bool same = r->via && r->same && g->host[m] != g->host[c->me];
    const char *peer = NULL;
    int64_t bytes = 0, at_us = 0;

    for (int d = 0; d < c->p; d++) {
        if (hop(r, c->p, m, d) != c->me)
            continue;
        struct slice part = slice_of(r, c->p, r->counts + m * c->p, d, k);
        if (!part.n)
            continue;
        if (!peer && comm_round_peer(c, m, &peer, &at_us, e) < 0)
            return -1;
        struct span s = span_at(r, c, peer, part.at);
        s.from = m;
        s.to = d;
        s.at = part.from;
        s.n = part.n;
        int64_t got =
            d == c->me && !same ? take_mine(r, &s) : take_marked(c, r, &s, same);
        if (got < 0)
            return err_set(e, ERR_DEVICE, "rank %d marks a row that it has not",
                           g->ranks[m]);
        bytes += got;
    }
    comm_count_read(c, m, (size_t)bytes, at_us);
    return 0;
}

/* What piece k of the rows that v passes on has for me: of one sender after the other. */
static int read_second(struct comm *c, struct a2a *r, int v, int64_t k, struct err *e)
{
    const int32_t *list = r->passed + v * c->p;
    struct slice part = slice_of(r, c->p, list, c->me, k);
    int64_t first = 0, bytes = 0, at_us;
    const char *peer;

    if (!part.n)
        return 0;
    if (comm_round_peer(c, v, &peer, &at_us, e) < 0)
        return -1;
    for (int m = 0; m < c->p; m++) {
        bool through = v != c->me && hop(r, c->p, m, c->me) == v;
        int64_t n = through ? r->counts[m * c->p + c->me] : 0;
        int64_t lo = max_i64(first, part.from);
        int64_t hi = min_i64(first + n, part.from + part.n);

        if (hi > lo) {
            struct span s = span_at(r, c, peer, part.at + lo - part.from);
            s.from = m;
            s.to = c->me;
            s.at = lo - first;
            s.n = hi - lo;
            bytes += take_mine(r, &s);
        }
        first += n;
    }
    comm_count_read(c, v, (size_t)bytes, at_us);
    return 0;
}

/* Most pieces of any member. */
static int64_t longest(const struct comm *c, const struct a2a *r, const int32_t *lists)
{
    int64_t max = 0;

    for (int v = 0; v < c->p; v++)
        max = max_i64(max, n_pieces(r, c->p, lists + v * c->p));
    return max;
}

static int finish(struct comm *c, struct a2a *r, struct err *e)
{
    int64_t max;

    if (hear_counts(c, r, e) < 0)
        return -1;
    max = longest(c, r, r->counts);
    for (int64_t k = 0; k == 0 || k < max; k++) {
        if (k && put_first(c, r, k, e) < 0)
            return -1;
        for (int m = 0; m < c->p; m++)
            if (read_first(c, r, m, k, e) < 0)
                return -1;
        if (comm_round_close(c, e) < 0)
            return -1;
    }
    max = r->via ? longest(c, r, r->passed) : 0;
    for (int64_t k = 0; k < max; k++) {
        if (put_second(c, r, k, e) < 0)
            return -1;
        for (int v = 0; v < c->p; v++)
            if (read_second(c, r, v, k, e) < 0)
                return -1;
        if (comm_round_close(c, e) < 0)
            return -1;
    }
    return 0;
}

/* ---- in stream order ---- */

static int start(struct comm *c, const struct a2a *r, struct err *e)
{
    for (int m = 0; m < c->p; m++)
        if (r->send[m] < 0)
            return err_set(e, ERR_DEVICE, "rank %d sends %d rows", c->cfg.rank,
                           r->send[m]);
    if (r->mine * r->row > r->x_bytes)
        return err_set(e, ERR_DEVICE, "rank %d sends %lld rows of a buffer of %lld",
                       c->cfg.rank, (long long)r->mine, (long long)(r->x_bytes / r->row));
    return put_first(c, r, 0, e);
}

static int finish_with_scratch(struct comm *c, struct a2a *r, struct err *e)
{
    size_t p = (size_t)c->p;
    int rc = -1;

    r->counts = malloc(2 * p * p * sizeof(int32_t));
    r->passed = r->counts ? r->counts + p * p : NULL;
    r->relay = malloc((p * p + 2 * p) * sizeof(int64_t));
    if (!r->counts || !r->relay) {
        err_set(e, ERR_NOMEM, "no memory for the counts of %d ranks", c->p);
    } else {
        r->base = r->relay + p * p;
        r->seen_at = r->base + p;
        rc = finish(c, r, e);
    }
    free(r->counts);
    free(r->relay);
    return rc;
}

/* COMM_ARG_WHO: lane, half, what is given. */
bool comm_a2a_ends(const struct op_host *o)
{
    return (o->arg[COMM_ARG_WHO] >> 8 & 0xff) != COMM_START;
}

int comm_a2a_run(struct comm *c, const struct op_host *o, void *const *mem, struct err *e)
{
    unsigned who = (unsigned)o->arg[COMM_ARG_WHO], given = who >> 16;
    enum comm_half half = (enum comm_half)(who >> 8 & 0xff);
    struct a2a r = {
        .x = mem[X],
        .y = mem[Y],
        .send = mem[SEND],
        .recv = mem[RECV],
        .tag_x = given & HAS_TAG ? mem[TAG_X] : NULL,
        .tag_y = given & HAS_TAG ? mem[TAG_X + 1] : NULL,
        .same = given & HAS_SAME ? mem[o->n_buf - 1] : NULL,
        .row = (int64_t)o->arg[COMM_ARG_N],
        .max_recv = (int64_t)o->arg[COMM_ARG_MAX],
        .x_bytes = (int64_t)o->bytes[X],
    };

    c->lane = &c->lanes[who & 0xff];
    r.mine = sum(r.send, c->p);
    r.via = c->via ? c->via + (r.same ? c->p * c->p : 0) : NULL;
    if (measure(c, &r, e) < 0 || (half != COMM_FINISH && start(c, &r, e) < 0))
        return -1;
    return half == COMM_START ? 0 : finish_with_scratch(c, &r, e);
}

static void add_buf(struct op_host *o, struct comm_at at, int64_t bytes)
{
    o->buf[o->n_buf] = at.buf;
    o->off[o->n_buf] = at.off;
    o->bytes[o->n_buf++] = (size_t)bytes;
}

static int64_t all_of(struct comm_at at)
{
    return (int64_t)(dbuf_bytes(at.buf) - at.off);
}

static int enqueue(struct comm *c, struct stream *s, const struct comm_a2a *a,
                   enum comm_half half, int lane, struct err *e)
{
    int64_t counts = (int64_t)c->p * (int64_t)sizeof(int32_t);
    unsigned given = (a->tag.buf ? HAS_TAG : 0u) | (a->same.buf ? HAS_SAME : 0u);
    struct op_host o = {.fn = comm_host_call};

    o.arg[COMM_ARG] = (uint64_t)(uintptr_t)c;
    o.arg[COMM_ARG_KIND] = COMM_ALL_TO_ALL;
    o.arg[COMM_ARG_N] = (uint64_t)a->row_bytes;
    o.arg[COMM_ARG_MAX] = (uint64_t)a->max_recv;
    o.arg[COMM_ARG_WHO] = (unsigned)lane | (unsigned)half << 8 | given << 16;
    add_buf(&o, a->x, all_of(a->x)); /* at most */
    add_buf(&o, a->y, a->max_recv * a->row_bytes);
    add_buf(&o, a->send, counts);
    add_buf(&o, a->recv, counts);
    if (given & HAS_TAG) {
        add_buf(&o, a->tag, all_of(a->tag));
        add_buf(&o, a->tag_y, a->max_recv * (int64_t)sizeof(int32_t));
    }
    if (given & HAS_SAME)
        add_buf(&o, a->same, all_of(a->same));
    return op_host(s, &o, e);
}

int comm_all_to_all(struct comm *c, struct stream *s, const struct comm_a2a *a,
                    struct err *e)
{
    return enqueue(c, s, a, COMM_WHOLE, 0, e);
}

int comm_all_to_all_start(struct comm *c, struct stream *s, const struct comm_a2a *a,
                          struct err *e)
{
    if (c->started - c->finished == COMM_IN_FLIGHT)
        return err_set(e, ERR_INTERNAL, "group '%s': more than %d all-to-alls in flight",
                       c->g->g.name, COMM_IN_FLIGHT);
    return enqueue(c, s, a, COMM_START, 1 + (int)(c->started++ % COMM_IN_FLIGHT), e);
}

int comm_all_to_all_finish(struct comm *c, struct stream *s, const struct comm_a2a *a,
                           struct err *e)
{
    assert(c->started != c->finished);
    return enqueue(c, s, a, COMM_FINISH, 1 + (int)(c->finished++ % COMM_IN_FLIGHT), e);
}
