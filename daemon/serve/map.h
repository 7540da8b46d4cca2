/* daemon/serve/map.h - a regular file, mapped read-only, that may be cut short meanwhile.
 *
 * Reading a page that the file no longer has raises SIGBUS. With map_sigbus_install, that
 * ends the process after one sentence on fd 2 that names the file; last_words (may be
 * NULL) is told the path before, in the signal handler, and must be async-signal-safe.
 * With map_sigbus_survive, what is gone reads as zeros and map_check tells: for a process
 * that must go on. A SIGBUS elsewhere keeps its usual meaning. A map is immutable; any
 * thread may read. */
#ifndef SERVE_MAP_H
#define SERVE_MAP_H

#include <stddef.h>

struct err;
struct map;

int map_open(const char *path, struct map **ret, struct err *e);
void map_close(struct map *m);
const void *map_data(const struct map *m);
size_t map_bytes(const struct map *m);
const char *map_path(const struct map *m);

/* The whole pages inside p[0..n) of the map are not needed now; they come back from the
 * file when read again. Does nothing when p is not in the map. */
void map_drop(const struct map *m, const void *p, size_t n);

/* -1 with a sentence when a page of the file was found to be gone (survive mode): then
 * what was read from the map means nothing. */
int map_check(const struct map *m, struct err *e);

/* One of the two, once, by a program's main, before files are read. The exit code of the
 * first is that of a damaged file. */
void map_sigbus_install(void (*last_words)(const char *path));
void map_sigbus_survive(void);

#endif
