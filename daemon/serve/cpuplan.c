/* daemon/serve/cpuplan.c - see cpuplan.h. */
#include "daemon/serve/cpuplan.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpuset.h"
#include "base/err.h"
#include "base/mem.h"

int cpuplan_threads(int threads, int n_cpus, int n_ranks)
{
    int n = threads ? threads : n_cpus;

    return n > n_ranks ? n : n_ranks;
}

static void share_threads(struct cpuplan *p)
{
    for (int i = 0; i < p->n_ranks; i++) {
        int from = p->n_threads * i / p->n_ranks;

        p->rank[i].n_threads = p->n_threads * (i + 1) / p->n_ranks - from;
        if (p->rank[i].n_threads < 1)
            p->rank[i].n_threads = 1;
    }
}

/* One list: where each thread has a CPU the ranks have some each, else all have all. */
static void together(struct cpuplan *p)
{
    int n = CPU_COUNT(&p->all);

    for (int i = 0; i < p->n_ranks; i++) {
        struct cpuplan_rank *r = &p->rank[i];

        r->may = p->all;
        r->pin = p->n_threads == n;
        if (r->pin)
            cpuset_share(&p->all, i, p->n_ranks, &r->may);
    }
}

static int by_rank(struct cpuplan *p, const char *text, struct err *e)
{
    const char *s = text;
    int sum = 0;

    for (int i = 0; i < p->n_ranks; i++) {
        size_t n = strcspn(s, ";");

        if (cpuset_parse(s, n, &p->rank[i].may, e) < 0)
            return -1;
        CPU_OR(&p->all, &p->all, &p->rank[i].may);
        sum += CPU_COUNT(&p->rank[i].may);
        if (!s[n] != (i == p->n_ranks - 1))
            return err_set(e, ERR_INVALID,
                           "CPUs '%.64s': a list for each of %d ranks would be right",
                           text, p->n_ranks);
        s += n + (s[n] == ';');
    }
    for (int i = 0; i < p->n_ranks; i++)
        p->rank[i].pin = sum == CPU_COUNT(&p->all); /* nobody shares one */
    return 0;
}

int cpuplan_make(const char *text, int threads, int n_ranks, struct cpuplan *ret,
                 struct err *e)
{
    bool each = strchr(text, ';') != NULL;
    struct cpuplan p = {.n_ranks = n_ranks};

    CPU_ZERO(&p.all);
    p.rank = xcalloc((size_t)n_ranks, sizeof(*p.rank));
    if (each ? by_rank(&p, text, e) < 0
             : text[0] && cpuset_parse(text, strlen(text), &p.all, e) < 0) {
        cpuplan_done(&p);
        return -1;
    }
    if (!text[0])
        cpuset_mine(&p.all);
    p.n_threads = cpuplan_threads(threads, CPU_COUNT(&p.all), n_ranks);
    share_threads(&p);
    if (!each)
        together(&p);
    for (int i = 0; i < n_ranks && each; i++) {
        struct cpuplan_rank *r = &p.rank[i];

        if (!threads)
            r->n_threads = CPU_COUNT(&r->may);
        r->pin = r->pin && r->n_threads == CPU_COUNT(&r->may);
    }
    p.n_threads = 0;
    for (int i = 0; i < n_ranks; i++)
        p.n_threads += p.rank[i].n_threads;
    p.fits = p.n_threads <= CPU_COUNT(&p.all);
    *ret = p;
    return 0;
}

void cpuplan_loose(int threads, int n_ranks, struct cpuplan *ret)
{
    *ret = (struct cpuplan){.n_ranks = n_ranks, .n_threads = threads};
    ret->rank = xcalloc((size_t)n_ranks, sizeof(*ret->rank));
    ret->fits = threads >= n_ranks;
    share_threads(ret);
}

void cpuplan_copy(const struct cpuplan *from, struct cpuplan *ret)
{
    size_t n = (size_t)from->n_ranks * sizeof(*from->rank);

    *ret = *from;
    ret->rank = xmalloc(n);
    memcpy(ret->rank, from->rank, n);
}

void cpuplan_done(struct cpuplan *p)
{
    free(p->rank);
    *p = (struct cpuplan){0};
}

void cpuplan_move_all(const cpu_set_t *to)
{
    DIR *d = opendir("/proc/self/task");
    struct dirent *t;

    while (d && (t = readdir(d)))
        if (t->d_name[0] != '.')
            sched_setaffinity(atoi(t->d_name), sizeof(*to), to);
    if (d)
        closedir(d);
}
