/* topo/probe_child.h - the daemon's side of the NVML helper process.
 *
 * One question at a time; the answer, or why there is none, comes by callback within the
 * deadline. The helper is kept and asked again by a byte on its input; one that crashes,
 * ends or writes nonsense is replaced at the next question. One that misses its deadline
 * is killed, and while it has not ended (a call stuck in the driver cannot be killed)
 * every question is refused with a sentence that says so, and no second one is started.
 * Owner: the thread of the loop. */
#ifndef TOPO_PROBE_CHILD_H
#define TOPO_PROBE_CHILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct loop;
struct probe_child;

#define PROBE_DEADLINE_US ((int64_t)5000000)

struct probe_child_cfg {
    const char *program; /* "/proc/self/exe" for the daemon itself; borrowed */
    char *const *args;   /* "--probe", "nvml"; NULL-terminated, borrowed */
    int64_t deadline_us; /* PROBE_DEADLINE_US */
    int kill_signal;     /* SIGKILL; tests pass one that does not end a process */
};

/* line: one line of the helper without the newline, valid during the call; NULL: *e says
 * why there is none. The child may not be freed in it. */
typedef void (*probe_answer_fn)(void *arg, const char *line, size_t n,
                                const struct err *e);

struct probe_child *probe_child_new(struct loop *l, const struct probe_child_cfg *cfg,
                                    probe_answer_fn fn, void *arg);
/* Kills the helper and does not wait for one that cannot end. NULL allowed. */
void probe_child_free(struct probe_child *c);
/* -1: refused, no callback follows. ERR_BUSY: a question is open; ERR_UNAVAIL: the last
 * helper has not ended. */
int probe_child_ask(struct probe_child *c, struct err *e);
/* No more questions for now: the helper sees the end of its input and ends by itself;
 * hard: it is killed. An open question is forgotten. The loop notices the end. */
void probe_child_end(struct probe_child *c, bool hard);
int probe_child_pid(const struct probe_child *c); /* 0 none */

#endif
