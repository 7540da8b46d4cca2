/* base/team.h - a fixed team of threads for one rank's kernels.
 *
 * team_run runs fn on every member (the caller is member 0) and returns when all are
 * done. Inside fn, team_sync is a barrier of the team. Waiting spins for a bounded count
 * of pauses and then sleeps on a futex; with spin = false (more threads than cores) or
 * while spin_allowed() says no it sleeps at once. One owner thread calls team_run. */
#ifndef BASE_TEAM_H
#define BASE_TEAM_H

#include <stdbool.h>

struct err;
struct team;

typedef void (*team_fn)(void *arg, int member, int n_members);

/* cpus: one CPU number per member to pin to, or NULL. */
int team_new(int n_members, const int *cpus, bool spin, struct team **ret, struct err *e);
void team_free(struct team *t);
int team_size(const struct team *t);
void team_run(struct team *t, team_fn fn, void *arg);
void team_sync(struct team *t); /* from within fn, by every member */

#endif
