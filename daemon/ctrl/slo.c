/* daemon/ctrl/slo.c - SLO accounting: cells by instance and class, the guard's seconds,
 * minutes into the store.
 *
 * A sample is a search among a few series and an add to four cells: the two of its time,
 * the minute that the store will get, and the sum since the start. One lock guards all;
 * a reader holds it for one series at a time. */
#include "daemon/ctrl/slo.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "daemon/ctrl/guard.h"
#include "daemon/ctrl/slo_int.h"
#include "state/series.h"

enum {
    FINE_US = 10000000,
    COARSE_US = 60000000,
    N_FINE = 31,   /* five minutes and the one that runs */
    N_COARSE = 61, /* an hour and the one that runs */
    FINE_MAX_S = 300,
    SECONDS = 7200,
    MINUTES_KEPT = 30 * 24 * 60,
    WAITING_MAX = 60 * SLO_SERIES_MAX,
    PRUNE_MINUTES = 60,
};

struct series {
    char instance[64], slo_class[SLO_CLASS];
    struct slo_cell fine[N_FINE], coarse[N_COARSE];
    struct slo_cell minute; /* since the last row of the store */
    struct slo_cell total;
    int64_t last_us;
    bool named;
};

struct second {
    int64_t at;
    int32_t n, met, errors;
};

struct target {
    char name[64];
    struct conf_slo slo;
};

struct slo {
    pthread_mutex_t lock;
    struct series *series[SLO_SERIES_MAX + 1]; /* the last for what found no room */
    int n_series;
    struct target instances[CONF_MAX_NAMES], classes[CONF_MAX_NAMES];
    int n_instances, n_classes;
    int64_t start_us, minute, pruned, revision; /* start -1: nothing seen yet */
    struct second seconds[SECONDS];
    struct series_row *waiting; /* for the store; control thread only */
    int n_waiting;
};

struct slo *slo_new(void)
{
    struct slo *s = xcalloc(1, sizeof(*s));

    pthread_mutex_init(&s->lock, NULL);
    s->start_us = -1;
    for (int i = 0; i < SECONDS; i++)
        s->seconds[i].at = -1;
    return s;
}

void slo_free(struct slo *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->n_series; i++)
        free(s->series[i]);
    for (int i = 0; i < s->n_waiting; i++)
        free(s->waiting[i].json);
    free(s->waiting);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* ---- targets ---- */

static const struct conf_slo *find_target(const struct target *v, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(v[i].name, name))
            return &v[i].slo;
    return NULL;
}

/* Engines of one instance (replicas, both pools) serve its requests together: "main" of
 * "main/decode". */
static void name_of(const char *engine, char ret[64])
{
    snprintf(ret, 64, "%.*s", (int)conf_name_len(engine), engine);
}

/* NULL: that pair is not named by the configuration. */
static const struct conf_slo *target_of(const struct slo *s, const char *instance,
                                        const char *slo_class)
{
    const struct conf_slo *own = find_target(s->instances, s->n_instances, instance);

    return !slo_class[0] || !own ? own : find_target(s->classes, s->n_classes, slo_class);
}

static void name_target(struct target *t, const char *name, const struct conf_slo *slo)
{
    snprintf(t->name, sizeof(t->name), "%s", name);
    t->slo = *slo;
}

void slo_set_conf(struct slo *s, const struct conf *c, int64_t revision)
{
    pthread_mutex_lock(&s->lock);
    s->n_instances = 0;
    s->n_classes = c->n_classes < CONF_MAX_NAMES ? c->n_classes : CONF_MAX_NAMES;
    for (int i = 0; i < c->n_instances; i++)
        if (!conf_is_copy(c->instances[i].name) && s->n_instances < CONF_MAX_NAMES)
            name_target(&s->instances[s->n_instances++], c->instances[i].name,
                        &c->instances[i].slo);
    for (int i = 0; i < s->n_classes; i++)
        name_target(&s->classes[i], c->classes[i].name, &c->classes[i].slo);
    for (int i = 0; i < s->n_series; i++)
        s->series[i]->named =
            target_of(s, s->series[i]->instance, s->series[i]->slo_class) != NULL;
    s->revision = revision;
    pthread_mutex_unlock(&s->lock);
}

int slo_check_class(struct slo *s, const char *slo_class, struct err *e)
{
    struct buf names;
    bool known;

    buf_init(&names, 400);
    pthread_mutex_lock(&s->lock);
    known = find_target(s->classes, s->n_classes, slo_class) != NULL;
    for (int i = 0; !known && i < s->n_classes; i++)
        buf_printf(&names, "%s%s", i ? ", " : "", s->classes[i].name);
    pthread_mutex_unlock(&s->lock);
    if (!known)
        err_param(e, ERR_INVALID, "slo_class", "slo_class '%.40s' is not one of: %s",
                  slo_class, names.len ? names.p : "(the configuration names none)");
    buf_done(&names);
    return known ? 0 : -1;
}

void slo_targets(struct slo *s, const char *instance, const char *slo_class,
                 int64_t *ret_ttft_us, int64_t *ret_tpot_us)
{
    const struct conf_slo *t;
    char name[64];

    name_of(instance, name);
    pthread_mutex_lock(&s->lock);
    t = target_of(s, name, slo_class);
    *ret_ttft_us = t ? (int64_t)(t->ttft_ms * 1e3) : 0;
    *ret_tpot_us = t ? (int64_t)(t->tpot_ms * 1e3) : 0;
    pthread_mutex_unlock(&s->lock);
}

/* ---- recording ---- */

/* Target in milliseconds, value in microseconds; no target or no value: met. */
static bool within(double target_ms, int64_t us)
{
    return target_ms <= 0 || us < 0 || (double)us <= target_ms * 1e3;
}

static bool meets(const struct conf_slo *t, const struct slo_sample *x)
{
    return !t || (within(t->ttft_ms, x->ttft_us) &&
                  (x->n_out <= 1 || within(t->tpot_ms, x->tpot_us)));
}

static struct series *find(struct slo *s, const char *instance, const char *slo_class)
{
    struct series *r;

    for (int i = 0; i < s->n_series; i++)
        if (!strcmp(s->series[i]->instance, instance) &&
            !strcmp(s->series[i]->slo_class, slo_class))
            return s->series[i];
    if (s->n_series > SLO_SERIES_MAX)
        return s->series[SLO_SERIES_MAX];
    if (s->n_series == SLO_SERIES_MAX)
        instance = slo_class = ""; /* the last one takes all that follow */
    r = xcalloc(1, sizeof(*r));
    snprintf(r->instance, sizeof(r->instance), "%s", instance);
    snprintf(r->slo_class, sizeof(r->slo_class), "%s", slo_class);
    r->named = target_of(s, r->instance, r->slo_class) != NULL;
    s->series[s->n_series++] = r;
    return r;
}

static struct slo_cell *cell_at(struct slo_cell *ring, int n, int64_t at)
{
    struct slo_cell *c = &ring[at % n];

    if (c->at != at) {
        memset(c, 0, sizeof(*c));
        c->at = at;
    }
    return c;
}

static void add_sample(struct slo_cell *c, const struct slo_sample *x, bool met)
{
    switch (x->end) {
    case SLO_REFUSED:
        c->refused++;
        return;
    case SLO_CANCELED:
        c->canceled++;
        return;
    case SLO_ABORTED:
        c->aborted++;
        break;
    default:
        c->met += met;
        c->late += !met;
    }
    c->prompt_tok += x->n_prompt;
    c->out_tok += x->n_out;
    c->good_tok += met ? x->n_out : 0;
    if (x->ttft_us >= 0)
        slo_hist_add(&c->h[SLO_TTFT], x->ttft_us);
    if (x->tpot_us >= 0 && x->n_out > 1)
        slo_hist_add(&c->h[SLO_TPOT], x->tpot_us);
    if (x->gap_us >= 0 && x->n_out > 1)
        slo_hist_add(&c->h[SLO_GAP], x->gap_us);
}

/* By the second in which the request began, so that a later reader can leave out those
 * that began before a change. */
static void add_second(struct slo *s, const struct slo_sample *x, bool met)
{
    int64_t at = x->start_us / 1000000;
    struct second *q = &s->seconds[at % SECONDS];

    if (x->warmup || x->end == SLO_CANCELED || at < q->at)
        return;
    if (q->at != at)
        *q = (struct second){.at = at};
    q->n++;
    q->met += met;
    q->errors += x->end == SLO_REFUSED || x->end == SLO_ABORTED;
}

void slo_record(struct slo *s, int64_t now_us, const struct slo_sample *x)
{
    const char *instance;
    struct series *r;
    char name[64];
    bool met;

    name_of(x->instance, name);
    instance = name;
    pthread_mutex_lock(&s->lock);
    if (s->start_us < 0)
        s->start_us = now_us;
    /* refused before it was read: of the only instance, where there is only one */
    if (!instance[0] && s->n_instances == 1)
        instance = s->instances[0].name;
    r = find(s, instance, x->slo_class);
    met = x->end == SLO_DONE && meets(target_of(s, instance, x->slo_class), x);
    add_sample(cell_at(r->fine, N_FINE, now_us / FINE_US), x, met);
    add_sample(cell_at(r->coarse, N_COARSE, now_us / COARSE_US), x, met);
    add_sample(&r->minute, x, met);
    add_sample(&r->total, x, met);
    r->last_us = now_us;
    add_second(s, x, met);
    pthread_mutex_unlock(&s->lock);
}

/* ---- reading ---- */

void slo_window(struct slo *s, int64_t from_us, int64_t now_us, struct guard_window *ret)
{
    int64_t from = (from_us + 999999) / 1000000, to = now_us / 1000000;

    *ret = (struct guard_window){.ready = true};
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < SECONDS; i++) {
        const struct second *q = &s->seconds[i];
        if (q->at < from || q->at > to || q->at <= to - SECONDS)
            continue;
        ret->n += q->n;
        ret->met += q->met;
        ret->errors += q->errors;
    }
    pthread_mutex_unlock(&s->lock);
}

/* The cells of a ring that reach at least window_us back. */
static double sum_ring(const struct slo *s, const struct slo_cell *ring, int n,
                       int64_t cell_us, int64_t window_us, int64_t now_us,
                       struct slo_cell *sum)
{
    int64_t last = now_us / cell_us, first = last - (window_us + cell_us - 1) / cell_us;
    int64_t from_us;

    if (first <= last - n)
        first = last - n + 1;
    for (int i = 0; i < n; i++)
        if (ring[i].at >= first && ring[i].at <= last)
            slo_cell_add(sum, &ring[i]);
    from_us = first * cell_us;
    if (s->start_us > from_us)
        from_us = s->start_us;
    return now_us - from_us < 1000000 ? 1 : (double)(now_us - from_us) / 1e6;
}

bool slo_look(struct slo *s, int i, int64_t now_us, int64_t window_s,
              struct slo_view *ret)
{
    const struct conf_slo *t;
    const struct series *r;

    memset(ret, 0, sizeof(*ret));
    pthread_mutex_lock(&s->lock);
    if (i >= s->n_series) {
        pthread_mutex_unlock(&s->lock);
        return false;
    }
    r = s->series[i];
    memcpy(ret->instance, r->instance, sizeof(ret->instance));
    memcpy(ret->slo_class, r->slo_class, sizeof(ret->slo_class));
    t = target_of(s, r->instance, r->slo_class);
    if (t)
        ret->target = *t;
    if (window_s <= 0)
        ret->sum = r->total;
    else if (window_s <= FINE_MAX_S)
        ret->span_s =
            sum_ring(s, r->fine, N_FINE, FINE_US, window_s * 1000000, now_us, &ret->sum);
    else
        ret->span_s = sum_ring(s, r->coarse, N_COARSE, COARSE_US, window_s * 1000000,
                               now_us, &ret->sum);
    pthread_mutex_unlock(&s->lock);
    return true;
}

/* ---- minutes ---- */

static void row_of(struct slo *s, struct series *r)
{
    struct series_row *row;
    const struct conf_slo *t = target_of(s, r->instance, r->slo_class);
    struct buf b;
    struct jw w;

    buf_init(&b, 0);
    jw_init(&w, &b);
    jw_obj(&w);
    slo_cell_json(&r->minute, 60, &w);
    jw_knum(&w, "ttft_target_ms", t ? t->ttft_ms : 0);
    jw_knum(&w, "tpot_target_ms", t ? t->tpot_ms : 0);
    jw_obj_end(&w);
    if (s->n_waiting == WAITING_MAX) { /* the store has refused for an hour */
        free(s->waiting[0].json);
        memmove(s->waiting, s->waiting + 1, (WAITING_MAX - 1) * sizeof(*s->waiting));
        s->n_waiting--;
    }
    s->waiting = xrealloc(s->waiting, (size_t)(s->n_waiting + 1) * sizeof(*s->waiting));
    row = &s->waiting[s->n_waiting++];
    *row = (struct series_row){.minute = s->minute, .revision = s->revision};
    memcpy(row->instance, r->instance, sizeof(row->instance));
    memcpy(row->slo_class, r->slo_class, sizeof(row->slo_class));
    row->json = buf_take(&b);
    memset(&r->minute, 0, sizeof(r->minute));
}

/* Lock held: rows of the minute that is over; series of the past are dropped. */
static void close_minute(struct slo *s, int64_t now_us)
{
    for (int i = 0; i < s->n_series; i++) {
        struct series *r = s->series[i];

        if (slo_cell_requests(&r->minute) || r->minute.canceled)
            row_of(s, r);
        if (!r->named && s->n_instances &&
            now_us - r->last_us > (int64_t)N_COARSE * COARSE_US) {
            free(r);
            s->series[i--] = s->series[--s->n_series];
        }
    }
}

static int write_waiting(struct slo *s, struct store *st, struct err *e)
{
    if (st && s->n_waiting && slo_put(st, s->waiting, s->n_waiting, e) < 0)
        return -1;
    for (int i = 0; i < s->n_waiting; i++)
        free(s->waiting[i].json);
    s->n_waiting = 0;
    if (st && s->minute - s->pruned >= PRUNE_MINUTES) {
        if (series_prune(st, s->minute - MINUTES_KEPT, e) < 0)
            return -1;
        s->pruned = s->minute;
    }
    return 0;
}

int slo_tick(struct slo *s, struct store *st, int64_t now_us, int64_t wall_ms,
             struct err *e)
{
    int64_t minute = wall_ms / 60000;

    pthread_mutex_lock(&s->lock);
    if (s->start_us < 0)
        s->start_us = now_us;
    if (s->minute && s->minute != minute)
        close_minute(s, now_us);
    s->minute = minute;
    pthread_mutex_unlock(&s->lock);
    return write_waiting(s, st, e);
}
