/* ctl/shell.h - lines that are typed or piped in, one after the other; or just one.
 *
 * The prompt shows a revision that waits for its confirmation with the seconds left;
 * events of the daemon appear above the line that is being typed. */
#ifndef CTL_SHELL_H
#define CTL_SHELL_H

struct session;

/* command NULL: a session until exit or the end of input. Returns the exit code. */
int shell_run(struct session *s, const char *command);

#endif
