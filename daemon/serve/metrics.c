/* daemon/serve/metrics.c - builds the metric table from metrics.def. Bucket lists follow
 * what scrapers of the vllm: names expect (vllm/v1/metrics/loggers.py, version 0.32). */
#include "daemon/serve/metrics.h"

#include <stddef.h>

#define LEN(a) ((int)(sizeof(a) / sizeof((a)[0])))

static const char *const none[] = {NULL};
static const char *const waiting_reasons[] = {"capacity", "deferred", NULL};
static const char *const kv_tiers[] = {"host", "disk", NULL};
static const char *const kv_moves[] = {"down", "up", "written", "read", NULL};
static const char *const prompt_sources[] = {"local_compute", "local_cache_hit", NULL};
static const char *const finish_reasons[] = {"stop", "length", "abort", "error", NULL};
static const char *const step_shapes[] = {"answers", "prompts", NULL};
static const char *const import_states[] = {"queued", "waiting", "copying", "closing",
                                            NULL};
static const char *const split_parts[] = {"removed", "handoff", "scheduling", "queueing",
                                          NULL};
static const char *const alter_actions[] = {"f8", "next-best", "drop", NULL};
static const char *const move_results[] = {"done", "aborted", NULL};
static const char *const http_codes[] = {"1xx", "2xx", "3xx", "4xx", "5xx", NULL};

static const double b_ttft[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                20,    40,    80,   160,  640,  2560};
static const double b_itl[] = {0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.025, 0.05,
                               0.075, 0.1,   0.15,  0.2,   0.3,    0.4,  0.5,   0.75,
                               1,     2.5,   5,     7.5,   10,     20,   40,    80};
static const double b_slack[] = {-60,  -10, -5,  -2,  -1, -0.5, -0.2, -0.1, -0.05, 0,
                                 0.05, 0.1, 0.2, 0.5, 1,  2,    5,    10,   60};
static const double b_e2e[] = {0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5,   10,   15,  20,
                               30,  40,  50,  60,  120, 240, 480, 960, 1920, 7680};
static const double b_tok[] = {1,     2,      5,      10,     20,     50,    100,
                               200,   500,    1000,   2000,   5000,   10000, 20000,
                               50000, 100000, 200000, 500000, 1000000};
static const double b_small[] = {1, 2, 5, 10, 20};
static const double b_iter[] = {1,   8,    16,   32,   64,   128,  256,
                                512, 1024, 2048, 4096, 8192, 16384};

const struct metric_def metrics_defs[METRICS_N] = {
#define COUNTER(id, name, label, values, help)                                           \
    {name, METRIC_COUNTER, help, label, values, NULL, 0},
#define SHARE(id, name, label, values, help)                                             \
    {name, METRIC_SHARE, help, label, values, NULL, 0},
#define GAUGE(id, name, label, values, help)                                             \
    {name, METRIC_GAUGE, help, label, values, NULL, 0},
#define HISTOGRAM(id, name, b, help)                                                     \
    {name, METRIC_HISTOGRAM, help, NULL, none, b, LEN(b)},
#include "daemon/serve/metrics.def"
};
