/* daemon/ctrl/measure.c - see measure.h.
 *
 * The order is: an arena for each device, its pages first touched from the device's own
 * cores, so that they lie in its memory; then pair by pair. A round copies both ways, so
 * that noise of a moment falls on both; the median of all rounds is kept. */
#include "daemon/ctrl/measure.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/cpuset.h"
#include "base/err.h"
#include "base/mem.h"
#include "kernels/backend.h"
#include "topo/graph.h"

enum {
    SMALL_RACK = 16, /* devices; larger racks copy less at a time */
    PINGS = 200,
    PING_US = 20000, /* for all of a pair's pings */
    TURNS = 64       /* looks at the word before the core is offered to others */
};

/* ---- who is measured ---- */

/* The CPUs at a device, within those that this process may use. */
static int near_cpus(const struct node *x, const cpu_set_t *may, struct measure_device *d,
                     struct err *e)
{
    cpu_set_t near;

    if (cpuset_parse(x->cpus, strlen(x->cpus), &near, e) < 0)
        return err_wrap(e, "device %s", x->name);
    CPU_AND(&near, &near, may);
    d->n_cpus = cpuset_list(&near, d->cpus, 64);
    return d->n_cpus ? 0
                     : err_set(e, ERR_UNAVAIL,
                               "this process may use none of the CPUs %s of device %s",
                               x->cpus, x->name);
}

static int list_devices(struct measure *m, const struct graph *g, struct err *e)
{
    const int *dev;
    cpu_set_t may;
    char name[192];
    int n = graph_devices(g, &dev);

    if (sched_getaffinity(0, sizeof(may), &may) < 0)
        return err_errno(e, ERR_IO, "the CPUs of this process are not known");
    if (n < 2 || n > MEASURE_DEVICES_MAX)
        return err_set(e, ERR_UNSUPPORTED,
                       "pairs of 2 to %d devices are measured, the rack has %d",
                       MEASURE_DEVICES_MAX, n);
    m->dev = xcalloc((size_t)n, sizeof(*m->dev));
    for (m->n_dev = 0; m->n_dev < n; m->n_dev++) {
        struct measure_device *d = &m->dev[m->n_dev];
        const struct node *x = graph_node(g, dev[m->n_dev]);
        d->node = x->id;
        if (!x->is_cpu)
            return err_set(
                e, ERR_UNSUPPORTED,
                "%s is no CPU device%s: copies between GPUs are measured by the "
                "CUDA plugin, which is not there yet",
                graph_label(g, x->id, name, sizeof(name)),
                graph_emulated(g) ? " and only emulated here" : "");
        if (x->cpus[0] && near_cpus(x, &may, d, e) < 0)
            return -1;
        if (!x->cpus[0]) {
            cpu_set_t own;

            cpuset_share(&may, m->n_dev, n, &own);
            d->n_cpus = cpuset_list(&own, d->cpus, 64);
            m->own_cores = true;
        }
    }
    return 0;
}

int measure_new(const struct graph *g, int64_t budget_us, struct measure **ret,
                struct err *e)
{
    struct measure *m = xcalloc(1, sizeof(*m));
    size_t most = 8 << 20;

    if (list_devices(m, g, e) < 0) {
        measure_free(m);
        return -1;
    }
    if (m->n_dev <= SMALL_RACK)
        most = 32 << 20;
    m->size[0] = 64 << 10;
    m->size[1] = 1 << 20;
    m->size[2] = most;
    m->deadline_us = clock_now_us(clock_real()) + budget_us;
    m->pair = xcalloc((size_t)m->n_dev * (size_t)m->n_dev / 2, sizeof(*m->pair));
    for (int i = 0; i < m->n_dev; i++)
        for (int k = i + 1; k < m->n_dev; k++) {
            int a = m->dev[i].node, b = m->dev[k].node;
            if (graph_node(g, a)->host != graph_node(g, b)->host)
                m->n_apart++;
            else
                m->pair[m->n_pairs++] = (struct measure_pair){.a = a, .b = b};
        }
    *ret = m;
    return 0;
}

void measure_free(struct measure *m)
{
    if (!m)
        return;
    free(m->dev);
    free(m->pair);
    free(m);
}

double measure_bps(const struct measure_pair *p) { return p->bps[MEASURE_SIZES - 1]; }

/* ---- arenas ---- */

struct arena {
    struct backend *b;
    struct kv_arena *kv;
    char *mem; /* the exported region, mapped as another process would */
    size_t bytes;
};

static int pin(const struct measure_device *d)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    for (int i = 0; i < d->n_cpus; i++)
        CPU_SET((size_t)d->cpus[i], &set);
    return pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

static void arena_close(struct arena *a)
{
    if (a->mem)
        munmap(a->mem, a->bytes);
    if (a->kv)
        kv_arena_free(a->kv);
    if (a->b)
        backend_close(a->b);
}

static int arena_open(const struct measure_device *d, size_t bytes, struct arena *ret,
                      struct err *e)
{
    const struct backend_cfg cfg = {.name = "cpu",
                                    .n_threads = 1,
                                    .cpus = d->cpus,
                                    .isa = "auto",
                                    .caps = {1, 256, 1, 16, 1, 64}};
    struct kv_layout l = {.n_layer = 1,
                          .n_kv_head = 8,
                          .head_dim = 64,
                          .block_tok = KV_BLOCK_TOK,
                          .type = DT_F16};
    void *p;

    if (backend_open(&cfg, &ret->b, e) < 0 || kv_layout_fill(&l, e) < 0)
        return -1;
    if (pin(d) != 0) /* after the open, which pins to one of them */
        return err_set(e, ERR_UNAVAIL, "a thread cannot be put on CPU %d", d->cpus[0]);
    ret->bytes = bytes;
    if (kv_arena_new(ret->b, &l, (int)((bytes + l.block_bytes - 1) / l.block_bytes),
                     &ret->kv, e) < 0)
        return -1;
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, kv_arena_fd(ret->kv), 0);
    if (p == MAP_FAILED)
        return err_errno(e, ERR_NOMEM, "an arena of %zu bytes cannot be mapped", bytes);
    ret->mem = p;
    memset(ret->mem, 1, bytes); /* its pages lie where the device runs */
    return 0;
}

/* ---- bandwidth ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* A whole number of copies that takes long enough for the clock. */
static double copy_bps(char *to, const char *from, size_t size)
{
    int times = size < 1 << 20 ? 64 : size < 8 << 20 ? 8 : 1;
    int64_t t = clock_now_us(clock_real());

    for (int i = 0; i < times; i++) {
        memcpy(to, from, size);
        __asm__ volatile("" : : "r"(to) : "memory");
    }
    t = clock_now_us(clock_real()) - t;
    return 1e6 * (double)size * times / (double)(t > 0 ? t : 1);
}

static int pair_bps(const struct measure *m, const struct arena *a, int ia, int ib,
                    int size, struct measure_pair *p)
{
    double got[2 * MEASURE_ROUNDS];
    int n = 0;

    for (int r = -1; r < MEASURE_ROUNDS; r++) /* the first warms up */
        for (int back = 0; back < 2; back++) {
            int to = back ? ia : ib, from = back ? ib : ia;
            double v;
            if (pin(&m->dev[to]) != 0)
                return -1;
            v = copy_bps(a[to].mem, a[from].mem, m->size[size]);
            if (r >= 0)
                got[n++] = v;
        }
    qsort(got, (size_t)n, sizeof(got[0]), by_value);
    p->bps[size] = (got[n / 2 - 1] + got[n / 2]) / 2;
    p->spread = (got[n - 1] - got[0]) / p->bps[size];
    return 0;
}

/* ---- latency ---- */

struct pong {
    const struct measure_device *d;
    atomic_int word; /* odd: the other side's turn */
    atomic_bool stop;
};

static void wait_for(struct pong *p, int value)
{
    for (int i = 0; atomic_load_explicit(&p->word, memory_order_acquire) != value &&
                    !atomic_load_explicit(&p->stop, memory_order_relaxed);
         i++)
        if (i % TURNS == TURNS - 1)
            sched_yield(); /* both may have to share one core */
}

static void *pong_main(void *arg)
{
    struct pong *p = arg;

    pin(p->d);
    for (int i = 1; !atomic_load(&p->stop); i += 2) {
        wait_for(p, i);
        atomic_store_explicit(&p->word, i + 1, memory_order_release);
    }
    return NULL;
}

static int pair_latency(const struct measure *m, int ia, int ib, struct measure_pair *p,
                        struct err *e)
{
    struct pong g = {.d = &m->dev[ia]};
    double got[PINGS];
    int64_t until = clock_now_us(clock_real()) + PING_US;
    pthread_t t;
    int n = 0;

    atomic_init(&g.word, 0);
    atomic_init(&g.stop, false);
    if (pthread_create(&t, NULL, pong_main, &g) != 0)
        return err_set(e, ERR_NOMEM, "no thread to measure with");
    pin(&m->dev[ib]);
    while (n < PINGS && (n < 3 || clock_now_us(clock_real()) < until)) {
        enum { BURST = 8 }; /* one alone is below the clock's tick */
        int64_t at = clock_now_us(clock_real());
        for (int i = 0; i < BURST; i++) {
            int turn = 2 * (n * BURST + i);
            atomic_store_explicit(&g.word, turn + 1, memory_order_release);
            wait_for(&g, turn + 2);
        }
        got[n++] = (double)(clock_now_us(clock_real()) - at) / BURST / 2;
    }
    atomic_store(&g.stop, true);
    pthread_join(t, NULL);
    qsort(got, (size_t)n, sizeof(got[0]), by_value);
    p->latency_us = got[n / 2];
    return 0;
}

/* ---- all ---- */

static int index_of(const struct measure *m, int node)
{
    int i = 0;

    while (m->dev[i].node != node)
        i++;
    return i;
}

static int run_pair(const struct measure *m, const struct arena *a,
                    struct measure_pair *p, struct err *e)
{
    int ia = index_of(m, p->a), ib = index_of(m, p->b);

    for (int s = 0; s < MEASURE_SIZES; s++)
        if (pair_bps(m, a, ia, ib, s, p) < 0)
            return err_set(e, ERR_UNAVAIL, "a thread cannot be put on its device's CPUs");
    return pair_latency(m, ia, ib, p, e);
}

int measure_run(struct measure *m, struct err *e)
{
    struct arena *a = xcalloc((size_t)m->n_dev, sizeof(*a));
    int rc = 0, done = 0;

    for (int i = 0; i < m->n_dev && rc == 0; i++)
        rc = arena_open(&m->dev[i], m->size[MEASURE_SIZES - 1], &a[i], e);
    for (int i = 0; i < m->n_pairs && rc == 0; i++) {
        if (clock_now_us(clock_real()) >= m->deadline_us)
            break;
        rc = run_pair(m, a, &m->pair[i], e);
        m->pair[i].done = rc == 0;
        done += rc == 0;
    }
    if (rc == 0 && m->n_pairs && !done)
        rc = err_set(e, ERR_TIMEOUT, "no pair could be measured in the time given");
    for (int i = 0; i < m->n_dev; i++)
        arena_close(&a[i]);
    free(a);
    return rc;
}
