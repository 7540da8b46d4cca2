/* ctl/file.c - read whole, write whole. */
#include "ctl/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"

bool file_is(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

int file_read(const char *path, size_t max, struct buf *out, struct err *e)
{
    bool standard = !strcmp(path, "-");
    int fd = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    char chunk[65536];
    ssize_t n;

    buf_init(out, max);
    if (fd < 0)
        return err_errno(e, ERR_NOTFOUND, "'%s'", path);
    while ((n = read(fd, chunk, sizeof(chunk))) > 0 && !out->over)
        buf_add(out, chunk, (size_t)n);
    if (n < 0)
        err_errno(e, ERR_IO, "cannot read '%s'", path);
    else if (out->over)
        err_set(e, ERR_TOOBIG, "'%s' is over %zu MiB", path, max >> 20);
    if (!standard)
        close(fd);
    if (n >= 0 && !out->over) {
        buf_puts(out, ""); /* so that p is a string */
        return 0;
    }
    buf_done(out);
    return -1;
}

int file_text(const char *path, size_t max, struct buf *out, struct err *e)
{
    if (file_read(path, max, out, e) < 0)
        return -1;
    if (strlen(out->p) == out->len)
        return 0;
    buf_done(out);
    return err_set(e, ERR_INVALID, "'%s' is no text: it has a zero byte", path);
}

static int write_all(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t k = write(fd, p, n);

        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return -1;
        p += k;
        n -= (size_t)k;
    }
    return 0;
}

int file_may_write(const char *path, struct err *e)
{
    const char *slash = strrchr(path, '/');
    char *folder = !slash          ? xstrdup(".")
                   : slash == path ? xstrdup("/")
                                   : xstrndup(path, (size_t)(slash - path));
    struct stat st;
    int rc = 0;

    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        rc = err_set(e, ERR_INVALID, "cannot write '%s': it is a folder", path);
    else if (access(folder, W_OK | X_OK) < 0)
        rc = err_errno(e, ERR_IO, "cannot write '%s'", path);
    free(folder);
    return rc;
}

int file_write(const char *path, const void *p, size_t n, unsigned mode, struct err *e)
{
    char *part = xasprintf("%s.part", path);
    int fd, rc = -1;

    unlink(part); /* of a run that was killed */
    fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    if (fd < 0) {
        err_errno(e, ERR_IO, "cannot write '%s'", path);
        goto out;
    }
    if (write_all(fd, p, n) < 0 || fsync(fd) < 0) {
        err_errno(e, ERR_IO, "cannot write '%s'", path);
        close(fd);
    } else if (close(fd) < 0 || rename(part, path) < 0) {
        err_errno(e, ERR_IO, "cannot write '%s'", path);
    } else {
        rc = 0;
    }
    if (rc < 0)
        unlink(part);
out:
    free(part);
    return rc;
}
