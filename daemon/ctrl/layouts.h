/* daemon/ctrl/layouts.h - layout.auto: the layout that the planner chooses for an
 * instance on this rack.
 *
 * Of the layouts that the engine runs and the model allows: the one that serves most on
 * the devices in service, as often as the instance has replicas, within its slo. For an
 * engine of a pool: the most prompts, or answers, where all engines of both pools have
 * devices of their own. Kept
 * until the rack, the file or what was asked changes, so that a plan does not search
 * again and again and the same question has the same answer. Control thread only. */
#ifndef CTRL_LAYOUTS_H
#define CTRL_LAYOUTS_H

struct conf_instance;
struct domain;
struct err;
struct layout;
struct layouts;

struct layouts *layouts_new(void);
void layouts_free(struct layouts *k);
/* path: the model's. said: the choice and its estimate in one sentence. -1: none is left,
 * or the rack or the file is not known. */
int layouts_choose(struct layouts *k, struct domain *d, const char *path,
                   const struct conf_instance *i, struct layout *ret, char said[160],
                   struct err *e);

#endif
