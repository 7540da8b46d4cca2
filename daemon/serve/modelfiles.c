/* See modelfiles.h. A folder is read as its loaders elsewhere read it: model.safetensors
 * if it is there, else the shards of model.safetensors.index.json, all of which are
 * mapped at open, so that a missing or damaged one is told then and not in mid-load. */
#include "daemon/serve/modelfiles.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/serve/blame.h"
#include "daemon/serve/gguf.h"
#include "daemon/serve/map.h"
#include "daemon/serve/safetensors.h"
#include "kernels/dtype.h"

struct modelfiles {
    char *path;
    bool is_dir;
    struct map **maps; /* weights files */
    size_t n_maps;
    struct gguf *gguf;              /* of maps[0], or NULL */
    struct safetensors **shards;    /* of each map, or NULL */
    struct safetensors_index index; /* empty with one file */
    struct map *config;
};

/* GGUF types that files hold and we do not serve, for sentences. */
#define OTHER_TYPE_MAP(X)                                                                \
    X("Q8_1", 9)                                                                         \
    X("Q2_K", 10)                                                                        \
    X("Q3_K", 11)                                                                        \
    X("Q8_K", 15)                                                                        \
    X("IQ2_XXS", 16)                                                                     \
    X("IQ2_XS", 17)                                                                      \
    X("IQ3_XXS", 18)                                                                     \
    X("IQ1_S", 19)                                                                       \
    X("IQ4_NL", 20)                                                                      \
    X("IQ3_S", 21)                                                                       \
    X("IQ2_S", 22)                                                                       \
    X("IQ4_XS", 23)                                                                      \
    X("I8", 24)                                                                          \
    X("I16", 25)                                                                         \
    X("I32", 26)                                                                         \
    X("I64", 27)                                                                         \
    X("F64", 28)                                                                         \
    X("IQ1_M", 29)                                                                       \
    X("TQ1_0", 34)                                                                       \
    X("TQ2_0", 35)                                                                       \
    X("NVFP4", 40)

static const char *gguf_type(uint32_t number)
{
    int dt = dtype_from_gguf(number);

    if (dt >= 0)
        return dtype_name((enum dtype)dt);
    switch (number) {
#define X(name, n)                                                                       \
    case n:                                                                              \
        return name;
        OTHER_TYPE_MAP(X)
#undef X
    default:
        return "unknown";
    }
}

/* ---- opening ---- */

static int open_gguf(struct modelfiles *f, struct err *e)
{
    f->maps = xcalloc(1, sizeof(*f->maps));
    if (map_open(f->path, &f->maps[0], e) < 0)
        return -1;
    f->n_maps = 1;
    return gguf_parse(f->path, map_data(f->maps[0]), map_bytes(f->maps[0]), &f->gguf, e);
}

static bool has_file(const char *dir, const char *name)
{
    char *path = xasprintf("%s/%s", dir, name);
    bool yes = access(path, F_OK) == 0;

    free(path);
    return yes;
}

static int map_in(const char *dir, const char *name, struct map **ret, struct err *e)
{
    char *path = xasprintf("%s/%s", dir, name);
    int rc = map_open(path, ret, e);

    free(path);
    return rc;
}

static int open_shards(struct modelfiles *f, char *const *names, size_t n, struct err *e)
{
    f->maps = xcalloc(n, sizeof(*f->maps));
    f->shards = xcalloc(n, sizeof(*f->shards));
    for (size_t i = 0; i < n; i++) {
        if (map_in(f->path, names[i], &f->maps[i], e) < 0)
            return -1;
        f->n_maps++;
        if (safetensors_parse(map_path(f->maps[i]), map_data(f->maps[i]),
                              map_bytes(f->maps[i]), &f->shards[i], e) < 0)
            return -1;
    }
    return 0;
}

static int check_index(const struct modelfiles *f, const char *path, struct err *e)
{
    const struct safetensors_index *x = &f->index;
    struct blame_name b;

    for (size_t i = 0; i < x->n_names; i++)
        if (!safetensors_find(f->shards[x->file_of[i]], x->names[i]))
            return blame(e, ERR_CORRUPT, path,
                         "tensor '%s' is said to be in '%s', but it is not there",
                         blame_name(&b, x->names[i], strlen(x->names[i])),
                         x->files[x->file_of[i]]);
    return 0;
}

static int open_indexed(struct modelfiles *f, struct err *e)
{
    struct map *m;
    int rc;

    if (map_in(f->path, "model.safetensors.index.json", &m, e) < 0)
        return -1;
    rc = safetensors_index_parse(map_path(m), map_data(m), map_bytes(m), &f->index, e);
    if (rc == 0)
        rc = open_shards(f, f->index.files, f->index.n_files, e);
    if (rc == 0)
        rc = check_index(f, map_path(m), e);
    if (map_check(m, e) < 0)
        rc = -1;
    map_close(m);
    return rc;
}

static int open_folder(struct modelfiles *f, struct err *e)
{
    static char single[] = "model.safetensors";
    char *const names[] = {single};

    if (map_in(f->path, "config.json", &f->config, e) < 0)
        return -1;
    if (has_file(f->path, single))
        return open_shards(f, names, 1, e);
    if (has_file(f->path, "model.safetensors.index.json"))
        return open_indexed(f, e);
    return blame(e, ERR_NOTFOUND, f->path,
                 "the folder has neither model.safetensors nor "
                 "model.safetensors.index.json; weights in other formats are not served");
}

int modelfiles_open(const char *path, struct modelfiles **ret, struct err *e)
{
    struct modelfiles *f;
    struct stat st;

    if (stat(path, &st) < 0)
        return err_errno(e, errno == ENOENT || errno == ENOTDIR ? ERR_NOTFOUND : ERR_IO,
                         "%s", path);
    f = xcalloc(1, sizeof(*f));
    f->path = xstrdup(path);
    f->is_dir = S_ISDIR(st.st_mode);
    for (size_t n = strlen(f->path); n > 1 && f->path[n - 1] == '/'; n--)
        f->path[n - 1] = '\0';
    if ((f->is_dir ? open_folder(f, e) : open_gguf(f, e)) < 0) {
        modelfiles_check(f, e); /* it may know a better reason */
        modelfiles_close(f);
        return -1;
    }
    *ret = f;
    return 0;
}

void modelfiles_close(struct modelfiles *f)
{
    if (!f)
        return;
    gguf_free(f->gguf);
    for (size_t i = 0; f->shards && i < f->n_maps; i++)
        safetensors_free(f->shards[i]);
    for (size_t i = 0; i < f->n_maps; i++)
        map_close(f->maps[i]);
    safetensors_index_done(&f->index);
    map_close(f->config);
    free(f->shards);
    free(f->maps);
    free(f->path);
    free(f);
}

/* ---- tensors ---- */

/* dims[0] is the outermost. */
static void set_shape(struct file_tensor *t, const uint64_t *dims, int n)
{
    t->planes = t->rows = t->cols = 1;
    t->n_dims = n;
    memcpy(t->dims, dims, (size_t)(n < 4 ? n : 4) * sizeof(*dims));
    for (; n > 3 && dims[0] == 1; n--)
        dims++;
    if (n > 2)
        t->planes = dims[n - 3];
    if (n > 1)
        t->rows = n > 3 ? 0 : dims[n - 2];
    if (n > 0)
        t->cols = dims[n - 1];
}

static void from_gguf(const struct modelfiles *f, const struct gguf_tensor *g,
                      struct file_tensor *ret)
{
    uint64_t dims[4];

    for (int i = 0; i < g->n_dims; i++)
        dims[i] = g->dims[g->n_dims - 1 - i];
    *ret = (struct file_tensor){
        .name = g->name.p,
        .name_len = g->name.n,
        .file = f->path,
        .dtype = dtype_from_gguf(g->type),
        .type = gguf_type(g->type),
        .data = g->data,
        .bytes = g->bytes,
    };
    set_shape(ret, dims, g->n_dims);
}

static int hf_dtype(const char *name)
{
    static const enum dtype served[] = {DT_F32, DT_F16, DT_BF16};

    for (size_t i = 0; i < sizeof(served) / sizeof(served[0]); i++)
        if (!strcmp(dtype_name(served[i]), name))
            return (int)served[i];
    return -1;
}

static void from_shard(const struct modelfiles *f, size_t shard,
                       const struct safetensors_tensor *s, struct file_tensor *ret)
{
    *ret = (struct file_tensor){
        .name = s->name,
        .name_len = strlen(s->name),
        .file = map_path(f->maps[shard]),
        .dtype = hf_dtype(s->type),
        .type = s->type,
        .data = s->data,
        .bytes = s->bytes,
    };
    set_shape(ret, s->dims, s->n_dims);
}

static int name_cmp(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

bool modelfiles_find(const struct modelfiles *f, const char *name,
                     struct file_tensor *ret)
{
    const struct safetensors_tensor *s;
    const struct gguf_tensor *g;
    size_t shard = 0;

    if (f->gguf) {
        g = gguf_find(f->gguf, name);
        if (g)
            from_gguf(f, g, ret);
        return g != NULL;
    }
    if (f->index.n_names) {
        char **hit = bsearch(&name, f->index.names, f->index.n_names,
                             sizeof(*f->index.names), name_cmp);

        if (!hit)
            return false;
        shard = f->index.file_of[hit - f->index.names];
    }
    s = safetensors_find(f->shards[shard], name);
    if (s)
        from_shard(f, shard, s, ret);
    return s != NULL;
}

size_t modelfiles_count(const struct modelfiles *f)
{
    if (f->gguf)
        return gguf_n_tensors(f->gguf);
    return f->index.n_names ? f->index.n_names : safetensors_count(f->shards[0]);
}

void modelfiles_at(const struct modelfiles *f, size_t i, struct file_tensor *ret)
{
    if (f->gguf)
        from_gguf(f, gguf_tensor(f->gguf, i), ret);
    else if (f->index.n_names)
        modelfiles_find(f, f->index.names[i], ret);
    else
        from_shard(f, 0, safetensors_at(f->shards[0], i), ret);
}

/* ---- the rest ---- */

const struct gguf *modelfiles_gguf(const struct modelfiles *f) { return f->gguf; }

const char *modelfiles_dir(const struct modelfiles *f)
{
    return f->is_dir ? f->path : NULL;
}

const struct map *modelfiles_config(const struct modelfiles *f) { return f->config; }

const char *modelfiles_path(const struct modelfiles *f) { return f->path; }

size_t modelfiles_bytes(const struct modelfiles *f)
{
    size_t n = 0;

    for (size_t i = 0; i < f->n_maps; i++)
        n += map_bytes(f->maps[i]);
    return n;
}

int modelfiles_check(const struct modelfiles *f, struct err *e)
{
    if (f->config && map_check(f->config, e) < 0)
        return -1;
    for (size_t i = 0; i < f->n_maps; i++)
        if (map_check(f->maps[i], e) < 0)
            return -1;
    return 0;
}

void modelfiles_drop(const struct modelfiles *f, const void *p, size_t n)
{
    for (size_t i = 0; i < f->n_maps; i++)
        map_drop(f->maps[i], p, n);
}
