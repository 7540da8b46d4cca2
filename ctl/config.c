/* ctl/config.c - the verbs of the configuration that are more than one call: show, edit,
 * set, load, save, check, commit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "ctl/args.h"
#include "ctl/ask.h"
#include "ctl/config.h"
#include "ctl/file.h"
#include "ctl/line.h"
#include "ctl/run.h"
#include "ctl/show.h"
#include "ctl/verb.h"
#include "ctl/wire.h"

enum { TEXT_MAX = 1 << 20 };

/* ---- texts ---- */

/* Where the text of `which` is: NULL or running, draft, a number. */
static char *place_of(const char *which)
{
    if (!which || !strcmp(which, "running"))
        return xstrdup("config");
    if (!strcmp(which, "draft"))
        return xstrdup("config/draft");
    return xasprintf("config/revisions/%s", which);
}

static int get_text(struct session *s, const char *which, struct answer *a, struct err *e)
{
    char *path = place_of(which);
    int rc = run_get(s, path, a, e);

    free(path);
    if (rc == 0 && !json_is_string(json_object_get(a->root, "text")))
        return err_set(e, ERR_INTERNAL, "the daemon's answer has no text");
    return rc;
}

int config_draft(struct session *s, struct answer *a, struct err *e)
{
    struct err none;

    if (get_text(s, "draft", a, &none) == 0)
        return 0;
    answer_done(a);
    if (none.code != ERR_NOTFOUND) {
        *e = none;
        return -1;
    }
    return get_text(s, NULL, a, e);
}

int run_config_show(struct session *s, const struct verb *v, const struct args *a,
                    struct err *e)
{
    struct answer ans;
    int rc = get_text(s, args_get(a, "N"), &ans, e);

    if (rc == 0)
        run_show(s, &ans, v->view, a);
    answer_done(&ans);
    return rc;
}

int run_config_save(struct session *s, const struct verb *v, const struct args *a,
                    struct err *e)
{
    const char *file = args_get(a, "FILE"), *text;
    struct answer ans;
    int rc = get_text(s, args_get(a, "N"), &ans, e);

    (void)v;
    if (rc == 0) {
        text = json_string_value(json_object_get(ans.root, "text"));
        rc = file_write(file, text, strlen(text), 0644, e);
        if (rc == 0)
            fprintf(s->out, "%zu bytes in %s\n", strlen(text), file);
    }
    answer_done(&ans);
    return rc;
}

int run_config_diff(struct session *s, const struct verb *v, const struct args *a,
                    struct err *e)
{
    bool one = args_get(a, "FROM") && !args_get(a, "TO"); /* then against what runs */
    char *path = ask_path(one ? "config/diff?from={FROM}&to=running" : v->path, a);
    struct answer ans;
    int rc = run_call(s, &(struct wire_request){.method = "GET", .path = path}, &ans, e);
    const char *text = json_string_value(json_object_get(ans.root, "text"));

    if (rc == 0 && !s->opt.json && text && !*text)
        fprintf(s->out, "no difference\n");
    else if (rc == 0)
        run_show(s, &ans, v->view, a);
    answer_done(&ans);
    free(path);
    return rc;
}

/* ---- what a check says ---- */

/* Line n (1, 2, ..) of text; *ret_len its bytes. */
static const char *line_of(const char *text, int64_t n, size_t *ret_len)
{
    while (text && n-- > 1)
        text = strchr(text, '\n') ? strchr(text, '\n') + 1 : NULL;
    *ret_len = text ? strcspn(text, "\n") : 0;
    return text && n == 0 ? text : NULL;
}

/* The line, and a mark below the column. */
static void put_place(const char *text, int64_t line, int64_t column,
                      const struct show_style *st, struct buf *out)
{
    size_t len;
    const char *p = line > 0 ? line_of(text, line, &len) : NULL;
    char *copy, *cut;

    if (!p)
        return;
    copy = xstrndup(p, len);
    show_clean(copy, "");
    cut = text_cut(copy, st->width > 8 ? st->width - 4 : 200);
    buf_printf(out, "    %s%s%s\n", hue_begin(st, HUE_DIM), cut, hue_end(st));
    if (column > 0 && column <= text_columns(cut) + 1)
        buf_printf(out, "    %*s%s^%s\n", (int)column - 1, "", hue_begin(st, HUE_BAD),
                   hue_end(st));
    free(cut);
    free(copy);
}

static void put_faults(const json_t *faults, const char *text,
                       const struct show_style *st, struct buf *out)
{
    size_t i;
    json_t *f;

    json_array_foreach((json_t *)faults, i, f)
    {
        int64_t line = json_integer_value(json_object_get(f, "line")),
                column = json_integer_value(json_object_get(f, "column"));
        char path[160], message[512];

        show_value(json_object_get(f, "path"), "", path, sizeof(path));
        show_value(json_object_get(f, "message"), "", message, sizeof(message));
        if (line > 0)
            buf_printf(out, "%sline %lld, column %lld%s  ", hue_begin(st, HUE_BAD),
                       (long long)line, (long long)column, hue_end(st));
        buf_printf(out, "%s%s%s\n", path, *path ? ": " : "", message);
        put_place(text, line, column, st, out);
    }
}

/* The answer without the actions that do nothing. */
static json_t *that_act(const json_t *root)
{
    json_t *copy = json_copy((json_t *)root), *acts = json_array(), *act;
    size_t i;

    json_array_foreach(json_object_get(root, "actions"), i, act)
    {
        const char *kind = json_string_value(json_object_get(act, "action"));

        if (kind && strcmp(kind, "keep") != 0)
            json_array_append(acts, act);
    }
    json_object_set_new(copy, "actions", acts);
    return copy;
}

int config_report(struct session *s, const struct answer *a, const char *text,
                  struct err *e)
{
    static const char view[] =
        "changes?{CHANGE=path,FROM=from,TO=to,CLASS=class:state};"
        "actions?{ACTION=action,INSTANCE=instance,LIVE=live,NEEDS=need_bytes:bytes+,"
        "FREE=have_bytes:bytes+,FITS=fits:state,WHY=why:wrap}";
    const json_t *faults = json_object_get(a->root, "faults");
    struct show_style st = run_style();
    bool ok = json_is_true(json_object_get(a->root, "ok"));
    size_t n = json_array_size(faults);
    const char *reason;
    struct buf out;

    if (s->opt.json) {
        fprintf(s->out, "%s\n", a->raw.p);
    } else {
        buf_init(&out, 0);
        put_faults(faults, text, &st, &out);
        if (n == 0) {
            json_t *shown = that_act(a->root);

            show_json(shown, view, &st, &out);
            json_decref(shown);
        }
        if (out.len)
            fputs(out.p, s->out);
        else if (ok)
            fprintf(s->out, "no change\n");
        buf_done(&out);
    }
    if (n)
        return err_set(e, ERR_INVALID, "%zu fault%s in the configuration", n,
                       n == 1 ? "" : "s");
    reason = json_string_value(json_object_get(a->root, "reason"));
    if (json_is_false(json_object_get(a->root, "fits")))
        return err_set(e, ERR_NOFIT, "%s",
                       reason ? reason : "it does not fit the devices");
    if (ok || !json_object_get(a->root, "ok"))
        return 0;
    return err_set(e, ERR_INVALID, "%s", reason ? reason : "it cannot be committed");
}

int config_put(struct session *s, json_t *body, struct err *e)
{
    char *json = body ? json_dumps(body, JSON_COMPACT) : NULL;
    struct answer ans = {.root = NULL};
    int rc;

    json_decref(body);
    if (!json)
        return err_set(e, ERR_INVALID, "the text is not UTF-8");
    rc = run_call(s,
                  &(struct wire_request){
                      .method = "PUT", .path = "/api/v1/config/draft", .body = json},
                  &ans, e);
    answer_done(&ans);
    free(json);
    return rc;
}

int config_send(struct session *s, const char *method, const char *path, json_t *body,
                const char *text, struct err *e)
{
    char *json = body ? json_dumps(body, JSON_COMPACT) : NULL;
    struct answer ans = {.root = NULL};
    int rc = -1;

    json_decref(body);
    if (!json)
        return err_set(e, ERR_INVALID, "the text is not UTF-8");
    if (run_call(s, &(struct wire_request){.method = method, .path = path, .body = json},
                 &ans, e) == 0)
        rc = config_report(s, &ans, text, e);
    answer_done(&ans);
    free(json);
    return rc;
}

/* The text that a fault of the draft points into. */
static char *draft_text(struct session *s)
{
    struct answer ans;
    struct err e;
    char *text = NULL;

    if (config_draft(s, &ans, &e) == 0)
        text = xstrdup(json_string_value(json_object_get(ans.root, "text")));
    answer_done(&ans);
    return text;
}

int run_config_check(struct session *s, const struct verb *v, const struct args *a,
                     struct err *e)
{
    const char *file = args_get(a, "FILE");
    struct buf b = {.p = NULL};
    char *text = NULL;
    int rc;

    (void)v;
    if (file && file_text(file, TEXT_MAX, &b, e) < 0)
        return -1;
    if (!file)
        text = draft_text(s);
    rc = config_send(s, "POST", "/api/v1/config/check",
                     file ? json_pack("{s:s}", "text", b.p) : json_object(),
                     file ? b.p : text, e);
    buf_done(&b);
    free(text);
    return rc;
}

/* ---- the draft ---- */

int run_config_draft(struct session *s, const struct verb *v, const struct args *a,
                     struct err *e)
{
    const char *path = args_get(a, "PATH"), *value = args_get(a, "VALUE");
    json_t *body = value
                       ? json_pack("{s:[{s:s,s:s}]}", "set", "path", path, "value", value)
                       : json_pack("{s:[s]}", "unset", path);
    char *json = body ? json_dumps(body, JSON_COMPACT) : NULL, *text;
    struct answer ans = {.root = NULL};
    int rc = -1;

    (void)v;
    json_decref(body);
    if (!json)
        return err_set(e, ERR_INVALID, "the words are not UTF-8");
    if (run_call(s,
                 &(struct wire_request){
                     .method = "PATCH", .path = "/api/v1/config/draft", .body = json},
                 &ans, e) == 0) {
        text =
            json_array_size(json_object_get(ans.root, "faults")) ? draft_text(s) : NULL;
        rc = config_report(s, &ans, text, e);
        free(text);
    }
    answer_done(&ans);
    free(json);
    return rc;
}

int run_config_load(struct session *s, const struct verb *v, const struct args *a,
                    struct err *e)
{
    struct buf b;
    int rc;

    (void)v;
    if (file_text(args_get(a, "FILE"), TEXT_MAX, &b, e) < 0)
        return -1;
    rc = config_send(s, "PUT", "/api/v1/config/draft", json_pack("{s:s}", "text", b.p),
                     b.p, e);
    buf_done(&b);
    return rc;
}

/* ---- commit ---- */

/* What waits for a confirmation now, as a sentence. */
static void say_pending(struct session *s)
{
    struct answer ans;
    struct err e;

    if (run_get(s, "config", &ans, &e) == 0) {
        const json_t *p = json_object_get(ans.root, "pending");

        if (json_is_object(p))
            fprintf(
                s->out,
                "It is kept by `config confirm`; without, revision %lld is rolled back "
                "in %.0f s.\n",
                (long long)json_integer_value(json_object_get(p, "revision")),
                json_number_value(json_object_get(p, "left_s")));
    }
    answer_done(&ans);
}

int run_config_commit(struct session *s, const struct verb *v, const struct args *a,
                      struct err *e)
{
    int rc = run_row(s, v, a, NULL, e);

    if (rc == 0 && !s->opt.json && !s->opt.no_wait)
        say_pending(s);
    return rc;
}
