/* daemon/api/account.c - one SLO sample a request. */
#include "daemon/api/account.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/err.h"
#include "daemon/api/conn.h"
#include "daemon/api/server.h"
#include "daemon/serve/sched.h"

int account_name(struct conn *c, const char *instance, const char *slo_class,
                 struct err *e)
{
    struct slo *s = c->h->cfg.slo;

    if (slo_class && !s)
        return err_param(e, ERR_INVALID, "slo_class", "this server has no SLO classes");
    if (slo_class && slo_check_class(s, slo_class, e) < 0)
        return -1;
    pthread_mutex_lock(&c->lock);
    snprintf(c->account.instance, sizeof(c->account.instance), "%s", instance);
    snprintf(c->account.slo_class, sizeof(c->account.slo_class), "%s",
             slo_class ? slo_class : "");
    pthread_mutex_unlock(&c->lock);
    return 0;
}

void account_targets(struct conn *c, struct gen_params *ret)
{
    int64_t ttft = 0, tpot = 0;

    pthread_mutex_lock(&c->lock);
    if (c->h->cfg.slo)
        slo_targets(c->h->cfg.slo, c->account.instance, c->account.slo_class, &ttft,
                    &tpot);
    ret->age_us = gen_time(c->start_us ? clock_now_us(clock_real()) - c->start_us : 0);
    pthread_mutex_unlock(&c->lock);
    ret->ttft_us = gen_time(ttft);
    ret->tpot_us = gen_time(tpot);
}

static void tell(struct conn *c, enum slo_end end)
{
    struct account *a = &c->account;
    int64_t now = clock_now_us(clock_real());

    if (!a->on || a->told || !c->h->cfg.slo)
        return;
    a->told = true;
    a->x.instance = a->instance;
    a->x.slo_class = a->slo_class;
    a->x.end = end;
    a->x.start_us = c->start_us ? c->start_us : now;
    a->x.ttft_us = a->first_us ? a->first_us - a->x.start_us : -1;
    a->x.warmup = atomic_load(&c->h->draining) || atomic_load(&c->h->upkeep);
    if (!a->ended)
        a->x.tpot_us = a->x.gap_us = -1;
    slo_record(c->h->cfg.slo, now, &a->x);
}

void account_first(struct conn *c, int64_t now_us)
{
    struct account *a = &c->account;

    if (!a->first_us)
        a->first_us = now_us;
    if (a->ended)
        tell(c, SLO_DONE);
}

void account_done(struct conn *c, const struct slo_sample *x, int64_t first_us)
{
    struct account *a = &c->account;

    if (a->told)
        return;
    a->x = *x;
    a->ended = true;
    if (first_us)
        a->first_us = first_us;
    if (a->first_us || x->n_out == 0) /* else the bytes wait for the socket */
        tell(c, SLO_DONE);
}

void account_error(struct conn *c, const struct err *e, bool accepted)
{
    int status = err_status(e->code);

    if (status == 429 || (status == 503 && !accepted))
        tell(c, SLO_REFUSED);
    else if (status >= 500)
        tell(c, SLO_ABORTED);
    c->account.told = true; /* the rest is the sender's to mend */
}

void account_left(struct conn *c)
{
    tell(c, atomic_load(&c->h->stopping) ? SLO_ABORTED : SLO_CANCELED);
}

void account_close(struct conn *c)
{
    if (c->gone || c->account.ended)
        account_left(c);
}
