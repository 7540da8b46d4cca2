/* daemon/ctrl/cpushare.c - see cpushare.h. */
#include "daemon/ctrl/cpushare.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/cpuset.h"
#include "base/mem.h"

struct row {
    cpu_set_t pool; /* of which it is to have some */
    int number;     /* the first row with the same pool */
    bool first;     /* of its group in that pool */
};

static void find_pools(const cpu_set_t *may, const struct cpushare_rank *v, int n,
                       struct row *w)
{
    for (int i = 0; i < n; i++) {
        struct row *r = &w[i];

        CPU_AND(&r->pool, may, &v[i].near);
        if (!CPU_COUNT(&r->pool))
            r->pool = *may;
        r->number = 0;
        while (!CPU_EQUAL(&w[r->number].pool, &r->pool))
            r->number++;
        r->first = true;
        for (int k = 0; k < i && r->first; k++)
            r->first = w[k].number != r->number || v[k].group != v[i].group;
    }
}

void cpushare(const cpu_set_t *may, struct cpushare_rank *v, int n)
{
    struct row *w = xcalloc((size_t)n + 1, sizeof(*w));

    find_pools(may, v, n, w);
    for (int i = 0; i < n; i++) {
        int groups = 0, before = 0, ranks = 0, at = 0;
        cpu_set_t part;

        for (int k = 0; k < n; k++) {
            if (w[k].number != w[i].number)
                continue;
            groups += w[k].first;
            before += w[k].first && v[k].group < v[i].group;
            if (v[k].engine != v[i].engine)
                continue;
            at += k < i;
            ranks++;
        }
        cpuset_share(&w[i].pool, before, groups, &part);
        cpuset_share(&part, at, ranks, &v[i].ret);
    }
    free(w);
}
