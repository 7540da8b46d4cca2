/* daemon/app.h - llmrackd's parts: which there are, started in order, stopped in reverse.
 *
 * The main thread is the control thread: it owns the loop, the store, the configuration
 * and the engines, and runs the sinks of HTTP. */
#ifndef DAEMON_APP_H
#define DAEMON_APP_H

struct app;
struct daemon_opts;
struct err;

/* Borrows the options until app_free. */
struct app *app_new(const struct daemon_opts *o);
/* Everything up to the listeners; engines load after that. */
int app_start(struct app *a, struct err *e);
/* Until a signal ends it. */
int app_run(struct app *a, struct err *e);
/* code: of the process, for the journal. Takes a half-started one. */
void app_free(struct app *a, int code);

#endif
