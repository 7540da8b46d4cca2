/* base/log.c - the log sink: one write(2) a line, so that lines of threads and processes
 * on one stderr do not mix. The journal adds its own time stamp, a terminal does not. */
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

static const struct {
    const char *name;
    int priority; /* as syslog counts */
} levels[] = {{"error", 3}, {"warn", 4}, {"info", 6}, {"debug", 7}};

static struct {
    const char *program;
    atomic_int level;
    bool journal;
} sink = {.program = "llmrack", .level = LOG_LV_INFO};

void log_open(const char *program, enum log_level level)
{
    sink.program = program;
    sink.journal = getenv("JOURNAL_STREAM") != NULL;
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

    if (sink.journal)
        return snprintf(out, cap, "<%d>%s: ", levels[level].priority, sink.program);
    clock_gettime(CLOCK_REALTIME, &ts);
    localtime_r(&ts.tv_sec, &tm);
    n = (int)strftime(out, cap, "%Y-%m-%d %H:%M:%S", &tm);
    return n + snprintf(out + n, cap - (size_t)n, ".%03ld %s %s: ", ts.tv_nsec / 1000000,
                        levels[level].name, sink.program);
}

static void put(enum log_level level, bool keep, const char *fmt, va_list ap)
{
    char line[2048];
    size_t n, from;
    int m;

    if ((int)level > atomic_load(&sink.level))
        return;
    from = n = (size_t)prefix(line, sizeof(line), level);
    m = vsnprintf(line + n, sizeof(line) - n - 1, fmt, ap);
    if (m < 0)
        return;
    n += (size_t)m < sizeof(line) - n - 1 ? (size_t)m : sizeof(line) - n - 2;
    for (size_t i = from; i < n; i++)
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7F)
            line[i] = ' ';
    if (keep)
        logring_add(level, line + from, n - from);
    line[n++] = '\n';
    if (write(STDERR_FILENO, line, n) < 0)
        return; /* nobody is left to tell */
}

void log_line(enum log_level level, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    put(level, true, fmt, ap);
    va_end(ap);
}

void log_unkept(enum log_level level, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    put(level, false, fmt, ap);
    va_end(ap);
}
