/* daemon/serve/ranks_change.c - turns of the ranks without a step, in which experts
 * change places. See ranks.h. */
#include "base/clock.h"
#include "base/queue.h"
#include "daemon/serve/model.h"
#include "daemon/serve/rank.h"
#include "daemon/serve/ranks_impl.h"
#include "daemon/serve/routes.h"

/* ---- the leader's thread ---- */

/* What a rank refuses is the answer; where one has failed, or does
 * not come back, the next step ends with its name. */
void ranks_run_change(struct ranks *r, struct ranks_change *c)
{
    int64_t began = clock_now_us(clock_real());
    struct rank *lead = &r->rank[r->leader];

    c->failed = r->fabric && comm_fabric_error(r->fabric, &c->why) < 0;
    if (!c->failed) {
        r->change = c;
        ranks_go(r);
        rank_change(lead, c);
        c->failed = ranks_done(r, 2 * ranks_timeout(r), &c->why) < 0;
        if (!c->failed)
            r->change = NULL; /* else one may still read it */
        ranks_settle(r, r->turn);
        gate_raise(&lead->done, r->turn);
    }
    for (int i = 0; i < r->mesh.n && !c->failed; i++) {
        const struct rank *k = &r->rank[i];

        c->failed = k->refused || k->failed;
        if (c->failed)
            err_set(&c->why, (k->failed ? k->why : k->no).code, "rank %d: %s", i,
                    (k->failed ? k->why : k->no).msg);
    }
    c->us = clock_now_us(clock_real()) - began;
    queue_push(r->changed, c);
}

/* ---- the scheduler's side ---- */

void ranks_change(struct executor *x, struct ranks_change *c)
{
    struct ranks *r = (struct ranks *)x;

    queue_push(r->changes, c);
    queue_push(r->todo, &r->turn_of_change);
}

struct ranks_change *ranks_changed(struct executor *x)
{
    return queue_pop(((struct ranks *)x)->changed);
}

struct ranks_change *ranks_changed_wait(struct executor *x, int64_t timeout_us)
{
    return queue_pop_wait(((struct ranks *)x)->changed, timeout_us);
}

int ranks_changed_fd(const struct executor *x)
{
    return queue_fd(((const struct ranks *)x)->changed);
}

bool ranks_routes(const struct executor *x, struct routes_dims *ret)
{
    const struct ranks *r = (const struct ranks *)x;
    int first, n;

    return forward_route_dims(r->rank[r->leader].f, ret, &first, &n) && ret->n_rank > 1 &&
           ret->n_rank * r->mesh.size[MESH_PP] == r->mesh.n;
}

struct backend *ranks_backend(const struct executor *x, int layer, int rank)
{
    const struct ranks *r = (const struct ranks *)x;

    for (int i = 0; i < r->mesh.n; i++)
        if (rank_has_expert_slot(&r->rank[i], layer, rank))
            return forward_backend(r->rank[i].f);
    return NULL;
}
