/* ctl/file.h - the files that a verb names: they belong to llmctl, their bytes travel.
 *
 * Reading is bounded; writing is whole or not at all (a .part beside it, fsync, rename).
 */
#ifndef CTL_FILE_H
#define CTL_FILE_H

#include <stdbool.h>
#include <stddef.h>

struct buf;
struct err;

/* All of path ("-" = standard input) into out, which is initialised here; TOOBIG over
 * max bytes. */
int file_read(const char *path, size_t max, struct buf *out, struct err *e);
/* The same for a text: one with a zero byte is refused. */
int file_text(const char *path, size_t max, struct buf *out, struct err *e);
/* mode: of the new file, e.g. 0644, or 0600 for what holds secrets. */
int file_write(const char *path, const void *p, size_t n, unsigned mode, struct err *e);
/* Could it be written now? For work that writes it at its end. */
int file_may_write(const char *path, struct err *e);
bool file_is(const char *path); /* a regular file */

#endif
