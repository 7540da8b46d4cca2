/* daemon/ctrl/need.c - memory of an engine by estimate. See need.h. */
#include "daemon/ctrl/need.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "daemon/ctrl/conf.h"
#include "daemon/serve/engine_fit.h"
#include "daemon/serve/forward.h"
#include "kernels/backend.h"
#include "daemon/serve/model.h"

enum { FILES_KEPT = CONF_MAX_NAMES };

/* What the estimate needs of one file. */
struct facts {
    char *path;
    struct timespec changed;
    off_t size;
    size_t file_bytes, block_bytes;
    int model_ctx;
};

struct need {
    struct facts v[FILES_KEPT];
    int n, next;
};

struct need *need_new(void) { return xcalloc(1, sizeof(struct need)); }

void need_free(struct need *n)
{
    for (int i = 0; n && i < n->n; i++)
        free(n->v[i].path);
    free(n);
}

static bool same_file(const struct facts *f, const char *path, const struct stat *st)
{
    return !strcmp(f->path, path) && f->size == st->st_size &&
           f->changed.tv_sec == st->st_mtim.tv_sec &&
           f->changed.tv_nsec == st->st_mtim.tv_nsec;
}

/* Of a file already seen, or opened now; NULL when it cannot be read. */
static const struct facts *facts_of(struct need *n, const char *path)
{
    const struct model_info *i;
    struct model *m;
    struct facts *f;
    struct stat st;

    if (stat(path, &st) < 0)
        return NULL;
    for (int k = 0; k < n->n; k++)
        if (same_file(&n->v[k], path, &st))
            return &n->v[k];
    if (model_open(path, &m, NULL) < 0)
        return NULL;
    f = &n->v[n->next];
    n->next = (n->next + 1) % FILES_KEPT;
    n->n += n->n < FILES_KEPT;
    free(f->path);
    i = model_info(m);
    *f = (struct facts){.path = xstrdup(path),
                        .changed = st.st_mtim,
                        .size = st.st_size,
                        .file_bytes = i->file_bytes,
                        .block_bytes = forward_kv_block_bytes(i, DT_F16),
                        .model_ctx = i->n_ctx};
    model_free(m);
    return f;
}

uint64_t need_bytes(struct need *n, const char *path, const struct conf_instance *i)
{
    const struct facts *f = facts_of(n, path);
    struct engine_fit fit;
    struct engine_fit_ask ask = {
        .ctx = (int)i->ctx,
        .kv_mib = i->kv.mib,
        .max_seqs = (int)i->max_seqs,
        .block_tok = KV_BLOCK_TOK,
        .ram_bytes = engine_ram_bytes(),
    };

    if (!f || !f->block_bytes)
        return 0;
    ask.model_ctx = f->model_ctx;
    ask.block_bytes = f->block_bytes;
    if (engine_fit(&ask, &fit, NULL) < 0)
        return 0;
    return f->file_bytes + (uint64_t)fit.n_blocks * f->block_bytes;
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
