/* ctl/load.c - the verbs load, load show and load compare. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/contract.h"
#include "base/err.h"
#include "base/mem.h"
#include "ctl/args.h"
#include "ctl/ask.h"
#include "ctl/file.h"
#include "ctl/line.h"
#include "ctl/load_plan.h"
#include "ctl/load_quality.h"
#include "ctl/load_run.h"
#include "ctl/plot.h"
#include "ctl/run.h"
#include "ctl/show.h"
#include "ctl/verb.h"
#include "ctl/wire.h"

enum { SMALL_LINES = 3, PIPE_US = 10000000 };

static const json_t *at(const json_t *o, const char *a, const char *b)
{
    return json_object_get(json_object_get(o, a), b);
}

static const char *word(const json_t *v)
{
    return json_is_string(v) ? json_string_value(v) : "";
}

/* ---- progress: one line that is written over, else a line now and then ---- */

struct shown {
    int64_t at_us; /* of the last line that is not a screen's */
    struct session *s;
    const char *path; /* where steps are looked for */
};

static bool on_screen(void) { return isatty(STDERR_FILENO) && line_width() > 0; }

static void clear_line(void)
{
    if (on_screen())
        fputs("\r\x1b[K", stderr);
}

static void on_progress(void *arg, const char *text, const struct load_point *p)
{
    struct shown *d = arg;
    int64_t now = clock_now_us(clock_real());

    if (text && on_screen()) {
        fprintf(stderr, "\r%.*s\x1b[K", line_width() - 1, text);
    } else if (text && (!d->at_us || now - d->at_us >= PIPE_US)) {
        fprintf(stderr, "%s\n", text);
        d->at_us = now;
    }
    if (!p)
        return;
    clear_line();
    fprintf(stderr,
            "%.3g/s: %.1f %% of %d good (%.1f to %.1f), ttft p95 %.0f ms, tpot p95 %.1f "
            "ms%s\n",
            p->rate, 100 * p->attainment, p->n, 100 * p->low, 100 * p->high, p->ttft.p95,
            p->tpot.p95,
            p->saturated ? ", the queue grew"
            : p->pass    ? ""
                         : ", too few");
    d->at_us = now;
}

/* ---- the picture ---- */

static void quality_text(const json_t *q, char ret[120])
{
    const json_t *agreement = json_object_get(q, "agreement"),
                 *perplexity = json_object_get(q, "perplexity");

    if (json_is_number(agreement))
        snprintf(ret, 120, "agreement %.4g %%", 100 * json_number_value(agreement));
    else if (json_is_number(perplexity))
        snprintf(ret, 120, "exact, perplexity %.4g", json_number_value(perplexity));
    else
        snprintf(ret, 120, "not measured");
}

static void small_print(const json_t *run, char ret[SMALL_LINES][400])
{
    const json_t *c = json_object_get(run, "contract"), *s = json_object_get(c, "served"),
                 *w = json_object_get(c, "work");
    char lengths[160], quality[120];

    quality_text(json_object_get(c, "quality"), quality);
    if (json_object_get(w, "trace"))
        snprintf(lengths, sizeof(lengths), "trace %s, lengths / %g",
                 word(json_object_get(w, "trace")),
                 json_number_value(json_object_get(w, "divide")));
    else
        snprintf(lengths, sizeof(lengths), "prompt %s, answer %s tokens",
                 word(json_object_get(w, "in")), word(json_object_get(w, "out")));
    snprintf(ret[0], 400, "%s %s (%s, KV %s), hash %s; mode %s, layout %s, %lld device%s",
             word(json_object_get(s, "instance")), word(json_object_get(s, "model")),
             word(json_object_get(s, "precision")), word(json_object_get(s, "kv_type")),
             word(json_object_get(s, "model_hash")), word(json_object_get(s, "mode")),
             word(json_object_get(s, "layout")),
             (long long)json_integer_value(json_object_get(s, "devices")),
             json_integer_value(json_object_get(s, "devices")) == 1 ? "" : "s");
    snprintf(
        ret[1], 400,
        "%s arrivals, %s, %lld shared, seed %lld; temperature %g; TTFT %g ms, TPOT %g "
        "ms for %g %%",
        word(json_object_get(w, "arrival")), lengths,
        (long long)json_integer_value(json_object_get(w, "shared_tok")),
        (long long)json_integer_value(json_object_get(w, "seed")),
        json_number_value(at(c, "sampling", "temperature")),
        json_number_value(at(c, "slo", "ttft_ms")),
        json_number_value(at(c, "slo", "tpot_ms")),
        100 * json_number_value(at(c, "slo", "target")));
    snprintf(ret[2], 400, "rack %s (%s)%s, llmrack %s, revision %lld, quality %s",
             word(json_object_get(s, "rack")), word(json_object_get(s, "topology")),
             json_is_true(json_object_get(s, "emulated")) ? ", emulated" : "",
             word(json_object_get(s, "build")),
             (long long)json_integer_value(json_object_get(s, "revision")), quality);
}

static double num(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

/* run: as GET loads/ID gives it. */
static int draw(const json_t *run, const char *path, struct err *e)
{
    const json_t *rows = at(run, "result", "points"),
                 *c = json_object_get(run, "contract");
    size_t n = json_array_size(rows);
    struct plot_point *v = xcalloc(n + 1, sizeof(*v));
    char small[SMALL_LINES][400];
    const char *lines[SMALL_LINES] = {small[0], small[1], small[2]};
    bool complete = json_is_true(at(run, "result", "complete"));
    struct plot p = {
        .title = complete ? "Attainment over arrival rate"
                          : "Attainment over arrival rate (stopped before its end)",
        .small = lines,
        .n_small = SMALL_LINES,
        .v = v,
        .n = (int)n,
        .target = json_number_value(at(c, "slo", "target")),
        .chosen = json_number_value(at(run, "result", "goodput")),
        .has_ttft = json_number_value(at(c, "slo", "ttft_ms")) > 0,
        .has_tpot = json_number_value(at(c, "slo", "tpot_ms")) > 0};
    struct buf png;
    int rc;

    for (size_t i = 0; i < n; i++) {
        const json_t *q = json_array_get(rows, i);

        v[i] = (struct plot_point){num(q, "rate"),
                                   num(q, "attainment"),
                                   num(q, "low"),
                                   num(q, "high"),
                                   num(q, "ttft_share"),
                                   num(q, "tpot_share"),
                                   json_is_true(json_object_get(q, "saturated"))};
    }
    small_print(run, small);
    buf_init(&png, 0);
    rc = plot_png(&p, &png, e);
    if (rc == 0)
        rc = file_write(path, png.p, png.len, 0644, e);
    buf_done(&png);
    free(v);
    return rc;
}

int run_load_show(struct session *s, const struct verb *v, const struct args *a,
                  struct err *e)
{
    const char *png = args_get(a, "png");
    char *path = ask_path(v->path, a);
    struct answer ans;
    int rc = run_call(s, &(struct wire_request){.method = "GET", .path = path}, &ans, e);

    if (rc == 0)
        run_show(s, &ans, v->view, a);
    if (rc == 0 && png)
        rc = draw(ans.root, png, e);
    answer_done(&ans);
    free(path);
    return rc;
}

/* ---- one run ---- */

/* Into the daemon's store; *ret_id its number. */
static int keep(struct session *s, json_t *contract, json_t *result, int64_t *ret_id,
                struct err *e)
{
    json_t *o = json_pack("{s:O, s:O}", "contract", contract, "result", result);
    char *body = json_dumps(o, JSON_COMPACT);
    struct answer ans;
    int rc = run_call(
        s,
        &(struct wire_request){.method = "POST", .path = "/api/v1/loads", .body = body},
        &ans, e);

    if (rc == 0)
        *ret_id = json_integer_value(json_object_get(ans.root, "id"));
    answer_done(&ans);
    json_decref(o);
    free(body);
    return rc;
}

/* As GET loads/ID would show it; without a number when it could not be kept. */
static void show_run(struct session *s, json_t *run, const struct args *a)
{
    struct answer ans = {.root = json_incref(run), .status = 200};
    char *text = json_dumps(run, JSON_COMPACT);

    buf_init(&ans.raw, 0);
    buf_puts(&ans.raw, text ? text : "{}");
    run_show(s, &ans, verb_at(VERB_LOAD_SHOW)->view, a);
    answer_done(&ans);
    free(text);
}

/* Kept, shown, drawn, whether it came to its end or was stopped; the picture also where
 * it cannot be kept. *ret_id: its number. */
static int report(struct session *s, const struct load_run *r, json_t *contract,
                  const struct args *a, bool complete, int64_t *ret_id, struct err *e)
{
    const struct load_plan *p = r->plan;
    json_t *result = load_run_result(r, complete), *run;
    struct err drawn = {0};
    int rc = keep(s, contract, result, ret_id, e);

    run = json_pack("{s:o, s:I, s:s, s:s, s:O, s:O}", "id",
                    rc == 0 ? json_integer((json_int_t)*ret_id) : json_null(), "at_ms",
                    (json_int_t)clock_wall_ms(), "instance", p->instance, "model",
                    p->model, "contract", contract, "result", result);
    show_run(s, run, a);
    if (rc < 0)
        err_wrap(e, "the run was not kept");
    if (p->png && draw(run, p->png, &drawn) < 0 && rc == 0) {
        *e = drawn;
        rc = -1;
    }
    json_decref(run);
    json_decref(result);
    return rc;
}

/* What is said of a run that did not come to its end. why: for what reason; kept: 0, or
 * what became of what there was. */
static int ended_early(const struct err *why, const struct load_run *r, int kept,
                       int64_t id, struct err *e)
{
    struct err not_kept = *e;

    if (!r->n_points)
        return err_set(e, why->code, "%.200s before a rate was measured: nothing is kept",
                       why->msg);
    if (kept < 0)
        return err_set(e, why->code, "%.200s; %.200s", why->msg, not_kept.msg);
    return err_set(e, why->code,
                   "%.200s: what was measured is kept as run %lld, not complete",
                   why->msg, (long long)id);
}

/* SIGTERM and SIGHUP too leave what was measured. */
static void on_end(int signo)
{
    (void)signo;
    *line_stop_flag() = 1;
}

static void catch_end(bool on, struct sigaction was[2])
{
    struct sigaction sa = {.sa_handler = on_end};

    sigaction(SIGTERM, on ? &sa : &was[0], on ? &was[0] : NULL);
    sigaction(SIGHUP, on ? &sa : &was[1], on ? &was[1] : NULL);
}

/* The steps so far, of the daemon's part of the contract. */
static int look(void *arg, struct load_steps *ret, struct err *e)
{
    const struct shown *d = arg;
    struct answer ans;
    int rc =
        run_call(d->s, &(struct wire_request){.method = "GET", .path = d->path}, &ans, e);

    if (rc == 0)
        load_steps_read(json_object_get(ans.root, "steps"), ret);
    answer_done(&ans);
    return rc;
}

/* path: of the daemon's part of the contract. */
static int measure(struct session *s, const char *path, const struct load_plan *p,
                   const json_t *served, json_t *quality, const struct args *a,
                   struct err *e)
{
    struct load_run *r = xcalloc(1, sizeof(*r));
    json_t *contract = load_plan_contract(p, served, quality);
    struct shown shown = {.s = s, .path = path};
    struct sigaction was[2];
    struct err why;
    int64_t id = 0;
    int rc, kept = 0;

    r->plan = p;
    r->wire = s->wire;
    r->stop = line_stop_flag();
    r->progress = on_progress;
    r->look = look;
    r->arg = &shown;
    r->salt = (uint64_t)clock_wall_ms() << 12;
    *line_stop_flag() = 0;
    catch_end(true, was);
    rc = load_run(r, &why);
    catch_end(false, was);
    clear_line();
    *line_stop_flag() = 0; /* what was measured is kept all the same */
    if (rc == 0 || r->n_points)
        kept = report(s, r, contract, a, rc == 0, &id, e);
    rc = rc < 0 ? ended_early(&why, r, kept, id, e) : kept;
    json_decref(contract);
    free(r);
    return rc;
}

/* Before anything is measured: can the picture be written there? */
static int may_draw(const struct load_plan *p, struct err *e)
{
    return p->png ? file_may_write(p->png, e) : 0;
}

int run_load(struct session *s, const struct verb *v, const struct args *a, struct err *e)
{
    char *path = ask_path(v->path, a);
    struct load_plan plan;
    struct answer offer;
    const json_t *served;
    json_t *quality;
    int rc =
        run_call(s, &(struct wire_request){.method = "GET", .path = path}, &offer, e);

    served = json_object_get(offer.root, "served");
    if (rc < 0 || load_plan_read(a, offer.root, &plan, e) < 0) {
        answer_done(&offer);
        free(path);
        return -1;
    }
    if (plan.cut)
        fprintf(stderr,
                "%d of %d requests of the trace are longer than the context of %d tokens "
                "and are cut to it; divide N makes all shorter\n",
                plan.cut, plan.trace.n, plan.work.max_tok);
    rc = may_draw(&plan, e);
    if (rc == 0)
        rc = load_quality(s, served, args_get(a, "quality"), &quality, e);
    if (rc == 0)
        rc = measure(s, path, &plan, served, quality, a, e);
    load_plan_done(&plan);
    free(path);
    answer_done(&offer);
    return rc;
}

/* ---- two runs ---- */

static const struct {
    const char *name, *path; /* in the result */
} figures[] = {
    {"goodput (requests/s)", "goodput"},
    {"goodput a device", "goodput_per_device"},
    {"good tokens/s", "good_tok_per_s"},
    {"attainment", "attainment"},
    {"device-hours a good request", "device_hours_per_good"},
    {"cost a good request", "cost_per_good"},
    {"ttft p50 (ms)", "at.ttft_ms.p50"},
    {"ttft p95 (ms)", "at.ttft_ms.p95"},
    {"ttft p99 (ms)", "at.ttft_ms.p99"},
    {"tpot p50 (ms)", "at.tpot_ms.p50"},
    {"tpot p95 (ms)", "at.tpot_ms.p95"},
    {"tpot p99 (ms)", "at.tpot_ms.p99"},
    {"gap p99 (ms)", "at.gap_ms.p99"},
};

static void put_figure(json_t *rows, const char *name, const json_t *a, const json_t *b)
{
    double x = json_number_value(a), y = json_number_value(b);
    char ta[32] = "", tb[32] = "", change[32] = "";

    if (json_is_number(a))
        snprintf(ta, sizeof(ta), "%.4g", x);
    if (json_is_number(b))
        snprintf(tb, sizeof(tb), "%.4g", y);
    if (json_is_number(a) && json_is_number(b) && x > 0)
        snprintf(change, sizeof(change), "%+.1f %%", 100 * (y / x - 1));
    json_array_append_new(rows, json_pack("{s:s, s:s, s:s, s:s}", "what", name, "a", ta,
                                          "b", tb, "change", change));
}

static json_t *compared(const json_t *a, const json_t *b)
{
    const json_t *ra = json_object_get(a, "result"), *rb = json_object_get(b, "result");
    json_t *rows = json_array();

    for (size_t i = 0; i < sizeof(figures) / sizeof(figures[0]); i++)
        put_figure(rows, figures[i].name, show_member(ra, figures[i].path),
                   show_member(rb, figures[i].path));
    return rows;
}

static int get_run(struct session *s, const char *id, struct answer *ret, struct err *e)
{
    char *path = xasprintf("loads/%s", id);
    int rc = run_get(s, path, ret, e);

    free(path);
    return rc;
}

int run_load_compare(struct session *s, const struct verb *v, const struct args *a,
                     struct err *e)
{
    struct answer x = {.root = NULL}, y = {.root = NULL}, both = {.status = 200};
    json_t *differs = NULL;
    char *text;
    int rc = get_run(s, args_get(a, "A"), &x, e);

    if (rc == 0)
        rc = get_run(s, args_get(a, "B"), &y, e);
    if (rc == 0)
        rc = contract_compare(json_object_get(x.root, "contract"),
                              json_object_get(y.root, "contract"), &differs, e);
    if (rc == 0) {
        both.root = json_pack("{s:o, s:o}", "figures", compared(x.root, y.root),
                              "differs", differs);
        text = json_dumps(both.root, JSON_COMPACT);
        buf_init(&both.raw, 0);
        buf_puts(&both.raw, text ? text : "{}");
        free(text);
        run_show(s, &both, v->view, a);
        answer_done(&both);
    }
    answer_done(&x);
    answer_done(&y);
    return rc;
}
