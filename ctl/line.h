/* ctl/line.h - the terminal: one line at a time, with history and completion.
 *
 * The only file that sees readline. Without a terminal on standard input lines are read
 * plainly: no prompt, no colour, no history. Ctrl-C clears the line being typed; while a
 * verb runs it sets the flag of line_stop_flag(). One owner thread. */
#ifndef CTL_LINE_H
#define CTL_LINE_H

#include <stdbool.h>

/* i-th completion (0, 1, ..) of `part` after `before`, into word; NULL when no more. */
typedef const char *(*line_complete_fn)(const char *before, const char *part, int i,
                                        char *word, unsigned cap);
/* `?` was typed after `line`: the text to show, malloc'd. */
typedef char *(*line_help_fn)(const char *line);

void line_open(const char *history_path, line_complete_fn complete, line_help_fn help);
/* Restores the terminal and saves the history. */
void line_close(void);
/* The next line, malloc'd, or NULL at the end of input. keep: into the history. */
char *line_read(const char *prompt, bool keep);
bool line_is_terminal(void);
/* Columns of the output terminal; 0 when it is none. */
int line_width(void);
/* Set to 1 by SIGINT; the caller clears it before each verb. */
volatile int *line_stop_flag(void);

#endif
