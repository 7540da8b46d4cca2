/* base/log.h - levelled lines to stderr, one line a call, for the edges only.
 *
 * Under systemd (JOURNAL_STREAM set) each line carries its <N> priority; otherwise a
 * time stamp. Control bytes are replaced. Never pass prompts, answers or secrets.
 * Any thread: a line is one write(2). */
#ifndef BASE_LOG_H
#define BASE_LOG_H

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

/* The same, but not among the last lines that are kept (base/logring.h): texts of
 * requests, where the operator wants them logged at all. */
void log_unkept(enum log_level level, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#define log_error(...) log_line(LOG_LV_ERROR, __VA_ARGS__)
#define log_warn(...) log_line(LOG_LV_WARN, __VA_ARGS__)
#define log_info(...) log_line(LOG_LV_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_LV_DEBUG, __VA_ARGS__)

#endif
