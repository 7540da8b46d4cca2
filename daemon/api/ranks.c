/* daemon/api/ranks.c - the ranks of all engines: where each is, what it holds and does.
 *
 * As rows of /api/v1/ranks and as series of the scrape; both from one snapshot of the
 * pages that the engines write. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/metric.h"
#include "daemon/api/conn.h"
#include "daemon/api/handler.h"
#include "daemon/api/query.h"
#include "daemon/api/ranks.h"
#include "daemon/api/server.h"
#include "daemon/ctrl/rankview.h"

void ranks_at(const struct rank_view *v, char ret[64])
{
    size_t n = 0;

    ret[0] = '\0';
    for (int d = 0; d < MESH_DIM_COUNT && n < 64; d++)
        if (v->s.at.group[d] >= 0 && (d != MESH_ETP || v->s.at.group[MESH_EP] >= 0))
            n += (size_t)snprintf(ret + n, 64 - n, "%s%s%d", n ? " " : "",
                                  mesh_dim_name((enum mesh_dim)d), v->s.at.at[d]);
}

static double share(int64_t part, int64_t whole)
{
    return whole > 0 ? (double)part / (double)whole : 0;
}

/* Time that these calls took a rank's link: as emulated, or what they did not wait. */
static int64_t link_taken_us(const struct comm_count *c)
{
    return c->link_us ? c->link_us : c->us > c->wait_us ? c->us - c->wait_us : 0;
}

static uint64_t scratch_of(const struct rank_view *v)
{
    return v->s.mem.scratch_bytes + v->s.mem.other_bytes;
}

/* ---- rows ---- */

static void put_counted(struct jw *w, const char *key, bool counted, double bytes)
{
    if (counted)
        jw_kint(w, key, (int64_t)bytes);
    else
        jw_knull(w, key);
}

/* A rank's own work, over the mean of the ranks of its stage: 1 = as the others, above it
 * they wait for it. */
static double straggler(const struct rank_view *v, int n, int i)
{
    double own = (double)(v[i].s.busy_us - v[i].s.wait_us), sum = 0;
    int of = 0;

    for (int k = 0; k < n; k++)
        if (!strcmp(v[k].instance, v[i].instance) && v[k].generation == v[i].generation &&
            v[k].s.at.at[MESH_PP] == v[i].s.at.at[MESH_PP]) {
            sum += (double)(v[k].s.busy_us - v[k].s.wait_us);
            of++;
        }
    return sum > 0 ? own * of / sum : 1;
}

static void put_rank(struct jw *w, const struct rank_view *all, int n, int i)
{
    const struct rank_view *v = &all[i];
    const struct rank_seat *l = &v->seat;
    char at[64];

    ranks_at(v, at);
    jw_obj(w);
    jw_kstr(w, "instance", v->instance);
    jw_kint(w, "generation", v->generation);
    jw_kint(w, "rank", v->rank);
    jw_kstr(w, "at", at);
    jw_kstr(w, "device", l->device[0] ? l->device : NULL);
    jw_kint(w, "weight_bytes", (int64_t)v->s.mem.weight_bytes);
    put_counted(w, "weight_ledger_bytes", l->counted, l->weights);
    jw_kint(w, "kv_bytes", (int64_t)v->s.mem.kv_bytes);
    put_counted(w, "kv_ledger_bytes", l->counted, l->kv);
    jw_kint(w, "scratch_bytes", (int64_t)scratch_of(v));
    put_counted(w, "scratch_ledger_bytes", l->counted, l->scratch);
    jw_knum(w, "span_s", (double)v->span_us / 1e6);
    jw_knum(w, "busy_s", (double)v->s.busy_us / 1e6);
    jw_knum(w, "wait_s", (double)v->s.wait_us / 1e6);
    jw_knum(w, "busy_share", share(v->s.busy_us, v->span_us));
    jw_knum(w, "wait_share", share(v->s.wait_us, v->s.busy_us));
    jw_knum(w, "straggler", straggler(all, n, i));
    jw_obj_end(w);
}

static void put_comm(struct jw *w, const struct rank_view *v)
{
    for (int d = 0; d < MESH_DIM_COUNT; d++)
        for (int k = 0; k < COMM_CALL_COUNT; k++) {
            const struct comm_count *c = &v->s.counts[d][k];

            if (!c->calls)
                continue;
            jw_obj(w);
            jw_kstr(w, "instance", v->instance);
            jw_kint(w, "generation", v->generation);
            jw_kint(w, "rank", v->rank);
            jw_kstr(w, "group", mesh_dim_name((enum mesh_dim)d));
            jw_kstr(w, "call", comm_call_name((enum comm_call)k));
            jw_kint(w, "calls", (int64_t)c->calls);
            jw_kint(w, "bytes", (int64_t)c->bytes);
            jw_kint(w, "cut_bytes", (int64_t)c->cut_bytes);
            jw_knum(w, "ms", (double)c->us / 1e3);
            jw_knum(w, "wait_ms", (double)c->wait_us / 1e3);
            jw_knum(w, "link_ms", (double)link_taken_us(c) / 1e3);
            jw_knum(w, "link_share", share(link_taken_us(c), v->span_us));
            jw_obj_end(w);
        }
}

void control_ranks(struct conn *c)
{
    const char *only = query_text(&c->query, QUERY_instance, NULL);
    struct rank_view *v;
    int n = rankview_get(c->h->router, &v);
    struct reply r;

    reply_open(&r);
    jw_key(&r.w, "ranks");
    jw_arr(&r.w);
    for (int i = 0; i < n; i++)
        if (!only || !strcmp(v[i].instance, only))
            put_rank(&r.w, v, n, i);
    jw_arr_end(&r.w);
    jw_key(&r.w, "comm");
    jw_arr(&r.w);
    for (int i = 0; i < n; i++)
        if (!only || !strcmp(v[i].instance, only))
            put_comm(&r.w, &v[i]);
    jw_arr_end(&r.w);
    reply_send(c, &r, 200);
    free(v);
}

/* ---- series ---- */

/* An instance whose engine is being replaced has two; one series each: the newer's. */
static bool outdated(const struct rank_view *v, int n, int i)
{
    for (int k = 0; k < n; k++)
        if (!strcmp(v[k].instance, v[i].instance) && v[k].generation > v[i].generation)
            return true;
    return false;
}

struct scrape {
    struct buf *b;
    const struct rank_view *v;
    int n;
};

static void put_head(struct buf *b, const char *name, const char *kind, const char *help)
{
    buf_printf(b, "# HELP %s %s (D)\n# TYPE %s %s\n", name, help, name, kind);
}

/* Instances are named by the configuration, models by files: the latter are escaped. */
static void put_labels(struct buf *b, const char *name, const struct rank_view *v)
{
    buf_printf(b, "%s{model_name=\"", name);
    metric_label(b, v->model);
    buf_printf(b, "\",engine=\"0\",instance=\"%s\",rank=\"%d\"", v->instance, v->rank);
}

typedef double (*part_fn)(const struct rank_view *v, int part);

static double held(const struct rank_view *v, int part)
{
    return part == 0   ? (double)v->s.mem.weight_bytes
           : part == 1 ? (double)v->s.mem.kv_bytes
                       : (double)scratch_of(v);
}

static double counted(const struct rank_view *v, int part)
{
    return part == 0 ? v->seat.weights : part == 1 ? v->seat.kv : v->seat.scratch;
}

static void put_memory(const struct scrape *s, const char *name, const char *help,
                       part_fn fn)
{
    static const char *const parts[] = {"weights", "kv", "scratch"};

    put_head(s->b, name, "gauge", help);
    for (int i = 0; i < s->n; i++)
        for (int p = 0; p < 3 && (fn == held || s->v[i].seat.counted); p++) {
            if (outdated(s->v, s->n, i))
                continue;
            put_labels(s->b, name, &s->v[i]);
            buf_printf(s->b, ",part=\"%s\"} %.17g\n", parts[p], fn(&s->v[i], p));
        }
}

static void put_seconds(const struct scrape *s, const char *name, const char *help,
                        bool wait)
{
    put_head(s->b, name, "counter", help);
    for (int i = 0; i < s->n; i++) {
        if (outdated(s->v, s->n, i))
            continue;
        put_labels(s->b, name, &s->v[i]);
        buf_printf(s->b, "} %.17g\n",
                   (double)(wait ? s->v[i].s.wait_us : s->v[i].s.busy_us) / 1e6);
    }
}

static void put_stragglers(const struct scrape *s)
{
    static const char name[] = "llmrack_rank_straggler_ratio";

    put_head(s->b, name, "gauge",
             "A rank's time in steps without waiting, over the mean of its stage");
    for (int i = 0; i < s->n; i++) {
        if (outdated(s->v, s->n, i))
            continue;
        put_labels(s->b, name, &s->v[i]);
        buf_printf(s->b, "} %.9g\n", straggler(s->v, s->n, i));
    }
}

enum comm_figure { CALLS, BYTES, SECONDS, WAIT, LINK };

static double figure(const struct comm_count *c, enum comm_figure f)
{
    return f == CALLS     ? (double)c->calls
           : f == BYTES   ? (double)c->bytes
           : f == SECONDS ? (double)c->us / 1e6
           : f == WAIT    ? (double)c->wait_us / 1e6
                          : (double)link_taken_us(c) / 1e6;
}

static void put_calls(const struct scrape *s, const char *name, const char *help,
                      enum comm_figure f)
{
    put_head(s->b, name, "counter", help);
    for (int i = 0; i < s->n; i++)
        for (int k = 0; k < MESH_DIM_COUNT * COMM_CALL_COUNT; k++) {
            int d = k / COMM_CALL_COUNT, call = k % COMM_CALL_COUNT;
            const struct comm_count *c = &s->v[i].s.counts[d][call];

            if (!c->calls || outdated(s->v, s->n, i))
                continue;
            put_labels(s->b, name, &s->v[i]);
            buf_printf(s->b, ",group=\"%s\",call=\"%s\"} %.17g\n",
                       mesh_dim_name((enum mesh_dim)d),
                       comm_call_name((enum comm_call)call), figure(c, f));
        }
}

void ranks_metrics(struct router *r, struct buf *out)
{
    struct rank_view *v;
    struct scrape s = {.b = out, .n = rankview_get(r, &v)};

    s.v = v;
    put_memory(&s, "llmrack_rank_memory_bytes", "Memory of a rank, by part", held);
    put_memory(&s, "llmrack_rank_ledger_bytes",
               "What the ledger counts for a rank, by part", counted);
    put_seconds(&s, "llmrack_rank_busy_seconds_total", "Time of a rank in steps", false);
    put_seconds(&s, "llmrack_rank_wait_seconds_total",
                "Of it, waiting for others in collectives", true);
    put_stragglers(&s);
    put_calls(&s, "llmrack_comm_calls_total", "Collectives of a rank", CALLS);
    put_calls(&s, "llmrack_comm_bytes_total", "Bytes that a rank read from others",
              BYTES);
    put_calls(&s, "llmrack_comm_seconds_total", "Time of a rank in collectives", SECONDS);
    put_calls(&s, "llmrack_comm_wait_seconds_total", "Of it, waiting for others", WAIT);
    put_calls(&s, "llmrack_link_busy_seconds_total",
              "Time that the link over which a rank reads from others was taken", LINK);
    free(v);
}
