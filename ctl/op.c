/* ctl/op.c - waiting: for an operation that was answered with 202, and for conditions.
 *
 * Both ask a few times a second until it is so, Ctrl-C, or --timeout. On a terminal one
 * line says how far it is; it is gone when the wait is over. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "ctl/args.h"
#include "ctl/line.h"
#include "ctl/run.h"
#include "ctl/show.h"
#include "ctl/verb.h"

enum { FIRST_MS = 100, NEXT_MS = 400, FOLLOW_MS = 3600000, WAIT_MS = 600000 };

/* ---- the line that says how far ---- */

static void progress(const char *what, int64_t start_us)
{
    int seconds = (int)((clock_now_us(clock_real()) - start_us) / 1000000);
    char *line, *cut;

    if (!isatty(STDERR_FILENO) || line_width() == 0)
        return;
    line = xasprintf("%s (%d s)", what, seconds);
    show_clean(line, "");
    cut = text_cut(line, line_width() - 1);
    fprintf(stderr, "\r%s\x1b[K", cut);
    free(cut);
    free(line);
}

static void progress_end(void)
{
    if (isatty(STDERR_FILENO) && line_width())
        fputs("\r\x1b[K", stderr);
}

void run_pause(int64_t at_us)
{
    int64_t left;

    while (!*line_stop_flag() && (left = at_us - clock_now_us(clock_real())) > 0)
        poll(NULL, 0, left > 500000 ? 500 : (int)((left + 999) / 1000));
}

/* A pause that Ctrl-C and the deadline end. */
static int pause_until(int ms, int64_t deadline_us, const char *what, struct err *e)
{
    if (clock_now_us(clock_real()) >= deadline_us)
        return err_set(e, ERR_TIMEOUT, "not in time: %s", what);
    run_pause(clock_now_us(clock_real()) + 1000 * ms);
    return *line_stop_flag() ? err_set(e, ERR_CANCELED, "stopped waiting: %s", what) : 0;
}

static int64_t deadline_of(const struct session *s, int64_t otherwise_ms)
{
    return clock_now_us(clock_real()) +
           1000 * (s->opt.timeout_ms ? s->opt.timeout_ms : otherwise_ms);
}

/* ---- operations ---- */

static const char *member(const json_t *o, const char *key)
{
    const char *v = json_string_value(json_object_get(o, key));

    return v ? v : "";
}

/* 1 = it has ended well, 0 = it runs, -1 = it failed or there is none. what: its state in
 * words. */
static int op_look(struct session *s, const char *id, struct answer *a, char **what,
                   struct err *e)
{
    char *path = xasprintf("operations/%s", id);
    int rc = run_get(s, path, a, e);
    const char *state = member(a->root, "state"), *message = member(a->root, "message");

    free(path);
    free(*what);
    *what = rc == 0 ? xasprintf("%s %s%s%s", member(a->root, "kind"),
                                member(a->root, "subject"), *message ? ": " : "", message)
                    : NULL;
    if (rc < 0)
        return -1;
    if (!strcmp(state, "failed"))
        return err_set(e, ERR_INTERNAL, "%s", *message ? message : "it failed");
    return !strcmp(state, "done");
}

int op_follow(struct session *s, const char *id, struct err *e)
{
    int64_t start = clock_now_us(clock_real()), deadline = deadline_of(s, FOLLOW_MS);
    struct answer a = {.root = NULL};
    char *what = NULL;
    int rc = 0, ms = FIRST_MS;

    if (s->opt.no_wait) {
        fprintf(s->out, s->opt.json ? "{\"operation\":\"%s\"}\n" : "operation %s\n", id);
        return 0;
    }
    while ((rc = op_look(s, id, &a, &what, e)) == 0) {
        progress(what, start);
        rc = pause_until(ms, deadline, what, e);
        answer_done(&a);
        if (rc < 0) {
            err_wrap(e, "operation %s goes on", id);
            break;
        }
        ms = NEXT_MS;
    }
    progress_end();
    if (a.root && s->opt.json)
        fprintf(s->out, "%s\n", a.raw.p);
    else if (rc > 0) {
        show_clean(what, "");
        fprintf(s->out, "%s\n", what);
    }
    answer_done(&a);
    free(what);
    return rc < 0 ? -1 : 0;
}

/* ---- conditions: 1 = so, 0 = not yet, -1 = never ---- */

static int look_ready(struct session *s, const char *which, char **what, struct err *e)
{
    struct answer a;
    int rc = run_get(s, "status", &a, e);

    (void)which;
    if (rc < 0 && e->code == ERR_UNAVAIL) { /* the daemon may be starting */
        *what = xstrdup(e->msg);
        answer_done(&a);
        return 0;
    }
    if (rc == 0) {
        rc = json_is_true(json_object_get(a.root, "ready"));
        *what = xstrdup(member(a.root, "reason"));
    }
    answer_done(&a);
    return rc;
}

static int look_confirmed(struct session *s, const char *which, char **what,
                          struct err *e)
{
    struct answer a;
    const char *state;
    int rc = run_get(s, "config", &a, e);

    (void)which;
    if (rc == 0) {
        state = member(a.root, "state");
        rc = !strcmp(state, "confirmed");
        *what = xasprintf(
            "revision %lld is %s",
            (long long)json_integer_value(json_object_get(a.root, "revision")), state);
    }
    answer_done(&a);
    return rc;
}

/* An instance that is replaced has two engines, each a row. */
static int look_drained(struct session *s, const char *which, char **what, struct err *e)
{
    int64_t open = 0;
    bool known = false, serves = false;
    struct answer a;
    size_t i;
    json_t *v;
    int rc = run_get(s, "instances", &a, e);

    json_array_foreach(json_object_get(a.root, "instances"), i, v)
    {
        const char *state = member(v, "state");

        if (strcmp(member(v, "name"), which) != 0)
            continue;
        known = true;
        serves |= strcmp(state, "draining") && strcmp(state, "stopped");
        open += json_integer_value(json_object_get(v, "running")) +
                json_integer_value(json_object_get(v, "waiting"));
    }
    answer_done(&a);
    if (rc < 0)
        return -1;
    if (!known)
        return err_set(e, ERR_NOTFOUND, "there is no instance '%s'", which);
    *what = serves ? xasprintf("%s takes requests: it is not being drained", which)
                   : xasprintf("%s has %lld requests", which, (long long)open);
    return !serves && open == 0;
}

static int look_operation(struct session *s, const char *which, char **what,
                          struct err *e)
{
    struct answer a;
    int rc = op_look(s, which, &a, what, e);

    answer_done(&a);
    return rc;
}

static const struct {
    const char *name;
    int (*look)(struct session *s, const char *which, char **what, struct err *e);
    const char *needs;
} conditions[] = {
    {"ready", look_ready, NULL},
    {"confirmed", look_confirmed, NULL},
    {"drained", look_drained, "the name of an INSTANCE"},
    {"operation", look_operation, "the ID of an operation"},
};

int run_wait(struct session *s, const struct verb *v, const struct args *a, struct err *e)
{
    int64_t start = clock_now_us(clock_real()), deadline = deadline_of(s, WAIT_MS);
    const char *name = args_get(a, "CONDITION"), *which = args_get(a, "WHICH");
    int rc, i = 0, ms = FIRST_MS;

    (void)v;
    while (strcmp(conditions[i].name, name) != 0)
        i++;
    if (!which != !conditions[i].needs)
        return err_set(e, ERR_INVALID, "wait %s takes %s", name,
                       conditions[i].needs ? conditions[i].needs : "nothing more");
    for (;;) {
        char *what = NULL;

        rc = conditions[i].look(s, which, &what, e);
        if (rc == 0) {
            progress(what && *what ? what : name, start);
            rc = pause_until(ms, deadline, what && *what ? what : name, e);
        }
        free(what);
        if (rc != 0)
            break;
        ms = NEXT_MS;
    }
    progress_end();
    return rc < 0 ? -1 : 0;
}
