/* tests/unit/test_ctl.c - verbs and arguments are matched, completed and listed from one
 * table; they become the paths and bodies of requests. */
#include "tests/test.h"

#include "base/buf.h"
#include "base/err.h"
#include "ctl/args.c"
#include "ctl/ask.c"
#include "ctl/complete.c"
#include "ctl/file.c"
#include "ctl/option.c"
#include "ctl/verb.c"

/* ctl/line.c brings readline; this is all that completion needs of it. */
void line_words_add(struct line_words *l, const char *word)
{
    l->w = xrealloc(l->w, (size_t)(l->n + 1) * sizeof(*l->w));
    l->w[l->n++] = xstrdup(word);
}

void line_words_done(struct line_words *l)
{
    for (int i = 0; i < l->n; i++)
        free(l->w[i]);
    free(l->w);
    memset(l, 0, sizeof(*l));
}

/* ---- verbs ---- */

static void matches(const char *line, enum verb_id id, int n_words)
{
    const struct verb *v;
    struct err e = {0};
    struct words w;
    int n;

    assert_int_equal(words_split(line, &w, &e), 0);
    v = verb_match(&w, &n, &e);
    if (!v)
        print_message("%s\n", e.msg);
    assert_non_null(v);
    assert_int_equal(v->id, id);
    assert_int_equal(n, n_words);
    words_done(&w);
}

static void refused(const char *line, const char *msg)
{
    struct err e = {0};
    struct words w;
    int n;

    assert_int_equal(words_split(line, &w, &e), 0);
    assert_null(verb_match(&w, &n, &e));
    assert_string_equal(e.msg, msg);
    assert_int_equal(err_exit(e.code), 2);
    words_done(&w);
}

static void test_verb_prefix(void **state)
{
    (void)state;
    matches("show status", VERB_SHOW_STATUS, 2);
    matches("sh st", VERB_SHOW_STATUS, 2);
    matches("  s  req ", VERB_SHOW_REQUESTS, 2);
    matches("cha hello there", VERB_CHAT, 1);
    matches("show topology", VERB_SHOW_TOPOLOGY, 2);
    matches("sh topo m", VERB_SHOW_MATRIX, 3); /* more words go first */
    matches("log", VERB_LOG, 1);
    matches("log l", VERB_LOG_LEVEL, 2);
    matches("log -f", VERB_LOG, 1);
    matches("conf com conf", VERB_CONFIG_COMMIT, 2);
    matches("config conf", VERB_CONFIG_CONFIRM, 2);
    matches("config set a.b set", VERB_CONFIG_SET, 2);
}

static void test_verb_refused(void **state)
{
    (void)state;
    refused("show m", "'show m' may mean 'show models', 'show metrics'");
    refused("frobnicate", "no verb fits 'frobnicate'; help lists them");
    refused("show nothing", "no verb fits 'show nothing'; help lists them");
    refused("commit confirm 5",
            "no verb fits 'commit confirm 5'; did you mean config commit?");
    refused("set a b", "no verb fits 'set a b'; did you mean config set?");
    refused("compare", "no verb fits 'compare'; did you mean load compare?");
    refused("quit", "no verb fits 'quit'; did you mean wait, exit?");
    refused("shwo status", "no verb fits 'shwo status'; did you mean show status?");
    refused("key", "'key' goes on with: create, list, revoke");
    refused("", "no verb fits ''; help lists them");
}

/* Every row is reached by its own words, and its path and question name arguments that it
 * takes. */
static void test_every_row(void **state)
{
    (void)state;
    for (int id = 0; id < VERB_COUNT; id++) {
        const struct verb *v = verb_at((enum verb_id)id);
        const char *texts[] = {v->path, v->ask};
        struct arg_spec s[ARGS_MAX];
        int n_words = 1, n = args_spec(v->args, s);

        for (const char *p = v->words; *p; p++)
            n_words += *p == ' ';
        matches(v->words, v->id, n_words);
        assert_true(v->help[0] && v->help[strlen(v->help) - 1] != '.');
        for (int t = 0; t < 2; t++)
            for (const char *p = strchr(texts[t], '{'); p; p = strchr(p + 1, '{')) {
                size_t len = strcspn(p + 1, "|}");
                bool known = false;

                for (int i = 0; i < n; i++) {
                    const char *name = s[i].key[0] ? s[i].key : s[i].name;

                    known |= strlen(name) == len && !memcmp(name, p + 1, len);
                }
                if (!known)
                    print_message("%s: %s\n", v->words, p);
                assert_true(known);
            }
    }
}

static void test_help(void **state)
{
    struct words w;
    struct buf b;

    (void)state;
    buf_init(&b, 0);
    words_split("key", &w, NULL);
    verb_help(&w, 80, &b);
    assert_int_equal(strstr(b.p, "API keys,") - strstr(b.p, "  key list "), 36);
    assert_null(strstr(b.p, "Keys and care")); /* one group needs no heading */
    for (char *p = strtok(b.p, "\n"); p; p = strtok(NULL, "\n"))
        assert_true(strlen(p) <= 80 || strstr(p, "  key create NAME "));
    words_done(&w);
    buf_clear(&b);
    words_split("", &w, NULL);
    verb_help(&w, 100, &b);
    assert_non_null(strstr(b.p, "\n\nConfiguration\n  config status  "));
    assert_non_null(strstr(b.p, "\n  config commit ..  "));
    for (char *p = strtok(b.p, "\n"); p; p = strtok(NULL, "\n"))
        assert_true(strlen(p) <= 100);
    words_done(&w);
    buf_clear(&b);
    verb_man(&b);
    assert_non_null(strstr(b.p, ".SS Configuration\n.TP\n.B config status\n"));
    assert_non_null(strstr(b.p, "\n.B config show \\fR[N]\\fP\n"));
    buf_done(&b);
}

/* ---- words and arguments ---- */

static void test_words(void **state)
{
    char *argv[] = {"config", "set", "a b", "it's", "", "x\\y"};
    struct words w;
    char *line;

    (void)state;
    words_split("  a 'b c'  d\"e f\"\\ g '' \"\\\"\" ", &w, NULL);
    assert_int_equal(w.n, 5);
    assert_string_equal(w.w[0], "a");
    assert_string_equal(w.w[1], "b c");
    assert_string_equal(w.w[2], "de f g");
    assert_string_equal(w.w[3], "");
    assert_string_equal(w.w[4], "\"");
    assert_false(w.open);
    words_done(&w);
    words_split("chat what's up", &w, NULL);
    assert_true(w.open);
    words_done(&w);
    line = words_join(argv, 6); /* and back */
    words_split(line, &w, NULL);
    assert_int_equal(w.n, 6);
    for (int i = 0; i < 6; i++)
        assert_string_equal(w.w[i], argv[i]);
    words_done(&w);
    free(line);
}

/* Arguments of a verb from a line without its words. */
static int parse(enum verb_id id, const char *line, struct args *a, struct err *e)
{
    struct words w;
    int rc;

    words_split(line, &w, NULL);
    rc = args_parse(verb_at(id)->args, &w, 0, a, e);
    words_done(&w);
    return rc;
}

static void body_is(enum verb_id id, const char *line, const char *want)
{
    struct args a;
    struct err e = {0};
    char *body;

    if (parse(id, line, &a, &e) < 0)
        fail_msg("%s: %s", line, e.msg);
    body = ask_body(verb_at(id)->body, &a, &e);
    assert_string_equal(body, want);
    free(body);
    args_done(&a);
}

static void path_is(enum verb_id id, const char *line, const char *want)
{
    struct args a;
    struct err e = {0};
    char *path;

    if (parse(id, line, &a, &e) < 0)
        fail_msg("%s: %s", line, e.msg);
    path = ask_path(verb_at(id)->path, &a);
    assert_string_equal(path, want);
    free(path);
    args_done(&a);
}

static void test_bodies(void **state)
{
    (void)state;
    body_is(VERB_CONFIG_COMMIT, "", "{}");
    body_is(VERB_CONFIG_COMMIT, "confirm", "{\"confirm\":true}");
    body_is(VERB_CONFIG_COMMIT, "confirm 10m guard rebase",
            "{\"confirm\":true,\"confirm_s\":600,\"guard\":\"on\",\"rebase\":true}");
    body_is(
        VERB_CONFIG_COMMIT, "gu auto comment 'more threads' hyp faster",
        "{\"guard\":\"auto\",\"comment\":\"more threads\",\"hypothesis\":\"faster\"}");
    body_is(VERB_CONFIG_ROLLBACK, "7 confirm 90",
            "{\"revision\":7,\"confirm\":true,\"confirm_s\":90}");
    body_is(VERB_CONFIG_ROLLBACK, "confirm", "{\"confirm\":true}");
    body_is(VERB_MAINTENANCE_ENTER, "reason 'new fan'",
            "{\"on\":true,\"reason\":\"new fan\"}");
    body_is(VERB_MAINTENANCE_LEAVE, "", "{\"on\":false}");
    body_is(VERB_KEY_CREATE, "ci scopes infer,read expires 30d requests 60",
            "{\"name\":\"ci\",\"scopes\":\"infer,read\",\"expires_s\":2592000,"
            "\"req_per_min\":60}");
    body_is(VERB_KEY_CREATE, "ci", "{\"name\":\"ci\",\"scopes\":\"infer\"}");
}

static void test_paths(void **state)
{
    (void)state;
    path_is(VERB_INSTANCE_STOP, "a/b\xc3\xa9 reason x",
            "/api/v1/instances/a%2Fb%C3%A9/stop");
    path_is(VERB_DEVICE_CORDON, "0000:3b:00.0",
            "/api/v1/devices/0000%3A3b%3A00.0/cordon");
    path_is(VERB_SHOW_JOURNAL, "", "/api/v1/journal");
    path_is(VERB_SHOW_JOURNAL, "before 40", "/api/v1/journal?before=40");
    path_is(VERB_SHOW_JOURNAL, "20 before 40", "/api/v1/journal?limit=20&before=40");
    path_is(VERB_CONFIG_DIFF, "3", "/api/v1/config/diff?from=3");
    path_is(VERB_CONFIG_DIFF, "3 draft", "/api/v1/config/diff?from=3&to=draft");
}

static void not_taken_as(enum verb_id id, const char *line, const char *part)
{
    struct args a;
    struct err e = {0};

    assert_int_equal(parse(id, line, &a, &e), -1);
    if (!strstr(e.msg, part))
        fail_msg("%s: %s", line, e.msg);
    assert_int_equal(err_exit(e.code), 2);
}

static void test_args_refused(void **state)
{
    (void)state;
    not_taken_as(VERB_SHOW_STATUS, "now", "takes no argument, found 'now'");
    not_taken_as(VERB_INSTANCE_STOP, "", "NAME is missing");
    not_taken_as(VERB_INSTANCE_STOP, "main now",
                 "'now' is not expected here; reason may");
    not_taken_as(VERB_INSTANCE_STOP, "main reason", "reason takes a value");
    not_taken_as(VERB_INSTANCE_STOP, "main reason 'a b", "is not closed");
    not_taken_as(VERB_CONFIG_COMMIT, "co", "may mean several");
    not_taken_as(VERB_CONFIG_COMMIT, "comment more threads", "quote a text");
    not_taken_as(VERB_CONFIG_ROLLBACK, "x", "'x' is not expected here; N, confirm");
    not_taken_as(VERB_KEY_CREATE, "a expires 12w", "a number with s, m, h or d");
    not_taken_as(VERB_KEY_CREATE, "a expires 99999999999d", "a number with");
    not_taken_as(VERB_KEY_CREATE, "a requests -1", "a number");
    not_taken_as(VERB_LOG_LEVEL, "loud", "'loud' is not expected");
    not_taken_as(VERB_WAIT, "whatever", "ready|confirmed|drained|operation");
}

static void test_rest_of_line(void **state)
{
    struct args a;

    (void)state;
    parse(VERB_CHAT, "what's  up \"doc\" ", &a, NULL);
    assert_string_equal(args_get(&a, "TEXT"), "what's  up \"doc\"");
    args_done(&a);
    parse(VERB_CONFIG_SET, "kv.x [1, 2]", &a, NULL);
    assert_string_equal(args_get(&a, "VALUE"), "[1, 2]");
    args_done(&a);
    parse(VERB_CONFIG_SET, "kv.x '[1, 2]'", &a, NULL);
    assert_string_equal(args_get(&a, "VALUE"), "[1, 2]");
    args_done(&a);
}

/* Options of the session behind the verb; what the verb's own row names stays its own. */
static void test_options_in_a_line(void **state)
{
    struct args a;

    (void)state;
    path_is(VERB_CONFIG_DIFF, "-j 3 --no-wait draft -y",
            "/api/v1/config/diff?from=3&to=draft");
    assert_int_equal(parse(VERB_CONFIG_ROLLBACK, "1 confirm -jy --timeout 2.5", &a, NULL),
                     0);
    assert_true(a.opt.json && a.opt.yes && !a.opt.no_wait);
    assert_int_equal(a.opt.timeout_ms, 2500);
    assert_string_equal(args_get(&a, "N"), "1");
    assert_string_equal(args_get(&a, "confirm"), "");
    args_done(&a);
    assert_int_equal(parse(VERB_LOG, "-n -f 20 --timeout=7", &a, NULL), 0);
    assert_true(a.opt.no_wait && args_get(&a, "-f"));
    assert_string_equal(args_get(&a, "COUNT"), "20");
    assert_int_equal(a.opt.timeout_ms, 7000);
    args_done(&a);
    parse(VERB_PLAN_SHOW, "--dot -j 4", &a, NULL);
    assert_true(args_get(&a, "--dot") && a.opt.json);
    args_done(&a);
    parse(VERB_PLAN_MAKE, "qwen -j --rack cpu:4 -y", &a, NULL);
    assert_true(a.opt.json && !a.opt.yes); /* inside the text it is the text's */
    assert_string_equal(args_get(&a, "OPTIONS"), "--rack cpu:4 -y");
    args_done(&a);
    parse(VERB_CONFIG_SET, "a.b -j", &a, NULL);
    assert_false(a.opt.json);
    assert_string_equal(args_get(&a, "VALUE"), "-j");
    args_done(&a);
    parse(VERB_INSTANCE_STOP, "main reason -y", &a, NULL);
    assert_false(a.opt.yes);
    assert_string_equal(args_get(&a, "reason"), "-y");
    args_done(&a);
    not_taken_as(VERB_SHOW_STATUS, "-t", "-t takes a value");
    not_taken_as(VERB_SHOW_STATUS, "-t soon", "--timeout cannot be 'soon'");
    not_taken_as(VERB_SHOW_STATUS, "--socket x", "--socket stands before the verb");
    not_taken_as(VERB_SHOW_STATUS, "-k", "-k stands before the verb");
    not_taken_as(VERB_SHOW_STATUS, "-jx", "takes no argument, found '-jx'");
}

static void test_questions(void **state)
{
    struct args a;
    struct buf b;

    (void)state;
    buf_init(&b, 0);
    parse(VERB_CONFIG_ROLLBACK, "", &a, NULL);
    ask_words(verb_at(VERB_CONFIG_ROLLBACK)->ask, &a, &b);
    assert_string_equal(b.p,
                        "Replace what runs by a new revision equal to the one before?");
    args_done(&a);
    buf_clear(&b);
    parse(VERB_CONFIG_ROLLBACK, "12", &a, NULL);
    ask_words(verb_at(VERB_CONFIG_ROLLBACK)->ask, &a, &b);
    assert_string_equal(b.p, "Replace what runs by a new revision equal to 12?");
    args_done(&a);
    buf_done(&b);
}

/* ---- completion ---- */

static void nouns(void *arg, enum arg_type type, struct line_words *ret)
{
    (void)arg;
    if (type == ARG_INSTANCE) {
        line_words_add(ret, "main");
        line_words_add(ret, "mini");
        line_words_add(ret, "other");
    } else if (type == ARG_REV || type == ARG_REVREF) {
        line_words_add(ret, "7");
        line_words_add(ret, "12");
    } else if (type == ARG_PATH) {
        line_words_add(ret, "instances.main.mode");
    }
}

/* What Tab offers, with blanks between; " FILES" when names of files are meant. */
static void offers(const char *before, const char *part, const char *want)
{
    struct line_words l = {.n = 0};
    struct buf b;

    buf_init(&b, 0);
    complete_line(before, part, nouns, NULL, &l);
    for (int i = 0; i < l.n; i++)
        buf_printf(&b, "%s%s", i ? " " : "", l.w[i]);
    buf_puts(&b, l.files ? " FILES" : "");
    assert_string_equal(b.p, want);
    line_words_done(&l);
    buf_done(&b);
}

static void test_completion(void **state)
{
    (void)state;
    offers("", "sh", "show");
    offers("sh ", "m", "models metrics");
    offers("show topology ", "", "matrix");
    offers("nothing ", "", "");
    offers("instance stop ", "m", "main mini");
    offers("inst st ", "", ""); /* start or stop? */
    offers("instance stop main ", "", "reason");
    offers("instance stop -y ", "m", "main mini");
    offers("instance stop main reason ", "", "");
    offers("config rollback ", "", "7 12 confirm guard comment");
    offers("config commit confirm 5 ", "g", "guard");
    offers("config commit guard ", "", "auto on off confirm rebase comment hypothesis");
    offers("config set ", "inst", "instances.main.mode");
    offers("config load ", "", " FILES");
    offers("backup ", "x", " FILES");
    offers("log ", "", "level -f");
    offers("log level ", "", "error warn info debug");
    offers("wait ", "d", "drained");
    offers("wait drained ", "o", "other");
    offers("help config ", "ro", "rollback");
}

static void test_question_mark(void **state)
{
    struct buf b;

    (void)state;
    buf_init(&b, 0);
    complete_help("instance st", 80, nouns, NULL, &b);
    assert_non_null(strstr(b.p, "instance start NAME"));
    assert_non_null(strstr(b.p, "instance stop NAME"));
    assert_null(strstr(b.p, "drain NAME"));
    buf_clear(&b);
    complete_help("instance stop ", 80, nouns, NULL, &b);
    assert_non_null(strstr(b.p, "\n    main mini other\n"));
    buf_clear(&b);
    complete_help("chat how are you", 80, nouns, NULL, &b);
    assert_int_equal(b.len, 0); /* an ordinary character */
    buf_done(&b);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_verb_prefix),   cmocka_unit_test(test_verb_refused),
    cmocka_unit_test(test_every_row),     cmocka_unit_test(test_help),
    cmocka_unit_test(test_words),         cmocka_unit_test(test_bodies),
    cmocka_unit_test(test_paths),         cmocka_unit_test(test_args_refused),
    cmocka_unit_test(test_rest_of_line),  cmocka_unit_test(test_options_in_a_line),
    cmocka_unit_test(test_questions),     cmocka_unit_test(test_completion),
    cmocka_unit_test(test_question_mark),
};
TEST_MAIN("ctl", tests)
