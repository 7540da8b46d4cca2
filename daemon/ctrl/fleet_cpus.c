/* daemon/ctrl/fleet_cpus.c - the CPUs of the engines that are there, while they run.
 *
 * Each turn of the fleet looks at who is there; an engine whose share has changed is told
 * so, and is not started anew. An engine whose ranks have no CPUs of their own (their
 * devices are emulated) is told one set that its ranks share out. */
#include <stdlib.h>
#include <string.h>

#include "base/cpuset.h"
#include "base/mem.h"
#include "daemon/ctrl/cpushare.h"
#include "daemon/ctrl/fleet_int.h"

/* The place of its name among those that are there. */
static int group_of(struct fleet *f, const struct unit *u)
{
    int n = 0;

    list_for(it, &f->units)
    {
        const struct unit *other = list_entry(it, struct unit, link);

        n += other->phase != UNIT_GONE && strcmp(other->inst->name, u->inst->name) < 0;
    }
    return n;
}

/* Does each of its ranks have a seat with CPUs? */
static bool seated(const struct unit *u)
{
    bool all = u->n_seats == layout_ranks(&u->spec.layout);

    for (int i = 0; i < u->n_seats && all; i++)
        all = CPU_COUNT(&u->seats[i].near) > 0;
    return all;
}

static int rows_of(const struct unit *u)
{
    return u->phase == UNIT_GONE ? 0 : seated(u) ? u->n_seats : 1;
}

static void share(struct fleet *f)
{
    struct cpushare_rank *v;
    int n = 0, engine = 0;
    cpu_set_t may, *own;

    list_for(it, &f->units) n += rows_of(list_entry(it, struct unit, link));
    v = xcalloc((size_t)n + 1, sizeof(*v));
    own = xcalloc((size_t)n + 1, sizeof(*own));
    n = 0;
    list_for(it, &f->units)
    {
        const struct unit *u = list_entry(it, struct unit, link);

        for (int i = 0; i < rows_of(u); i++, n++) {
            v[n].group = group_of(f, u);
            v[n].engine = engine;
            if (seated(u))
                v[n].near = u->seats[i].near;
        }
        engine++;
    }
    cpuset_mine(&may);
    cpushare(&may, v, n);
    n = 0;
    list_for(it, &f->units)
    {
        struct unit *u = list_entry(it, struct unit, link);
        int k = rows_of(u);

        for (int i = 0; i < k; i++)
            own[i] = v[n + i].ret;
        if (k)
            unit_set_cpus(u, own, k);
        n += k;
    }
    free(own);
    free(v);
}

/* Threads of an engine spin only while those of all engines that share a CPU with it fit
 * its CPUs. */
static void spin(struct fleet *f)
{
    list_for(it, &f->units)
    {
        struct unit *u = list_entry(it, struct unit, link);
        int n = unit_threads(u), all = 0;

        list_for(other, &f->units)
        {
            const struct unit *o = list_entry(other, struct unit, link);
            cpu_set_t both;

            CPU_AND(&both, &u->cpus, &o->cpus);
            all += CPU_COUNT(&both) ? unit_threads(o) : 0;
        }
        unit_spin(u, n && all <= CPU_COUNT(&u->cpus));
    }
}

void fleet_share_cpus(struct fleet *f)
{
    share(f);
    spin(f);
}
