/* ctl/wire_many.h - many streamed answers at once, in one thread.
 *
 * Each is a POST whose answer is read as SSE; its data lines and its end are told as they
 * come, with the time at which the bytes were here. Connections are used again. One owner
 * thread; the functions told may start further ones, not end any. */
#ifndef CTL_WIRE_MANY_H
#define CTL_WIRE_MANY_H

#include <stdbool.h>
#include <stdint.h>

struct err;
struct wire;
struct wire_many;

struct wire_many_hooks {
    /* One data line of stream id, without "data: ". */
    void (*line)(void *arg, int id, const char *line, int64_t at_us);
    /* It has ended: status 0 = no answer came, else that of HTTP. whole: to its end. */
    void (*end)(void *arg, int id, int status, bool whole, int64_t at_us);
    void *arg;
};
/* w must outlive it. */
int wire_many_open(struct wire *w, const struct wire_many_hooks *hooks,
                   struct wire_many **ret, struct err *e);
/* Ends what still runs, without telling. */
void wire_many_close(struct wire_many *m);
/* Sends body (taken: free()d later) to path. */
int wire_many_post(struct wire_many *m, int id, const char *path, char *body,
                   struct err *e);
int wire_many_open_count(const struct wire_many *m);
/* Works until something came or until_us (monotonic). */
void wire_many_work(struct wire_many *m, int64_t until_us);

#endif
