/* base/region.c - a region of memory in a memfd, which processes share. */
#include "base/region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/err.h"

static int map(int fd, const char *what, size_t bytes, void **ret, struct err *e)
{
    void *p =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);

    if (p == MAP_FAILED)
        return err_errno(e, ERR_NOMEM, "%s", what);
    *ret = p;
    return 0;
}

int region_file(const char *name, const char *what, size_t bytes, struct err *e)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0)
        return fd;
    err_errno(e, ERR_NOMEM, "%s", what);
    if (fd >= 0)
        close(fd);
    return -1;
}

int region_new(const char *name, const char *what, size_t bytes, int *ret_fd, void **ret,
               struct err *e)
{
    int fd = region_file(name, what, bytes, e);

    if (fd < 0)
        return -1;
    if (map(fd, what, bytes, ret, e) < 0) {
        close(fd);
        return -1;
    }
    *ret_fd = fd;
    return 0;
}

int region_map(int fd, const char *what, size_t bytes, void **ret, struct err *e)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return err_errno(e, ERR_IO, "%s", what);
    if (st.st_size != (off_t)bytes)
        return err_set(e, ERR_INVALID, "%s has %lld bytes, %zu would be right", what,
                       (long long)st.st_size, bytes);
    return map(fd, what, bytes, ret, e);
}

int region_seal(int fd, const char *what, struct err *e)
{
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) < 0)
        return err_errno(e, ERR_IO, "%s cannot be sealed", what);
    return 0;
}

bool region_keeps_size(int fd)
{
    int seals = fcntl(fd, F_GET_SEALS);

    return seals >= 0 && (seals & F_SEAL_SHRINK);
}

void region_unmap(void *p, size_t bytes)
{
    if (p)
        munmap(p, bytes);
}
