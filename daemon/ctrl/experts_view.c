/* daemon/ctrl/experts_view.c - what is known of an instance's experts, copied for those
 * who show it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/ctrl/experts_int.h"
#include "topo/expertplan.h"

static void copy_layer(const struct expert_set *s, int l, struct experts_view *v)
{
    int slots = v->n_rank * v->n_slot, n = v->n_expert;
    const struct route_layer *r = &s->now->layer[l];
    const double *load = controller_loads(s->c, l);
    double *to = v->load + (size_t)l * (size_t)n, sum = 0, most = 0;
    struct expert_ask a = {.n_layer = 1, .n_expert = n, .n_device = v->n_rank};

    a.n_slot = v->n_slot;
    a.load = to;
    a.expert_bytes = s->expert_bytes;
    for (int p = 0; p < CONTROLLER_PHASES; p++)
        v->sums[p][l] = s->seen.layer[p][l];
    for (int p = 0; p < CONTROLLER_PHASES; p++) {
        size_t at = (size_t)l * (size_t)n;

        memcpy(v->tokens[p] + at, s->seen.tokens[p] + at, (size_t)n * sizeof(double));
        memcpy(v->service_us[p] + at, s->seen.service_us[p] + at,
               (size_t)n * sizeof(double));
        memcpy(v->more[p] + at, s->seen.more[p] + at, (size_t)n * sizeof(*v->more[p]));
    }
    for (int i = 0; i < n; i++) {
        to[i] = load ? load[i] : 0;
        sum += to[i];
        most = to[i] > most ? to[i] : most;
    }
    memcpy(v->map + (size_t)l * (size_t)slots, r->expert,
           (size_t)slots * sizeof(*v->map));
    memcpy(v->share + (size_t)l * (size_t)slots, r->share,
           (size_t)slots * sizeof(*v->share));
    v->imbalance[l] = sum > 0 ? most * n / sum : 1;
    v->balanced[l] = expertplan_balance(&a, 0, r->expert, r->share,
                                        v->device + (size_t)l * (size_t)v->n_rank);
    v->unbalanced[l] = expertplan_balance(&a, 0, s->loaded->layer[l].expert,
                                          s->loaded->layer[l].share, NULL);
}

static void copy_rest(const struct expert_set *s, struct experts_view *v)
{
    memcpy(v->instance, s->instance, sizeof(v->instance));
    v->policy = (int)s->l.policy;
    v->frozen = s->l.frozen;
    v->expert_bytes = s->expert_bytes;
    v->plan = s->plan;
    v->n_move = s->n_move;
    if (s->n_move)
        memcpy(v->move, s->move, (size_t)s->n_move * sizeof(*v->move));
    memcpy(v->steps, s->seen.steps, sizeof(v->steps));
    memcpy(v->why, s->why, sizeof(v->why));
    v->n_history = s->n_history;
    for (int i = 0; i < s->n_history; i++)
        v->history[i] =
            s->history[(s->at_history - 1 - i + EXPERTS_HISTORY) % EXPERTS_HISTORY];
    v->n_done = s->n_done;
    v->n_aborted = s->n_aborted;
    v->n_stalled = s->n_stalled;
    v->bytes = s->bytes;
    v->added_mean_us = s->added_mean_us;
    v->added_max_us = s->added_max_us;
    v->slack_us = s->tpot_us ? s->l.slack_us : NAN;
    v->step_bytes = controller_pace(&s->l, s->expert_bytes);
    v->n_measured = s->n_measured;
    v->predicted_us = s->predicted_us;
    v->realised_us = s->realised_us;
}

static void make(const struct expert_set *s, struct experts_view *v)
{
    size_t layers = (size_t)s->now->n_layer;
    size_t slots = (size_t)s->now->d.n_rank * (size_t)s->now->d.n_slot;

    *v = (struct experts_view){.n_layer = s->now->n_layer,
                               .n_expert = s->now->d.n_expert,
                               .n_rank = s->now->d.n_rank,
                               .n_slot = s->now->d.n_slot};
    v->load = xcalloc(layers * (size_t)v->n_expert, sizeof(*v->load));
    for (int p = 0; p < CONTROLLER_PHASES; p++)
        v->sums[p] = xcalloc(layers, sizeof(*v->sums[p]));
    for (int p = 0; p < CONTROLLER_PHASES; p++) {
        v->tokens[p] = xcalloc(layers * (size_t)v->n_expert, sizeof(double));
        v->service_us[p] = xcalloc(layers * (size_t)v->n_expert, sizeof(double));
        v->more[p] = xcalloc(layers * (size_t)v->n_expert, sizeof(*v->more[p]));
    }
    v->map = xcalloc(layers * slots, sizeof(*v->map));
    v->share = xcalloc(layers * slots, sizeof(*v->share));
    v->device = xcalloc(layers * (size_t)v->n_rank, sizeof(*v->device));
    v->imbalance = xcalloc(layers, sizeof(*v->imbalance));
    v->balanced = xcalloc(layers, sizeof(*v->balanced));
    v->unbalanced = xcalloc(layers, sizeof(*v->unbalanced));
    v->move = xcalloc((size_t)s->n_move + 1, sizeof(*v->move));
}

int experts_view(struct experts *x, const char *instance, struct experts_view *ret,
                 struct err *e)
{
    struct expert_set *s;

    pthread_mutex_lock(&x->lock);
    s = experts_find(x, instance);
    if (s) {
        make(s, ret);
        for (int l = 0; l < ret->n_layer; l++)
            copy_layer(s, l, ret);
        copy_rest(s, ret);
    }
    pthread_mutex_unlock(&x->lock);
    if (!s)
        return err_set(e, ERR_NOTFOUND, "instance '%s' has no experts that can move",
                       instance);
    return 0;
}

void experts_view_done(struct experts_view *v)
{
    free(v->load);
    for (int p = 0; p < CONTROLLER_PHASES; p++) {
        free(v->tokens[p]);
        free(v->service_us[p]);
        free(v->more[p]);
        free(v->sums[p]);
    }
    free(v->map);
    free(v->share);
    free(v->device);
    free(v->imbalance);
    free(v->balanced);
    free(v->unbalanced);
    free(v->move);
    *v = (struct experts_view){0};
}

int experts_list(struct experts *x, char (*ret)[64], int max)
{
    int n = 0;

    pthread_mutex_lock(&x->lock);
    list_for(it, &x->sets) if (n < max)
        memcpy(ret[n++], list_entry(it, struct expert_set, link)->instance, 64);
    pthread_mutex_unlock(&x->lock);
    return n;
}
