/* daemon/ctrl/experts.c - engines that come and go, their counts, the clock. See
 * experts.h.
 *
 * All is on the control thread; the lock is held where what others are shown changes. */
#include "daemon/ctrl/experts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/ctrl/experts_int.h"
#include "daemon/ctrl/side.h"
#include "daemon/serve/links.h"
#include "daemon/serve/wire.h"
#include "daemon/serve/wire_experts.h"
#include "kernels/comm.h"
#include "state/store.h"

enum { PACE_NEWS = 8 /* a change by less than this part is not worth an order */ };
static const int64_t S = 1000000;
/* What the loader makes while it works, until a move has been measured. */
static const double FIRST_BPS = 300e6, RISK_US = 2000, SHARE_GAIN = 0.03,
                    NO_OBJECTIVE_US = 1e6;

int experts_new(struct loop *loop, struct store *store, struct metric_page *page,
                struct experts **ret, struct err *e)
{
    struct experts *x = xcalloc(1, sizeof(*x));

    pthread_mutex_init(&x->lock, NULL);
    list_init(&x->sets);
    x->store = store;
    x->page = page;
    if (side_new(loop, &x->side, e) < 0) {
        experts_free(x);
        return -1;
    }
    if (store)
        x->n_frozen = freeze_list(store, x->frozen, CONF_MAX_NAMES, e);
    if (x->n_frozen < 0) {
        log_error("whose experts are frozen is not known: %s", e->msg);
        x->n_frozen = 0;
    }
    *ret = x;
    return 0;
}

static void free_counts(struct experts_counts *c)
{
    for (int p = 0; p < CONTROLLER_PHASES; p++) {
        free(c->tokens[p]);
        free(c->service_us[p]);
        free(c->more[p]);
        free(c->layer[p]);
    }
}

static void new_counts(struct experts_counts *c, int n_layer, size_t n)
{
    for (int p = 0; p < CONTROLLER_PHASES; p++) {
        c->tokens[p] = xcalloc(n, sizeof(double));
        c->service_us[p] = xcalloc(n, sizeof(double));
        c->more[p] = xcalloc(n, sizeof(*c->more[p]));
        c->layer[p] = xcalloc((size_t)n_layer, sizeof(*c->layer[p]));
    }
}

static void free_set(struct expert_set *s)
{
    controller_free(s->c);
    routes_free(s->now);
    routes_free(s->loaded);
    free_counts(&s->seen);
    free_counts(&s->fresh);
    free(s->move);
    free(s->host);
    free(s->out);
    free(s);
}

void experts_free(struct experts *x)
{
    if (!x)
        return;
    side_free(x->side);
    list_for_safe(it, tmp, &x->sets)
    {
        list_del(it);
        free_set(list_entry(it, struct expert_set, link));
    }
    pthread_mutex_destroy(&x->lock);
    free(x);
}

struct expert_set *experts_find(struct experts *x, const char *instance)
{
    list_for(it, &x->sets)
    {
        struct expert_set *s = list_entry(it, struct expert_set, link);
        if (!strcmp(s->instance, instance))
            return s;
    }
    return NULL;
}

static struct expert_set *set_of(struct experts *x, const void *arg)
{
    list_for(it, &x->sets)
    {
        struct expert_set *s = list_entry(it, struct expert_set, link);
        if (s->e.arg == arg)
            return s;
    }
    return NULL;
}

bool experts_frozen(const struct experts *x, const char *instance)
{
    for (int i = 0; i < x->n_frozen; i++)
        if (!strcmp(x->frozen[i], instance))
            return true;
    return false;
}

struct experts_event experts_event(const char *what, uint64_t plan)
{
    struct experts_event ev = {.plan = plan,
                               .layer = -1,
                               .predicted_us = NAN,
                               .realised_us = NAN,
                               .added_us = NAN,
                               .added_max_us = NAN};

    snprintf(ev.what, sizeof(ev.what), "%s", what);
    return ev;
}

void experts_journal(const struct expert_set *s, const struct experts_event *ev,
                     const char *result, const struct experts_who *who)
{
    char what[40];
    const struct journal_note n = {who ? who->actor : "daemon",
                                   who ? who->origin : "",
                                   what,
                                   s->instance,
                                   result,
                                   ev->text};
    struct err e;

    if (!s->x->store)
        return;
    snprintf(what, sizeof(what), "experts.%s", ev->what);
    if (journal_note(s->x->store, &n, &e) < 0)
        log_error("%s", e.msg);
}

void experts_note(struct expert_set *s, const struct experts_event *ev,
                  const char *result, const struct experts_who *who)
{
    pthread_mutex_lock(&s->x->lock);
    s->history[s->at_history] = *ev;
    s->history[s->at_history].at_ms = clock_wall_ms();
    s->at_history = (s->at_history + 1) % EXPERTS_HISTORY;
    s->n_history += s->n_history < EXPERTS_HISTORY;
    pthread_mutex_unlock(&s->x->lock);
    if (result)
        experts_journal(s, ev, result, who);
}

/* ---- engines ---- */

/* What the objective leaves in a step; without one nothing is held back. */
static double slack_us(const struct expert_set *s)
{
    if (!s->tpot_us)
        return NO_OBJECTIVE_US;
    return (double)s->tpot_us - s->step_us;
}

static void fill_limits(struct expert_set *s, const struct conf_instance *i)
{
    struct controller_limits *l = &s->l;

    *l = (struct controller_limits){
        .policy = (enum controller_policy)i->experts.policy,
        .frozen = experts_frozen(s->x, s->instance),
        .share_every_us = i->experts.share_s * S,
        .share_gain = SHARE_GAIN,
        .dwell_us = i->experts.dwell_s * S,
        .enter = i->experts.enter,
        .leave = i->experts.leave > i->experts.enter ? i->experts.leave : 1,
        .min_gain = i->experts.min_gain,
        .horizon_us = i->experts.horizon_s * S,
        .deadline_us = i->experts.deadline_s * S,
        .max_moves = (int)i->experts.max_moves,
        .max_bytes = i->experts.plan_mib << 20,
        .per_device = (int)i->experts.max_slots,
        .copy_Bps = s->copy_Bps,
        .risk_us = RISK_US,
        .slack_share = i->experts.slack_share,
        .prefill_share = i->experts.prefill_share,
    };
    s->sample_us = i->experts.sample_ms * 1000;
    s->tpot_us = (int64_t)(i->slo.tpot_ms * 1000);
    l->slack_us = slack_us(s);
    s->copy_share = i->experts.copy_share;
    s->affinity = i->experts.affinity;
}

static bool sample(struct expert_set *s);

/* Hosts of the ranks, where links between hosts are emulated and the ranks are those of
 * the expert group, in order. */
static void find_hosts(struct expert_set *s, const struct conf_instance *i)
{
    int n = s->now->d.n_rank;
    struct rank_links links;
    struct err e;

    if (!i->layout.emulate || !i->layout.emulate[0] || i->layout.pp > 1 ||
        i->layout.tp * i->layout.cp * i->layout.adp != n ||
        rank_links_named(i->layout.emulate, n, &links, &e) < 0)
        return;
    s->host = xcalloc((size_t)n, sizeof(*s->host));
    for (int k = 0; k < n; k++)
        s->host[k] = links.host[k];
    rank_links_done(&links);
}

void experts_ready(struct experts *x, const struct experts_engine *e,
                   const struct conf_instance *i, const struct wire_ready *r)
{
    const struct routes_dims d = {r->experts, r->expert_ranks, r->expert_slots};
    size_t n = (size_t)r->expert_layers * (size_t)r->experts;
    struct expert_set *s;
    struct err why;

    experts_gone(x, e->arg);
    if (r->expert_layers < 1 || r->expert_layers > WIRE_EXPERT_LAYERS || r->experts < 1 ||
        r->expert_ranks < 2 || r->expert_ranks > COMM_MAX_RANKS || r->expert_slots < 1)
        return;
    s = xcalloc(1, sizeof(*s));
    if (routes_new(&d, r->expert_layers, &s->now, &why) < 0 ||
        routes_new(&d, r->expert_layers, &s->loaded, &why) < 0) {
        log_about(LOG_LV_ERROR, &(struct log_about){.instance = e->instance},
                  "instance '%s': its experts are not watched: %s", e->instance, why.msg);
        free_set(s);
        return;
    }
    s->x = x;
    s->born = ++x->engines;
    s->e = *e;
    snprintf(s->instance, sizeof(s->instance), "%s", e->instance);
    s->e.instance = s->instance;
    s->c = controller_new(r->expert_layers, d.n_expert, d.n_rank, d.n_slot);
    s->expert_bytes = (int64_t)r->expert_bytes;
    s->out = xcalloc((size_t)d.n_rank, sizeof(*s->out));
    s->copy_Bps = FIRST_BPS;
    new_counts(&s->seen, r->expert_layers, n);
    new_counts(&s->fresh, r->expert_layers, n);
    fill_limits(s, i);
    find_hosts(s, i);
    s->sampled_us = x->now_us;
    if (s->sampled_us)
        sample(s); /* what is counted from now on is fresh */
    pthread_mutex_lock(&x->lock);
    list_push(&x->sets, &s->link);
    pthread_mutex_unlock(&x->lock);
}

void experts_gone(struct experts *x, const void *arg)
{
    struct expert_set *s = set_of(x, arg);

    if (!s)
        return;
    if (s->plan) {
        struct experts_event ev = experts_event("plan", s->plan);

        snprintf(ev.text, sizeof(ev.text),
                 "plan %llu ended with its engine; a new one has its experts as loaded",
                 (unsigned long long)s->plan);
        experts_note(s, &ev, "failed", NULL);
    }
    pthread_mutex_lock(&x->lock);
    list_del(&s->link);
    pthread_mutex_unlock(&x->lock);
    free_set(s);
}

void experts_conf(struct experts *x, const void *arg, const struct conf_instance *i)
{
    struct expert_set *s = set_of(x, arg);

    if (!s)
        return;
    pthread_mutex_lock(&x->lock);
    fill_limits(s, i);
    pthread_mutex_unlock(&x->lock);
}

/* ---- the clock ---- */

/* What was counted since the last sample; false where there is nothing to go by. */
static bool sample(struct expert_set *s)
{
    size_t n = (size_t)s->now->n_layer * (size_t)s->now->d.n_expert;
    struct experts_counts all;
    bool first = !s->any_seen, again = false; /* it may have begun again from zero */

    new_counts(&all, s->now->n_layer, n);
    if (!s->e.read || !s->e.read(s->e.arg, s->now->n_layer, s->now->d.n_expert, &all)) {
        free_counts(&all);
        return false;
    }
    for (int p = 0; p < CONTROLLER_PHASES; p++)
        again |= all.steps[p] < s->seen.steps[p];
    for (int p = 0; p < CONTROLLER_PHASES; p++) {
        s->fresh.steps[p] = all.steps[p] - (again ? 0 : s->seen.steps[p]);
        for (size_t k = 0; k < n; k++) {
            s->fresh.tokens[p][k] = all.tokens[p][k] - (again ? 0 : s->seen.tokens[p][k]);
            s->fresh.service_us[p][k] =
                all.service_us[p][k] - (again ? 0 : s->seen.service_us[p][k]);
        }
    }
    if (all.all_steps > s->seen.all_steps && !first && all.step_us >= s->seen.step_us)
        s->step_us =
            (all.step_us - s->seen.step_us) / (all.all_steps - s->seen.all_steps);
    pthread_mutex_lock(&s->x->lock); /* shown */
    free_counts(&s->seen);
    s->seen = all;
    s->any_seen = true;
    pthread_mutex_unlock(&s->x->lock);
    return !first;
}

/* While a plan is in hand the loader follows what steps leave. */
static void pace(struct expert_set *s)
{
    int64_t want = controller_pace(&s->l, s->expert_bytes);
    const struct wire_expert_orders o = {
        .h = {.step_bytes = want, .copy_share = s->copy_share}};

    if (!s->plan || llabs(want - s->paced) <= s->paced / PACE_NEWS)
        return;
    if (s->e.send(s->e.arg, &o))
        s->paced = want;
}

const struct controller_devices *experts_devices(struct expert_set *s)
{
    int n = s->now->d.n_rank;
    uint8_t out[COMM_MAX_RANKS] = {0};

    if (s->e.out && n <= COMM_MAX_RANKS)
        s->e.out(s->e.arg, n, out);
    pthread_mutex_lock(&s->x->lock); /* orders are planned by them, on other threads */
    memcpy(s->out, out, (size_t)n);
    s->devices = (struct controller_devices){
        .out = s->out, .host = s->host, .expert_bytes = s->expert_bytes};
    pthread_mutex_unlock(&s->x->lock);
    return &s->devices;
}

/* No plan can be made: said once. */
static void cannot(struct expert_set *s, const struct err *why)
{
    struct experts_event ev = experts_event("plan", 0);
    char said[200];
    bool again;

    snprintf(said, sizeof(said), "%.190s", why->msg);
    pthread_mutex_lock(&s->x->lock);
    again = !strcmp(s->why, said);
    memcpy(s->why, said, sizeof(said));
    pthread_mutex_unlock(&s->x->lock);
    if (again)
        return;
    snprintf(ev.text, sizeof(ev.text), "%s", said);
    experts_note(s, &ev, "failed", NULL);
}

static void tick_set(struct expert_set *s, int64_t now_us)
{
    const struct controller_devices *d = experts_devices(s);
    struct controller_series series = {.span_us = (double)(now_us - s->sampled_us)};
    const struct controller_actions *a;
    struct err e;

    if (now_us - s->sampled_us < s->sample_us)
        return;
    s->sampled_us = now_us;
    if (!sample(s))
        return;
    for (int p = 0; p < CONTROLLER_PHASES; p++) {
        series.steps[p] = s->fresh.steps[p];
        series.tokens[p] = s->fresh.tokens[p];
        series.service_us[p] = s->fresh.service_us[p];
    }
    pthread_mutex_lock(&s->x->lock);
    s->l.slack_us = slack_us(s);
    pthread_mutex_unlock(&s->x->lock);
    pace(s);
    pthread_mutex_lock(&s->x->lock); /* loads are shown */
    int rc = controller_decide(s->c, &series, s->now, d, &s->l, now_us, &a, &e);
    pthread_mutex_unlock(&s->x->lock);
    if (rc < 0) {
        cannot(s, &e);
        return;
    }
    experts_act(s, a, false, now_us);
}

int64_t experts_tick(struct experts *x, int64_t now_us)
{
    int64_t next = -1;

    x->now_us = now_us;
    list_for(it, &x->sets)
    {
        struct expert_set *s = list_entry(it, struct expert_set, link);

        tick_set(s, now_us);
        if (next < 0 || s->sampled_us + s->sample_us < next)
            next = s->sampled_us + s->sample_us;
    }
    return next;
}
