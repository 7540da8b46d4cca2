/* ctl/tar.h - a .tar.gz that is written member by member; the only file that sees zlib.
 *
 * It stands under its name only when it is whole. Mode 0600. One owner thread. */
#ifndef CTL_TAR_H
#define CTL_TAR_H

#include <stddef.h>
#include <stdint.h>

struct err;
struct tar;

int tar_open(const char *path, struct tar **ret, struct err *e);
/* A regular file; name at most 99 bytes. What fails shows at tar_close. */
void tar_add(struct tar *t, const char *name, const void *p, size_t n, int64_t mtime_s);
/* Ends and renames it into place; frees t also when it fails. */
int tar_close(struct tar *t, struct err *e);
/* Frees t and leaves nothing behind. */
void tar_abort(struct tar *t);

#endif
