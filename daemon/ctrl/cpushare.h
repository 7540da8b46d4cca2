/* daemon/ctrl/cpushare.h - which CPUs each rank of each engine has.
 *
 * Pure. Ranks whose devices have the same CPUs near them share out these, by engine and
 * then by rank; ranks whose device says nothing of CPUs share out all. Engines of one
 * group (the generations of one, while it is replaced) have one share together. Of more
 * takers than CPUs some have the same one. */
#ifndef CTRL_CPUSHARE_H
#define CTRL_CPUSHARE_H

#include <sched.h>

struct cpushare_rank {
    int group; /* small numbers, 0 or more: their order is that of the shares */
    int engine;
    cpu_set_t near; /* none: not known */
    cpu_set_t ret;
};
/* Fills in ret of each. may: what there is. */
void cpushare(const cpu_set_t *may, struct cpushare_rank *v, int n);

#endif
