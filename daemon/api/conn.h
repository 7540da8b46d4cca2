/* daemon/api/conn.h - one HTTP request: its body, its answer or stream, its wake-up.
 *
 * Three kinds of threads meet here: the HTTP thread that owns the connection, a worker
 * that parses, the control thread whose callbacks bring tokens. One lock and one pair of
 * flags decide who sleeps and who wakes: `ready` (something to send) and `suspended` (the
 * connection is off the poll set). Only conn_park suspends, only conn_wake resumes, both
 * under the lock, so neither happens twice and none is lost.
 *
 * Reference counted: the connection holds one until it completed, jobs and generations
 * hold theirs. After completion everything written is dropped. */
#ifndef API_CONN_H
#define API_CONN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "daemon/api/access.h"
#include "daemon/api/account.h"
#include "daemon/api/query.h"
#include "daemon/api/route.h"
#include "daemon/api/spool.h"

struct MHD_Connection;
struct http;
struct link;
struct rules;
struct sock;

enum {
    CONN_OUT_CAP = 1 << 20, /* unread bytes of one stream before it is dropped */
    CONN_HEADERS = 3,
};

/* Who works for this request, reference counted. gone: the client left or the server
 * stops (any thread, no lock held, perhaps twice). The connection releases its reference
 * when it completed, and holds another around each call of gone. */
struct conn_owner {
    void (*gone)(void *arg);
    void (*hold)(void *arg); /* the lock is held */
    void (*release)(void *arg);
    void *arg;
};

struct conn {
    struct http *h;
    struct MHD_Connection *mhd; /* NULL once completed */
    struct sock *sock;
    const struct link *link; /* HTTP threads only */
    struct rules *rules;     /* those of the moment that it began */
    const struct route *route;
    struct route_match match; /* arg[]: the {names} of the path */
    struct query query;
    char *if_match; /* the header, NULL = none */
    char req_id[72];
    struct access_who who; /* set before any handler runs */
    bool local;            /* came over the UNIX socket */
    bool dispatched;       /* HTTP thread only */
    bool drop_body;        /* answer is known: read the body only to be heard */
    bool inference;
    bool unread; /* answered with the body still to come: close after it */
    bool close;  /* close after the answer */
    bool preflight;
    char *origin;                  /* of the web page that asks and may, NULL = none */
    uint64_t body_seen, drain_max; /* how much of a refused body is read */
    size_t body_counted;           /* bytes of body on the server's account */
    struct err early;              /* answer after the body, when code is not OK */
    struct buf body;
    void *carry; /* what a handler hands to its second half on another thread; freed by
                    carry_free (NULL: not) at the latest with the request */
    void (*carry_free)(void *carry);
    struct spool spool; /* in its place where the route takes octets */
    int64_t start_us;   /* request complete at the socket */
    atomic_bool cancel; /* long work looks at it */
    atomic_bool owes;   /* a stream of its key, to be given back by conn_account */
    atomic_int refs;

    pthread_mutex_t lock; /* all below */
    bool ready, suspended, gone, finished;
    bool answered, streaming, stream_end, overrun;
    int status, retry_after_s;
    const char *content_type;
    struct {
        const char *name;
        char value[160];
    } header[CONN_HEADERS]; /* further ones of the answer */
    int n_headers;
    struct buf answer;
    int file; /* the answer's bytes in its place, -1 none */
    uint64_t file_bytes;
    struct buf out; /* frames not yet taken by the HTTP thread */
    size_t out_off, out_cap;
    struct metric_page *page; /* of the model that is asked; NULL before it is known */
    int firsts;               /* first tokens in out: time them when they are taken */
    struct account account;
    struct conn_owner owner;
};

struct conn *conn_new(struct http *h, struct MHD_Connection *mhd,
                      const struct link *link);
uint64_t conn_body_max(const struct conn *c);
void conn_drop_body(struct conn *c); /* parsed: give the memory back */
struct conn *conn_ref(struct conn *c);
void conn_unref(struct conn *c); /* NULL allowed */

/* The generation of this request is over: give the key its stream back and take the
 * tokens. At the latest with the last reference, then without tokens. */
void conn_account(struct conn *c, int64_t tokens);

/* HTTP thread: true when there is nothing to send and the connection is now suspended. */
bool conn_park(struct conn *c);
/* Any thread, lock held. */
void conn_wake(struct conn *c);

/* Whole answers; the first wins. body is emptied. Any thread, lock not held. */
void conn_answer(struct conn *c, int status, const char *content_type, struct buf *body);
void conn_answer_err(struct conn *c, const struct err *e);
/* size bytes of a file, which is closed later. */
void conn_answer_file(struct conn *c, int fd, uint64_t size, const char *content_type);
/* The same with the lock held. */
void conn_answer_locked(struct conn *c, int status, const char *content_type,
                        struct buf *body);
void conn_answer_err_locked(struct conn *c, const struct err *e);

/* One more header of the answer, before it; name is a literal. Any thread, lock not held.
 */
void conn_header(struct conn *c, const char *name, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Streams, lock held: append to c->out, then conn_flush. It starts the answer, wakes the
 * reader and drops a stream whose reader is too slow; false when nobody will read. */
bool conn_flush(struct conn *c);
void conn_end_locked(struct conn *c);

/* False when the client has gone already; then neither is ever called. */
bool conn_set_owner(struct conn *c, const struct conn_owner *o);
/* The client is gone or the server stops: cancel the owner's work and wake. */
void conn_gone(struct conn *c);
/* Stop of the server: an answer or an error frame, then the end. */
void conn_abort(struct conn *c, const struct err *e);

#endif
