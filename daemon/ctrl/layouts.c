/* daemon/ctrl/layouts.c - asks the planner, keeps the answers. */
#include "daemon/ctrl/layouts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/ctrl/capacity.h"
#include "daemon/ctrl/conf.h"
#include "daemon/ctrl/domain.h"
#include "daemon/serve/forward.h"
#include "daemon/serve/model.h"
#include "topo/plan.h"

enum { KEPT = CONF_MAX_NAMES };

/* One answer. The view is held, so that no other can have its address. */
struct choice {
    char *path;
    struct timespec changed;
    off_t size;
    struct domain_view *view;
    int64_t ctx, engines;
    enum plan_role role;
    double ttft_ms, tpot_ms;
    int rc;
    struct layout layout;
    char said[160];
    struct err why;
};

struct layouts {
    struct choice v[KEPT];
    int n, next;
};

struct layouts *layouts_new(void) { return xcalloc(1, sizeof(struct layouts)); }

static void choice_done(struct choice *c)
{
    free(c->path);
    domain_put(c->view);
    *c = (struct choice){0};
}

void layouts_free(struct layouts *k)
{
    for (int i = 0; k && i < k->n; i++)
        choice_done(&k->v[i]);
    free(k);
}

/* That share the devices: replicas, or the engines of both pools. */
static int64_t engines_of(const struct conf_instance *i)
{
    return i->mode == CONF_SPLIT ? i->prefill.engines + i->decode.engines : i->replicas;
}

static enum plan_role role_of(const struct conf_instance *i)
{
    return i->role == CONF_ROLE_PREFILL  ? PLAN_PREFILL
           : i->role == CONF_ROLE_DECODE ? PLAN_DECODE
                                         : PLAN_BOTH;
}

static bool answers(const struct choice *c, const char *path, const struct stat *st,
                    const struct domain_view *v, const struct conf_instance *i)
{
    return !strcmp(c->path, path) && c->size == st->st_size &&
           c->changed.tv_sec == st->st_mtim.tv_sec &&
           c->changed.tv_nsec == st->st_mtim.tv_nsec && c->view == v &&
           c->ctx == i->ctx && c->engines == engines_of(i) && c->role == role_of(i) &&
           c->ttft_ms == i->slo.ttft_ms && c->tpot_ms == i->slo.tpot_ms;
}

/* What the engine runs. */
static bool runs(void *arg, const struct layout *l)
{
    const struct model_info *m = arg;
    struct forward_part p;

    forward_part_of(l, &p);
    return l->cp == 1 && forward_part_check(m, &p, NULL) == 0;
}

/* A prompt and an answer as the planner takes them, within the context. */
static void fill_load(int64_t ctx, struct plan_ask *a)
{
    if (ctx > 1 && (double)ctx < a->isl + a->osl)
        a->isl = a->osl = (double)ctx / 2;
}

static void tell_choice(struct choice *c, const struct plan_row *row, int tried)
{
    const struct estimate *est = &row->est;
    char words[64];
    int n;

    layout_print(&c->layout, words, sizeof(words));
    n = snprintf(c->said, sizeof(c->said), "%s of %d layouts: ", words, tried);
    if (c->role == PLAN_PREFILL)
        snprintf(c->said + n, sizeof(c->said) - (size_t)n,
                 "%.1f prompts/s, TTFT %.0f ms by estimate", est->requests_s,
                 est->ttft_ms);
    else if (c->role == PLAN_DECODE)
        snprintf(c->said + n, sizeof(c->said) - (size_t)n,
                 "%.0f tokens/s, TPOT %.1f ms by estimate", est->tokens_s, est->tpot_ms);
    else
        snprintf(c->said + n, sizeof(c->said) - (size_t)n,
                 "%.0f tokens/s, TTFT %.0f ms, TPOT %.1f ms by estimate", est->tokens_s,
                 est->ttft_ms, est->tpot_ms);
}

static int ask_planner(struct choice *c, const struct model *m, struct err *e)
{
    struct shapes *s = xcalloc(1, sizeof(*s));
    const struct plan_row *row;
    struct plan_ask a;
    struct plan *p;
    int rc;

    plan_ask_defaults(&a);
    rc = capacity_shapes(m, s, e);
    a.s = s;
    a.g = c->view->graph;
    a.paths = c->view->paths;
    a.avoid = c->view->avoid;
    a.n_avoid = c->view->n_avoid;
    a.ttft_ms = c->ttft_ms;
    a.tpot_ms = c->tpot_ms;
    a.replicas = (int)c->engines;
    a.role = c->role;
    a.allow = runs;
    a.allow_arg = (void *)model_info(m);
    fill_load(c->ctx ? c->ctx : s->ctx, &a);
    if (rc == 0)
        rc = plan_make(&a, &p, e);
    if (rc == 0) {
        plan_rows(p, &row);
        c->layout = row->l;
        c->layout.replicas = 1;
        tell_choice(c, row, plan_tried(p));
        plan_free(p);
    }
    free(s);
    return rc;
}

static void choose(struct choice *c)
{
    struct model *m;

    c->rc = model_open(c->path, &m, &c->why);
    if (c->rc < 0)
        return;
    c->rc = ask_planner(c, m, &c->why);
    if (c->rc == 0)
        c->rc = model_check(m, &c->why);
    model_free(m);
    if (c->rc < 0)
        err_wrap(&c->why, "layout.auto");
}

static struct choice *room_for(struct layouts *k)
{
    struct choice *c = &k->v[k->next];

    k->next = (k->next + 1) % KEPT;
    k->n += k->n < KEPT;
    choice_done(c);
    return c;
}

int layouts_choose(struct layouts *k, struct domain *d, const char *path,
                   const struct conf_instance *i, struct layout *ret, char said[160],
                   struct err *e)
{
    struct domain_view *v = d ? domain_get(d) : NULL;
    struct choice *c = NULL;
    struct stat st;

    if (!v)
        return err_set(e, ERR_UNAVAIL, "layout.auto: the rack is not known yet");
    if (stat(path, &st) < 0) {
        domain_put(v);
        return err_errno(e, ERR_NOTFOUND, "layout.auto: '%s'", path);
    }
    for (int n = 0; n < k->n && !c; n++)
        if (answers(&k->v[n], path, &st, v, i))
            c = &k->v[n];
    if (c) {
        domain_put(v);
    } else {
        c = room_for(k);
        *c = (struct choice){.path = xstrdup(path),
                             .changed = st.st_mtim,
                             .size = st.st_size,
                             .view = v,
                             .ctx = i->ctx,
                             .engines = engines_of(i),
                             .role = role_of(i),
                             .ttft_ms = i->slo.ttft_ms,
                             .tpot_ms = i->slo.tpot_ms};
        choose(c);
    }
    if (c->rc < 0) {
        if (e)
            *e = c->why;
        return -1;
    }
    *ret = c->layout;
    memcpy(said, c->said, sizeof(c->said));
    return 0;
}
