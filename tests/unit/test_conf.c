/* The wanted state: rows, faults with their places, overrides, differences. */
#include "tests/test.h"

#include "base/mem.h"
#include "base/opt.h"
#include "daemon/ctrl/conf.h"
#include "daemon/options.h"
#include "daemon/serve/sched.h"

static struct conf_faults faults;

static struct conf *parse_over(const char *text, const struct conf_override *o, int n)
{
    struct conf *c;

    if (conf_parse(text, strlen(text), o, n, &c, &faults) < 0)
        fail_msg("%d:%d %s: %s", faults.v[0].line, faults.v[0].column, faults.v[0].path,
                 faults.v[0].msg);
    return c;
}

static struct conf *parse(const char *text) { return parse_over(text, NULL, 0); }

/* ---- rows ---- */

static void rows_are_sound(void **st)
{
    struct conf_row_doc a, b;
    int n = 0;

    (void)st;
    for (; conf_row(n, &a); n++) {
        const char *tail = strchr(a.path, '*') ? strchr(a.path, '*') + 1 : a.path;

        assert_true(strlen(a.help) > 10 && a.help[strlen(a.help) - 1] == '.');
        for (int j = 0; conf_row(j, &b); j++) {
            size_t nb = strlen(b.path), nt = strlen(tail);
            if (j == n)
                continue;
            assert_string_not_equal(a.path, b.path);
            /* else a name with a dot in it could be read in two ways; no name ends in
             * .prefill or .decode */
            if (!strncmp(b.path, "instances.*.prefill.", 20) ||
                !strncmp(b.path, "instances.*.decode.", 19))
                continue;
            if (strchr(a.path, '*') && strchr(b.path, '*') && b.path[0] == a.path[0] &&
                nb > nt && strchr(b.path, '*') + 1 + nt < b.path + nb)
                assert_string_not_equal(b.path + nb - nt, tail);
        }
    }
    assert_true(n > 30);
}

static const struct opt_def *engine_option(const char *name)
{
    for (int i = 0; i < n_engine_opt_defs; i++)
        if (!strcmp(engine_opt_defs[i].name, name))
            return &engine_opt_defs[i];
    return NULL;
}

/* The rows and the options of the programs know the same defaults and ranges. */
static void rows_are_the_options(void **st)
{
    static const char *const pair[][2] = {
        {"instances.*.step_tok", "step-tok"},       {"instances.*.max_seqs", "max-seqs"},
        {"instances.*.max_waiting", "max-waiting"}, {"instances.*.ctx", "ctx"},
        {"instances.*.threads", "threads"},         {"instances.*.isa", "isa"},
        {"instances.*.backend", "backend"},         {"instances.*.executor", "executor"},
        {"instances.*.kv.mib", "kv-mib"},           {"instances.*.kv.type", "kv-type"},
    };
    struct conf_row_doc r;
    char range[80];
    int i;

    (void)st;
    for (size_t k = 0; k < sizeof(pair) / sizeof(pair[0]); k++) {
        const struct opt_def *o = engine_option(pair[k][1]);

        for (i = 0; conf_row(i, &r) && strcmp(r.path, pair[k][0]); i++)
            continue;
        assert_true(conf_row(i, &r));
        assert_non_null(o);
        assert_string_equal(r.def, o->def);
        snprintf(range, sizeof(range), "%lld..%lld", (long long)o->min,
                 (long long)o->max);
        assert_string_equal(r.range, o->choices ? o->choices : range);
    }
}

static void defaults(void **st)
{
    (void)st;
    struct conf *c = parse("");
    assert_string_equal(c->rack, "auto");
    assert_string_equal(c->log_level, "info");
    assert_string_equal(c->listen.address, "127.0.0.1:8080");
    assert_string_equal(c->listen.tls_cert, "");
    assert_int_equal(c->limits.max_body_mib, 8);
    assert_int_equal(c->limits.max_connections, 4096);
    assert_int_equal(c->limits.drain_s, 30);
    assert_int_equal(c->n_model_roots, 1);
    assert_string_equal(c->model_roots[0], "/var/lib/llmrack/models");
    assert_int_equal(c->access.n_hosts, 0);
    assert_false(c->access.insecure);
    assert_int_equal(c->access.anonymous, 1);
    assert_true(c->guard.confidence == 0.95);
    assert_int_equal(c->n_models + c->n_instances + c->n_classes, 0);
    conf_unref(c);
}

static const char whole[] = "# the rack\n"
                            "rack: cpu:2x4\n"
                            "access: {hosts: [rack.example.org, 'b'], insecure: true}\n"
                            "models:\n"
                            "  demo.v1: {path: /m/demo.gguf}\n"
                            "  big:\n"
                            "    path: \"/m/a file\"\n"
                            "instances:\n"
                            "  main:\n"
                            "    model: demo.v1\n"
                            "    mode: colocated\n"
                            "    step_tok: 256   # small\n"
                            "    kv:\n"
                            "      mib: 64\n"
                            "      reuse: false\n"
                            "      isolate: none\n"
                            "    sampling: {temperature: 0.25}\n"
                            "    slo: {ttft_ms: 200.5, attainment: 0.9}\n"
                            "  second:\n"
                            "    model: big\n"
                            "    served_as: yes\n"
                            "slo_classes:\n"
                            "  batch:\n"
                            "    tpot_ms: 1e3\n";

static void values(void **st)
{
    (void)st;
    struct conf *c = parse(whole), *again = conf_ref(c);
    const struct conf_instance *i = conf_instance(c, "main");

    conf_unref(again);
    assert_string_equal(c->rack, "cpu:2x4");
    assert_int_equal(c->access.n_hosts, 2);
    assert_string_equal(c->access.hosts[1], "b");
    assert_true(c->access.insecure);
    assert_int_equal(c->n_models, 2);
    assert_string_equal(conf_model(c, "big")->path, "/m/a file");
    assert_null(conf_model(c, "demo"));
    assert_string_equal(i->model, "demo.v1");
    assert_int_equal(i->mode, SCHED_COLOCATED);
    assert_int_equal(i->step_tok, 256);
    assert_int_equal(i->max_seqs, 64);
    assert_int_equal(i->kv.mib, 64);
    assert_false(i->kv.reuse);
    assert_int_equal(i->kv.isolate, CONF_ISOLATE_NONE);
    assert_true(i->sampling.temperature == 0.25 && i->sampling.top_p == 0.9);
    assert_true(i->slo.ttft_ms == 200.5 && i->slo.tpot_ms == 0);
    assert_true(i->slo.attainment == 0.9);
    assert_string_equal(conf_instance(c, "second")->served_as, "yes");
    assert_null(conf_instance(c, "third"));
    assert_string_equal(c->classes[0].name, "batch");
    assert_true(c->classes[0].slo.tpot_ms == 1000);
    conf_unref(c);
    conf_unref(NULL);
}

/* ---- faults ---- */

struct bad {
    const char *text;
    int line, column;
    const char *path, *part; /* of the sentence */
};

static const struct bad bad[] = {
    {"rak: auto\n", 1, 1, "rak", "did you mean rack?"},
    {"rack: auto\nxyzzy: 1\n", 2, 1, "xyzzy", "is no directive here"},
    {"listen:\n  adress: x:1\n", 2, 3, "listen.adress", "did you mean address?"},
    {"listen.address: x:1\n", 1, 1, "listen.address", "no directive"},
    {"instances: {a: {model: m, kv: {size: 3}}}\nmodels: {m: {path: p}}\n", 1, 32,
     "instances.a.kv.size", "no directive"},
    {"rack: a\nrack: b\n", 2, 1, "rack", "stands here twice; first in line 1"},
    {"models:\n  m: {path: p}\n  m: {path: q}\n", 3, 3, "models.m", "twice"},
    {"limits:\n  drain_s: soon\n", 2, 12, "limits.drain_s",
     "'soon' is no whole number; one from 0 to 86400 s"},
    {"limits: {drain_s: '5'}\n", 1, 19, "limits.drain_s", "the text '5' is no"},
    {"limits: {drain_s: 1.5}\n", 1, 19, "limits.drain_s", "no whole number"},
    {"limits: {drain_s: 007}\n", 1, 19, "limits.drain_s", "no whole number"},
    {"limits: {drain_s: 0x10}\n", 1, 19, "limits.drain_s", "no whole number"},
    {"limits: {drain_s: -1}\n", 1, 19, "limits.drain_s", "-1 is out of range"},
    {"limits: {max_body_mib: 99999999999999999999}\n", 1, 24, "limits.max_body_mib",
     "out of range"},
    {"guard: {confidence: .inf}\n", 1, 21, "guard.confidence", "no number"},
    {"guard: {confidence: 2}\n", 1, 21, "guard.confidence", "from 0.5 to 0.9999"},
    {"access: {insecure: yes}\n", 1, 20, "access.insecure", "true or false"},
    {"log_level: loud\n", 1, 12, "log_level", "error, warn, info or debug"},
    {"rack: [a, b]\n", 1, 7, "rack", "a list where a single value"},
    {"rack: {a: b}\n", 1, 7, "rack", "a map where a single value"},
    {"rack:\n", 1, 6, "rack", "no value"},
    {"listen: 8080\n", 1, 9, "listen", "a value where a map"},
    {"- a\n- b\n", 1, 1, "", "a list where a map"},
    {"access: {hosts: a}\n", 1, 17, "access.hosts", "a list would be right"},
    {"access: {hosts: [a, [b]]}\n", 1, 21, "access.hosts", "a text would be right"},
    {"access: {hosts: [a, 'b c']}\n", 1, 21, "access.hosts", "'b c' is no host"},
    {"access: {cors_origins: ['*']}\n", 1, 25, "access.cors_origins", "no origin"},
    {"access: {cors_origins: [https://a/b]}\n", 1, 25, "access.cors_origins", "origin"},
    {"listen: {address: '8080'}\n", 1, 19, "listen.address", "HOST:PORT"},
    {"listen: {address: 'a:99999'}\n", 1, 19, "listen.address", "0 to 65535"},
    {"listen: {tls_cert: a, tls_key: /b}\n", 1, 20, "listen.tls_cert", "relative"},
    {"listen:\n  tls_cert: /a\n", 2, 13, "listen.tls_cert", "set listen.tls_key"},
    {"listen:\n  tls_key: /a\n", 2, 12, "listen.tls_key", "set listen.tls_cert"},
    {"listen: {address: '', tls_cert: /a, tls_key: /b}\n", 1, 33, "listen.tls_cert",
     "nothing listens"},
    {"rack: &x auto\n", 1, 7, "", "an anchor (&x)"},
    {"rack: auto\nrack_gpu: *x\n", 2, 11, "", "an alias (*x)"},
    {"rack: !!str auto\n", 1, 7, "", "a tag (tag:yaml.org,2002:str)"},
    {"rack: ! auto\n", 1, 7, "", "a tag"},
    {"<<: {rack: auto}\n", 1, 1, "<<", "no directive"},
    {"%YAML 1.1\n---\nrack: auto\n", 1, 1, "", "a directive of YAML"},
    {"rack: auto\n---\nrack: auto\n", 2, 1, "", "a second document"},
    {"rack:\tauto\n", 1, 6, "", "a tab"},
    {"rack: auto\r\n", 1, 11, "", "a carriage return"},
    {"rack: a\xff\n", 1, 8, "", "(0xff) is not UTF-8"},
    {"# \xc3\xa4\nrack: \xed\xa0\x80\n", 2, 7, "", "is not UTF-8"},
    {"\xef\xbb\xbfrack: a\n", 1, 1, "", "no configuration may hold"},
    {"rack: \"a\\nb\"\n", 1, 7, "rack", "a text of one line"},
    {"rack: \"a\\0b\"\n", 1, 7, "rack", "a text of one line"},
    {"\"ra\\0ck\": b\n", 1, 1, "", "a key must be a word"},
    {"[a]: b\n", 1, 1, "", "a key must be a word"},
    {"access: {hosts: [\n", 2, 1, "", "not YAML"},
    {"# \xc3\xa4\xc3\xa4\nrack: \"\xc3\xa4\" x\n", 2, 11, "", "not YAML"},
    {"models: {Big: {path: p}}\n", 1, 10, "models.Big", "'Big' is no name"},
    {"models: {-a: {path: p}}\n", 1, 10, "models.-a", "is no name"},
    {"models: {m: }\n", 1, 10, "models.m.path", "the model has no path"},
    {"models: {m: {path: ''}}\n", 1, 20, "models.m.path", "empty text"},
    {"instances:\n  a:\n    mode: chunked\n", 2, 3, "instances.a.model", "has no model"},
    {"instances:\n  a:\n    model: m\n", 3, 12, "instances.a.model", "models has no 'm'"},
    {"models: {m: {path: p}}\ninstances:\n  a: {model: m}\n  b: {model: m}\n", 4, 3,
     "instances.b.served_as", "instance 'a' has the same id"},
    {"models: {m: {path: p}, n: {path: q}}\ninstances:\n  a: {model: m, served_as: x}\n"
     "  b: {model: n, served_as: x}\n",
     4, 28, "instances.b.served_as", "instance 'a' has the same id"},
    {"models: {m: {path: p}}\ninstances: {a: {model: m, slo: {attainment: 0.9}}}\n", 2,
     45, "instances.a.slo.attainment", "a share without a target"},
    {"models: {m: {path: p}}\ninstances: {a: {model: m, layout: {auto: true, tp: 2}}}\n",
     2, 52, "instances.a.layout.tp", "layout.auto is set: the planner chooses"},
    {"models: {m: {path: p}}\ninstances: {a: {model: m, layout: {tp: 4, ep: 2, etp: "
     "4}}}\n",
     2, 55, "instances.a.layout.etp", "etp is 2: set that"},
    {"models: {m: {path: p}}\ninstances: {a: {model: m, layout: {tp: 3, ep: 2, etp: "
     "1}}}\n",
     2, 55, "instances.a.layout.etp", "no multiple of ep 2"},
    {"models: {m: {path: p}}\ninstances: {a: {model: m, kv: {disk_mib: 9}}}\n", 2, 42,
     "instances.a.kv.disk_mib", "needs a tier in host memory"},
    {"models: {m: {path: p}}\ninstances: {a: {model: m, refuse_late: true}}\n", 2, 40,
     "instances.a.refuse_late", "nothing can be late without a target"},
    {"models: {m: {path: p}}\ninstances: {a: {model: m, order: slack}}\n", 2, 34,
     "instances.a.order", "no slack without a target"},
    {"models: {m: {path: p}}\ninstances: {a: {model: m, kv: {host_mib: 9, reuse: "
     "false}}}\n",
     2, 42, "instances.a.kv.host_mib", "nothing to keep"},
    {"slo_classes:\n  fast: {attainment: 0.9}\n", 2, 3, "slo_classes.fast",
     "a class without a target"},
    {"models: {m: {path: p}}\ninstances: {a: {model: m, experts: {transfer: f8}}}\n", 2,
     47, "instances.a.experts.transfer",
     "set experts.allow_output_change, or transfer f32"},
    {"models: {m: {path: p}}\ninstances: {a: {model: m, experts: {capacity: 1.5, "
     "overflow: next-best}}}\n",
     2, 62, "instances.a.experts.overflow", "overflow replica or second-pass"},
    {"models: {m: {path: p}}\ninstances: {a: {model: m, experts: {capacity: 1.5, "
     "overflow: drop}}}\n",
     2, 62, "instances.a.experts.overflow", "changes what the model answers"},
    {"models: {m: {path: p}}\ninstances: {a: {model: m, experts: {transfer: f8, "
     "allow_output_change: false}}}\n",
     2, 47, "instances.a.experts.transfer", "changes what"},
};

static void each_fault(void **st)
{
    (void)st;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        const struct bad *b = &bad[i];
        struct conf *c = (struct conf *)1;
        const struct conf_fault *f = &faults.v[0];

        if (conf_parse(b->text, strlen(b->text), NULL, 0, &c, &faults) == 0)
            fail_msg("taken: %s", b->text);
        assert_null(c);
        if (faults.n != 1 || f->line != b->line || f->column != b->column ||
            strcmp(f->path, b->path) || !strstr(f->msg, b->part))
            fail_msg("%s: %d faults, %d:%d '%s': %s", b->text, faults.n, f->line,
                     f->column, f->path, f->msg);
    }
}

/* What changes no output needs no leave, what does has it. */
static void output_changes(void **st)
{
    static const char *const good[] = {
        "{capacity: 1.5, overflow: replica}", "{capacity: 1.5, overflow: second-pass}",
        "{overflow: drop}", /* without a capacity nothing is over it */
        "{transfer: f8, allow_output_change: true}",
        "{capacity: 1.5, overflow: drop, allow_output_change: true}"};

    (void)st;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        char text[200];
        struct conf *c;
        snprintf(text, sizeof(text),
                 "models: {m: {path: p}}\ninstances: {a: {model: m, experts: %s}}\n",
                 good[i]);
        c = parse(text);
        assert_int_equal(conf_changes_output(&c->instances[0]), i > 2);
        conf_unref(c);
    }
}

static void all_faults(void **st)
{
    static const char text[] = "log_level: loud\n"
                               "rak: 1\n"
                               "limits:\n"
                               "  drain_s: x\n"
                               "  drain_s: 3\n"
                               "instances:\n"
                               "  a: {model: m, step_tok: 1}\n";
    static const int lines[] = {1, 2, 4, 5, 7, 7};
    struct conf *c;

    (void)st;
    assert_int_equal(conf_parse(text, strlen(text), NULL, 0, &c, &faults), -1);
    assert_int_equal(faults.n, 6);
    for (int i = 0; i < 6; i++)
        assert_int_equal(faults.v[i].line, lines[i]);
    assert_int_equal(faults.v[4].column, 14);
    /* what was read before the text breaks off is told as well */
    static const char broken[] = "rak: 1\naccess: {hosts: [\n";
    assert_int_equal(conf_parse(broken, strlen(broken), NULL, 0, &c, &faults), -1);
    assert_int_equal(faults.n, 2);
    assert_string_equal(faults.v[0].path, "rak");
}

static void limits(void **st)
{
    char *text = xmalloc(CONF_MAX_TEXT + 2);
    struct conf *c;
    size_t n = 0;

    (void)st;
    memset(text, '\n', CONF_MAX_TEXT + 1);
    assert_int_equal(conf_parse(text, CONF_MAX_TEXT, NULL, 0, &c, &faults), 0);
    conf_unref(c);
    assert_int_equal(conf_parse(text, CONF_MAX_TEXT + 1, NULL, 0, &c, &faults), -1);
    n = (size_t)sprintf(text, "models:\n");
    for (int i = 0; i < CONF_MAX_NAMES; i++)
        n += (size_t)sprintf(text + n, "  m%d: {path: p}\n", i);
    assert_int_equal(conf_parse(text, n, NULL, 0, &c, &faults), 0);
    conf_unref(c);
    n += (size_t)sprintf(text + n, "  more: {path: p}\n  again: {path: p}\n");
    assert_int_equal(conf_parse(text, n, NULL, 0, &c, &faults), -1);
    assert_int_equal(faults.n, 2);
    assert_int_equal(faults.v[0].line, CONF_MAX_NAMES + 2);
    n = (size_t)sprintf(text, "access: {hosts: [");
    for (; n < CONF_MAX_TEXT - 2; n += 2)
        memcpy(text + n, "a,", 2);
    assert_int_equal(conf_parse(text, n, NULL, 0, &c, &faults), -1);
    assert_int_equal(faults.n, 1);
    assert_non_null(strstr(faults.v[0].msg, "more than"));
    for (int i = 0; i < 200; i++)
        memcpy(text + i * 6, "xyzz:\n", 6);
    assert_int_equal(conf_parse(text, 1200, NULL, 0, &c, &faults), -1);
    assert_int_equal(faults.n, 200); /* counted; the first are kept */
    free(text);
    assert_int_equal(conf_parse("[[[[[[[[[[a", 11, NULL, 0, &c, &faults), -1);
    assert_int_equal(faults.n, 2);
    assert_int_equal(faults.v[1].column, 9);
    assert_string_equal(faults.v[1].msg, "nested deeper than 8 levels");
}

/* ---- overrides ---- */

static void overrides(void **st)
{
    static const struct conf_override good[] = {
        {"listen.address", ""},           {"models.main.path", "var/models/a [b].gguf"},
        {"instances.main.model", "main"}, {"instances.main.kv.reuse", "false"},
        {"access.hosts", "[a, b]"},       {"rack", "\"cpu:3\""},
    };
    static const struct conf_override wrong[] = {
        {"listen.adress", "x:1"},        {"limits.drain_s", "x"},
        {"instances.main.model", "no"},  {"access.hosts", "a"},
        {"instances.A.mode", "chunked"},
    };
    struct conf *c;

    (void)st;
    c = parse_over("rack: auto\nlisten: {address: '0.0.0.0:1'}\n", good, 6);
    assert_string_equal(c->rack, "cpu:3");
    assert_string_equal(c->listen.address, "");
    assert_string_equal(conf_model(c, "main")->path, "var/models/a [b].gguf");
    assert_false(conf_instance(c, "main")->kv.reuse);
    assert_int_equal(c->access.n_hosts, 2);
    conf_unref(c);
    assert_int_equal(conf_parse("", 0, wrong, 5, &c, &faults), -1);
    assert_int_equal(faults.n, 5);
    for (int i = 0; i < 5; i++)
        assert_int_equal(faults.v[i].line, 0);
}

/* ---- differences ---- */

static char seen[2048];

/* Replicas stand behind all that was written, as copies; the difference names the row. */
static void replicas(void **st)
{
    static const char one[] = "models: {m: {path: /m}, n: {path: /n}}\n"
                              "instances: {a: {model: m, threads: 3}, b: {model: n}}\n";
    static const char more[] = "models: {m: {path: /m}, n: {path: /n}}\n"
                               "instances: {a: {model: m, threads: 3, replicas: 3},\n"
                               "            b: {model: n}}\n";
    static const char *const names[] = {"a", "b", "a:2", "a:3"};
    struct conf *c = parse(more), *d = parse(one);
    struct conf_faults f;
    struct conf *none;

    (void)st;
    assert_int_equal(c->n_instances, 4);
    for (int i = 0; i < 4; i++)
        assert_string_equal(c->instances[i].name, names[i]);
    assert_int_equal(c->instances[3].threads, 3);
    assert_int_equal(conf_diff(d, c, NULL, NULL), 1);
    assert_int_equal(conf_diff(c, d, NULL, NULL), 1);
    conf_unref(c);
    conf_unref(d);
    static const char many[] =
        "models: {m: {path: /m}, n: {path: /n}, o: {path: /o}}\n"
        "instances: {a: {model: m, replicas: 30},\n"
        "  b: {model: n, replicas: 30}, c: {model: o, replicas: 5}}";
    assert_int_equal(conf_parse(many, strlen(many), NULL, 0, &none, &f), -1);
    assert_non_null(
        strstr(f.v[0].msg, "65 engines with all replicas and pools; at most 64"));
}

static const char split_text[] =
    "models: {m: {path: /m}, n: {path: /n}}\n"
    "instances:\n"
    "  a:\n"
    "    model: m\n"
    "    mode: split\n"
    "    threads: 3\n"
    "    layout: {tp: 2, cp_method: usp}\n"
    "    prefill: {engines: 2, step_tok: 1024, layout: {tp: 4, sp: true}}\n"
    "    decode: {threads: 1, kv: {mib: 64}, layout: {cp_method: ulysses}}\n"
    "  b: {model: n}\n";

/* Engines of both pools stand behind all that was written; the instance has none. */
static void two_pools(void **st)
{
    static const char *const names[] = {"a", "b", "a/prefill", "a/prefill:2", "a/decode"};
    struct conf *c = parse(split_text);
    const struct conf_instance *p = conf_instance(c, "a/prefill:2"),
                               *d = conf_instance(c, "a/decode");
    char *args[32];
    int n;

    (void)st;
    assert_int_equal(c->n_instances, 5);
    for (int i = 0; i < 5; i++) {
        assert_string_equal(c->instances[i].name, names[i]);
        assert_int_equal(conf_is_engine(&c->instances[i]), i != 0);
        assert_int_equal(conf_is_copy(names[i]), i > 1);
    }
    assert_int_equal(p->role, CONF_ROLE_PREFILL);
    assert_int_equal(p->threads, 3);
    assert_int_equal(p->step_tok, 1024);
    assert_int_equal(p->layout.tp, 4);
    assert_true(p->layout.sp);
    assert_int_equal(p->layout.cp_method, 4);
    assert_int_equal(d->role, CONF_ROLE_DECODE);
    assert_int_equal(d->threads, 1);
    assert_int_equal(d->step_tok, 512);
    assert_int_equal(d->kv.mib, 64);
    assert_int_equal(d->layout.tp, 2);
    assert_int_equal(d->layout.cp_method, 3);
    assert_false(d->layout.sp);
    n = conf_engine_args(c, d, args, 32);
    assert_string_equal(args[n - 1], "--role=decode");
    for (int i = 0; i < n; i++) {
        assert_null(strstr(args[i], "--mode="));
        free(args[i]);
    }
    conf_unref(c);
}

/* instances.a.prefill.step_tok is of a, not of an instance a.prefill. */
static void paths_of_pools(void **st)
{
    static const struct conf_override over[] = {{"instances.b.c.decode.step_tok", "64"},
                                                {"instances.b.c.decode.layout.tp", "2"}};
    struct conf *c = parse_over("models: {m: {path: /m}}\n"
                                "instances: {b.c: {model: m, mode: split}}\n",
                                over, 2);

    (void)st;
    assert_int_equal(c->n_instances, 3);
    assert_int_equal(conf_instance(c, "b.c/decode")->step_tok, 64);
    assert_int_equal(conf_instance(c, "b.c/decode")->layout.tp, 2);
    assert_int_equal(conf_instance(c, "b.c/prefill")->step_tok, 512);
    conf_unref(c);
}

/* The planner's choice for both pools or one; groups and usp in either. */
static void layouts_of_pools(void **st)
{
    struct conf *c =
        parse("models: {m: {path: /m}}\n"
              "instances:\n"
              "  a: {model: m, mode: split, layout: {auto: true},\n"
              "      decode: {layout: {auto: false, adp: 2, tp: 2}}}\n"
              "  b: {model: m, served_as: b, mode: split, layout: {adp: 4},\n"
              "      prefill: {layout: {auto: true}},\n"
              "      decode: {layout: {cp: 4, cp_method: usp, cp_u: 2}}}\n");
    const struct conf_instance *d = conf_instance(c, "a/decode"),
                               *u = conf_instance(c, "b/decode");

    (void)st;
    assert_true(conf_instance(c, "a/prefill")->layout.automatic);
    assert_false(d->layout.automatic);
    assert_int_equal(d->layout.adp, 2);
    assert_int_equal(d->layout.tp, 2);
    assert_true(conf_instance(c, "b/prefill")->layout.automatic);
    assert_false(u->layout.automatic);
    assert_int_equal(u->layout.adp, 4);
    assert_int_equal(u->layout.cp_u, 2);
    conf_unref(c);
}

static void refuse(const char *words, const char *why)
{
    char text[512];
    struct conf_faults f;
    struct conf *c;

    snprintf(text, sizeof(text), "models: {m: {path: /m}}\ninstances: {%s}\n", words);
    assert_int_equal(conf_parse(text, strlen(text), NULL, 0, &c, &f), -1);
    if (!strstr(f.v[0].msg, why))
        fail_msg("'%s' says: %s", words, f.v[0].msg);
}

/* As which both pools of an instance with these words round. */
static void rounds_as(const char *words, int64_t tp, int64_t cp)
{
    static const char *const pools[] = {"a/prefill", "a/decode", "a/decode:2"};
    char text[512];

    snprintf(text, sizeof(text),
             "models: {m: {path: /m}}\ninstances: {a: {model: m, mode: split, %s}}\n",
             words);
    struct conf *c = parse(text);
    for (int p = 0; p < 3; p++) {
        const struct conf_instance *i = conf_instance(c, pools[p]);
        if (!i && p == 2)
            continue;
        if (i->round_as.tp != tp || i->round_as.cp != cp)
            fail_msg("%s of '%s' rounds as %d, %d", pools[p], words, (int)i->round_as.tp,
                     (int)i->round_as.cp);
    }
    assert_int_equal(conf_instance(c, "a")->mode, CONF_SPLIT);
    conf_unref(c);
}

static void pools_round_alike(void **st)
{
    (void)st;
    rounds_as("prefill: {layout: {tp: 4}}, decode: {engines: 2}", 4, 1);
    rounds_as("layout: {tp: 2}", 2, 1);
    rounds_as("prefill: {layout: {tp: 2}}, decode: {layout: {tp: 8}}", 8, 1);
    rounds_as("prefill: {layout: {tp: 3}}, decode: {layout: {tp: 6}}", 0, 1);
    rounds_as("prefill: {layout: {tp: 3}}", 3, 1);
    rounds_as("prefill: {layout: {cp: 4}}, decode: {layout: {tp: 2}}", 2, 4);
    rounds_as("prefill: {layout: {cp: 4, cp_method: ulysses}}", 1, 1);
    rounds_as("prefill: {layout: {cp: 4, cp_method: usp, cp_u: 2}}", 1, 2);
    rounds_as("prefill: {layout: {cp: 4}}, decode: {layout: {cp: 2}}", 1, 0);
    rounds_as("prefill: {layout: {cp: 2, cp_method: striped}}", 1, 0);
    rounds_as("prefill: {layout: {auto: true}}, decode: {layout: {tp: 2}}", 0, 0);
    rounds_as("round_as: {tp: 1, cp: 2}, prefill: {layout: {tp: 4}}", 1, 2);
}

static void pools_that_cannot_be(void **st)
{
    (void)st;
    refuse("a: {model: m, mode: split, replicas: 2}", "does not go with replicas");
    refuse("a: {model: m, mode: split, layout: {auto: true}, decode: {layout: {tp: 2}}}",
           "leave decode.layout.tp out, or set auto of this pool false");
    refuse("a: {model: m, mode: split, prefill: {layout: {auto: true, cp_u: 2}}}",
           "leave prefill.layout.cp_u out");
    refuse("a: {model: m, mode: split, executor: null}", "with executor null");
    refuse("a: {model: m, decode: {step_tok: 8}}", "8 tokens; 16 to 65536");
    refuse("a.decode: {model: m}", "it would be a pool of 'a'");
    refuse("a: {model: m, mode: split, prefill: {engines: 32}, decode: {engines: 32}}",
           "64 engines with all replicas and pools; at most 63");
}

/* Slots to which nothing would move. */
static void slots_that_stay_empty(void **st)
{
    (void)st;
    refuse("a: {model: m, layout: {tp: 4, ep: 2}, experts: {spare: 1}}",
           "layout.ep is 2 and only whole experts move; ep 4");
    refuse("a: {model: m, layout: {tp: 2, adp: 2}, experts: {spare: 1}}", "ep 4");
    refuse("a: {model: m, experts: {spare: 1}}", "one rank alone");
    conf_unref(parse(
        "models: {m: {path: /m}}\n"
        "instances: {a: {model: m, layout: {adp: 4, ep: 4}, experts: {spare: 1}}}\n"));
}

static void note(void *arg, const struct conf_change *c)
{
    (void)arg;
    snprintf(seen + strlen(seen), sizeof(seen) - strlen(seen), "%s %s>%s %s\n", c->path,
             c->from ? c->from : "-", c->to ? c->to : "-", conf_class_name(c->class));
}

static void differ(const char *a, const char *b, const char *want)
{
    struct conf *x = parse(a), *y = parse(b);
    int lines = 0;

    seen[0] = '\0';
    for (const char *p = want; *p; p++)
        lines += *p == '\n';
    assert_int_equal(conf_diff(x, y, note, NULL), lines);
    assert_string_equal(seen, want);
    conf_unref(x);
    conf_unref(y);
}

static void differences(void **st)
{
    (void)st;
    differ(whole, whole, "");
    differ("", "limits: {drain_s: 30}\nmodels:\n", "");
    differ("rack: auto\nlog_level: debug\naccess: {hosts: [a]}\n",
           "rack: cpu:2\naccess: {hosts: [a, 'b']}\n",
           "rack auto>cpu:2 restart\nlog_level debug>info hot\n"
           "access.hosts [a]>[a, b] hot\n");
    differ("models: {m: {path: p}}\ninstances: {x: {model: m, step_tok: 64}}\n",
           "models: {m: {path: q}}\ninstances: {x: {model: m, step_tok: 128, sampling: "
           "{temperature: 0.70}, slo: {tpot_ms: 12.5}}}\n",
           "models.m.path p>q drain\ninstances.x.step_tok 64>128 drain\n"
           "instances.x.sampling.temperature 0.6>0.7 hot\n"
           "instances.x.slo.tpot_ms 0>12.5 hot\n");
    differ("models: {m: {path: p}}\ninstances: {x: {model: m, step_tok: 64}}\n",
           "models: {n.1: {path: p}}\ninstances: {y: {model: n.1}}\n",
           "models.m.path p>- drain\nmodels.n.1.path ->p hot\n"
           "instances.x.model m>- drain\ninstances.x.step_tok 64>- drain\n"
           "instances.y.model ->n.1 hot\n");
}

static void engine_args(void **st)
{
    struct conf *c = parse(whole);
    static const char *const want[] = {"--model=/m/demo.gguf", "--mode=colocated",
                                       "--step-tok=256", "--kv-mib=64", "--no-reuse"};
    struct engine_opts o = {0};
    char *args[32] = {NULL};
    int rest, n = conf_engine_args(c, conf_instance(c, "main"), args + 1, 31);

    (void)st;
    assert_int_equal(n, 5);
    for (int i = 0; i < n; i++)
        assert_string_equal(args[i + 1], want[i]);
    assert_int_equal(
        opt_parse(engine_opt_defs, n_engine_opt_defs, n + 1, args, &o, &rest, NULL), 0);
    assert_int_equal(o.inst.step_tok, 256);
    assert_false(o.inst.reuse);
    for (int i = 0; i < n; i++)
        free(args[i + 1]);
    assert_true(conf_arg_hot("--order=slack") && conf_arg_hot("--no-refuse-late"));
    assert_true(conf_arg_hot("--prefill-run=2") && !conf_arg_hot("--no-reuse"));
    assert_false(conf_arg_hot("--step-tok=256") || conf_arg_hot("--role=decode"));
    assert_int_equal(conf_engine_args(c, conf_instance(c, "second"), args, 31), 1);
    assert_string_equal(args[0], "--model=/m/a file");
    free(args[0]);
    conf_unref(c);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(rows_are_sound),
    cmocka_unit_test(rows_are_the_options),
    cmocka_unit_test(defaults),
    cmocka_unit_test(values),
    cmocka_unit_test(each_fault),
    cmocka_unit_test(all_faults),
    cmocka_unit_test(output_changes),
    cmocka_unit_test(limits),
    cmocka_unit_test(overrides),
    cmocka_unit_test(replicas),
    cmocka_unit_test(differences),
    cmocka_unit_test(engine_args),
    cmocka_unit_test(two_pools),
    cmocka_unit_test(paths_of_pools),
    cmocka_unit_test(layouts_of_pools),
    cmocka_unit_test(pools_round_alike),
    cmocka_unit_test(pools_that_cannot_be),
    cmocka_unit_test(slots_that_stay_empty),
};

TEST_MAIN("conf", tests)
