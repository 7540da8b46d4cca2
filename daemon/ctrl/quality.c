/* daemon/ctrl/quality.c - see quality.h. */
#include "daemon/ctrl/quality.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "daemon/ctrl/conf.h"
#include "state/runs.h"

enum { PAGE = 50 };

void quality_settings(const struct conf_instance *i, char ret[QUALITY_SETTINGS])
{
    static const char *const overflow[] = {"replica", "second-pass", "next-best", "drop"};
    size_t n = 0;

    ret[0] = '\0';
    if (!conf_changes_output(i))
        return;
    if (i->experts.transfer)
        n += (size_t)snprintf(ret, QUALITY_SETTINGS, "transfer=f8");
    if (i->experts.capacity > 0 && i->experts.overflow >= 2)
        snprintf(ret + n, QUALITY_SETTINGS - n, "%scapacity=%g overflow=%s", n ? " " : "",
                 i->experts.capacity, overflow[i->experts.overflow & 3]);
}

int quality_file(const char *path, char ret[QUALITY_FILE], struct err *e)
{
    char hash[SHA256_CHARS + 1], *text;
    struct stat st;

    if (stat(path, &st) < 0)
        return err_errno(e, ERR_IO, "model '%s'", path);
    text = xasprintf("%s %jd %jd %ld", path, (intmax_t)st.st_size,
                     (intmax_t)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
    sha256_hex(text, strlen(text), hash);
    free(text);
    snprintf(ret, QUALITY_FILE, "%.*s", QUALITY_FILE - 1, hash);
    return 0;
}

/* ---- a kept run against what is wanted ---- */

struct wanted {
    const struct conf_instance *i;
    char settings[QUALITY_SETTINGS], file[QUALITY_FILE];
    const char *build;
    bool other_build, other_file; /* of runs with these settings that did not do */
};

static bool is(const json_t *o, const char *key, const char *value)
{
    const char *s = json_string_value(json_object_get(o, key));

    return s && !strcmp(s, value);
}

/* Is it a run of this? */
static bool of_this(struct wanted *w, const json_t *contract)
{
    const json_t *served = json_object_get(contract, "served");

    if (!is(contract, "settings", w->settings))
        return false;
    if (!is(contract, "file", w->file))
        w->other_file = true;
    else if (w->build && !is(served, "build", w->build))
        w->other_build = true;
    else
        return true;
    return false;
}

static int within(const struct wanted *w, int64_t id, const json_t *result, struct err *e)
{
    const struct {
        const char *key, *row, *name;
        double bound;
        bool least;
    } figures[] = {
        {"agreement", "agreement_min", "greedy agreement", w->i->quality.agreement_min,
         true},
        {"kl_mean", "kl_max", "mean KL", w->i->quality.kl_max, false},
        {"perplexity_ratio", "perplexity_ratio_max", "perplexity over the exact one's",
         w->i->quality.perplexity_ratio_max, false},
    };

    for (size_t k = 0; k < sizeof(figures) / sizeof(figures[0]); k++) {
        const json_t *v = json_object_get(result, figures[k].key);
        double x = json_number_value(v);

        if (!json_is_number(v))
            return err_set(e, ERR_INVALID,
                           "instance '%s' (%s): quality run %" PRId64
                           " has no figure of %s",
                           w->i->name, w->settings, id, figures[k].name);
        if (figures[k].least ? !(x >= figures[k].bound) : !(x <= figures[k].bound))
            return err_set(e, ERR_INVALID,
                           "instance '%s' (%s): %s was %.6g in quality run %" PRId64
                           ", at %s %.6g would be right (quality.%s)",
                           w->i->name, w->settings, figures[k].name, x, id,
                           figures[k].least ? "least" : "most", figures[k].bound,
                           figures[k].row);
    }
    return 0;
}

/* 1 = it is the one that counts and is within the bounds, 0 = not of this, -1. */
static int look_at(struct wanted *w, const struct stored_run *q, struct err *e)
{
    static const struct js_limits lim = {RUN_JSON_MAX, 16};
    json_t *contract = NULL, *result = NULL;
    int rc = 0;

    js_parse(q->contract, strlen(q->contract), &lim, &contract, NULL);
    js_parse(q->result, strlen(q->result), &lim, &result, NULL);
    if (of_this(w, contract))
        rc = within(w, q->id, result, e) < 0 ? -1 : 1;
    json_decref(contract);
    json_decref(result);
    return rc;
}

static int none(const struct wanted *w, struct err *e)
{
    return err_set(e, ERR_INVALID,
                   "instance '%s' (%s): no quality run of these settings%s; "
                   "allow_output_change: trial and llmctl quality run %s would be right",
                   w->i->name, w->settings,
                   w->other_build  ? " and this build is kept, one of another build is"
                   : w->other_file ? " and this model file is kept, one of another is"
                                   : " is kept",
                   w->i->name);
}

/* The newest run of this decides. */
static int allowed(struct store *s, struct wanted *w, struct err *e)
{
    struct stored_run *q = xcalloc(PAGE, sizeof(*q));
    int64_t before = 0;
    int n, rc = 0;

    do {
        n = runs_list(s, RUN_QUALITY, "", before, q, PAGE, e);
        for (int k = 0; k < n; k++) {
            if (rc == 0)
                rc = look_at(w, &q[k], e);
            before = q[k].id;
            run_done(&q[k]);
        }
    } while (rc == 0 && n == PAGE);
    free(q);
    return n < 0 || rc < 0 ? -1 : rc ? 0 : none(w, e);
}

int quality_allows(struct store *s, const struct conf *c, const struct conf_instance *i,
                   const char *build, struct err *e)
{
    struct wanted w = {.i = i, .build = build};
    const struct conf_model *m = conf_model(c, i->model);

    quality_settings(i, w.settings);
    if (!w.settings[0])
        return 0;
    if (i->experts.allow_output_change != CONF_OUTPUT_ALLOWED)
        return err_set(e, ERR_DENIED, "instance '%s' (%s) runs on trial", i->name,
                       w.settings);
    if (!m)
        return err_set(e, ERR_INVALID, "instance '%s' has no model", i->name);
    if (quality_file(m->path, w.file, e) < 0)
        return -1;
    return allowed(s, &w, e);
}

int quality_check(struct store *s, const struct conf *c, const char *build, struct err *e)
{
    for (int k = 0; k < c->n_instances; k++) {
        const struct conf_instance *i = &c->instances[k];

        if (!conf_is_copy(i->name) &&
            i->experts.allow_output_change == CONF_OUTPUT_ALLOWED &&
            quality_allows(s, c, i, build, e) < 0)
            return -1;
    }
    return 0;
}
