/* daemon/ctrl/need.c - memory of an engine by estimate. See need.h. */
#include "daemon/ctrl/need.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/ctrl/capacity.h"
#include "daemon/ctrl/conf.h"
#include "daemon/serve/engine_fit.h"

enum { KEPT = 2 * CONF_MAX_NAMES };

/* One answer, good as long as the file is the same. */
struct answer {
    char *path;
    struct timespec changed;
    off_t size;
    int64_t ctx, kv_mib, max_seqs, step_tok, as_tp, as_cp;
    int role;
    struct layout layout;
    uint64_t bytes;
    struct need_pool pool;
    char refused[256]; /* why layout, context or pool do not suit it; "" they do */
};

struct need {
    struct answer v[KEPT];
    int n, next;
};

struct need *need_new(void) { return xcalloc(1, sizeof(struct need)); }

void need_free(struct need *n)
{
    for (int i = 0; n && i < n->n; i++)
        free(n->v[i].path);
    free(n);
}

static bool answers(const struct answer *a, const char *path, const struct stat *st,
                    const struct conf_instance *i, const struct layout *l)
{
    return !strcmp(a->path, path) && a->size == st->st_size &&
           a->changed.tv_sec == st->st_mtim.tv_sec &&
           a->changed.tv_nsec == st->st_mtim.tv_nsec && a->ctx == i->ctx &&
           a->kv_mib == i->kv.mib && a->max_seqs == i->max_seqs &&
           a->step_tok == i->step_tok && a->role == i->role &&
           a->as_tp == i->round_as.tp && a->as_cp == i->round_as.cp &&
           layout_same(&a->layout, l);
}

static void ask(struct answer *a, const struct conf_instance *i)
{
    struct capacity c;
    struct err e = {0};

    if (capacity_check(a->path, i, &a->layout, NULL, &c, &e) == 0) {
        a->bytes = c.n_blocks ? (uint64_t)c.all : 0;
        a->pool = (struct need_pool){c.n_ctx, c.block_tok};
        if (!c.n_blocks) /* the engine would refuse its context or its pool */
            snprintf(a->refused, sizeof(a->refused), "%.255s", c.why);
    } else if (!strcmp(e.param, "layout"))
        snprintf(a->refused, sizeof(a->refused), "%.255s", e.msg);
}

uint64_t need_bytes(struct need *n, const char *path, const struct conf_instance *i,
                    const struct layout *l, struct need_pool *ret, char refused[256])
{
    struct answer *a = NULL;
    struct stat st;

    refused[0] = '\0';
    *ret = (struct need_pool){0};
    if (stat(path, &st) < 0)
        return 0;
    for (int k = 0; k < n->n && !a; k++)
        if (answers(&n->v[k], path, &st, i, l))
            a = &n->v[k];
    if (!a) {
        a = &n->v[n->next];
        n->next = (n->next + 1) % KEPT;
        n->n += n->n < KEPT;
        free(a->path);
        *a = (struct answer){.path = xstrdup(path),
                             .changed = st.st_mtim,
                             .size = st.st_size,
                             .ctx = i->ctx,
                             .kv_mib = i->kv.mib,
                             .max_seqs = i->max_seqs,
                             .step_tok = i->step_tok,
                             .as_tp = i->round_as.tp,
                             .as_cp = i->round_as.cp,
                             .role = i->role};
        a->layout = *l;
        ask(a, i);
    }
    memcpy(refused, a->refused, sizeof(a->refused));
    *ret = a->pool;
    return a->bytes ? a->bytes + ((uint64_t)i->kv.host_mib << 20) : 0;
}

static uint64_t number_in(const char *path, const char *fmt)
{
    unsigned long long v = 0;
    char line[256];
    FILE *f = fopen(path, "re");
    bool got = false;

    while (f && !got && fgets(line, sizeof(line), f))
        got = sscanf(line, fmt, &v) == 1;
    if (f)
        fclose(f);
    return got ? v : 0;
}

uint64_t need_free_bytes(void)
{
    uint64_t machine = number_in("/proc/meminfo", "MemAvailable: %llu") << 10;
    uint64_t limit = engine_ram_bytes();
    uint64_t used = number_in("/sys/fs/cgroup/memory.current", "%llu");
    uint64_t cached = number_in("/sys/fs/cgroup/memory.stat", "file %llu");

    used = used > cached ? used - cached : 0; /* pages of files give way */
    limit = limit > used ? limit - used : 0;
    return machine && machine < limit ? machine : limit;
}
