/* daemon/ctrl/fleet_int.h - what fleet.c, fleet_plan.c and fleet_order.c share. Not for
 * others. */
#ifndef CTRL_FLEET_INT_H
#define CTRL_FLEET_INT_H

#include "base/list.h"
#include "daemon/ctrl/conf.h"
#include "daemon/ctrl/fleet.h"
#include "daemon/ctrl/unit.h"
#include "state/store.h"

struct layouts;
struct loop_timer;
struct need;

enum { FLEET_ADMINS = 2 * CONF_MAX_NAMES, FLEET_ACTIONS = 2 * CONF_MAX_NAMES };

/* One action under way. */
enum slot_state { SLOT_WAITS, SLOT_STARTS, SLOT_DONE };
struct slot {
    struct fleet_action act;
    enum slot_state state;
    bool roomless; /* waits until what leaves has left */
    struct unit_spec spec;
    struct unit *fresh; /* that is to become ready */
};

struct job {
    bool on;
    struct conf *to; /* NULL: an operator's order */
    struct slot *v;  /* of one action each */
    int n;
    struct err why; /* the first failure */
    fleet_done_fn done;
    void *arg;
};

struct fleet {
    struct fleet_cfg cfg;
    struct unit_env env;
    struct list units; /* oldest first */
    struct conf *conf; /* last applied */
    struct job job;
    struct need *need;
    struct layouts *layouts;
    struct loop_timer *timer;
    struct admin_row admin[FLEET_ADMINS];
    int n_admin, generation;
    bool stopping;
};

/* The unit that an instance runs (not one that leaves), or that an operator has halted.
 */
struct unit *fleet_unit(struct fleet *f, const char *instance);
/* What an operator said of it: "", "stopped", "draining". */
const struct admin_row *fleet_admin(const struct fleet *f, const char *instance);
/* As fleet_plan, for one instance: a new engine for what runs, its kind and room. */
void fleet_plan_new_engine(struct fleet *f, const struct unit_spec *spec,
                           struct fleet_action *a);
/* Are both engines of one instance: main:2 and main/decode? */
bool fleet_same_instance(const char *a, const char *b);
/* Into the journal, where there is one. */
void fleet_note(struct fleet *f, const char *what, const char *instance,
                const char *result, const char *detail);
/* What makes the engine of an instance; refused: why there can be none, "". */
void fleet_spec(struct fleet *f, const struct conf *c, const struct conf_instance *i,
                struct unit_spec *ret, char refused[256]);
/* Give the ranks of a unit their devices. */
void fleet_seat(struct fleet *f, struct unit *u);
/* The machine's CPUs to the units that are there, and who of them may spin. */
void fleet_share_cpus(struct fleet *f);
int fleet_nofit(const struct fleet_action *a, struct err *e);
/* Begin a job whose slots are filled in; its state is set here. */
void fleet_begin(struct fleet *f);
void fleet_slot_done(struct slot *s);
/* Look again as soon as the loop turns. */
void fleet_kick(void *fleet);

#endif
