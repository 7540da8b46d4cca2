/* base/log.h - levelled lines to stderr or the journal, for the edges only.
 *
 * Where stderr is the journal's (JOURNAL_STREAM), a line is an entry with its priority
 * and, where it is about one, REQUEST_ID, INSTANCE, REVISION or
 * JOURNAL_HEAD. Elsewhere it is a line
 * with a time stamp, one write(2) each; a child of such a daemon, whose stderr is a pipe,
 * puts <N> before it for the journal that it ends in. Control bytes are replaced. Never
 * pass prompts, answers or secrets. Any thread. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stddef.h>
#include <stdint.h>

enum log_level { LOG_LV_ERROR, LOG_LV_WARN, LOG_LV_INFO, LOG_LV_DEBUG };

/* program is borrowed and put before each line. */
void log_open(const char *program, enum log_level level);
void log_level_set(enum log_level level);
enum log_level log_level_get(void);
const char *log_level_name(enum log_level level);
/* "error|warn|info|debug" -> level, -1 when unknown. */
int log_level_parse(const char *name);
void log_line(enum log_level level, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* What a line is about, as fields of the journal; NULL or 0 = nothing of the kind. */
struct log_about {
    const char *request, *instance;
    int64_t revision;
    const char
        *head; /* of our own journal's chain: such a line is an entry at any level */
};
void log_about(enum log_level level, const struct log_about *about, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The same, but not among the last lines that are kept (base/logring.h): texts of
 * requests, where the operator wants them logged at all. */
void log_unkept(enum log_level level, const struct log_about *about, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* A whole line of a child's stderr, as it is; line[n] may be written to. */
void log_pass(const struct log_about *about, char *line, size_t n);

#define log_error(...) log_line(LOG_LV_ERROR, __VA_ARGS__)
#define log_warn(...) log_line(LOG_LV_WARN, __VA_ARGS__)
#define log_info(...) log_line(LOG_LV_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_LV_DEBUG, __VA_ARGS__)

#endif
