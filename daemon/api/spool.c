/* daemon/api/spool.c - a request body that goes into a file. */
#include "daemon/api/spool.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"

enum { KEEP_FREE = 64 << 20 };

#define UPLOAD "upload-"
#define DOWNLOAD "download-"
#define COPY "/state.db"

void spool_sweep(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *f;

    while (d && (f = readdir(d))) {
        char *path = xasprintf("%s/%s", dir, f->d_name);

        if (!strncmp(f->d_name, UPLOAD, strlen(UPLOAD)))
            unlink(path);
        if (!strncmp(f->d_name, DOWNLOAD, strlen(DOWNLOAD)))
            spool_release(xasprintf("%s%s", path, COPY));
        free(path);
    }
    if (d)
        closedir(d);
}

int spool_open(struct spool *s, const char *dir, struct err *e)
{
    s->path = xasprintf("%s/%sXXXXXX", dir, UPLOAD);
    s->fd = mkostemp(s->path, O_CLOEXEC);
    if (s->fd >= 0)
        return 0;
    err_errno(e, errno == ENOSPC ? ERR_UNAVAIL : ERR_IO, "cannot make a file in '%s'",
              dir);
    free(s->path);
    s->path = NULL;
    return -1;
}

int spool_reserve(const char *dir, char **ret, struct err *e)
{
    char *folder = xasprintf("%s/%sXXXXXX", dir, DOWNLOAD);

    if (!mkdtemp(folder))
        err_errno(e, errno == ENOSPC ? ERR_UNAVAIL : ERR_IO,
                  "cannot make a folder in '%s'", dir);
    else
        *ret = xasprintf("%s%s", folder, COPY);
    free(folder);
    return *ret ? 0 : -1;
}

void spool_release(char *path)
{
    if (!path)
        return;
    unlink(path);
    path[strlen(path) - strlen(COPY)] = '\0';
    rmdir(path);
    free(path);
}

static int room(const struct spool *s, size_t n, struct err *e)
{
    struct statvfs v;

    if (fstatvfs(s->fd, &v) < 0)
        return err_errno(e, ERR_IO, "'%s'", s->path);
    if ((uint64_t)v.f_bavail * v.f_frsize >= n + (uint64_t)KEEP_FREE)
        return 0;
    return err_set(e, ERR_UNAVAIL,
                   "the disk of the state folder has less than %d MiB left; a body of "
                   "that size is not taken",
                   KEEP_FREE >> 20);
}

int spool_add(struct spool *s, const void *p, size_t n, struct err *e)
{
    const char *from = p;

    if (room(s, n, e) < 0)
        return -1;
    while (n) {
        ssize_t k = write(s->fd, from, n);

        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return err_errno(e, errno == ENOSPC ? ERR_UNAVAIL : ERR_IO,
                             "cannot write '%s'", s->path);
        from += k;
        n -= (size_t)k;
        s->n += (uint64_t)k;
    }
    return 0;
}

void spool_done(struct spool *s)
{
    if (!s->path)
        return;
    close(s->fd);
    unlink(s->path);
    free(s->path);
    *s = (struct spool){0};
}
