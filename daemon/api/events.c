/* daemon/api/events.c - what happens, to those who listen.
 *
 * A reader holds its request and is the request's owner: `gone` comes from another thread
 * and only marks it; the control thread takes it out. */
#include "daemon/api/events.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "daemon/api/conn.h"

struct reader {
    atomic_int refs;
    atomic_bool gone;
    struct conn *c; /* a reference */
    unsigned kinds;
    int64_t told_us;
};

struct events {
    struct reader *readers[EVENTS_READERS];
    int n;
};

static const char *const names[] = {
#define X(id, text) text,
    EVENT_MAP(X)
#undef X
};

static void on_gone(void *arg)
{
    struct reader *r = arg;

    atomic_store(&r->gone, true);
}

static void on_hold(void *arg)
{
    struct reader *r = arg;

    atomic_fetch_add(&r->refs, 1);
}

static void on_release(void *arg)
{
    struct reader *r = arg;

    if (atomic_fetch_sub(&r->refs, 1) == 1)
        free(r);
}

struct events *events_new(void) { return xcalloc(1, sizeof(struct events)); }

/* Take the i-th out. */
static void leave(struct events *ev, int i)
{
    struct reader *r = ev->readers[i];

    ev->readers[i] = ev->readers[--ev->n];
    conn_unref(r->c);
    on_release(r);
}

void events_free(struct events *ev)
{
    if (!ev)
        return;
    while (ev->n)
        leave(ev, ev->n - 1);
    free(ev);
}

/* Text to one reader; it is marked when nobody reads any more. */
static void send(struct reader *r, const char *kind, const char *text)
{
    struct conn *c = r->c;

    pthread_mutex_lock(&c->lock);
    if (kind)
        buf_printf(&c->out, "event: %s\ndata: ", kind);
    buf_puts(&c->out, text);
    buf_puts(&c->out, "\n\n");
    if (!conn_flush(c))
        atomic_store(&r->gone, true);
    pthread_mutex_unlock(&c->lock);
    r->told_us = clock_now_us(clock_real());
}

int events_join(struct events *ev, struct conn *c, unsigned kinds, struct err *e)
{
    struct reader *r;

    if (ev->n == EVENTS_READERS)
        return err_set(e, ERR_UNAVAIL, "%d readers of events are there already",
                       EVENTS_READERS);
    r = xcalloc(1, sizeof(*r));
    atomic_init(&r->refs, 2); /* ours and the request's */
    r->c = conn_ref(c);
    r->kinds = kinds;
    c->out_cap = EVENTS_UNREAD;
    if (!conn_set_owner(c, &(struct conn_owner){on_gone, on_hold, on_release, r})) {
        on_release(r);
        conn_unref(c);
        on_release(r);
        return 0; /* the client has left */
    }
    ev->readers[ev->n++] = r;
    send(r, NULL, ": listening");
    return 0;
}

bool events_wanted(const struct events *ev, enum event_kind kind)
{
    for (int i = 0; i < ev->n; i++)
        if (ev->readers[i]->kinds & 1u << kind)
            return true;
    return false;
}

void events_tell(struct events *ev, enum event_kind kind, const char *json)
{
    for (int i = 0; i < ev->n; i++)
        if (ev->readers[i]->kinds & 1u << kind)
            send(ev->readers[i], names[kind], json);
}

int events_tick(struct events *ev, int64_t now_us)
{
    for (int i = ev->n - 1; i >= 0; i--) {
        if (atomic_load(&ev->readers[i]->gone))
            leave(ev, i);
        else if (now_us - ev->readers[i]->told_us > EVENTS_QUIET_US)
            send(ev->readers[i], NULL, ":");
    }
    return ev->n;
}
