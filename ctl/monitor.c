/* ctl/monitor.c - the live screen's text. */
#include "ctl/monitor.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "ctl/show.h"

enum { CELL = 128 };

void monitor_done(struct monitor *m)
{
    json_decref(m->status);
    json_decref(m->slo);
    json_decref(m->devices);
    json_decref(m->alarms);
    memset(m, 0, sizeof(*m));
}

static double number(const json_t *o, const char *path)
{
    return json_number_value(show_member(o, path));
}

void monitor_take(struct monitor *m, json_t *status, int64_t now_us)
{
    double in = number(status, "tokens.prompt"), out = number(status, "tokens.generated");
    double seconds = (double)(now_us - m->last_us) / 1e6;

    json_decref(m->status);
    m->status = status;
    if (m->last_us && seconds > 0) {
        /* counters start again with the daemon */
        m->in_per_s = in >= m->last_in ? (in - m->last_in) / seconds : 0;
        m->out_per_s = out >= m->last_out ? (out - m->last_out) / seconds : 0;
        if (m->n_history == MONITOR_HISTORY)
            memmove(m->history, m->history + 1,
                    (MONITOR_HISTORY - 1) * sizeof(m->history[0]));
        else
            m->n_history++;
        m->history[m->n_history - 1] = m->out_per_s;
    }
    m->last_in = in;
    m->last_out = out;
    m->last_us = now_us;
}

/* ---- lines ---- */

struct line {
    struct buf text;
    int columns;
    const struct show_style *st;
};

static void line_add(struct line *l, enum hue hue, const char *text)
{
    int room = l->st->width - l->columns;
    char *cut = text_cut(text, room);

    buf_printf(&l->text, "%s%s%s", hue_begin(l->st, hue), cut, hue ? hue_end(l->st) : "");
    l->columns += text_columns(cut);
    free(cut);
}

/* text, from column `at` on. */
static void line_at(struct line *l, int at, enum hue hue, const char *text)
{
    if (at > l->st->width)
        return;
    if (l->columns < at) {
        buf_printf(&l->text, "%*s", at - l->columns, "");
        l->columns = at;
    }
    line_add(l, hue, text);
}

static void line_end(struct line *l, struct buf *out)
{
    buf_printf(out, "%s\n", l->text.p ? l->text.p : "");
    buf_clear(&l->text);
    l->columns = 0;
}

static void value(const json_t *o, const char *path, const char *fmt, char out[CELL])
{
    show_value(show_member(o, path), fmt, out, CELL);
    if (!out[0])
        snprintf(out, CELL, "-");
}

/* ---- parts ---- */

static void head(const struct monitor *m, struct line *l, const char *clock,
                 struct buf *out)
{
    const json_t *s = m->status;
    bool ready = json_is_true(json_object_get(s, "ready"));
    char text[CELL], more[CELL];

    value(s, "version", "", text);
    line_add(l, HUE_BOLD, "llmrackd ");
    line_add(l, HUE_BOLD, text);
    value(s, "uptime_s", "s", text);
    line_add(l, HUE_PLAIN, "  up ");
    line_add(l, HUE_PLAIN, text);
    line_add(l, HUE_PLAIN, "  ");
    line_add(l, ready ? HUE_GOOD : HUE_BAD, ready ? "ready" : "not ready");
    if (number(s, "revision") > 0) {
        value(s, "revision", "", text);
        line_add(l, HUE_PLAIN, "  rev ");
        line_add(l, HUE_PLAIN, text);
    }
    if (show_member(s, "pending.revision")) {
        value(s, "pending.revision", "", text);
        snprintf(more, sizeof(more), "  rev %.20s pending %.0f s", text,
                 number(s, "pending.left_s"));
        line_add(l, HUE_WARN, more);
    }
    if (json_is_true(json_object_get(s, "maintenance")))
        line_add(l, HUE_WARN, "  maintenance");
    if (number(s, "alarms") > 0) {
        snprintf(more, sizeof(more), "  %.0f alarm%s", number(s, "alarms"),
                 number(s, "alarms") > 1 ? "s" : "");
        line_add(l, HUE_BAD, more);
    }
    if (l->columns + 2 + (int)strlen(clock) <= l->st->width)
        line_at(l, l->st->width - (int)strlen(clock), HUE_DIM, clock);
    line_end(l, out);
}

/* The last values as bars, the highest full. */
static void bars(const double *v, int n, int room, char *out, size_t cap)
{
    static const char *const bar[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    double top = 1;
    size_t len = 0;

    if (n > room) {
        v += n - room;
        n = room;
    }
    for (int i = 0; i < n; i++)
        top = v[i] > top ? v[i] : top;
    out[0] = '\0';
    for (int i = 0; i < n && len + 4 < cap; i++) {
        int k = (int)(v[i] / top * 8 + 0.5);

        len +=
            (size_t)snprintf(out + len, cap - len, "%s", bar[v[i] > 0 && k == 0 ? 1 : k]);
    }
}

static void rate(struct line *l, int at, double v, const char *unit)
{
    char text[CELL];

    snprintf(text, sizeof(text), v >= 100000 ? "%.0fk %s" : "%.0f %s",
             v >= 100000 ? v / 1000 : v, unit);
    line_at(l, at, HUE_PLAIN, text);
}

static void load(const struct monitor *m, struct line *l, struct buf *out)
{
    char text[CELL], chart[4 * MONITOR_HISTORY];
    const json_t *s = m->status;
    enum { A = 12, B = 26, C = 40 };
    static const struct {
        const char *title, *p50, *p95;
    } latencies[] = {{"TTFT", "ttft_ms.p50", "ttft_ms.p95"},
                     {"TPOT", "tpot_ms.p50", "tpot_ms.p95"}};

    line_add(l, HUE_DIM, "requests");
    rate(l, A, number(s, "requests.running"), "running");
    rate(l, B, number(s, "requests.waiting"), "waiting");
    line_end(l, out);
    line_add(l, HUE_DIM, "tokens/s");
    rate(l, A, m->out_per_s, "out");
    rate(l, B, m->in_per_s, "in");
    if (m->n_history && l->st->width > C + 4) {
        bars(m->history, m->n_history, l->st->width - C, chart, sizeof(chart));
        line_at(l, C, HUE_GOOD, chart);
    }
    line_end(l, out);
    for (size_t i = 0; i < sizeof(latencies) / sizeof(latencies[0]); i++) {
        line_add(l, HUE_DIM, latencies[i].title);
        value(s, latencies[i].p50, "ms", text);
        line_at(l, A, HUE_PLAIN, text);
        line_add(l, HUE_DIM, " p50");
        value(s, latencies[i].p95, "ms", text);
        line_at(l, B, HUE_PLAIN, text);
        line_add(l, HUE_DIM, " p95");
        line_end(l, out);
    }
}

/* The row of an instance's own target, not of a class. */
static json_t *slo_of(const struct monitor *m, const char *instance)
{
    size_t i;
    json_t *row;

    json_array_foreach(json_object_get(m->slo, "slo"), i, row)
    {
        const char *name = json_string_value(json_object_get(row, "instance")),
                   *class = json_string_value(json_object_get(row, "class"));

        if (name && !strcmp(name, instance) && (!class || !*class))
            return row;
    }
    return NULL;
}

/* Each instance with its figures of the last minute beside it. */
static json_t *instances(const struct monitor *m)
{
    json_t *rows = json_array(), *s;
    size_t i;

    json_array_foreach(json_object_get(m->status, "instances"), i, s)
    {
        json_t *row = json_copy(s);
        const char *name = json_string_value(json_object_get(s, "name"));
        json_t *slo = slo_of(m, name ? name : "");
        double total = number(s, "kv_total");

        if (total > 0)
            json_object_set_new(row, "kv", json_real(number(s, "kv_used") / total));
        if (slo)
            json_object_set(row, "slo", slo);
        json_array_append_new(rows, row);
    }
    return json_pack("{s:o}", "instances", rows);
}

static void table(const json_t *root, const char *view, const struct show_style *st,
                  struct buf *out)
{
    struct buf one;

    buf_init(&one, 0);
    if (root)
        show_json(root, view, st, &one);
    if (one.len)
        buf_printf(out, "\n%s", one.p);
    buf_done(&one);
}

static void alarms(const struct monitor *m, struct line *l, struct buf *out)
{
    size_t i;
    json_t *a;
    bool first = true;

    json_array_foreach(json_object_get(m->alarms, "alarms"), i, a)
    {
        char text[CELL * 2], severity[CELL];

        if (!json_is_null(json_object_get(a, "ended_ms")) && number(a, "ended_ms") > 0)
            continue;
        buf_puts(out, first ? "\n" : "");
        first = false;
        value(a, "severity", "", severity);
        show_value(json_object_get(a, "text"), "", text, sizeof(text));
        line_add(l, hue_of_state(severity), severity);
        line_add(l, HUE_PLAIN, "  ");
        line_add(l, HUE_PLAIN, text);
        line_end(l, out);
    }
}

void monitor_frame(const struct monitor *m, const struct show_style *st,
                   const char *clock, const char *why, struct buf *out)
{
    struct line l = {.st = st};
    json_t *rows;

    buf_init(&l.text, 0);
    if (m->status) {
        head(m, &l, clock, out);
        buf_putc(out, '\n');
        load(m, &l, out);
        rows = instances(m);
        table(rows,
              "instances{INSTANCE=name,STATE=state:state,RUN=running,WAIT=waiting,"
              "KV=kv:pct,ATTAIN=slo.attainment:pct,TTFT P95=slo.ttft_ms.p95:ms,"
              "TPOT P95=slo.tpot_ms.p95:ms,GOOD TOK/S=slo.good_tokens_per_s,MODEL=model}",
              st, out);
        json_decref(rows);
        table(m->devices,
              "devices?{DEVICE=id,KIND=kind,STATE=state:state,MEMORY=memory_bytes:bytes,"
              "MODEL=model,REASON=reason}",
              st, out);
        alarms(m, &l, out);
    }
    if (*why) {
        buf_puts(out, m->status ? "\n" : "");
        line_add(&l, HUE_BAD, why);
        line_end(&l, out);
    }
    buf_putc(out, '\n');
    line_add(&l, HUE_DIM, "q leaves");
    line_end(&l, out);
    buf_done(&l.text);
}
