/* ctl/quality.c - the verb quality run: lead both models through the texts, compare,
 * keep.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "ctl/args.h"
#include "ctl/ask.h"
#include "ctl/line.h"
#include "ctl/quality_stat.h"
#include "ctl/run.h"
#include "ctl/verb.h"
#include "ctl/wire.h"

enum { TOPS = 10, GREEDY = 24, HASH_SHOWN = 16, LISTED = 500, DIGITS = 8 };

static const char *const texts[] = {
#define TEXT(s) s,
#include "ctl/quality_set.def"
#undef TEXT
};
enum { N_TEXTS = sizeof(texts) / sizeof(texts[0]) };

static void set_hash(char ret[HASH_SHOWN + 1])
{
    char hash[SHA256_CHARS + 1];
    struct buf b;

    buf_init(&b, 0);
    for (int i = 0; i < N_TEXTS; i++)
        buf_add(&b, texts[i], strlen(texts[i]) + 1);
    buf_printf(&b, "%d %d", TOPS, GREEDY);
    sha256_hex(b.p, b.len, hash);
    snprintf(ret, HASH_SHOWN + 1, "%.*s", HASH_SHOWN, hash);
    buf_done(&b);
}

static const char *word(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));

    return s ? s : "";
}

/* ---- what a model says ---- */

/* "token_id:7" -> "7": a run is kept, and so that it is small. */
static const char *bare(const char *token)
{
    const char *colon = strchr(token, ':');

    return colon ? colon + 1 : token;
}

/* Tokens, probabilities or likely tokens of list[from .. to), as a list of their own. */
static json_t *part(const json_t *list, size_t from, size_t to)
{
    json_t *out = json_array(), *o, *v;
    const char *token;

    for (size_t i = from; i < to && i < json_array_size(list); i++) {
        json_t *x = json_array_get(list, i);

        if (json_is_string(x)) {
            json_array_append_new(out, json_string(bare(json_string_value(x))));
        } else if (json_is_object(x)) {
            o = json_object();
            json_object_foreach(x, token, v) json_object_set(o, bare(token), v);
            json_array_append_new(out, o);
        } else {
            json_array_append(out, x);
        }
    }
    return out;
}

static json_t *read_answer(const json_t *root, struct err *e)
{
    const json_t *choice = json_array_get(json_object_get(root, "choices"), 0),
                 *l = json_object_get(choice, "logprobs"),
                 *tokens = json_object_get(l, "tokens");
    size_t n = (size_t)json_integer_value(
        json_object_get(json_object_get(root, "usage"), "prompt_tokens"));

    if (!json_is_array(tokens) || n < 2 || json_array_size(tokens) < n)
        return err_set(e, ERR_INVALID, "the answer lacks the tokens of the text"), NULL;
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", part(tokens, 0, n), "logprobs",
                     part(json_object_get(l, "token_logprobs"), 0, n), "tops",
                     part(json_object_get(l, "top_logprobs"), 0, n), "greedy",
                     part(tokens, n, SIZE_MAX));
}

static json_t *ask_text(struct session *s, const char *model, int i, struct err *e)
{
    json_t *o = json_pack("{s:s, s:s, s:i, s:i, s:i, s:b, s:b, s:b}", "model", model,
                          "prompt", texts[i], "max_tokens", GREEDY, "logprobs", TOPS,
                          "temperature", 0, "echo", 1, "cache_prompt", 0,
                          "return_tokens_as_token_ids", 1),
           *said = NULL;
    char *body = json_dumps(o, JSON_COMPACT);
    struct answer ans;

    if (run_call(s,
                 &(struct wire_request){
                     .method = "POST", .path = "/v1/completions", .body = body},
                 &ans, e) == 0)
        said = read_answer(ans.root, e);
    answer_done(&ans);
    json_decref(o);
    free(body);
    return said;
}

static void progress(const char *instance, int i)
{
    if (!isatty(STDERR_FILENO))
        return;
    if (i < N_TEXTS)
        fprintf(stderr, "\r%s: text %d of %d\x1b[K", instance, i + 1, N_TEXTS);
    else
        fputs("\r\x1b[K", stderr);
}

/* NULL and a sentence. */
static json_t *said_by(struct session *s, const json_t *contract, struct err *e)
{
    const json_t *served = json_object_get(contract, "served");
    json_t *list = json_array(), *one = NULL;

    for (int i = 0; i < N_TEXTS; i++) {
        progress(word(served, "instance"), i);
        one = ask_text(s, word(served, "model"), i, e);
        if (!one)
            break;
        json_array_append_new(list, one);
    }
    progress("", N_TEXTS);
    if (one)
        return json_pack("{s:o}", "texts", list);
    json_decref(list);
    err_wrap(e, "instance '%s'", word(served, "instance"));
    return NULL;
}

/* ---- what it is held against ---- */

struct reference {
    json_t *said;  /* owned */
    json_t *about; /* for the contract, owned */
};

static json_t *about(const json_t *served, int64_t run)
{
    return json_pack("{s:s, s:s, s:s, s:I, s:o}", "instance", word(served, "instance"),
                     "layout", word(served, "layout"), "build", word(served, "build"),
                     "revision",
                     (json_int_t)json_integer_value(json_object_get(served, "revision")),
                     "run", run ? json_integer((json_int_t)run) : json_null());
}

/* An instance that is there. */
static int live(struct session *s, const json_t *mine, const char *name,
                struct reference *ret, struct err *e)
{
    char *path = xasprintf("quality/contract?instance=%s", name);
    const json_t *served;
    struct answer ans;
    int rc = run_get(s, path, &ans, e);

    free(path);
    served = rc == 0 ? json_object_get(ans.root, "served") : NULL;
    if (rc == 0 && !json_is_true(json_object_get(ans.root, "exact")))
        rc = err_param(e, ERR_INVALID, "REFERENCE",
                       "instance '%s' has settings that change output itself (%s)", name,
                       word(ans.root, "settings"));
    else if (rc == 0 && strcmp(word(served, "model_hash"),
                               word(json_object_get(mine, "served"), "model_hash")) != 0)
        rc = err_param(e, ERR_INVALID, "REFERENCE",
                       "instance '%s' serves another model; one with the same file would "
                       "be right",
                       name);
    if (rc == 0) {
        ret->said = said_by(s, ans.root, e);
        ret->about = about(served, 0);
        rc = ret->said ? 0 : -1;
    }
    answer_done(&ans);
    return rc;
}

/* The number of the newest that was kept of the same model, texts and build; 0 = none. */
static int64_t find_kept(const json_t *listed, const json_t *mine, const char *set)
{
    const json_t *served = json_object_get(mine, "served"),
                 *runs = json_object_get(listed, "runs");

    for (size_t i = 0; i < json_array_size(runs); i++) {
        const json_t *r = json_array_get(runs, i);

        if (!strcmp(word(r, "kind"), "reference") && !strcmp(word(r, "set"), set) &&
            !strcmp(word(r, "build"), word(served, "build")) &&
            !strcmp(word(r, "model_hash"), word(served, "model_hash")))
            return json_integer_value(json_object_get(r, "id"));
    }
    return 0;
}

static int kept(struct session *s, const json_t *mine, const char *set,
                struct reference *ret, struct err *e)
{
    struct answer ans;
    char path[64];
    int64_t id;
    int rc;

    snprintf(path, sizeof(path), "quality?limit=%d", LISTED);
    rc = run_get(s, path, &ans, e);
    id = rc == 0 ? find_kept(ans.root, mine, set) : 0;
    answer_done(&ans);
    if (rc < 0)
        return -1;
    if (!id)
        return err_set(e, ERR_NOTFOUND,
                       "no run of the exact model is kept to hold it against: run it on "
                       "an instance of the same model and build without these settings "
                       "first, or name one with 'against'");
    snprintf(path, sizeof(path), "quality/%lld", (long long)id);
    rc = run_get(s, path, &ans, e);
    if (rc == 0 && !json_is_object(json_object_get(ans.root, "reference")))
        rc = err_set(e, ERR_INVALID, "run %lld has not what its model said",
                     (long long)id);
    if (rc == 0) {
        ret->said = json_incref(json_object_get(ans.root, "reference"));
        ret->about =
            about(json_object_get(json_object_get(ans.root, "contract"), "served"), id);
    }
    answer_done(&ans);
    return rc;
}

/* ---- kept and shown ---- */

static json_t *number(double v) { return isfinite(v) ? json_real(v) : json_null(); }

static json_t *result_of(const json_t *said, const struct quality_figures *f)
{
    double p;
    int n;

    if (!f) {
        p = quality_perplexity(said, &n);
        return json_pack("{s:o, s:i}", "perplexity", number(p), "positions", n);
    }
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:i, s:o, s:i, s:i}", "agreement",
                     number(f->agreement), "kl_mean", number(f->kl_mean), "kl_largest",
                     number(f->kl_largest), "perplexity", number(f->perplexity),
                     "perplexity_exact", number(f->perplexity_exact), "perplexity_ratio",
                     number(f->perplexity / f->perplexity_exact), "positions",
                     f->positions, "greedy_same", number(f->greedy_same),
                     "greedy_texts_same", f->greedy_texts_same, "texts", f->texts);
}

static json_t *contract_of(const json_t *mine, const struct reference *r, const char *set)
{
    return json_pack("{s:O, s:O, s:O, s:O?, s:{s:s, s:i, s:i, s:i}}", "served",
                     json_object_get(mine, "served"), "settings",
                     json_object_get(mine, "settings"), "file",
                     json_object_get(mine, "file"), "reference", r->about, "set", "hash",
                     set, "texts", N_TEXTS, "tops", TOPS, "greedy_tokens", GREEDY);
}

/* Keeps it, then shows it as quality show would. */
static int keep(struct session *s, const json_t *contract, const json_t *result,
                const json_t *said, const struct args *a, struct err *e)
{
    json_t *o = json_pack("{s:O, s:O, s:O?}", "contract", contract, "result", result,
                          "reference", said);
    char *body = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS)), path[48];
    struct answer ans;
    int rc = run_call(
        s,
        &(struct wire_request){.method = "POST", .path = "/api/v1/quality", .body = body},
        &ans, e);
    int64_t id = rc == 0 ? json_integer_value(json_object_get(ans.root, "id")) : 0;

    answer_done(&ans);
    json_decref(o);
    free(body);
    if (rc < 0)
        return err_wrap(e, "the run was not kept");
    snprintf(path, sizeof(path), "quality/%lld", (long long)id);
    rc = run_get(s, path, &ans, e);
    if (rc == 0)
        run_show(s, &ans, verb_at(VERB_QUALITY_SHOW)->view, a);
    answer_done(&ans);
    return rc;
}

static int measure(struct session *s, const json_t *mine, const char *against,
                   const struct args *a, struct err *e)
{
    bool exact = json_is_true(json_object_get(mine, "exact")), held = against || !exact;
    struct reference r = {NULL, NULL};
    struct quality_figures f;
    json_t *said = NULL, *contract = NULL, *result = NULL;
    char set[HASH_SHOWN + 1];
    int rc;

    set_hash(set);
    rc = against ? live(s, mine, against, &r, e) : exact ? 0 : kept(s, mine, set, &r, e);
    if (rc == 0)
        rc = (said = said_by(s, mine, e)) ? 0 : -1;
    if (rc == 0 && held)
        rc = quality_compare(r.said, said, &f, e);
    if (rc == 0) {
        contract = contract_of(mine, &r, set);
        result = result_of(said, held ? &f : NULL);
        rc = keep(s, contract, result, exact ? said : NULL, a, e);
    }
    json_decref(contract);
    json_decref(result);
    json_decref(said);
    json_decref(r.said);
    json_decref(r.about);
    return rc;
}

int run_quality_run(struct session *s, const struct verb *v, const struct args *a,
                    struct err *e)
{
    char *path = ask_path(v->path, a);
    struct answer mine;
    int rc;

    s->slow = true; /* a step of a large model on a laptop takes its time */
    *line_stop_flag() = 0;
    rc = run_call(s, &(struct wire_request){.method = "GET", .path = path}, &mine, e);
    if (rc == 0)
        rc = measure(s, mine.root, args_get(a, "against"), a, e);
    s->slow = false;
    answer_done(&mine);
    free(path);
    return rc;
}
