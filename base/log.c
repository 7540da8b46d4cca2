/* base/log.c - the log sink: one write(2) a line, so that lines of threads and processes
 * on one stderr do not mix; or an entry of the journal, which has its own time. */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/logring.h"
#include "base/systemd.h"

static const struct {
    const char *name;
    int priority; /* as syslog counts */
} levels[] = {{"error", 3}, {"warn", 4}, {"info", 6}, {"debug", 7}};

static struct {
    const char *program;
    atomic_int level;
    bool journal; /* stderr is its stream */
    bool below;   /* stderr ends there in the end */
} sink = {.program = "llmrack", .level = LOG_LV_INFO};

void log_open(const char *program, enum log_level level)
{
    sink.program = program;
    sink.journal = systemd_is_journal(STDERR_FILENO);
    sink.below = !sink.journal && getenv("JOURNAL_STREAM") && !isatty(STDERR_FILENO);
    log_level_set(level);
}

void log_level_set(enum log_level level) { atomic_store(&sink.level, (int)level); }

enum log_level log_level_get(void) { return (enum log_level)atomic_load(&sink.level); }

const char *log_level_name(enum log_level level) { return levels[level].name; }

int log_level_parse(const char *name)
{
    for (int i = 0; i < (int)(sizeof(levels) / sizeof(levels[0])); i++)
        if (!strcmp(name, levels[i].name))
            return i;
    return -1;
}

static int prefix(char *out, size_t cap, enum log_level level)
{
    struct timespec ts;
    struct tm tm;
    int n;

    if (sink.journal || sink.below)
        return snprintf(out, cap, "<%d>%s: ", levels[level].priority, sink.program);
    clock_gettime(CLOCK_REALTIME, &ts);
    localtime_r(&ts.tv_sec, &tm);
    n = (int)strftime(out, cap, "%Y-%m-%d %H:%M:%S", &tm);
    return n + snprintf(out + n, cap - (size_t)n, ".%03ld %s %s: ", ts.tv_nsec / 1000000,
                        levels[level].name, sink.program);
}

enum { FIELDS = 7, FIELD_BYTES = 160 };

/* "NAME=value" as the next field. */
static void field(struct iovec *v, int *n, char *at, const char *name, const char *value)
{
    int len = snprintf(at, FIELD_BYTES, "%s=%s", name, value);

    v[*n] = (struct iovec){at, (size_t)(len < FIELD_BYTES ? len : FIELD_BYTES - 1)};
    ++*n;
}

/* msg[-8 ..] must be writable: "MESSAGE=" goes there. */
static int to_journal(int priority, const char *program, const struct log_about *about,
                      char *msg, size_t n)
{
    char text[FIELDS][FIELD_BYTES], number[24];
    struct iovec v[FIELDS + 1];
    int k = 1;

    memcpy(msg - 8, "MESSAGE=", 8);
    v[0] = (struct iovec){msg - 8, n + 8};
    snprintf(number, sizeof(number), "%d", priority);
    field(v, &k, text[0], "PRIORITY", number);
    field(v, &k, text[1], "SYSLOG_IDENTIFIER", program);
    if (about && about->request)
        field(v, &k, text[2], "REQUEST_ID", about->request);
    if (about && about->instance)
        field(v, &k, text[3], "INSTANCE", about->instance);
    if (about && about->revision) {
        snprintf(number, sizeof(number), "%lld", (long long)about->revision);
        field(v, &k, text[4], "REVISION", number);
    }
    if (about && about->head)
        field(v, &k, text[5], "JOURNAL_HEAD", about->head);
    return systemd_journal(v, k);
}

static void put(enum log_level level, const struct log_about *about, bool keep,
                const char *fmt, va_list ap)
{
    char line[2048];
    size_t n, from;
    bool shown = (int)level <= atomic_load(&sink.level);
    int m;

    if (!shown && !(sink.journal && about && about->head))
        return;
    from = n = (size_t)prefix(line, sizeof(line), level);
    m = vsnprintf(line + n, sizeof(line) - n - 1, fmt, ap);
    if (m < 0)
        return;
    n += (size_t)m < sizeof(line) - n - 1 ? (size_t)m : sizeof(line) - n - 2;
    for (size_t i = from; i < n; i++)
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7F)
            line[i] = ' ';
    if (keep && shown)
        logring_add(level, line + from, n - from);
    if (sink.journal && from >= 8) {
        char head[8];

        memcpy(head, line + from - 8, 8);
        if (to_journal(levels[level].priority, sink.program, about, line + from,
                       n - from) == 0)
            return;
        memcpy(line + from - 8, head, 8); /* not taken: a line of its stream */
    }
    line[n++] = '\n';
    if (write(STDERR_FILENO, line, n) < 0)
        return; /* nobody is left to tell */
}

void log_line(enum log_level level, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    put(level, NULL, true, fmt, ap);
    va_end(ap);
}

void log_unkept(enum log_level level, const struct log_about *about, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    put(level, about, false, fmt, ap);
    va_end(ap);
}

void log_about(enum log_level level, const struct log_about *about, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    put(level, about, true, fmt, ap);
    va_end(ap);
}

void log_pass(const struct log_about *about, char *line, size_t n)
{
    char msg[2048 + 8];
    int priority = 6;
    size_t skip = 0, len;

    if (sink.journal && n > 3 && line[0] == '<' && line[2] == '>' && line[1] >= '0' &&
        line[1] <= '7') {
        priority = line[1] - '0';
        skip = 3;
    }
    len = n - skip < 2048 ? n - skip : 2048;
    memcpy(msg + 8, line + skip, len);
    if (sink.journal && to_journal(priority, sink.program, about, msg + 8, len) == 0)
        return;
    line[n] = '\n';
    if (write(STDERR_FILENO, line, n + 1) < 0)
        return;
}
