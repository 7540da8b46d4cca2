/* ctl/run.c - from a line to a call and back to the screen. */
#include "ctl/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "ctl/args.h"
#include "ctl/ask.h"
#include "ctl/chat.h"
#include "ctl/complete.h"
#include "ctl/file.h"
#include "ctl/line.h"
#include "ctl/show.h"
#include "ctl/verb.h"
#include "ctl/wire.h"

enum { FILE_MAX = 1 << 30, SLOW_MS = 300000 };

static const run_fn runs[VERB_COUNT] = {
#define VERB(id, words, args, scope, ask, run, method, path, body, view, help) run_##run,
#include "ctl/verb.def"
#undef VERB
};

/* ---- calls ---- */

int run_call(struct session *s, const struct wire_request *r, struct answer *ret,
             struct err *e)
{
    static const struct js_limits lim = {64 << 20, 32};
    struct wire_request call = *r;

    memset(ret, 0, sizeof(*ret));
    buf_init(&ret->raw, 0);
    if (!call.timeout_ms)
        call.timeout_ms = s->opt.timeout_ms ? s->opt.timeout_ms : s->slow ? SLOW_MS : 0;
    if (wire_call(s->wire, &call, line_stop_flag(), &ret->raw, &ret->status, e) < 0)
        return -1;
    buf_puts(&ret->raw, ""); /* so that p is a string */
    if (ret->raw.len && js_parse(ret->raw.p, ret->raw.len, &lim, &ret->root, NULL) < 0)
        ret->root = NULL;
    return 0;
}

int run_get(struct session *s, const char *path, struct answer *ret, struct err *e)
{
    char *full = xasprintf("/api/v1/%s", path);
    int rc = run_call(s, &(struct wire_request){.method = "GET", .path = full}, ret, e);

    free(full);
    return rc;
}

void answer_done(struct answer *a)
{
    json_decref(a->root);
    buf_done(&a->raw);
    memset(a, 0, sizeof(*a));
}

struct show_style run_style(void)
{
    const char *term = getenv("TERM");

    return (struct show_style){.width = line_width(),
                               .colour = isatty(STDOUT_FILENO) && term &&
                                         strcmp(term, "dumb") != 0};
}

void run_show(struct session *s, const struct answer *a, const char *view,
              const struct args *args)
{
    struct show_style st = run_style();
    struct buf filled, out;

    if (s->opt.json) {
        if (a->raw.len)
            fprintf(s->out, "%s\n", a->raw.p);
        return;
    }
    buf_init(&filled, 0);
    buf_init(&out, 0);
    if (view[0] == '=')
        ask_words(view, args, &filled);
    else
        buf_puts(&filled, view);
    show_json(a->root, filled.p ? filled.p : "", &st, &out);
    if (out.len)
        fputs(out.p, s->out);
    buf_done(&filled);
    buf_done(&out);
}

/* The end of a call that went well: an operation to follow, or an answer to show. An
 * answer that says `ok: false` is a failure all the same. */
static int finish(struct session *s, const struct answer *a, const char *view,
                  const struct args *args, struct err *e)
{
    const char *op = json_string_value(json_object_get(a->root, "operation"));
    const json_t *ok = json_object_get(a->root, "ok"),
                 *whole = json_object_get(a->root, "whole");

    if (a->status == 202 && op)
        return op_follow(s, op, e);
    if (a->raw.len && !a->root && !s->opt.json)
        return err_set(e, ERR_INTERNAL, "the daemon's answer is no JSON");
    run_show(s, a, view, args);
    if (json_is_false(ok) || json_is_false(whole))
        return err_set(e, ERR_INTERNAL, "not all is well");
    return 0;
}

int run_row(struct session *s, const struct verb *v, const struct args *a,
            const char *body, struct err *e)
{
    char *path = ask_path(v->path, a), *made = NULL;
    struct wire_request r = {.method = v->method, .path = path, .body = body};
    bool sends = !strcmp(v->method, "POST") || !strcmp(v->method, "PUT") ||
                 !strcmp(v->method, "PATCH");
    struct answer ans = {.root = NULL};
    int rc = -1;

    if (!body && sends) {
        r.body = made = ask_body(v->body, a, e);
        if (!made)
            goto out;
    }
    rc = run_call(s, &r, &ans, e);
    if (rc == 0)
        rc = finish(s, &ans, v->view, a, e);
out:
    answer_done(&ans);
    free(made);
    free(path);
    return rc;
}

int run_rest(struct session *s, const struct verb *v, const struct args *a, struct err *e)
{
    return run_row(s, v, a, NULL, e);
}

int run_slow(struct session *s, const struct verb *v, const struct args *a, struct err *e)
{
    int rc;

    s->slow = true;
    rc = run_row(s, v, a, NULL, e);
    s->slow = false;
    return rc;
}

int run_ask(struct session *s, const char *question, struct err *e)
{
    if (s->opt.yes)
        return 0;
    if (!line_is_terminal() || !isatty(STDOUT_FILENO))
        return err_set(e, ERR_DENIED,
                       "it asks first, and there is no terminal to answer; -y says yes");
    if (line_ask(question))
        return 0;
    return err_set(e, ERR_CANCELED, "nothing was done");
}

static int ask_for(struct session *s, const struct verb *v, const struct args *a,
                   struct err *e)
{
    struct buf b;
    int rc;

    if (!v->ask[0])
        return 0;
    buf_init(&b, 0);
    ask_words(v->ask, a, &b);
    show_clean(b.p, "");
    rc = run_ask(s, b.p, e);
    buf_done(&b);
    return rc;
}

/* What the line says for itself, over what holds for the session. */
static struct options joined(const struct options *session, const struct options *line)
{
    return (struct options){.json = session->json || line->json,
                            .yes = session->yes || line->yes,
                            .no_wait = session->no_wait || line->no_wait,
                            .timeout_ms = line->timeout_ms ? line->timeout_ms
                                                           : session->timeout_ms};
}

int run_line(struct session *s, const char *line, struct err *e)
{
    const struct options before = s->opt;
    const struct verb *v;
    struct words w;
    struct args a = {.n = 0};
    int n, rc = -1;

    if (words_split(line, &w, e) < 0)
        return -1;
    v = verb_match(&w, &n, e);
    if (!v)
        goto out;
    if (args_parse(v->args, &w, n, &a, e) < 0) {
        err_wrap(e, "%s", v->words);
        goto out;
    }
    s->opt = joined(&before, &a.opt);
    if (ask_for(s, v, &a, e) == 0)
        rc = runs[v->id](s, v, &a, e);
out:
    s->opt = before;
    args_done(&a);
    words_done(&w);
    return rc;
}

/* ---- small verbs ---- */

int run_version(struct session *s, const struct verb *v, const struct args *a,
                struct err *e)
{
    if (!s->opt.json)
        fprintf(s->out, "llmctl  %s\n", LLMRACK_VERSION);
    return run_row(s, v, a, NULL, e);
}

int run_help(struct session *s, const struct verb *v, const struct args *a, struct err *e)
{
    const char *about = args_get(a, "VERB");
    const struct verb *one = NULL;
    struct words w;
    struct buf text;
    int n;

    (void)s, (void)v;
    if (words_split(about ? about : "", &w, e) < 0)
        return -1;
    buf_init(&text, 0);
    if (w.n)
        one = verb_match(&w, &n, NULL);
    if (one && n == w.n)
        verb_about(one, line_width(), &text);
    else
        verb_help(&w, line_width(), &text);
    if (text.len)
        fputs(text.p, s->out);
    else
        verb_match(&w, &n, e);
    words_done(&w);
    n = text.len ? 0 : -1;
    buf_done(&text);
    return n;
}

int run_exit(struct session *s, const struct verb *v, const struct args *a, struct err *e)
{
    (void)v, (void)a, (void)e;
    s->leave = true;
    return 0;
}

int run_chat(struct session *s, const struct verb *v, const struct args *a, struct err *e)
{
    struct chat *c = chat_new(s->wire);
    const char *text = args_get(a, "TEXT");
    int rc;

    (void)v;
    *line_stop_flag() = 0;
    rc =
        text ? chat_ask(c, text, line_stop_flag(), line_width() > 0, e) : chat_loop(c, e);
    chat_free(c);
    return rc;
}

/* A POST whose answer is text. */
static int post_text(struct session *s, const struct verb *v, const struct args *a,
                     char *body, struct err *e)
{
    struct verb text = *v;
    int rc;

    text.view = "@text";
    rc = body ? run_row(s, &text, a, body, e) : -1;
    free(body);
    return rc;
}

int run_explain(struct session *s, const struct verb *v, const struct args *a,
                struct err *e)
{
    const char *topic = args_get(a, "TOPIC");
    struct verb list = *v;

    if (topic)
        return post_text(s, v, a, ask_explain(topic, e), e);
    list.method = "GET";
    return run_row(s, &list, a, NULL, e);
}

int run_plan(struct session *s, const struct verb *v, const struct args *a, struct err *e)
{
    const char *options = args_get(a, "OPTIONS");

    return post_text(s, v, a, ask_plan(args_get(a, "MODEL"), options ? options : "", e),
                     e);
}

int run_plan_show(struct session *s, const struct verb *v, const struct args *a,
                  struct err *e)
{
    struct verb one = *v;

    if (args_get(a, "--dot"))
        one.path = args_get(a, "ID") ? "plans/{ID}?row={row}&dot=1"
                                     : "plans/last?row={row}&dot=1";
    else if (!args_get(a, "ID"))
        one.path = "plans/last?row={row}";
    return run_row(s, &one, a, NULL, e);
}

int run_slo_history(struct session *s, const struct verb *v, const struct args *a,
                    struct err *e)
{
    const char *span = args_get(a, "SPAN");
    int64_t minutes = span ? (strtoll(span, NULL, 10) + 59) / 60 : 60;
    struct verb since = *v;
    char path[64];

    snprintf(path, sizeof(path), "slo/history?from=%lld",
             (long long)(clock_wall_ms() / 60000 - minutes));
    since.path = path;
    return run_row(s, &since, a, NULL, e);
}

int run_fetch_file(struct session *s, const struct verb *v, const struct args *a,
                   struct err *e)
{
    const char *file = args_get(a, "FILE");
    unsigned mode = strcmp(v->scope, "admin") ? 0644 : 0600; /* a backup holds secrets */
    char *path = ask_path(v->path, a);
    struct answer ans;
    int rc =
        run_call(s, &(struct wire_request){.method = v->method, .path = path}, &ans, e);

    if (rc == 0)
        rc = file_write(file, ans.raw.p, ans.raw.len, mode, e);
    if (rc == 0)
        fprintf(s->out, "%zu bytes in %s\n", ans.raw.len, file);
    answer_done(&ans);
    free(path);
    return rc;
}

int run_send_file(struct session *s, const struct verb *v, const struct args *a,
                  struct err *e)
{
    char *path = ask_path(v->path, a);
    struct answer ans = {.root = NULL};
    struct buf bytes;
    int rc = file_read(args_get(a, "FILE"), FILE_MAX, &bytes, e);

    if (rc == 0) {
        rc = run_call(s,
                      &(struct wire_request){.method = v->method,
                                             .path = path,
                                             .body = bytes.p,
                                             .n = bytes.len,
                                             .type = "application/octet-stream"},
                      &ans, e);
        buf_done(&bytes);
    }
    if (rc == 0)
        rc = finish(s, &ans, v->view[0] ? v->view : "=done", a, e);
    answer_done(&ans);
    free(path);
    return rc;
}

int run_key_create(struct session *s, const struct verb *v, const struct args *a,
                   struct err *e)
{
    char *body = ask_body(v->body, a, e), *path = ask_path(v->path, a);
    struct answer ans = {.root = NULL};
    const char *key;
    int rc = body ? run_call(s,
                             &(struct wire_request){
                                 .method = v->method, .path = path, .body = body},
                             &ans, e)
                  : -1;

    key = json_string_value(json_object_get(ans.root, "key"));
    if (rc == 0 && (s->opt.json || !key))
        run_show(s, &ans, "@rest", a);
    else if (rc == 0) {
        fprintf(s->out, "%s\n", key);
        if (line_width())
            fprintf(stderr, "This is shown once; the daemon keeps only its hash.\n");
    }
    answer_done(&ans);
    free(path);
    free(body);
    return rc;
}

int run_completion(struct session *s, const struct verb *v, const struct args *a,
                   struct err *e)
{
    (void)s, (void)v, (void)a, (void)e;
    fputs(complete_bash(), s->out);
    return 0;
}
