/* daemon/ctrl/router_choose.c - which engine of a model a request goes to.
 *
 * The one that is done with it first, by tokens outstanding, what of the prompt it has
 * cached as far as one can tell (affinity.h), and what does not fit its KV now; one that
 * gives no sign of life (pulse.h) only where there is no other. Engines
 * of a prefill pool take whole requests where no other is ready, and those that end with
 * their first token; for their own part see split.h. All under the lock, but the hashes.
 */
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/metric.h"
#include "daemon/ctrl/affinity.h"
#include "daemon/ctrl/conf.h"
#include "daemon/ctrl/router_int.h"
#include "daemon/serve/metrics.h"

int64_t router_max_answer(const struct served *m, const struct gen_params *p)
{
    return p->max_tokens < 0 ? m->n_ctx - p->n_prompt : p->max_tokens - p->n_gen;
}

struct router_prefix router_prefix_of(const struct gen_submit *g)
{
    struct router_prefix p = {NULL, g->params.n_prompt / AFFINITY_BLOCK};

    if (p.n > 0 && !g->params.no_cache)
        p.hash = try_calloc((size_t)p.n, sizeof(*p.hash));
    if (p.hash)
        affinity_hash(g->params.salt, g->prompt, g->params.n_prompt, p.hash);
    else
        p.n = 0;
    return p;
}

static struct affinity_choice choice_of(const struct target *t,
                                        const struct router_prefix *p)
{
    int64_t blocks = t->st.n_blocks;
    int used = (int)metric_get(t->page->page, M_KV_BLOCKS_USED, 0);

    return (struct affinity_choice){
        .load = t->load + t->end.help_load,
        .cached = t->sent && p->n
                      ? (int64_t)affinity_match(t->sent, p->hash, p->n) * AFFINITY_BLOCK
                      : 0,
        .kv_free = blocks ? (blocks - used) * t->st.block_tok : -1,
    };
}

struct target *router_nearest(struct target **all, int n, const struct wire_add *a)
{
    const struct gen_submit g = {.params = a->params, .prompt = a->prompt};
    struct affinity_choice c[ROUTER_CHOICES];
    struct router_prefix p = router_prefix_of(&g);
    struct target *best;

    for (int i = 0; i < n; i++)
        c[i] = choice_of(all[i], &p);
    best = all[affinity_pick(c, n, a->params.n_prompt, 0)];
    if (best->sent && p.n)
        affinity_add(best->sent, p.hash, p.n);
    free(p.hash);
    return best;
}

/* Does an engine that answers serve m that is not of the pool `other`? Under the lock. */
static bool has_any_but(struct router *r, const struct served *m, int other)
{
    list_for(it, &r->targets)
    {
        const struct target *t = list_entry(it, struct target, link);
        if (t->end.role != other && t->model && router_same_model(&t->model->pub, m) &&
            router_not_answering(t, NULL) == 0)
            return true;
    }
    return false;
}

/* The pool that a request is kept from while another engine is ready; BOTH: none. What is
 * all prompt (one token at most, or none) would only hold up running answers. */
static int kept_from(struct router *r, const struct served *m, const struct gen_params *p)
{
    int other = router_max_answer(m, p) <= 1 ? CONF_ROLE_DECODE : CONF_ROLE_PREFILL;

    return has_any_but(r, m, other) ? other : CONF_ROLE_BOTH;
}

/* Targets of m, but those of the pool `never`, that have room for n; full: one that has
 * none. Those that answer, or (silent) also others that are ready. */
struct choices {
    struct target *all[ROUTER_CHOICES], *full;
    struct affinity_choice c[ROUTER_CHOICES];
    int n;
};
static void gather(struct router *r, const struct served *m, int n, int never,
                   bool silent, const struct router_prefix *p, struct choices *ret)
{
    ret->n = 0;
    ret->full = NULL;
    list_for(it, &r->targets)
    {
        struct target *t = list_entry(it, struct target, link);
        if (!t->model || !router_same_model(&t->model->pub, m) ||
            (silent ? router_not_ready(t, NULL) : router_not_answering(t, NULL)) < 0 ||
            (never != CONF_ROLE_BOTH && t->end.role == never))
            continue;
        if (t->n_live + t->end.n_help + n > t->max_live) {
            ret->full = t;
        } else if (ret->n < ROUTER_CHOICES) {
            ret->all[ret->n] = t;
            ret->c[ret->n++] = choice_of(t, p);
        }
    }
}

struct target *router_choose(struct router *r, const struct served *m,
                             const struct gen_submit *g, int n,
                             const struct router_prefix *p, struct err *e)
{
    struct target *other = router_named(r, m->name);
    int never = kept_from(r, m, &g->params);
    struct choices v;

    gather(r, m, n, never, false, p, &v);
    if (!v.n && never == CONF_ROLE_DECODE) /* better there than refused */
        gather(r, m, n, CONF_ROLE_BOTH, false, p, &v);
    if (!v.n && !v.full) /* they wait there: it comes back, or the next one has them */
        gather(r, m, n, never, true, p, &v);
    if (v.n)
        return v.all[affinity_pick(v.c, v.n, g->params.n_prompt,
                                   router_max_answer(m, &g->params))];
    if (v.full)
        err_set(e, ERR_BUSY, "the queue is full: %d requests are running or waiting",
                v.full->n_live);
    else if (!other)
        err_set(e, ERR_UNAVAIL, "'%s' is no longer served", m->name);
    else if (router_not_ready(other, e) == 0)
        err_set(e, ERR_UNAVAIL, "the file of '%s' was replaced just now: try again",
                m->name);
    return NULL;
}
