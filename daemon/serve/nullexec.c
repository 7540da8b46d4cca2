/* daemon/serve/nullexec.c - an executor without a device, to measure all that is not one.
 *
 * A step is answered inside submit: every output is the next id of a cycle through the
 * vocabulary, with log-probability 0. Depth and order are those of the ranks, so the
 * scheduler takes the same paths. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/queue.h"
#include "daemon/serve/exec_slot.h"
#include "daemon/serve/executor.h"
#include "daemon/serve/ranks.h"

enum { NULL_DEPTH = 2, NULL_SLOTS = NULL_DEPTH + 1 };

struct nullexec {
    struct executor x;
    struct queue *done;
    struct exec_slot slots[NULL_SLOTS];
    uint64_t tickets;
    int n_vocab, in_flight;
    int32_t id;
};

static int nullexec_submit(struct executor *x, const struct step *st,
                           uint64_t *ret_ticket, struct err *e)
{
    struct nullexec *n = (struct nullexec *)x;

    if (n->in_flight == NULL_DEPTH)
        return err_set(e, ERR_INTERNAL, "%d steps are in flight already", NULL_DEPTH);
    uint64_t ticket = ++n->tickets;
    struct exec_slot *s = &n->slots[ticket % NULL_SLOTS];
    exec_slot_fill(s, st, ticket);
    exec_slot_lay_out(s);
    s->done.start_us = clock_now_us(clock_real());
    for (int32_t i = 0; i < s->done.n_toks; i++) {
        s->toks[i] = (struct step_token){.id = n->id};
        n->id = (n->id + 1) % n->n_vocab;
    }
    s->done.end_us = clock_now_us(clock_real());
    n->in_flight++;
    queue_push(n->done, s);
    *ret_ticket = ticket;
    return 0;
}

static bool nullexec_poll(struct executor *x, struct step_done *ret)
{
    struct nullexec *n = (struct nullexec *)x;
    struct exec_slot *s = queue_pop(n->done);

    if (!s)
        return false;
    n->in_flight--;
    *ret = s->done;
    return true;
}

static void nullexec_free(struct executor *x)
{
    struct nullexec *n = (struct nullexec *)x;

    for (int i = 0; i < NULL_SLOTS; i++)
        exec_slot_done(&n->slots[i]);
    queue_free(n->done);
    free(n);
}

int nullexec_new(const struct step_caps *caps, int n_vocab, struct executor **ret,
                 struct err *e)
{
    static const struct executor_ops ops = {nullexec_submit, nullexec_poll,
                                            nullexec_free};
    struct nullexec *n = xcalloc(1, sizeof(*n));

    n->x.ops = &ops;
    n->x.depth = NULL_DEPTH;
    n->n_vocab = n_vocab;
    for (int i = 0; i < NULL_SLOTS; i++)
        if (exec_slot_init(&n->slots[i], caps, e) < 0)
            goto fail;
    if (queue_new(NULL_SLOTS, &n->done, e) < 0)
        goto fail;
    n->x.fd = queue_fd(n->done);
    *ret = &n->x;
    return 0;

fail:
    nullexec_free(&n->x);
    return -1;
}
