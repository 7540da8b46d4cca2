/* Edits of a configuration text: set, unset, difference, rebase. */
#include "tests/test.h"

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "daemon/ctrl/conf.h"

struct edit {
    const char *text, *path, *value; /* NULL: unset */
    const char *want;                /* NULL: refused */
};

static const struct edit edits[] = {
    /* a value in place */
    {"rack: auto # x\n", "rack", "cpu:4", "rack: cpu:4 # x\n"},
    {"rack: 'auto'   # x", "rack", "a b", "rack: \"a b\"   # x"},
    {"rack:\n  auto\n", "rack", "b", "rack:\n  b\n"},
    {"rack: # x\nlog_level: info\n", "rack", "b", "rack: b # x\nlog_level: info\n"},
    {"rack: |\n  auto\nlog_level: info\n", "rack", "b", "rack: b\nlog_level: info\n"},
    {"rack: \"\xc3\xa4\" # \xc3\xa4\n", "rack", "\xc3\xbc",
     "rack: \"\xc3\xbc\" # \xc3\xa4\n"},
    {"rack: auto\n", "rack", "'it is'", "rack: \"it is\"\n"},
    {"rack: auto\n", "rack", "", "rack: \"\"\n"},
    {"rack: auto\n", "rack", "say \"x\\\"", "rack: \"say \\\"x\\\\\\\"\"\n"},
    {"limits: {drain_s: 3}\n", "limits.drain_s", "04", NULL},
    {"guard: {confidence: 0.9}\n", "guard.confidence", "0.950",
     "guard: {confidence: 0.95}\n"},
    /* a new key */
    {"", "rack", "auto", "rack: auto\n"},
    {"# only words", "rack", "auto", "# only words\nrack: auto\n"},
    {"---\n", "rack", "auto", "---\nrack: auto\n"},
    {"rack: auto", "log_level", "debug", "rack: auto\nlog_level: debug\n"},
    {"rack: auto # x\n\n# end\n", "limits.drain_s", "5",
     "rack: auto # x\nlimits:\n  drain_s: 5\n\n# end\n"},
    {"limits:\n    drain_s: 5 # x\n# y\nrack: auto\n", "limits.idle_s", "9",
     "limits:\n    drain_s: 5 # x\n    idle_s: 9\n# y\nrack: auto\n"},
    {"models:\n# none yet\nrack: auto\n", "models.m1.path", "/a",
     "models:\n  m1:\n    path: /a\n# none yet\nrack: auto\n"},
    {"models: {}\n", "models.m1.path", "/a", "models: {m1: {path: /a}}\n"},
    {"models: {a: {path: p} }\n", "models.b.path", "/a",
     "models: {a: {path: p}, b: {path: /a} }\n"},
    {"models: {a: {path: p}, # x\n}\n", "models.b.path", "/a",
     "models: {a: {path: p}, b: {path: /a}, # x\n}\n"},
    {"models: {a: }\n", "models.b.path", "/a", "models: {a: , b: {path: /a} }\n"},
    {"models: {a: }\n", "models.a.path", "/a", "models: {a: {path: /a} }\n"},
    {"models: {a}\n", "models.a.path", "/a", "models: {a: {path: /a}}\n"},
    {"instances:\n  a.kv:\n    model: m\n  a:\n    model: m\n", "instances.a.kv.mib", "3",
     "instances:\n  a.kv:\n    model: m\n  a:\n    model: m\n    kv:\n      mib: 3\n"},
    {"instances:\n  q2:\n    model: m\n  q2.5:\n    model: m\n", "instances.q2.5.model",
     "n", "instances:\n  q2:\n    model: m\n  q2.5:\n    model: n\n"},
    /* lists */
    {"access:\n  hosts: [a, b] # x\n", "access.hosts", "[c]",
     "access:\n  hosts: [c] # x\n"},
    {"access:\n  hosts: # x\n  - a # y\n  - b # z\n  insecure: true\n", "access.hosts",
     "[c, 'd']", "access:\n  hosts: [c, d] # x # z\n  insecure: true\n"},
    {"access:\n  hosts:\n    - a\n", "access.hosts", "[]", "access:\n  hosts: []\n"},
    {"access:\n  hosts: a\n", "access.hosts", "[b]", "access:\n  hosts: [b]\n"},
    {"", "access.hosts", "b", NULL},
    {"", "access.hosts", "[b, 'c d']", NULL},
    /* what cannot be */
    {"", "limits.drain", "3", NULL},
    {"", "limits.drain_s", "x", NULL},
    {"", "instances.A.mode", "chunked", NULL},
    {"", "rack", "a\nb", NULL},
    {"rack: [\n", "log_level", "info", NULL},
    {"limits: 3\n", "limits.drain_s", "3", NULL},
    {"rack: auto\n...\n", "log_level", "info", "rack: auto\nlog_level: info\n...\n"},
    {"---\n...\n", "log_level", "info", NULL},
    {"? rack\n: auto\n", "rack", "b", "? rack\n: b\n"},
    /* unset */
    {"# a\nrack: auto # x\n# b\n", "rack", NULL, "# a\n# b\n"},
    {"limits:\n  drain_s: 5\n  # y\n  idle_s: 3\n", "limits.drain_s", NULL,
     "limits:\n  # y\n  idle_s: 3\n"},
    {"limits:\n  drain_s: 5\nrack: auto\n", "limits.drain_s", NULL,
     "limits:\nrack: auto\n"},
    {"limits:\n  drain_s: 5\nrack: auto\n", "limits", NULL, "rack: auto\n"},
    {"limits: {drain_s: 5, idle_s: 3, body_s: 4}\n", "limits.drain_s", NULL,
     "limits: {idle_s: 3, body_s: 4}\n"},
    {"limits: {drain_s: 5, idle_s: 3, body_s: 4}\n", "limits.idle_s", NULL,
     "limits: {drain_s: 5, body_s: 4}\n"},
    {"limits: {drain_s: 5, idle_s: 3 }\n", "limits.idle_s", NULL,
     "limits: {drain_s: 5 }\n"},
    {"limits: { drain_s: 5, }\n", "limits.drain_s", NULL, "limits: {}\n"},
    {"models: {a, b, c: }\n", "models.c", NULL, "models: {a, b }\n"},
    {"models:\n  m:\n    path: p # x\n  n: {path: q}\n", "models.m", NULL,
     "models:\n  n: {path: q}\n"},
    {"models:\n  m.2:\n    path: p\n  m: {path: q}\n", "models.m", NULL,
     "models:\n  m.2:\n    path: p\n"},
    {"models:\n  m.2:\n    path: p\n  m: {path: q}\n", "models.m.2", NULL,
     "models:\n  m: {path: q}\n"},
    {"access:\n  hosts:\n  - a\n  - b\n# c\n  insecure: true\n", "access.hosts", NULL,
     "access:\n# c\n  insecure: true\n"},
    {"rack: |\n  a\n\nlog_level: info\n", "rack", NULL, "log_level: info\n"},
    /* with it go maps that hold nothing more, but no name and no comment */
    {"instances:\n  a.b:\n    decode:\n      layout:\n        tp: 2\n    mode: split\n",
     "instances.a.b.decode.layout.tp", NULL, "instances:\n  a.b:\n    mode: split\n"},
    {"instances:\n  m:\n    decode:\n      # x\n      layout:\n        tp: 2\n",
     "instances.m.decode.layout.tp", NULL, "instances:\n  m:\n      # x\n"},
    {"instances: {m: {model: q, kv: {mib: 3}}}\n", "instances.m.kv.mib", NULL,
     "instances: {m: {model: q}}\n"},
    {"instances: {m: {kv: {mib: 3, host_mib: 4}}}\n", "instances.m.kv.mib", NULL,
     "instances: {m: {kv: {host_mib: 4}}}\n"},
    {"rak: auto\nrack: b\n", "rak", NULL, "rack: b\n"},
    {"rack: auto\n", "log_level", NULL, NULL},
    {"rack: auto\n", "models.m", NULL, NULL},
    {"? rack\n: auto\n", "rack", NULL, NULL},
};

static void each_edit(void **st)
{
    (void)st;
    for (size_t i = 0; i < sizeof(edits) / sizeof(edits[0]); i++) {
        const struct edit *x = &edits[i];
        struct err e = {0};
        char *got = x->value ? conf_text_set(x->text, x->path, x->value, &e)
                             : conf_text_unset(x->text, x->path, &e);

        if (!got != !x->want || (got && strcmp(got, x->want)))
            fail_msg("%s %s in\n%s\ngives\n%s\n%s", x->path, x->value, x->text,
                     got ? got : "nothing", e.msg);
        if (!got && !e.msg[0])
            fail_msg("%s: no sentence", x->path);
        free(got);
    }
}

static void sentences(void **st)
{
    struct err e = {0};

    (void)st;
    assert_null(conf_text_set("", "instances.main.step_tk", "3", &e));
    assert_string_equal(e.msg, "there is no directive 'instances.main.step_tk'; did you "
                               "mean instances.main.step_tok?");
    assert_int_equal(e.code, ERR_INVALID);
    assert_null(conf_text_set("", "instances.größe.step_tok", "3", &e));
    assert_string_equal(
        e.msg, "'größe' is no name; lower-case letters, digits, - _ and . would be "
               "right, at most 63, a letter or digit first");
    assert_null(conf_text_set("", "limits.drain_s", "-1", &e));
    assert_string_equal(e.msg, "limits.drain_s: -1 is out of range; from 0 to 86400 s "
                               "would be right");
    assert_null(conf_text_set("a: b\nrack: *x\n", "rack", "b", &e));
    assert_int_equal(e.code, ERR_SYNTAX);
    assert_non_null(strstr(e.msg, "line 2, column 7: an alias"));
    assert_null(conf_text_unset("", "rack", &e));
    assert_int_equal(e.code, ERR_NOTFOUND);
    assert_null(conf_text_set("limits: 3\n", "limits.drain_s", "3", &e));
    assert_non_null(strstr(e.msg, "line 1 has a value where"));
}

/* Every directive into the shipped sample, then out again: only its own lines change. */
static void rows_round_trip(void **st)
{
    struct conf_row_doc r;
    struct buf sample;

    (void)st;
    buf_init(&sample, 0);
    conf_sample(&sample);
    for (int i = 0; conf_row(i, &r); i++) {
        char path[160], *with, *without;
        const char *star = strchr(r.path, '*');
        const char *value = r.def && *r.def          ? r.def
                            : strstr(r.path, "tls_") ? "/a.pem"
                                                     : "some-name";
        struct err e = {0};

        snprintf(path, sizeof(path), "%.*s%s%s", star ? (int)(star - r.path) : 160,
                 r.path, star ? "x1" : "", star ? star + 1 : "");
        with = conf_text_set(sample.p, path, value, &e);
        if (!with)
            fail_msg("%s: %s", path, e.msg);
        without = conf_text_unset(with, path, &e);
        if (!without)
            fail_msg("%s: %s", path, e.msg);
        if (star)
            assert_true(strlen(with) > strlen(without) && strlen(without) > sample.len);
        else /* the default was there */
            assert_true(r.def && (!strcmp(value, r.def) == !strcmp(with, sample.p)));
        free(with);
        free(without);
    }
    buf_done(&sample);
}

/* ---- the rows as documents ---- */

static char *read_file(const char *path)
{
    char *text = xcalloc(1, 1 << 16);
    FILE *f = fopen(path, "re");

    assert_non_null(f);
    assert_true(fread(text, 1, (1 << 16) - 1, f) > 0);
    fclose(f);
    return text;
}

static void sample_is_shipped(void **st)
{
    char *shipped = read_file("etc/llmrackd.yaml");
    struct conf_faults faults;
    struct conf *c, *none;
    struct conf_row_doc r;
    struct buf b;

    (void)st;
    buf_init(&b, 0);
    conf_sample(&b);
    assert_string_equal(shipped, b.p); /* else: llmrackd --sample-config > etc/... */
    assert_int_equal(conf_parse(b.p, b.len, NULL, 0, &c, &faults), 0);
    assert_int_equal(conf_parse("", 0, NULL, 0, &none, &faults), 0);
    assert_int_equal(conf_diff(c, none, NULL, NULL), 0); /* it changes nothing */
    conf_unref(c);
    conf_unref(none);
    for (int i = 0; conf_row(i, &r); i++) {
        const char *key = strrchr(r.path, '.');
        char line[96];
        snprintf(line, sizeof(line), "%s: ", key ? key + 1 : r.path);
        assert_non_null(strstr(b.p, line));
    }
    free(shipped);
    buf_done(&b);
}

/* What the sample has in comments is right as well, once it is no comment. */
static void sample_examples(void **st)
{
    struct conf_faults faults;
    struct buf b, open;
    struct conf *c;

    (void)st;
    buf_init(&b, 0);
    buf_init(&open, 0);
    conf_sample(&b);
    for (char *line = strtok(b.p, "\n"); line; line = strtok(NULL, "\n")) {
        char *name;

        if (line[0] == '#' && line[1] != ' ' && line[1])
            line++;
        else if (!strncmp(line, "#  ", 3))
            line++;
        while (line[0] == ' ' && (name = strstr(line, "NAME")))
            memcpy(name, "name", 4);
        buf_printf(&open, "%s%s\n", line, strstr(line, "ttft_ms: 0") ? ".5" : "");
    }
    if (conf_parse(open.p, open.len, NULL, 0, &c, &faults) < 0)
        fail_msg("%d:%d %s %s\n%s", faults.v[0].line, faults.v[0].column,
                 faults.v[0].path, faults.v[0].msg, open.p);
    assert_int_equal(c->n_instances, 1);
    assert_int_equal(conf_instance(c, "name")->step_tok, 512);
    assert_int_equal(c->n_classes, 1);
    conf_unref(c);
    buf_done(&b);
    buf_done(&open);
}

static void man_has_all(void **st)
{
    struct conf_row_doc r;
    struct buf b;

    (void)st;
    buf_init(&b, 0);
    conf_man(&b);
    for (int i = 0; conf_row(i, &r); i++) {
        char head[96];
        snprintf(head, sizeof(head), ".TP\n.B %s\n", r.path);
        assert_non_null(strstr(b.p, head));
    }
    buf_done(&b);
}

/* ---- difference ---- */

static void differ(const char *a, const char *b, const char *want)
{
    struct buf out;

    buf_init(&out, 0);
    conf_text_diff(a, b, "a", "b", &out);
    assert_string_equal(out.p ? out.p : "", want);
    buf_done(&out);
}

static void differences(void **st)
{
    (void)st;
    differ("x\n", "x\n", "");
    differ("", "x\n", "--- a\n+++ b\n@@ -0,0 +1 @@\n+x\n");
    differ("x\n", "", "--- a\n+++ b\n@@ -1 +0,0 @@\n-x\n");
    differ("x", "x\n",
           "--- a\n+++ b\n@@ -1 +1 @@\n-x\n\\ No newline at end of file\n+x\n");
    differ("1\n2\n3\n4\n5\n6\n7\n8\n9\n", "1\n2\n3\n4\nfive\n6\n7\n8\n9\n",
           "--- a\n+++ b\n@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n");
    differ("a\n1\n2\n3\n4\n5\n6\n7\nb\n", "A\n1\n2\n3\n4\n5\n6\n7\nB\n",
           "--- a\n+++ b\n@@ -1,4 +1,4 @@\n-a\n+A\n 1\n 2\n 3\n@@ -6,4 +6,4 @@\n 5\n 6\n "
           "7\n-b\n+B\n");
    differ("a\n1\n2\n3\n4\n5\n6\nb\n", "1\n2\n3\n4\n5\n6\nb\nc\n",
           "--- a\n+++ b\n@@ -1,4 +1,3 @@\n-a\n 1\n 2\n 3\n@@ -6,3 +5,4 @@\n 5\n 6\n "
           "b\n+c\n");
}

/* Applying a difference by hand gives the other text, whatever the two are. */
static void patch(const char *a, const char *diff, struct buf *out)
{
    int line = 1, na, from;

    while (*diff == '-' || (*diff == '+' && !strncmp(diff, "+++", 3)))
        diff = strchr(diff, '\n') + 1;
    while (*diff == '@') {
        na = 1;
        assert_true(sscanf(diff, "@@ -%d,%d", &from, &na) >= 1);
        for (from += na == 0; line < from; line++) {
            const char *end = strchr(a, '\n') + 1;
            buf_add(out, a, (size_t)(end - a));
            a = end;
        }
        for (diff = strchr(diff, '\n') + 1; *diff && *diff != '@';) {
            const char *end = strchr(diff, '\n') + 1;
            size_t n = (size_t)(end - diff) - 1;
            if (*diff != '-')
                buf_add(out, diff + 1, n);
            if (*diff != '+') {
                assert_memory_equal(a, diff + 1, n);
                a += n;
                line++;
            }
            diff = end;
        }
    }
    buf_puts(out, a);
}

static void random_differences(void **st)
{
    uint64_t seed = test_seed();

    (void)st;
    for (int round = 0; round < 300; round++) {
        struct buf a, b, d, p;
        int n = (int)(test_rand(&seed) % 40);

        buf_init(&a, 0);
        buf_init(&b, 0);
        buf_init(&d, 0);
        buf_init(&p, 0);
        for (int i = 0; i < n; i++) {
            unsigned what = (unsigned)(test_rand(&seed) % 8);
            char line[16];
            snprintf(line, sizeof(line), "%u\n", (unsigned)(test_rand(&seed) % 5));
            if (what != 0)
                buf_puts(&a, line);
            if (what != 1)
                buf_puts(&b, line);
        }
        conf_text_diff(a.p ? a.p : "", b.p ? b.p : "", "a", "b", &d);
        patch(a.p ? a.p : "", d.p ? d.p : "", &p);
        assert_string_equal(p.p ? p.p : "", b.p ? b.p : "");
        buf_done(&a);
        buf_done(&b);
        buf_done(&d);
        buf_done(&p);
    }
}

static void large_difference(void **st)
{
    struct buf a, b, d, p;

    (void)st;
    buf_init(&a, 0);
    buf_init(&b, 0);
    buf_init(&d, 0);
    buf_init(&p, 0);
    for (int i = 0; i < 50000; i++) {
        buf_printf(&a, "%d\n", i);
        buf_printf(&b, "%d\n", i * 7 % 50000);
    }
    conf_text_diff(a.p, b.p, "a", "b", &d);
    patch(a.p, d.p, &p);
    assert_string_equal(p.p, b.p);
    buf_done(&a);
    buf_done(&b);
    buf_done(&d);
    buf_done(&p);
}

/* ---- rebase ---- */

static void rebases(const char *base, const char *mine, const char *theirs,
                    const char *want)
{
    struct err e = {0};
    char *got = conf_text_rebase(base, mine, theirs, &e);

    if (!got)
        fail_msg("%s", e.msg);
    assert_string_equal(got, want);
    free(got);
}

static void conflicts(const char *base, const char *mine, const char *theirs,
                      const char *want)
{
    struct err e = {0};

    assert_null(conf_text_rebase(base, mine, theirs, &e));
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_string_equal(e.msg, want);
}

static void rebase(void **st)
{
    static const char base[] = "rack: auto\nlimits:\n  drain_s: 5\nmodels:\n  m:\n    "
                               "path: p\n  n.1:\n    path: q\n";

    (void)st;
    rebases(base, base, "rack: b # theirs\n", "rack: b # theirs\n");
    rebases(base, "rack: c\nlimits: {drain_s: 5}\nmodels: {m: {path: p}, n.1: {path: q}}",
            base,
            "rack: c\nlimits:\n  drain_s: 5\nmodels:\n  m:\n    path: p\n  n.1:\n    "
            "path: q\n");
    rebases("rack: a\n", "rack: b\n", "rack: a # x\nlog_level: debug\n",
            "rack: b # x\nlog_level: debug\n");
    rebases("rack: a\n", "rack: b\n", "log_level: info\nrack: b\n",
            "log_level: info\nrack: b\n");
    rebases("rack: a\n", "", "rack: a\nlog_level: debug\n", "log_level: debug\n");
    rebases("rack: a\n", "rack: '\"x'\naccess: {hosts: [a, b]}\n", "# t\nrack: a\n",
            "# t\nrack: \"\\\"x\"\naccess:\n  hosts: [a, b]\n");
    /* a name that mine dropped, or added */
    rebases(base, "models: {m: {path: p}}\n", base,
            "limits:\nmodels:\n  m:\n    path: p\n");
    rebases("models:\n  m: {path: p}\n", "models:\n  m: {path: p}\n  m2: {path: q}\n",
            "models:\n  m: {path: r}\n", "models:\n  m: {path: r}\n  m2:\n    path: q\n");
    conflicts("rack: a\n", "rack: b\n", "rack: c\n", "both changed rack");
    conflicts("rack: a\n", "rack: b\n", "", "both changed rack");
    conflicts("rack: a\n", "", "rack: b\n", "both changed rack");
    conflicts("", "rack: a\nlog_level: info\n", "log_level: debug\nrack: b\n",
              "both changed rack, log_level");
    conflicts("models: {m: {path: p}}\n", "", "models: {m: {path: q}}\n",
              "both changed models.m.path");
    conflicts("instances: {m: {model: p}}\n", "instances:\n",
              "instances: {m: {model: p, ctx: 9}}\n", "both changed instances.m.ctx");
    conflicts("models: {m: {path: p}}\n", "models: {m: {path: q}}\n", "models:\n",
              "both changed models.m.path");
    struct err e = {0};
    assert_null(conf_text_rebase("", "rak: 1\n", "", &e));
    assert_int_equal(e.code, ERR_INVALID);
    assert_null(conf_text_rebase("", "rack: [\n", "", &e));
    assert_int_equal(e.code, ERR_SYNTAX);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(each_edit),        cmocka_unit_test(sentences),
    cmocka_unit_test(rows_round_trip),  cmocka_unit_test(sample_is_shipped),
    cmocka_unit_test(sample_examples),  cmocka_unit_test(man_has_all),
    cmocka_unit_test(differences),      cmocka_unit_test(random_differences),
    cmocka_unit_test(large_difference), cmocka_unit_test(rebase),
};

TEST_MAIN("conf_text", tests)
