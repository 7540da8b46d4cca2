/* daemon/api/spool.h - a request body that goes into a file: a state to restore.
 *
 * And the place for one that goes out. In the state folder, mode 0600, gone with the
 * request. Bounded by SPOOL_MAX and by what
 * the disk must keep free for the state itself. Of one request: one thread at a time. */
#ifndef API_SPOOL_H
#define API_SPOOL_H

#include <stddef.h>
#include <stdint.h>

struct err;

#define SPOOL_MAX ((uint64_t)1 << 30)

struct spool {
    char *path; /* NULL: not opened */
    int fd;
    uint64_t n;
};

/* What a daemon that was killed left behind: files and folders of ours in dir. */
void spool_sweep(const char *dir);
int spool_open(struct spool *s, const char *dir, struct err *e);
int spool_add(struct spool *s, const void *p, size_t n, struct err *e);
void spool_done(struct spool *s); /* also of one that was not opened */

/* The way out: *ret is a path (malloc'd) where nothing stands yet, in a folder of its own
 * that spool_release removes with what is in it, and frees the path. */
int spool_reserve(const char *dir, char **ret, struct err *e);
void spool_release(char *path);

#endif
