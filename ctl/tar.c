/* ctl/tar.c - ustar headers over a gzip stream. */
#include "ctl/tar.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <zlib.h>

#include "base/err.h"
#include "base/mem.h"

enum { BLOCK = 512, PIECE = 1 << 20 };

struct header {
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], sum[8], type;
    char link[100], magic[6], version[2], uname[32], gname[32], major[8], minor[8];
    char prefix[155], pad[12];
};
_Static_assert(sizeof(struct header) == BLOCK, "a header is one block");

struct tar {
    char *path, *part;
    gzFile z;
    bool bad;
};

int tar_open(const char *path, struct tar **ret, struct err *e)
{
    struct tar *t = xcalloc(1, sizeof(*t));
    int fd;

    t->path = xstrdup(path);
    t->part = xasprintf("%s.part", path);
    unlink(t->part); /* of a run that was killed */
    fd = open(t->part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        err_errno(e, ERR_IO, "cannot write '%s'", t->part);
        free(t->part);
        free(t->path);
        free(t);
        return -1;
    }
    t->z = gzdopen(fd, "wb6");
    if (!t->z) {
        close(fd);
        tar_abort(t);
        return err_set(e, ERR_NOMEM, "no memory to compress");
    }
    *ret = t;
    return 0;
}

static void put(struct tar *t, const void *p, size_t n)
{
    const char *at = p;

    while (n && !t->bad) {
        unsigned k = n < PIECE ? (unsigned)n : PIECE;

        t->bad = gzwrite(t->z, at, k) != (int)k;
        at += k;
        n -= k;
    }
}

void tar_add(struct tar *t, const char *name, const void *p, size_t n, int64_t mtime_s)
{
    static const char zeros[BLOCK];
    struct header h = {.type = '0', .magic = "ustar", .version = {'0', '0'}};
    unsigned sum = 0;

    snprintf(h.name, sizeof(h.name), "%s", name);
    snprintf(h.mode, sizeof(h.mode), "%07o", 0600);
    snprintf(h.uid, sizeof(h.uid), "%07o", 0);
    snprintf(h.gid, sizeof(h.gid), "%07o", 0);
    snprintf(h.size, sizeof(h.size), "%011llo", (unsigned long long)n);
    snprintf(h.mtime, sizeof(h.mtime), "%011llo", (unsigned long long)mtime_s);
    memset(h.sum, ' ', sizeof(h.sum));
    for (size_t i = 0; i < sizeof(h); i++)
        sum += ((const unsigned char *)&h)[i];
    snprintf(h.sum, sizeof(h.sum), "%06o", sum);
    put(t, &h, sizeof(h));
    put(t, p, n);
    if (n % BLOCK)
        put(t, zeros, BLOCK - n % BLOCK);
}

void tar_abort(struct tar *t)
{
    if (!t)
        return;
    if (t->z)
        gzclose(t->z);
    unlink(t->part);
    free(t->part);
    free(t->path);
    free(t);
}

int tar_close(struct tar *t, struct err *e)
{
    static const char end[2 * BLOCK];
    bool bad;

    put(t, end, sizeof(end));
    bad = t->bad;
    bad |= gzclose(t->z) != Z_OK;
    t->z = NULL;
    if (bad || rename(t->part, t->path) < 0) {
        err_errno(e, ERR_IO, "cannot write '%s'", t->path);
        tar_abort(t);
        return -1;
    }
    t->part[0] = '\0'; /* nothing to remove */
    tar_abort(t);
    return 0;
}
