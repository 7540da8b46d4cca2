/* daemon/ctrl/rankview.c - pages of ranks, copied target by target. */
#include "daemon/ctrl/rankview.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "daemon/ctrl/router_int.h"
#include "daemon/serve/rankpage.h"

static int ranks_of(const struct target *t)
{
    return t->ranks ? rankpage_count(t->ranks) : 0;
}

static void copy(const struct target *t, int n, struct rank_view *ret)
{
    for (int i = 0; i < n; i++) {
        struct rank_view *v = &ret[i];

        memcpy(v->instance, t->st.name, sizeof(v->instance));
        memcpy(v->model, t->st.model, sizeof(v->model));
        v->generation = t->st.generation;
        v->rank = i;
        v->span_us = rankpage_span_us(t->ranks);
        if (i < t->n_seats)
            v->seat = t->seats[i];
        rankpage_get(t->ranks, i, &v->s);
    }
}

int rankview_get(struct router *r, struct rank_view **ret)
{
    struct rank_view *v;
    int room = 0, n = 0;

    pthread_mutex_lock(&r->lock);
    list_for(it, &r->targets) room += ranks_of(list_entry(it, struct target, link));
    v = xcalloc((size_t)room + 1, sizeof(*v));
    list_for(it, &r->targets)
    {
        const struct target *t = list_entry(it, struct target, link);
        int k = ranks_of(t); /* an engine may have become ready just now */

        if (k > room - n)
            continue;
        copy(t, k, v + n);
        n += k;
    }
    pthread_mutex_unlock(&r->lock);
    *ret = v;
    return n;
}

void target_set_seats(struct target *t, const struct rank_seat *v, int n)
{
    struct rank_seat *fresh = n ? xcalloc((size_t)n, sizeof(*fresh)) : NULL, *old;

    if (n)
        memcpy(fresh, v, (size_t)n * sizeof(*fresh));
    pthread_mutex_lock(&t->r->lock);
    old = t->seats;
    t->seats = fresh;
    t->n_seats = n;
    pthread_mutex_unlock(&t->r->lock);
    free(old);
}
