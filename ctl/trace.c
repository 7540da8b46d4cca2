/* ctl/trace.c - the verb trace: begun, waited for, fetched, written. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "ctl/args.h"
#include "ctl/file.h"
#include "ctl/line.h"
#include "ctl/run.h"
#include "ctl/wire.h"

enum { POLL_US = 250000, REQUEST_S = 60 };

/* "5", "5s", "2m" -> seconds; 0: it is a request. */
static int64_t seconds_of(const char *text)
{
    char *end;
    long n = strtol(text, &end, 10);

    if (end == text || n < 1 || n > 600)
        return 0;
    if (!strcmp(end, "m"))
        return 60 * n;
    return !*end || !strcmp(end, "s") ? n : 0;
}

static int begin(struct session *s, const struct args *a, struct answer *ret,
                 struct err *e)
{
    const char *what = args_get(a, "WHAT"), *instance = args_get(a, "instance"),
               *most = args_get(a, "for");
    int64_t n = seconds_of(what), max = most ? seconds_of(most) : REQUEST_S;
    json_t *o;
    char *body;
    int rc;

    if (!max || (n && most))
        return err_set(e, ERR_INVALID,
                       "for '%s': how long a request is traced at most would be right, "
                       "such as 30s or 2m",
                       most);
    o = json_pack("{s:I}", "seconds", (json_int_t)(n ? n : max));
    if (!n) /* #7: the request with the number 7 */
        json_object_set_new(o, "request", json_string(what + (*what == '#')));
    if (instance)
        json_object_set_new(o, "instance", json_string(instance));
    body = json_dumps(o, JSON_COMPACT);
    rc = run_call(
        s,
        &(struct wire_request){.method = "POST", .path = "/api/v1/trace", .body = body},
        ret, e);
    free(body);
    json_decref(o);
    return rc;
}

/* 1 = it goes on, 0 = it has ended. */
static int goes_on(struct session *s, int64_t id, struct err *e)
{
    const json_t *list;
    struct answer ans;
    int rc = run_get(s, "requests", &ans, e), found = 0;

    list = rc == 0 ? json_object_get(ans.root, "requests") : NULL;
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_integer_value(json_object_get(json_array_get(list, i), "id")) == id)
            found = 1;
    answer_done(&ans);
    return rc < 0 ? -1 : found;
}

enum how { TIME_OVER, REQUEST_OVER, BY_HAND };

/* Until the time is over, the request has ended, or Ctrl-C: what there is is kept. */
static int wait_for_it(struct session *s, const json_t *begun, enum how *ret,
                       struct err *e)
{
    int64_t id = json_integer_value(json_object_get(begun, "request"));
    int64_t end = clock_now_us(clock_real()) +
                  1000000 * json_integer_value(json_object_get(begun, "seconds"));
    int more = 1;

    while (more == 1 && !*line_stop_flag() && clock_now_us(clock_real()) < end) {
        int64_t next = clock_now_us(clock_real()) + POLL_US;

        run_pause(next < end ? next : end);
        if (id && !*line_stop_flag())
            more = goes_on(s, id, e);
    }
    *ret = *line_stop_flag() ? BY_HAND : more ? TIME_OVER : REQUEST_OVER;
    *line_stop_flag() = 0;
    return more < 0 ? -1 : 0;
}

/* ---- what came of it, in a sentence ---- */

/* How the request ended, by its last span; NULL: it has none. */
static const char *end_of(const json_t *trace, int64_t id)
{
    const json_t *events = json_object_get(trace, "traceEvents");
    const char *end = NULL;

    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *v = json_array_get(events, i), *args = json_object_get(v, "args");
        const char *name = json_string_value(json_object_get(v, "name"));

        if (name && !strcmp(name, "decode") &&
            json_integer_value(json_object_get(args, "request")) == id)
            end = json_string_value(json_object_get(args, "end"));
    }
    return end;
}

static void say_request(FILE *out, const json_t *trace, const json_t *begun, enum how how)
{
    int64_t id = json_integer_value(json_object_get(begun, "request"));
    const char *end = end_of(trace, id);

    if (!id)
        return;
    if (how == TIME_OVER)
        fprintf(out, "request %lld still runs after %lld s: the trace ends there\n",
                (long long)id,
                (long long)json_integer_value(json_object_get(begun, "seconds")));
    else if (how == BY_HAND)
        fprintf(out, "request %lld still ran when the trace was stopped\n",
                (long long)id);
    else if (end && !strcmp(end, "canceled"))
        fprintf(out, "request %lld was canceled while it was traced\n", (long long)id);
    else
        fprintf(out, "request %lld ended%s%s\n", (long long)id, end ? ": " : "",
                end ? end : "");
}

static void say_events(FILE *out, const json_t *trace, const char *file)
{
    const json_t *events = json_object_get(trace, "traceEvents"),
                 *facts = json_object_get(trace, "otherData");
    json_int_t lost = json_integer_value(json_object_get(facts, "dropped_events"));

    fprintf(out, "%zu events in %s; open it in ui.perfetto.dev\n",
            json_array_size(events), file);
    if (lost)
        fprintf(
            out,
            "%lld more events had no room after %.3g s (an engine has room for %lld): "
            "a shorter time, or one request, would be whole\n",
            (long long)lost, json_number_value(json_object_get(facts, "full_after_s")),
            (long long)json_integer_value(json_object_get(facts, "room")));
}

int run_trace(struct session *s, const struct verb *v, const struct args *a,
              struct err *e)
{
    const char *file = args_get(a, "FILE");
    struct answer begun = {.root = NULL}, ans = {.root = NULL};
    enum how how;
    int rc;

    (void)v;
    *line_stop_flag() = 0;
    rc = begin(s, a, &begun, e);
    if (rc == 0)
        rc = wait_for_it(s, begun.root, &how, e);
    if (rc == 0) {
        char *path =
            xasprintf("trace?instance=%s",
                      json_string_value(json_object_get(begun.root, "instance")));

        if (path[strlen(path) - 1] == '=')
            *strchr(path, '?') = '\0';
        rc = run_get(s, path, &ans, e);
        free(path);
    }
    if (rc == 0 && !json_is_array(json_object_get(ans.root, "traceEvents")))
        rc = err_set(e, ERR_INVALID, "the answer is no trace");
    if (rc == 0)
        rc = file_write(file, ans.raw.p, ans.raw.len, 0644, e);
    if (rc == 0) {
        say_request(s->out, ans.root, begun.root, how);
        say_events(s->out, ans.root, file);
    }
    answer_done(&begun);
    answer_done(&ans);
    return rc;
}
