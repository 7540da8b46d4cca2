/* state/folder.c - lock, copies, moves and the reserve of a state folder. */
#include "state/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"

enum { COPY_CHUNK = 1 << 16, RESERVE_BYTES = 8 << 20, NAMES_MAX = 4096 };

static const char *const sidecars[] = {"", "-wal", "-shm"};

int folder_path(const char *dir, const char *name, char ret[FOLDER_PATH_MAX],
                struct err *e)
{
    if (snprintf(ret, FOLDER_PATH_MAX, "%s/%s", dir, name) >= FOLDER_PATH_MAX - 8)
        return err_set(e, ERR_INVALID, "the state folder's name is too long");
    return 0;
}

static int mark_lock(const char *dir, const char *path, int fd, struct err *e)
{
    char pid[32] = "";
    ssize_t n;

    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK)
            return err_errno(e, ERR_IO, "lock file '%s'", path);
        n = read(fd, pid, sizeof(pid) - 1);
        pid[n > 0 ? n : 0] = '\0';
        return err_set(e, ERR_CONFLICT,
                       "the state folder '%s' is in use by another llmrackd (process "
                       "%.*s); stop it or choose another --state-dir",
                       dir, (int)strcspn(pid, "\n"), pid);
    }
    /* best effort, since a full disk must not keep the daemon from starting */
    snprintf(pid, sizeof(pid), "%d\n", (int)getpid());
    if (ftruncate(fd, 0) < 0 || pwrite(fd, pid, strlen(pid), 0) < 0)
        return errno == ENOSPC || errno == EDQUOT
                   ? 0
                   : err_errno(e, ERR_IO, "lock file '%s'", path);
    return 0;
}

int folder_lock(const char *dir, int *ret_fd, struct err *e)
{
    char path[FOLDER_PATH_MAX];
    int fd;

    if (mkdir(dir, 0700) < 0 && errno != EEXIST)
        return err_errno(e, ERR_IO, "cannot make the state folder '%s'", dir);
    if (folder_path(dir, "llmrackd.lock", path, e) < 0)
        return -1;
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_errno(e, ERR_IO, "lock file '%s'", path);
    if (mark_lock(dir, path, fd, e) < 0) {
        close(fd);
        return -1;
    }
    *ret_fd = fd;
    return 0;
}

long long folder_size(const char *path)
{
    struct stat st;
    return stat(path, &st) < 0 ? -1 : (long long)st.st_size;
}

/* ---- copies and moves ---- */

static int write_all(int fd, const char *p, size_t n)
{
    while (n > 0) {
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

static int copy_bytes(int in, int out)
{
    char *buf = xmalloc(COPY_CHUNK);
    ssize_t n;

    while ((n = read(in, buf, COPY_CHUNK)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 || write_all(out, buf, (size_t)n) < 0)
            break;
    }
    free(buf);
    return n == 0 ? fsync(out) : -1;
}

int folder_copy(const char *from, const char *to, struct err *e)
{
    struct stat st;
    int in = open(from, O_RDONLY | O_CLOEXEC | O_NONBLOCK), out = -1, rc;

    if (in < 0 || fstat(in, &st) < 0) {
        rc = err_errno(e, errno == ENOENT ? ERR_NOTFOUND : ERR_IO, "cannot read '%s'",
                       from);
    } else if (!S_ISREG(st.st_mode)) {
        rc = err_set(e, ERR_INVALID, "'%s' is no regular file", from);
    } else {
        out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        rc = out < 0 || copy_bytes(in, out) < 0
                 ? err_errno(e, ERR_IO, "cannot copy '%s' to '%s'", from, to)
                 : 0;
    }
    if (in >= 0)
        close(in);
    if (out >= 0) {
        close(out);
        if (rc < 0)
            unlink(to);
    }
    return rc;
}

static int sync_path(const char *path, int flags, struct err *e)
{
    int fd = open(path, flags | O_CLOEXEC), rc = 0;

    if (fd < 0 || fsync(fd) < 0)
        rc = err_errno(e, ERR_IO, "cannot bring '%s' to the disk", path);
    if (fd >= 0)
        close(fd);
    return rc;
}

int folder_sync_file(const char *path, struct err *e)
{
    return sync_path(path, O_RDONLY, e);
}

int folder_sync(const char *dir, struct err *e)
{
    return sync_path(dir, O_RDONLY | O_DIRECTORY, e);
}

int folder_rename(const char *from, const char *to, struct err *e)
{
    if (rename(from, to) < 0)
        return err_errno(e, ERR_IO, "cannot rename '%s' to '%s'", from, to);
    return 0;
}

int folder_link(const char *path, const char *as, struct err *e)
{
    if (link(path, as) < 0)
        return err_errno(e, errno == EEXIST ? ERR_CONFLICT : ERR_IO, "cannot make '%s'",
                         as);
    return 0;
}

int folder_move_db(const char *from, const char *to, struct err *e)
{
    char a[FOLDER_PATH_MAX + 8], b[FOLDER_PATH_MAX + 8];

    for (int i = 0; i < 3; i++) {
        snprintf(a, sizeof(a), "%s%s", from, sidecars[i]);
        snprintf(b, sizeof(b), "%s%s", to, sidecars[i]);
        if (rename(a, b) < 0 && errno != ENOENT)
            return err_errno(e, ERR_IO, "cannot rename '%s' to '%s'", a, b);
    }
    return 0;
}

void folder_remove_db(const char *path)
{
    char a[FOLDER_PATH_MAX + 8];

    for (int i = 0; i < 3; i++) {
        snprintf(a, sizeof(a), "%s%s", path, sidecars[i]);
        unlink(a);
    }
}

static int later_first(const void *a, const void *b)
{
    return strcmp(*(char *const *)b, *(char *const *)a);
}

static bool has_form(const char *name, const char *prefix, const char *suffix)
{
    size_t n = strlen(name), p = strlen(prefix), s = strlen(suffix);
    return n >= p + s && !strncmp(name, prefix, p) && !strcmp(name + n - s, suffix);
}

int folder_list(const char *dir, const char *prefix, const char *suffix, char ***ret)
{
    DIR *d = opendir(dir);
    char **names = NULL;
    struct dirent *x;
    int n = 0;

    while (d && n < NAMES_MAX && (x = readdir(d))) {
        if (!has_form(x->d_name, prefix, suffix))
            continue;
        names = xrealloc(names, (size_t)(n + 1) * sizeof(*names));
        names[n++] = xstrdup(x->d_name);
    }
    if (d)
        closedir(d);
    if (n)
        qsort(names, (size_t)n, sizeof(*names), later_first);
    *ret = names;
    return n;
}

void folder_list_free(char **names, int n)
{
    for (int i = 0; i < n; i++)
        free(names[i]);
    free(names);
}

/* ---- the reserve ---- */

bool folder_reserve_keep(const char *dir)
{
    char path[FOLDER_PATH_MAX];
    bool stands;
    int fd;

    if (folder_path(dir, "reserve", path, NULL) < 0)
        return false;
    if (folder_size(path) == RESERVE_BYTES)
        return true;
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return false;
    stands = posix_fallocate(fd, 0, RESERVE_BYTES) == 0 && fsync(fd) == 0;
    close(fd);
    if (!stands)
        unlink(path); /* a part of it only makes the disk fuller */
    return stands;
}

bool folder_reserve_give(const char *dir)
{
    char path[FOLDER_PATH_MAX];
    return folder_path(dir, "reserve", path, NULL) == 0 && unlink(path) == 0;
}
