/* ctl/load_send.c - requests out, tokens in, one thread. */
#include "ctl/load_send.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "ctl/wire_many.h"

enum { TELL_US = 500000, POLL_US = 100000, DEAD = 20 };

struct run {
    const struct load_send *s;
    const struct load_req *req;
    struct load_seen *seen;
    struct wire_many *many;
    int n, next, ended, good;
    int unheard; /* requests in a row that nothing came back for */
    int64_t start_us;
};

/* ---- what comes ---- */

/* A frame with a choice: its first, a further one; usage says how many tokens it was. */
static void on_line(void *arg, int id, const char *line, int64_t at_us)
{
    static const struct js_limits lim = {4 << 20, 32};
    struct run *r = arg;
    struct load_seen *s = &r->seen[id];
    int64_t at = at_us - r->start_us;
    json_t *f = NULL, *usage;

    if (!strcmp(line, "[DONE]"))
        return;
    if (js_parse(line, strlen(line), &lim, &f, NULL) < 0) {
        s->end = LOAD_ABORTED;
        return;
    }
    if (json_object_get(f, "error"))
        s->end = LOAD_ABORTED;
    else if (json_array_size(json_object_get(f, "choices"))) {
        if (s->first_us < 0)
            s->first_us = at;
        else if (at - s->last_us > s->gap_us)
            s->gap_us = at - s->last_us;
        s->last_us = at;
    }
    usage = json_object_get(f, "usage");
    if (json_is_object(usage))
        s->n_out = (int)json_integer_value(json_object_get(usage, "completion_tokens"));
    json_decref(f);
}

static void on_end(void *arg, int id, int status, bool whole, int64_t at_us)
{
    struct run *r = arg;
    struct load_seen *s = &r->seen[id];

    s->end_us = at_us - r->start_us;
    if (status == 429 || status == 503)
        s->end = LOAD_REFUSED;
    else if (status >= 400 || !whole || s->end == LOAD_ABORTED || s->n_out < s->n_want)
        s->end = LOAD_ABORTED;
    else
        s->end = LOAD_DONE;
    r->unheard = !whole && !status ? r->unheard + 1 : 0;
    r->ended++;
    r->good += load_good(s, &r->s->slo);
}

/* ---- what goes ---- */

static char *body_of(const struct load_send *s, const struct load_req *q)
{
    int32_t *ids = xcalloc((size_t)q->n_in, sizeof(*ids));
    struct buf b;
    struct jw w;

    load_prompt(s->work, q, ids);
    buf_init(&b, 0);
    jw_init(&w, &b);
    jw_obj(&w);
    jw_kstr(&w, "model", s->to.model);
    jw_key(&w, "prompt");
    jw_arr(&w);
    for (int i = 0; i < q->n_in; i++)
        jw_int(&w, ids[i]);
    jw_arr_end(&w);
    jw_kint(&w, "max_tokens", q->n_out);
    jw_kbool(&w, "ignore_eos", true);
    jw_kbool(&w, "stream", true);
    jw_key(&w, "stream_options");
    jw_raw(&w, "{\"include_usage\":true}");
    jw_knum(&w, "temperature", s->to.temperature);
    jw_kint(&w, "seed", (int64_t)(q->own >> 33));
    if (s->to.slo_class)
        jw_kstr(&w, "slo_class", s->to.slo_class);
    jw_obj_end(&w);
    free(ids);
    return b.p;
}

static int send_due(struct run *r, int64_t now, struct err *e)
{
    while (r->next < r->n && r->req[r->next].at_us <= now &&
           wire_many_open_count(r->many) < LOAD_OPEN_MAX) {
        struct load_seen *s = &r->seen[r->next];
        char *body = body_of(r->s, &r->req[r->next]);

        s->sent_us = clock_now_us(clock_real()) - r->start_us;
        if (wire_many_post(r->many, r->next, "/v1/completions", body, e) < 0)
            return -1;
        r->next++;
    }
    return 0;
}

/* Requests whose time has come by now. */
static int come(const struct run *r, int64_t now)
{
    int n = r->next;

    while (n < r->n && r->req[n].at_us <= now)
        n++;
    return n;
}

static void tell(const struct run *r, int64_t now)
{
    struct load_progress p = {.n = r->n,
                              .come = come(r, now),
                              .open = wire_many_open_count(r->many),
                              .ended = r->ended,
                              .good = r->good,
                              .elapsed_us = now};

    if (r->s->progress)
        r->s->progress(r->s->arg, &p);
}

/* The queue grows, and so many are late already that the rest cannot save it. */
static bool hopeless(const struct run *r, int64_t now)
{
    int n = come(r, now), bad = 0;

    for (int i = 0; i < n; i++) {
        const struct load_seen *s = &r->seen[i];
        bool late = s->end == LOAD_PENDING && s->first_us < 0 && r->s->slo.ttft_ms > 0 &&
                    (double)(now - s->at_us) / 1e3 > r->s->slo.ttft_ms;

        bad += late || (s->end != LOAD_PENDING && !load_good(s, &r->s->slo));
    }
    return load_lost(bad, r->n, r->s->slo.target) && load_saturated(r->seen, n);
}

static int run_all(struct run *r, int *ret_n, struct err *e)
{
    int64_t told = 0;

    while (r->ended < r->n) {
        int64_t now = clock_now_us(clock_real()) - r->start_us, until = now + POLL_US;

        if (send_due(r, now, e) < 0)
            return -1;
        if (*r->s->stop) {
            *ret_n = come(r, now);
            return err_set(e, ERR_CANCELED, "stopped");
        }
        if (r->unheard >= DEAD) {
            *ret_n = come(r, now);
            return err_set(e, ERR_UNAVAIL, "%d requests in a row found no daemon",
                           r->unheard);
        }
        if (now > r->s->max_us)
            return 0;
        if (now - told >= TELL_US) {
            tell(r, now);
            told = now;
            if (r->s->stop_lost && r->next < r->n && hopeless(r, now)) {
                *ret_n = come(r, now);
                return 0;
            }
        }
        if (r->next < r->n && r->req[r->next].at_us < until)
            until = r->req[r->next].at_us;
        wire_many_work(r->many, r->start_us + until);
    }
    return 0;
}

/* What is still open is given up. */
static void cut_rest(struct run *r)
{
    int64_t now = clock_now_us(clock_real()) - r->start_us;

    for (int i = 0; i < r->n; i++)
        if (r->seen[i].end == LOAD_PENDING || r->seen[i].end_us < 0) {
            r->seen[i].end = LOAD_CUT;
            r->seen[i].end_us = now > r->seen[i].at_us ? now : r->seen[i].at_us;
        }
}

int load_send(const struct load_send *s, const struct load_req *req, int n,
              struct load_seen *ret, int *ret_n, struct err *e)
{
    struct run r = {.s = s, .req = req, .seen = ret, .n = n};
    struct wire_many_hooks hooks = {on_line, on_end, &r};
    int rc;

    *ret_n = n;
    for (int i = 0; i < n; i++)
        ret[i] = (struct load_seen){.at_us = req[i].at_us,
                                    .sent_us = -1,
                                    .first_us = -1,
                                    .last_us = -1,
                                    .end_us = -1,
                                    .n_in = req[i].n_in,
                                    .n_want = req[i].n_out};
    if (wire_many_open(s->wire, &hooks, &r.many, e) < 0)
        return -1;
    r.start_us = clock_now_us(clock_real());
    rc = run_all(&r, ret_n, e);
    cut_rest(&r);
    wire_many_close(r.many);
    return rc;
}
