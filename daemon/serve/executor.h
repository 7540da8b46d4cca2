/* daemon/serve/executor.h - the seam between deciding a step and running it.
 *
 * submit copies the step and returns a ticket at once; completions come in ticket order,
 * signalled on an eventfd. Up to depth() steps may be in flight. Implementations: ranks
 * (real), null (bench: returns token ids at once), fakes in tests; later the twin. Called
 * by the scheduler thread only. */
#ifndef SERVE_EXECUTOR_H
#define SERVE_EXECUTOR_H

#include <stdbool.h>
#include <stdint.h>

struct err;
struct step;
struct step_done;
struct executor;

struct executor_ops {
    int (*submit)(struct executor *x, const struct step *s, uint64_t *ret_ticket,
                  struct err *e);
    /* true and *ret when a step finished; what *ret points to lives until the next call.
     */
    bool (*poll)(struct executor *x, struct step_done *ret);
    void (*free)(struct executor *x); /* waits for what is in flight */
};
/* First member of every implementation. */
struct executor {
    const struct executor_ops *ops;
    int depth; /* steps that may be in flight */
    int fd;    /* readable when poll has something; -1 on virtual time */
};

static inline int executor_submit(struct executor *x, const struct step *s,
                                  uint64_t *ret_ticket, struct err *e)
{
    return x->ops->submit(x, s, ret_ticket, e);
}
static inline bool executor_poll(struct executor *x, struct step_done *ret)
{
    return x->ops->poll(x, ret);
}
static inline void executor_free(struct executor *x)
{
    if (x)
        x->ops->free(x);
}

#endif
