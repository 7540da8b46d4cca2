/* ctl/follow.c - `show events`, `log -f`: streams as lines. */
#include "ctl/follow.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "ctl/args.h"
#include "ctl/line.h"
#include "ctl/run.h"
#include "ctl/show.h"
#include "ctl/verb.h"
#include "ctl/wire.h"

enum { FIELD = 640 };

static json_t *parse(const char *json)
{
    static const struct js_limits lim = {1 << 20, 16};
    json_t *o;

    return js_parse(json, strlen(json), &lim, &o, NULL) == 0 ? o : NULL;
}

static const char *get(const json_t *o, const char *key, char out[FIELD])
{
    show_value(json_object_get(o, key), "", out, FIELD);
    return out;
}

/* "14:03:11"; now when the event does not say. */
static void clock_of(const json_t *o, const char *key, char out[FIELD])
{
    json_t *ms = json_object_get(o, key);
    json_t *now = json_integer(clock_wall_ms());
    char full[FIELD];

    show_value(json_is_integer(ms) ? ms : now, "time", full, sizeof(full));
    snprintf(out, FIELD, "%s", strchr(full, ' ') ? strchr(full, ' ') + 1 : full);
    json_decref(now);
}

static char *journal_line(const json_t *o, const char *at, const struct show_style *st)
{
    char who[FIELD], what[FIELD], subject[FIELD], result[FIELD], detail[FIELD];
    enum hue hue = hue_of_state(get(o, "result", result));

    get(o, "actor", who);
    get(o, "what", what);
    get(o, "subject", subject);
    get(o, "detail", detail);
    return xasprintf("%s%s%s  %s: %s %s  %s%s%s%s%s", hue_begin(st, HUE_DIM), at,
                     hue_end(st), who, what, subject, hue_begin(st, hue), result,
                     hue_end(st), *detail ? "  " : "", detail);
}

static char *alarm_line(const json_t *o, const char *at, const struct show_style *st)
{
    bool active = json_is_true(json_object_get(o, "active"));
    char severity[FIELD], text[FIELD];
    enum hue hue = active ? hue_of_state(get(o, "severity", severity)) : HUE_GOOD;

    get(o, "text", text);
    return xasprintf("%s%s%s  %s%s%s: %s", hue_begin(st, HUE_DIM), at, hue_end(st),
                     hue_begin(st, hue), active ? severity : "over", hue_end(st), text);
}

static char *state_line(const json_t *o, const char *what, const char *name,
                        const char *more, const char *at, const struct show_style *st)
{
    char subject[FIELD], state[FIELD], text[FIELD];
    enum hue hue = hue_of_state(get(o, "state", state));

    get(o, name, subject);
    get(o, more, text);
    return xasprintf("%s%s%s  %s %s is %s%s%s%s%s", hue_begin(st, HUE_DIM), at,
                     hue_end(st), what, subject, hue_begin(st, hue), state, hue_end(st),
                     *text ? ": " : "", text);
}

/* A deed of his own, or of the daemon's in good order: events of instances tell that.
 * What the daemon undoes is told. */
static bool is_known(const json_t *o, const char *self)
{
    char who[FIELD], what[FIELD], result[FIELD];

    get(o, "what", what);
    if (self && !strcmp(get(o, "actor", who), self))
        return true;
    return !strcmp(get(o, "actor", who), "daemon") &&
           !strcmp(get(o, "result", result), "ok") &&
           (strncmp(what, "config.", 7) != 0 || !strcmp(what, "config.apply"));
}

char *follow_event(const char *kind, const char *json, bool shell, const char *self,
                   const struct show_style *st)
{
    json_t *o = parse(json);
    char at[FIELD], *line = NULL;

    if (!o)
        return NULL;
    clock_of(o,
             !strcmp(kind, "alarm")     ? "since_ms"
             : !strcmp(kind, "journal") ? "at_ms"
                                        : "",
             at);
    if (!strcmp(kind, "journal") && !(shell && is_known(o, self)))
        line = journal_line(o, at, st);
    else if (!strcmp(kind, "alarm"))
        line = alarm_line(o, at, st);
    else if (!strcmp(kind, "instance"))
        line = state_line(o, "instance", "name", "error", at, st);
    else if (!strcmp(kind, "operation") && !shell)
        line = state_line(o, "operation", "kind", "message", at, st);
    json_decref(o);
    return line;
}

static char *log_line(const json_t *o, const struct show_style *st)
{
    char at[FIELD], level[FIELD], *text, *line;
    const char *raw = json_string_value(json_object_get(o, "text"));
    enum hue hue = hue_of_state(get(o, "level", level));

    clock_of(o, "at_ms", at);
    text = xstrdup(raw ? raw : "");
    show_clean(text, "\t");
    line = xasprintf("%s%s%s %s%-5s%s %s", hue_begin(st, HUE_DIM), at, hue_end(st),
                     hue_begin(st, hue), level, hue_end(st), text);
    free(text);
    return line;
}

char *follow_log(const char *json, const struct show_style *st)
{
    json_t *o = parse(json);
    char *line = o ? log_line(o, st) : NULL;

    json_decref(o);
    return line;
}

/* ---- verbs ---- */

struct follower {
    struct session *s;
    struct show_style style;
};

static void put_line(const struct session *s, char *line)
{
    if (line)
        fprintf(s->out, "%s\n", line);
    fflush(s->out);
    free(line);
}

static bool on_event(void *arg, const char *event, const char *line)
{
    const struct follower *f = arg;

    put_line(f->s, f->s->opt.json
                       ? xasprintf("{\"event\":\"%s\",\"data\":%s}", event, line)
                       : follow_event(event, line, false, NULL, &f->style));
    return true;
}

static bool on_log(void *arg, const char *event, const char *line)
{
    const struct follower *f = arg;

    (void)event;
    put_line(f->s, f->s->opt.json ? xstrdup(line) : follow_log(line, &f->style));
    return true;
}

/* A stream until Ctrl-C or --timeout, which are its good ends. */
static int follow(struct session *s, const char *path, wire_line_fn fn, struct err *e)
{
    struct follower f = {.s = s, .style = run_style()};
    struct wire_request r = {
        .method = "GET", .path = path, .timeout_ms = s->opt.timeout_ms};
    int rc = wire_stream(s->wire, &r, line_stop_flag(), fn, &f, e);

    if (rc < 0 &&
        (e->code == ERR_CANCELED || (e->code == ERR_TIMEOUT && s->opt.timeout_ms)))
        rc = 0;
    return rc;
}

int run_events(struct session *s, const struct verb *v, const struct args *a,
               struct err *e)
{
    (void)v, (void)a;
    return follow(s, "/api/v1/events", on_event, e);
}

int run_log(struct session *s, const struct verb *v, const struct args *a, struct err *e)
{
    const char *count = args_get(a, "COUNT");
    struct show_style st = run_style();
    struct answer ans;
    size_t n, from;
    int rc = run_get(s, "log", &ans, e);
    const json_t *lines = json_object_get(ans.root, "lines");

    (void)v;
    n = json_array_size(lines);
    from = count && strtoull(count, NULL, 10) < n ? n - strtoull(count, NULL, 10) : 0;
    if (rc == 0 && s->opt.json && !args_get(a, "-f"))
        fprintf(s->out, "%s\n", ans.raw.p);
    else
        for (size_t i = from; i < n; i++)
            put_line(s, s->opt.json ? json_dumps(json_array_get(lines, i), JSON_COMPACT)
                                    : log_line(json_array_get(lines, i), &st));
    answer_done(&ans);
    if (rc == 0 && args_get(a, "-f"))
        rc = follow(s, "/api/v1/log/stream", on_log, e);
    return rc;
}

int run_log_level(struct session *s, const struct verb *v, const struct args *a,
                  struct err *e)
{
    struct answer ans;
    int rc;

    if (args_get(a, "LEVEL"))
        return run_row(s, v, a, NULL, e);
    rc = run_get(s, "log", &ans, e);
    if (rc == 0)
        fprintf(s->out, "log level %s\n",
                json_string_value(json_object_get(ans.root, "level")));
    answer_done(&ans);
    return rc;
}
