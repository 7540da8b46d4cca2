/* daemon/ctrl/loader.c - a thread that opens a model's vocabulary and says what it found.
 *
 * The model's map is dropped as soon as the tokenizer has copied what it needs, so that
 * a file cut short later can only end the engine. */
#include "daemon/ctrl/loader.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/stat.h>

#include "base/err.h"
#include "base/loop.h"
#include "base/mem.h"
#include "base/queue.h"
#include "daemon/ctrl/capacity.h"
#include "daemon/serve/model.h"
#include "daemon/serve/tokenizer.h"

struct loader {
    pthread_t thread;
    bool started;
    struct queue *outcome; /* one token: the fields below are written */
    struct loop_fd *watch;
    loader_open_fn open;
    char *path, *name;
    loader_done_fn done;
    void *arg;
    bool failed;
    struct loaded m;
    struct err why;
};

#define COPY(to, ...) snprintf(to, sizeof(to), __VA_ARGS__)

static const char *family_name(enum model_family f)
{
    static const char *const names[] = {
#define X(id, hf, gguf) hf,
        MODEL_FAMILY_MAP(X)
#undef X
    };
    return (unsigned)f < FAMILY_COUNT ? names[f] : "unknown";
}

/* "models/SmolLM2.Q4_1.gguf" and "models/SmolLM2.Q4_1/" are both served as SmolLM2.Q4_1.
 */
static void name_from_path(const char *path, char *out, size_t cap)
{
    size_t end = strlen(path), start;

    while (end > 1 && path[end - 1] == '/')
        end--;
    for (start = end; start > 0 && path[start - 1] != '/';)
        start--;
    if (end - start > 5 && strncasecmp(path + end - 5, ".gguf", 5) == 0)
        end -= 5;
    snprintf(out, cap, "%.*s", (int)(end - start), path + start);
}

int loader_open_model(const char *path, const char *name, struct loaded *ret,
                      struct err *e)
{
    const struct model_info *i;
    struct tokenizer *tok;
    struct loaded m = {0};
    struct model *model;
    struct stat st;

    if (model_open(path, &model, e) < 0)
        return -1;
    if (tokenizer_open(model, &tok, e) < 0) {
        model_check(model, e); /* a file cut short is the better reason */
        model_free(model);
        return -1;
    }
    if (model_check(model, e) < 0) {
        tokenizer_free(tok);
        model_free(model);
        return -1;
    }
    i = model_info(model);
    if (name[0])
        COPY(m.facts.name, "%s", name);
    else
        name_from_path(path, m.facts.name, sizeof(m.facts.name));
    COPY(m.facts.path, "%s", path);
    COPY(m.facts.family, "%s", family_name(i->family));
    COPY(m.facts.main_type, "%s", i->main_type);
    COPY(m.facts.format, "%s", i->format);
    m.facts.chat = template_detect(tok);
    m.facts.n_ctx = i->n_ctx;
    m.facts.n_vocab = i->n_vocab;
    m.facts.n_params = i->n_params;
    m.facts.file_bytes = i->file_bytes;
    m.facts.created_s = stat(path, &st) == 0 ? (int64_t)st.st_mtime : 0;
    m.tok = tok;
    m.shapes = xmalloc(sizeof(*m.shapes));
    if (capacity_shapes(model, m.shapes, NULL) < 0) { /* planning cannot say, it runs */
        free(m.shapes);
        m.shapes = NULL;
    }
    model_free(model);
    *ret = m;
    return 0;
}

static void *loader_main(void *arg)
{
    struct loader *ld = arg;

    ld->failed = ld->open(ld->path, ld->name, &ld->m, &ld->why) < 0;
    (void)queue_push(ld->outcome, ld);
    return NULL;
}

static void on_outcome(void *arg, int fd, uint32_t events)
{
    struct loader *ld = arg;
    struct loaded m;

    (void)fd, (void)events;
    if (!queue_pop(ld->outcome))
        return;
    loop_fd_del(ld->watch);
    ld->watch = NULL;
    m = ld->m;
    ld->m.tok = NULL;
    ld->m.shapes = NULL;
    if (ld->failed)
        ld->done(ld->arg, NULL, &ld->why);
    else
        ld->done(ld->arg, &m, NULL);
}

int loader_start(struct loop *l, loader_open_fn open, const char *path, const char *name,
                 loader_done_fn done, void *arg, struct loader **ret, struct err *e)
{
    struct loader *ld = xcalloc(1, sizeof(*ld));

    ld->open = open;
    ld->path = xstrdup(path);
    ld->name = xstrdup(name);
    ld->done = done;
    ld->arg = arg;
    if (queue_new(1, &ld->outcome, e) < 0 ||
        loop_fd_add(l, queue_fd(ld->outcome), EPOLLIN, on_outcome, ld, &ld->watch, e) < 0)
        goto fail;
    if (pthread_create(&ld->thread, NULL, loader_main, ld) != 0) {
        err_set(e, ERR_NOMEM, "cannot start a thread to open the model");
        goto fail;
    }
    ld->started = true;
    *ret = ld;
    return 0;
fail:
    loader_free(ld);
    return -1;
}

void loader_free(struct loader *ld)
{
    if (!ld)
        return;
    if (ld->started)
        pthread_join(ld->thread, NULL);
    loop_fd_del(ld->watch);
    queue_free(ld->outcome);
    tokenizer_free(ld->m.tok);
    free(ld->m.shapes);
    free(ld->path);
    free(ld->name);
    free(ld);
}
