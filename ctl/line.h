/* ctl/line.h - the terminal: one line at a time, with history and completion.
 *
 * The only file that sees readline. Without a terminal on standard input lines are read
 * plainly: no prompt, no colour, no history. Ctrl-C clears the line being typed; while a
 * verb runs it sets the flag of line_stop_flag(). News never mix with what is typed: the
 * line is taken away, the news printed, the line put back; while readline searches or
 * completes they wait. One owner thread. */
#ifndef CTL_LINE_H
#define CTL_LINE_H

#include <stdbool.h>

struct pollfd;

/* Words that Tab may put; owned by the callee that fills it with line_words_add. */
struct line_words {
    char **w;
    int n, cap;
    bool files; /* names of files here instead */
};
void line_words_add(struct line_words *l, const char *word);
void line_words_done(struct line_words *l);

struct line_hooks {
    /* Completions of `part` after `before`. */
    void (*complete)(const char *before, const char *part, struct line_words *ret);
    /* `?` was typed after `line`: the text to show, malloc'd, NULL = an ordinary `?`. */
    char *(*help)(const char *line);
    /* The prompt now, asked again each second while a line is typed; borrowed. */
    const char *(*prompt)(void);
    /* What else to wait for while a line is typed, and the work when something came. */
    int (*fds)(struct pollfd *ret, int max);
    void (*work)(void);
};

void line_open(const char *history_path, const struct line_hooks *hooks);
/* Restores the terminal and saves the history. */
void line_close(void);
/* The next line, malloc'd, or NULL at the end of input. prompt NULL: the hooks', with
 * completion and help. keep: into the history. */
char *line_read(const char *prompt, bool keep);
/* A question, answered y or n; anything else is no. */
bool line_ask(const char *question);
/* A line of news (without newline), now or as soon as it does no harm. */
void line_news(const char *text);
bool line_is_terminal(void);
/* A signal to end has come: line_read gives no more lines. */
bool line_ended(void);
/* Columns and rows of the output terminal; 0 when it is none. */
int line_width(void);
int line_height(void);
/* Set to 1 by SIGINT; the caller clears it before each verb. */
volatile int *line_stop_flag(void);
/* Whether the window changed its size since the last call. */
bool line_resized(void);

#endif
