/* Every figure that the mission names comes out of `explain`. */
#include "tests/test.h"

#include <math.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "topo/explain.h"
#include "topo/formula.h"

enum { WORDS_MAX = 8 };

/* "a=1 b=2" as words; the copy lives as long as the program. */
static struct explain *run(const char *topic, const char *line)
{
    static char copy[4096];
    const char *words[WORDS_MAX];
    struct err e = {0};
    struct explain *x = NULL;
    int n = 0;

    snprintf(copy, sizeof(copy), "%s", line);
    for (char *w = strtok(copy, " "); w; w = strtok(NULL, " "))
        words[n++] = w;
    if (explain_run(topic, words, n, &x, &e) < 0)
        fail_msg("explain %s %s: %s", topic, line, e.msg);
    return x;
}

/* A sentence of `explain topic line` contains text. */
static void says(const char *topic, const char *line, const char *text)
{
    struct explain *x = run(topic, line);
    struct buf b;

    buf_init(&b, 0);
    explain_print(x, &b);
    if (!strstr(b.p, text))
        fail_msg("'%s' is not in:\n%s", text, b.p);
    buf_done(&b);
    explain_free(x);
}

static void gives(const char *topic, const char *line, const char *figure, double want,
                  double tolerance)
{
    struct explain *x = run(topic, line);
    double v = NAN;

    if (!explain_get(x, figure, &v))
        fail_msg("explain %s has no figure '%s'", topic, figure);
    if (!(fabs(v - want) <= tolerance))
        fail_msg("explain %s %s: %s is %.9g, not %.9g", topic, line, figure, v, want);
    explain_free(x);
}

static void capacity(void **s)
{
    (void)s;
    static const struct {
        const char *format;
        double tb, a100, h200, b200;
    } rows[] = {
        {"bf16", 5.6, 70, 40, 32}, {"fp8", 2.8, 35, 20, 16}, {"4-bit", 1.4, 18, 10, 8}};
    char name[64];

    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof(name), "%s_bytes", rows[i].format);
        gives("capacity", "", name, rows[i].tb * 1e12, 1);
        snprintf(name, sizeof(name), "%s_A100-80GB", rows[i].format);
        gives("capacity", "params=2.8T", name, rows[i].a100, 0);
        snprintf(name, sizeof(name), "%s_H200-141GB", rows[i].format);
        gives("capacity", "params=2800G", name, rows[i].h200, 0);
        snprintf(name, sizeof(name), "%s_B200-180GB", rows[i].format);
        gives("capacity", "", name, rows[i].b200, 0);
    }
    gives("capacity", "node=8", "bf16_A100-80GB_nodes", 9, 0);
    gives("capacity", "node=8", "bf16_H200-141GB_nodes", 5, 0);
    gives("capacity", "node=8", "bf16_B200-180GB_nodes", 4, 0);
    gives("capacity", "device_gb=288", "4-bit_device", 5, 0);
    says("capacity", "", "bf16 at 2 bytes a parameter: 5.6 TB");
}

static void handoff(void **s)
{
    (void)s;
    gives("handoff", "", "bytes", 9.216e9, 0.5);
    gives("handoff", "", "ms", 18.0, 0.0001);
    gives("handoff", "", "ms_rounded", 17.578125, 1e-9);
    gives("handoff", "fixed_ms=2 efficiency=0.5", "ms", 38.0, 1e-9);
    says("handoff", "", "18.0 ms");
    says("handoff", "", "17.6 ms");
    gives("split", "interference_ms=30 handoff_ms=18 scheduling_ms=1 queueing_ms=5",
          "pays", 1, 0);
    gives("split", "interference_ms=24 handoff_ms=18 scheduling_ms=1 queueing_ms=5",
          "pays", 0, 0);
}

static void collectives(void **s)
{
    (void)s;
    for (int p = 1; p <= 64; p *= 2) {
        char line[64];
        double part = 1e6 * (p - 1) / p;
        snprintf(line, sizeof(line), "p=%d bytes=1M", p);
        gives("collective", line, "all_reduce", 2 * part, 1e-6);
        gives("collective", line, "all_gather", part, 1e-6);
        gives("collective", line, "reduce_scatter", part, 1e-6);
        gives("collective", line, "tp_forward", 4 * part, 1e-6);
        gives("collective", line, "tp_sp_forward", 4 * part, 1e-6);
        gives("training", line, "tp", 8 * part, 1e-6);
        gives("training", line, "tp_sp", 10 * part, 1e-6);
    }
    gives("training", "p=8", "extra", 0.25, 1e-12);
    says("training", "", "+25 %");
    says("training", "", "training only");
    gives("collective", "p=2 bytes=1M alpha_us=3 bps=100G", "all_reduce_us", 13, 1e-9);
}

/* 1000 us over n plus 10 all-reduces of 10 us: 500+, 250+ and so on, until it turns. */
static void tp_time(void **s)
{
    (void)s;
    const char *line = "compute_us=1000 collectives=10 bytes=0 alpha_us=10 max=8";
    gives("tp-time", line, "t_2", 600, 1e-9);
    gives("tp-time", line, "t_8", 225, 1e-9);
    gives("tp-time", line, "best", 8, 0);
    gives("tp-time", "compute_us=100 collectives=10 bytes=0 alpha_us=10", "best", 1, 0);
    gives("tp-time",
          "compute_us=1000 collectives=64 bytes=16M alpha_us=0 bps=400G max=64", "best",
          1, 0);
    gives("tp-time", "compute_us=10000 collectives=64 bytes=16M alpha_us=0 bps=400G",
          "t_2", 5000 + 64 * 40, 1e-6);
}

static void ep_traffic(void **s)
{
    (void)s;
    const double mib = 1048576;
    gives("ep-traffic", "", "logical", 128 * mib, 0);
    gives("ep-traffic", "", "remote_share", 7.0 / 8, 0);
    gives("ep-traffic", "", "remote", 112 * mib, 0);
    gives("ep-traffic", "", "both", 224 * mib, 0);
    gives("ep-traffic", "", "rank", 28 * mib, 0);
    gives("ep-traffic", "", "pair", 2 * mib, 0);
    gives("ep-traffic", "k=16", "both", 1.75 * 1024 * mib, 0);
    says("ep-traffic", "", "224 MiB");
    says("ep-traffic", "k=16", "1.75 GiB");
    gives("dispatch-time", "fixed_us=5 send=1M,4M recv=2M,3M send_bps=1T recv_bps=500G",
          "time_us", 5 + 6, 1e-9);
    gives("dispatch-time", "fixed_us=0 send=1M,4M recv=0,0 send_bps=1T,100G recv_bps=1T",
          "time_us", 40, 1e-9);
}

static void mesh(void **s)
{
    (void)s;
    gives("mesh", "", "world", 64, 0);
    gives("mesh", "", "sp", 2, 0);
    gives("mesh", "", "experts_per_rank", 8, 0);
    gives("mesh", "replicas=2", "devices", 128, 0);
    gives("mesh", "replicas=1", "devices", 64, 0);
}

static void striped(void **s)
{
    (void)s;
    says("striped-cp", "", "rank 0: {0,3,6,9}");
    says("striped-cp", "", "rank 1: {1,4,7,10}");
    says("striped-cp", "", "rank 2: {2,5,8,11}");
    gives("striped-cp", "positions=13 C=3", "rank0_count", 5, 0);
    gives("striped-cp", "C=8 U=2", "R", 4, 0);
    says("striped-cp", "C=8 U=2", "C 8 = U 2 x R 4");
}

static void experts(void **s)
{
    (void)s;
    gives("ep-load", "T=5600", "assignments", 16 * 5600, 0);
    gives("ep-load", "T=5600", "mean", 5600 / 56.0, 0);
    gives("ep-load", "", "active_share", 104e9 / 2.8e12, 1e-12);
    says("ep-load", "", "T/56 = 100");
    gives("imbalance", "load=100,100,400,200", "R", 2, 1e-12);
    gives("imbalance", "load=7,7,7", "R", 1, 1e-12);
    gives("capacity-factor", "", "slots", 120, 0);
    gives("capacity-factor", "T=5601", "slots", 121, 0);
    gives("moe-time", "dispatch_us=10 queue_us=5,0 compute_us=20,24 combine_us=3",
          "time_us", 10 + 25 + 3, 1e-9);
}

static void speculation(void **s)
{
    (void)s;
    says("speculation", "k=5 a=0.5", "1.97");
    says("speculation", "k=5 a=0.8", "3.69");
    says("speculation", "k=5 a=0.9", "4.69");
    gives("speculation", "k=5 a=0.5", "advance", 1.96875, 1e-12);
    gives("speculation", "k=5 a=1", "advance", 6, 0);
    gives("speculation", "k=5 a=0", "advance", 1, 0);
    gives("residual", "", "residual0", 0, 0);
    gives("residual", "", "residual1", 1 / 3.0, 1e-12);
    gives("residual", "", "residual2", 2 / 3.0, 1e-12);
    gives("residual", "", "accept0", 0.5, 1e-12);
    gives("residual", "", "accept", 0.7, 1e-12);
}

static void hardware_and_claims(void **s)
{
    (void)s;
    gives("nvlink", "", "total", 129.6e12, 1);
    gives("nvlink", "", "one_way", 900e9, 0);
    gives("reported", "", "interference_128", 1.8, 0);
    gives("reported", "", "interference_1024", 12.6, 0);
    gives("reported", "", "distserve", 7.4, 0);
    gives("reported", "", "eagle_token", 1.5, 0);
    gives("reported", "", "eagle_feature", 1.9, 0);
    gives("reported", "", "eagle_shifted", 2.8, 0);
    gives("reported", "", "medusa_top1", 0.6, 0);
    gives("reported", "", "medusa_top5", 0.8, 0);
    says("reported", "", "never promised");
}

static void refuses(const char *topic, const char *word, enum err_code code)
{
    struct err e = {0};
    struct explain *x = NULL;

    assert_int_equal(explain_run(topic, &word, 1, &x, &e), -1);
    if (e.code != code)
        fail_msg("explain %s %s: %s (%s)", topic, word, e.msg, err_name(e.code));
    assert_null(x);
}

static void bad_arguments(void **s)
{
    (void)s;
    refuses("nothing", "", ERR_NOTFOUND);
    refuses("collective", "q=3", ERR_INVALID);
    refuses("collective", "p", ERR_INVALID);
    refuses("collective", "p=", ERR_INVALID);
    refuses("collective", "p=eight", ERR_INVALID);
    refuses("collective", "p=8.5", ERR_INVALID);
    refuses("collective", "p=0", ERR_RANGE);
    refuses("collective", "bytes=nan", ERR_RANGE);
    refuses("collective", "bytes=1e400", ERR_RANGE);
    refuses("imbalance", "load=0,0", ERR_INVALID);
    refuses("imbalance", "load=1,,2", ERR_INVALID);
    refuses("residual", "p=0.5,0.4,0.3", ERR_INVALID);
    refuses("residual", "p=0.5,0.5", ERR_INVALID);
    refuses("moe-time", "queue_us=1,2,3", ERR_INVALID);
    refuses("mesh", "ep=7", ERR_INVALID);
    refuses("striped-cp", "U=2", ERR_INVALID);
    refuses("reported", "x=1", ERR_INVALID);
}

/* Each row runs with its defaults, and its JSON parses and has what it says. */
static void every_topic(void **s)
{
    (void)s;
    for (int i = 0; i < explain_n_topics(); i++) {
        const struct explain_topic *t = explain_topic_at(i);
        struct explain *x = run(t->name, "");
        struct buf b;
        struct err e;
        json_t *js = NULL;

        buf_init(&b, 0);
        explain_print(x, &b);
        assert_non_null(strstr(b.p, t->assumes));
        buf_clear(&b);
        explain_json(x, &b);
        assert_int_equal(js_parse(b.p, b.len, NULL, &js, &e), 0);
        assert_true(json_object_size(json_object_get(js, "figures")) > 0);
        json_decref(js);
        buf_done(&b);
        explain_free(x);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(capacity),      cmocka_unit_test(handoff),
        cmocka_unit_test(collectives),   cmocka_unit_test(tp_time),
        cmocka_unit_test(ep_traffic),    cmocka_unit_test(mesh),
        cmocka_unit_test(striped),       cmocka_unit_test(experts),
        cmocka_unit_test(speculation),   cmocka_unit_test(hardware_and_claims),
        cmocka_unit_test(bad_arguments), cmocka_unit_test(every_topic)};
    return test_main(argc, argv, "explain", tests, sizeof(tests) / sizeof(tests[0]));
}
