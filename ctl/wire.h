/* ctl/wire.h - the HTTP client of llmctl: REST over the UNIX socket or TCP.
 *
 * Every call has a deadline; Ctrl-C ends it within a second, a stream at the next byte.
 * Answers over 64 MiB are refused. One owner thread. */
#ifndef CTL_WIRE_H
#define CTL_WIRE_H

#include <stdbool.h>
#include <stddef.h>

struct buf;
struct err;
struct wire;

/* target: a socket path, or http://host:port (infer routes only exist there). */
int wire_open(const char *target, struct wire **ret, struct err *e);
void wire_close(struct wire *w);
/* GET, or POST when body is given; *stop as below. An answer of 400 and up is an error
 * with the daemon's own sentence and the code that its status stands for. */
int wire_call(struct wire *w, const char *path, const char *body,
              const volatile int *stop, struct buf *ret_body, struct err *e);
/* POST and hand each SSE data line (without "data: ") to fn as it comes; fn returns false
 * to stop. *stop set by a signal handler ends the call with ERR_CANCELED. */
typedef bool (*wire_line_fn)(void *arg, const char *line);
int wire_stream(struct wire *w, const char *path, const char *body,
                const volatile int *stop, wire_line_fn fn, void *arg, struct err *e);

#endif
