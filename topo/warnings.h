/* topo/warnings.h - a growing list of sentences: what a probe could not see.
 *
 * A probe's report holds the list as two plain members and frees it with itself. One
 * owner thread. */
#ifndef TOPO_WARNINGS_H
#define TOPO_WARNINGS_H

#include <stdarg.h>

void warnings_vadd(char ***list, int *n, const char *fmt, va_list ap)
    __attribute__((format(printf, 3, 0)));
void warnings_free(char **list, int n);

#endif
