/* daemon/ctrl/unit_experts.c - between an engine and those who watch its experts: what
 * is counted, which of its devices are out, orders and news. See unit.h. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/metric.h"
#include "daemon/ctrl/conf.h"
#include "daemon/ctrl/domain.h"
#include "daemon/ctrl/experts.h"
#include "daemon/ctrl/supervisor.h"
#include "daemon/ctrl/target.h"
#include "daemon/ctrl/unit.h"
#include "daemon/serve/expertpage.h"
#include "daemon/serve/mesh.h"
#include "daemon/serve/metrics.h"

static bool send(void *arg, const struct wire_expert_orders *o)
{
    const struct unit *u = arg;

    return supervisor_experts(u->sup, o);
}

static void read_layer(const struct expertpage *p, int phase, int layer,
                       const struct routes_dims *d, struct experts_counts *ret, int as)
{
    size_t at = (size_t)layer * (size_t)d->n_expert;
    double *tokens = ret->tokens[as] + at, *service_us = ret->service_us[as] + at;
    struct experts_more *more = ret->more[as] + at;
    struct experts_sums *sum = &ret->layer[as][layer];
    struct expert_left all[ROUTES_MAX_EXPERTS];

    expertpage_experts(p, layer, phase, d->n_expert, all);
    for (int i = 0; i < d->n_expert; i++) {
        const struct expert_count c = all[i].n;

        tokens[i] = (double)c.rows;
        service_us[i] = (double)c.service_ns / 1000;
        more[i].queue_us = (double)c.queue_ns / 1000;
        more[i].over = (double)c.over;
        more[i].replica = (double)all[i].replica;
        sum->rows += tokens[i];
        sum->over += more[i].over;
        sum->replica += more[i].replica;
        sum->service_us += service_us[i];
        sum->queue_us += more[i].queue_us;
    }
    for (int r = 0; r < d->n_rank; r++) {
        struct expert_traffic t;

        expertpage_traffic(p, layer, r, phase, &t);
        sum->dispatch_bytes += (double)t.dispatch_bytes;
        sum->dispatch_us += (double)t.dispatch_us;
        sum->combine_bytes += (double)t.combine_bytes;
        sum->combine_us += (double)t.combine_us;
        sum->moved += (double)t.moved;
        sum->next += (double)t.next;
        sum->dropped += (double)t.dropped;
    }
}

static bool read(void *arg, int n_layer, int n_expert, struct experts_counts *ret)
{
    const struct unit *u = arg;
    const struct expertpage *p = target_experts(u->target);
    struct routes_dims d;
    int n;

    if (!expertpage_dims(p, &d, &n) || n != n_layer || d.n_expert != n_expert)
        return false;
    ret->all_steps = metric_get(target_page(u->target), M_STEPS, 0);
    ret->step_us = 1e6 * metric_get(target_page(u->target), M_STEP_SECONDS, 0);
    for (int k = 0; k < CONTROLLER_PHASES; k++) {
        int phase = k == CONTROLLER_PREFILL ? EXPERT_PREFILL : EXPERT_DECODE;

        ret->steps[k] = (double)expertpage_steps(p, phase);
        for (int l = 0; l < n_layer; l++)
            read_layer(p, phase, l, &d, ret, k);
    }
    return true;
}

static bool pairs(void *arg, int layer, int n_expert, double *ret)
{
    const struct unit *u = arg;

    return expertpage_pairs_of(target_experts(u->target), layer, n_expert, ret);
}

/* With etp a rank of the expert group is several ranks, with pp one in each stage: it is
 * out when one of them is. */
static void out(void *arg, int n_rank, uint8_t *ret)
{
    const struct unit *u = arg;
    struct domain_view *v = u->env->domain ? domain_get(u->env->domain) : NULL;
    struct mesh *m = v ? xcalloc(1, sizeof(*m)) : NULL;

    memset(ret, 0, (size_t)n_rank);
    if (m && mesh_make(&u->spec.layout, m, NULL) == 0)
        for (int i = 0; i < u->n_seats && i < m->n; i++) {
            int at = m->ranks[i].at[MESH_EP];
            if (at >= 0 && at < n_rank && domain_device_out(v, u->seats[i].device))
                ret[at] = 1;
        }
    free(m);
    domain_put(v);
}

void unit_experts_ready(void *unit, const struct wire_ready *r)
{
    struct unit *u = unit;
    const struct experts_engine e = {.instance = u->inst->name,
                                     .send = send,
                                     .read = read,
                                     .pairs = pairs,
                                     .out = out,
                                     .arg = u};

    if (u->env->experts && r)
        experts_ready(u->env->experts, &e, u->inst, r);
    else if (u->env->experts)
        experts_gone(u->env->experts, u);
}

void unit_experts_moved(void *unit, const struct wire_moved *m)
{
    struct unit *u = unit;

    if (u->env->experts)
        experts_moved(u->env->experts, u, m, clock_now_us(clock_real()));
}
