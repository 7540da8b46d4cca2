/* daemon/ctrl/measure.h - copies between devices, timed: what their paths really reach.
 *
 * CPU devices only, for now: a thread on the cores of the receiving device copies from
 * the sender's arena (a KV arena, as handoff does it) into its own, in both directions,
 * in several sizes and rounds; the latency is half a ping-pong between two threads on the
 * cores of the two. Devices of one host only: between emulated hosts there is nothing to
 * measure. measure_run takes seconds, so it runs beside the control thread. */
#ifndef CTRL_MEASURE_H
#define CTRL_MEASURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct graph;

enum { MEASURE_DEVICES_MAX = 64, MEASURE_ROUNDS = 9, MEASURE_SIZES = 3 };

struct measure_device {
    int node;
    int cpus[64], n_cpus; /* where its threads run */
};

struct measure_pair {
    int a, b;                  /* node ids, a < b in the order of devices */
    bool done;                 /* false: the time was over before */
    double bps[MEASURE_SIZES]; /* medians, smallest size first */
    double spread;             /* of the largest: (max - min) / median */
    double latency_us;
};

struct measure {
    struct measure_device *dev;
    int n_dev;
    struct measure_pair *pair;
    int n_pairs, n_apart; /* pairs of different hosts, left out */
    size_t size[MEASURE_SIZES];
    int64_t deadline_us; /* monotonic; no pair begins after it */
    bool own_cores;      /* the rack gives no cores: equal shares of this process's */
};

/* What would be measured. UNSUPPORTED with a sentence for a rack of GPUs. */
int measure_new(const struct graph *g, int64_t budget_us, struct measure **ret,
                struct err *e);
void measure_free(struct measure *m);
/* Any one thread, whose own cores it changes. */
int measure_run(struct measure *m, struct err *e);
/* The figure that planning takes: of the largest size. */
double measure_bps(const struct measure_pair *p);

#endif
