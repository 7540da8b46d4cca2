/* daemon/print.h - what llmrackd prints when it is only asked: help, version, documents.
 *
 * Floor 5, for main.c. */
#ifndef DAEMON_PRINT_H
#define DAEMON_PRINT_H

#include <stdbool.h>

struct daemon_opts;

/* Print what the options ask for; false when they ask for nothing, so the daemon runs. */
bool print_asked(const struct daemon_opts *o);

#endif
