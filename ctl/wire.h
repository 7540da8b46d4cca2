/* ctl/wire.h - the HTTP client of llmctl: REST over the UNIX socket or TCP with a key.
 *
 * The only file that sees libcurl. Every call has a deadline; Ctrl-C ends it within a
 * second, a stream at the next byte. Answers over 64 MiB are refused. One owner thread.
 */
#ifndef CTL_WIRE_H
#define CTL_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct err;
struct pollfd;
struct wire;
struct wire_feed;

struct wire_target {
    const char *at;     /* a socket path, http://host:port or https://host:port */
    const char *key;    /* id.secret for TCP, NULL none */
    const char *ca;     /* file with the certificates to trust, NULL the system's */
    int64_t timeout_ms; /* of a call that names none; 0 = 30 s */
};
int wire_open(const struct wire_target *t, struct wire **ret, struct err *e);
void wire_close(struct wire *w);

struct wire_request {
    const char *method, *path;
    const char *body; /* NULL none */
    size_t n;         /* bytes of body; 0 = it is a string */
    const char *type; /* of body; NULL = application/json */
    int64_t timeout_ms;
};
/* The answer's body into ret_body; *ret_status (may be NULL) is 200, 202, .. An answer of
 * 400 and up is an error with the daemon's own sentence and the code that its status
 * stands for. *stop set by a signal handler ends the call with ERR_CANCELED. */
int wire_call(struct wire *w, const struct wire_request *r, const volatile int *stop,
              struct buf *ret_body, int *ret_status, struct err *e);
/* The daemon's whole text of the last error, which may be longer than a struct err holds;
 * "" when there was none. Borrowed until the next call. */
const char *wire_said(const struct wire *w);

/* Hands each SSE data line (without "data: ") to fn as it comes, with the kind of its
 * event ("" none); fn returns false to stop. timeout_ms of r: of the whole, 0 = none (two
 * silent minutes end it). */
typedef bool (*wire_line_fn)(void *arg, const char *event, const char *line);
int wire_stream(struct wire *w, const struct wire_request *r, const volatile int *stop,
                wire_line_fn fn, void *arg, struct err *e);

/* ---- a stream that is read beside other things, in a poll loop ---- */
struct wire_feed *wire_feed_open(struct wire *w, const char *path, wire_line_fn fn,
                                 void *arg);
void wire_feed_close(struct wire_feed *f);
/* What to poll for; returns the count. Call wire_feed_work after the poll. */
int wire_feed_fds(struct wire_feed *f, struct pollfd *ret, int max);
/* false: it has ended (the daemon stopped, or does not have it). */
bool wire_feed_work(struct wire_feed *f);

#endif
