/* daemon/serve/metrics.h - the table of every metric, shared by daemon and engine.
 *
 * metrics.def holds the rows; M_<id> is the row number. Names, labels and buckets of the
 * vllm: rows are what scrapers of this field expect; llmrack_ rows are ours. */
#ifndef SERVE_METRICS_H
#define SERVE_METRICS_H

#include "base/metric.h"

enum metric_id {
#define COUNTER(id, name, label, values, help) M_##id,
#define GAUGE(id, name, label, values, help) M_##id,
#define SHARE(id, name, label, values, help) M_##id,
#define HISTOGRAM(id, name, buckets, help) M_##id,
#include "daemon/serve/metrics.def"
#undef COUNTER
#undef GAUGE
#undef SHARE
#undef HISTOGRAM
    METRICS_N
};

extern const struct metric_def metrics_defs[METRICS_N];

#endif
