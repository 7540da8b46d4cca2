/* daemon/ctrl/alarm.h - what is wrong now: active alarms with since when, and the last
 * ended.
 *
 * An alarm has a stable id ("instance.failed main", "config.rescue", "rack.finding
 * gpu3"): raising it again only renews its text. Each change is given to the listener
 * (journal, events). Set on the control thread, read by any. */
#ifndef CTRL_ALARM_H
#define CTRL_ALARM_H

#include <stdbool.h>
#include <stdint.h>

struct alarms;

enum alarm_severity { ALARM_WARNING, ALARM_MAJOR, ALARM_CRITICAL };
const char *alarm_severity_name(enum alarm_severity s);

struct alarm_status {
    char id[96], text[256];
    enum alarm_severity severity;
    int64_t since_ms, ended_ms; /* Unix ms; ended 0 = active */
};

/* What may be wrong with an engine: an alarm "KIND ENGINE" of this severity each. */
#define ALARM_ENGINE_MAP(X)                                                              \
    X(FAILED, "instance.failed", MAJOR) /* it cannot be started */                       \
    X(SILENT, "instance.silent", MAJOR) /* it gives no sign of life */                   \
    X(KV_DISK, "kv.disk", WARNING)      /* its KV does not get to disk */
enum alarm_engine {
#define X(id, name, severity) ALARM_ENGINE_##id,
    ALARM_ENGINE_MAP(X)
#undef X
        ALARM_ENGINE_COUNT
};
/* The kind of that name; ALARM_ENGINE_COUNT: none. */
enum alarm_engine alarm_engine_named(const char *name);

typedef void (*alarm_fn)(void *arg, const struct alarm_status *a);
struct alarms *alarms_new(alarm_fn changed, void *arg);
void alarms_free(struct alarms *a);
void alarm_raise(struct alarms *a, const char *id, enum alarm_severity s,
                 const char *text);
void alarm_clear(struct alarms *a, const char *id); /* unknown ids are normal */
/* Of the engine named; why NULL: it is well again. */
void alarm_engine(struct alarms *a, enum alarm_engine kind, const char *engine,
                  const char *why);
/* Active ones first, worst first, then up to 64 ended ones; returns the count. */
int alarms_list(struct alarms *a, struct alarm_status *ret, int max);

#endif
