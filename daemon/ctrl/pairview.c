/* daemon/ctrl/pairview.c - pages of ranks, pair by pair. */
#include "daemon/ctrl/pairview.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "daemon/ctrl/rankview.h"
#include "daemon/ctrl/router_int.h"

static void copy(const struct target *t, struct pair_view *v)
{
    memcpy(v->instance, t->st.name, sizeof(v->instance));
    memcpy(v->emulate, t->emulate, sizeof(v->emulate));
    v->generation = t->st.generation;
    v->device = xcalloc((size_t)v->n_ranks, sizeof(*v->device));
    v->pair = xcalloc((size_t)(v->n_ranks * v->n_ranks), sizeof(*v->pair));
    for (int i = 0; i < v->n_ranks && i < t->n_seats; i++)
        memcpy(v->device[i], t->seats[i].device, sizeof(v->device[i]));
    for (int i = 0; i < v->n_ranks; i++)
        for (int k = 0; k < v->n_ranks; k++) {
            struct pair_read *p = &v->pair[v->n];

            *p = (struct pair_read){.rank = i, .from = k};
            v->n += i != k && rankpage_read_of(t->ranks, i, k, p->n);
        }
}

int pairview_get(struct router *r, struct pair_view **ret)
{
    struct pair_view *v;
    int room = 0, n = 0;

    pthread_mutex_lock(&r->lock);
    list_for(it, &r->targets) room++;
    v = xcalloc((size_t)room + 1, sizeof(*v));
    list_for(it, &r->targets)
    {
        const struct target *t = list_entry(it, struct target, link);

        v[n].n_ranks = t->ranks ? rankpage_count(t->ranks) : 0;
        if (v[n].n_ranks > 1)
            copy(t, &v[n++]);
    }
    pthread_mutex_unlock(&r->lock);
    *ret = v;
    return n;
}

void pairview_free(struct pair_view *v, int n)
{
    for (int i = 0; i < n; i++) {
        free(v[i].device);
        free(v[i].pair);
    }
    free(v);
}
