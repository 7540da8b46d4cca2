/* daemon/ctrl/supervisor_impl.h - what supervisor*.c share. Not for others. */
#ifndef CTRL_SUPERVISOR_IMPL_H
#define CTRL_SUPERVISOR_IMPL_H

#include "base/err.h"
#include "daemon/ctrl/pulse.h"
#include "daemon/ctrl/router_ctl.h"
#include "daemon/ctrl/supervisor.h"
#include "daemon/ctrl/target.h"
#include "daemon/ctrl/warming.h"

struct child;
struct loop_fd;
struct loop_timer;

enum { SUPERVISOR_LINES = 1024 };

struct supervisor {
    struct supervisor_cfg cfg;
    struct instance_status st; /* as published */
    struct loaded next;        /* opened, published when the engine is ready */
    struct loader *loader;
    struct child *child;
    struct loop_fd *orders;
    struct loop_timer *retry, *tick, *kill;
    int64_t delay_us, ready_us; /* next wait; since when ready */
    char *kv_file;              /* NULL: none */
    int64_t moved_us;           /* last sign of life of the present state */
    double steps, load_done;    /* at that sign */
    struct pulse pulse;         /* of one that is ready */
    double pulse_steps;         /* that had ended when it was heard of last */
    uint8_t secret[16];
    cpu_set_t cpus;
    char *rank_cpus; /* NULL: all that we have */
    int n_threads;   /* on them */
    bool moved_on;   /* they have changed since the engine was started */
    struct warming warming;
    bool draining, stopping, no_spin;
    bool has_policy; /* other than the options */
    struct wire_policy policy;
    bool told; /* the child was ready: it may be told things */
    char trouble[ALARM_ENGINE_COUNT][256]; /* what is wrong with it now; "" nothing */
    struct err stop_why;
    char lines[SUPERVISOR_LINES];
};

void supervisor_enter(struct supervisor *s, enum instance_state state);
/* Is its engine one that takes requests, or would but for a drain? */
bool supervisor_is_ready(const struct supervisor *s);

/* Into the journal, where there is one. */
void supervisor_note(struct supervisor *s, const char *what, const char *result,
                     const char *detail);

/* supervisor_watch.c: nothing is known of its life yet; it gave a sign of it. */
void supervisor_watch_from_now(struct supervisor *s);
void supervisor_heard(struct supervisor *s);
/* The timer's; how long until it looks again. */
void supervisor_tick(void *supervisor);
int64_t supervisor_tick_us(const struct supervisor *s);

/* Something is wrong with the engine; why NULL: not any more. */
void supervisor_trouble(struct supervisor *s, enum alarm_engine kind, const char *why);

/* supervisor_tell.c: its CPUs, to an engine that is ready. */
void supervisor_tell_cpus(struct supervisor *s);

#endif
