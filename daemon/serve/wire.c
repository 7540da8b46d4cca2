/* daemon/serve/wire.c - framing and checking of what daemon and engine say to each other.
 *
 * A frame on the socket is struct wire_head, the payload and zero bytes up to a multiple
 * of 8: the next head and every payload then stand aligned in the input buffer, and the
 * arrays of an ADD can be borrowed from it. Both buffers grow with what really arrives or
 * waits, never with what a head promises, and shrink again after a large message.
 *
 * Lifecycle: wire_conn_new takes the descriptor; the first fault marks the connection
 * dead, after which every call fails with the same sentence; wire_conn_free closes. What
 * the messages are: wire_msg.c. */
#include "daemon/serve/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/serve/wire_impl.h"

enum { READ_STEP = 64 << 10, READ_PASS = 1 << 20, KEEP_BYTES = 256 << 10 };

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
