/* See map.h. A signal handler can reach nothing but statics, so the maps that are open
 * stand in a fixed table of atomic slots: the one exception to the rule against globals.
 * A slot is one pointer to a struct map, whose sentence was written out when it was made;
 * the handler compares addresses, writes and exits. map_close empties the slot before it
 * unmaps. */
#include "daemon/serve/map.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/serve/blame.h"

enum { MAX_MAPS = 1024 };

struct map {
    const unsigned char *p;
    size_t bytes;
    char *path;
    char *sentence; /* what the signal handler says */
    size_t sentence_len;
    atomic_bool torn; /* pages were gone and are zeros now */
};

static struct map *_Atomic maps[MAX_MAPS];
static void (*_Atomic last_words_fn)(const char *path);
static atomic_flag dying = ATOMIC_FLAG_INIT;
static int exit_code;
static atomic_bool survive;
static uintptr_t page_size;

static int enlist(struct map *m)
{
    for (int i = 0; i < MAX_MAPS; i++) {
        struct map *none = NULL;

        if (atomic_compare_exchange_strong(&maps[i], &none, m))
            return 0;
    }
    return -1;
}

static void delist(struct map *m)
{
    for (int i = 0; i < MAX_MAPS; i++) {
        struct map *mine = m;

        if (atomic_compare_exchange_strong(&maps[i], &mine, NULL))
            return;
    }
}

static int map_fd(int fd, struct map *m, struct err *e)
{
    struct stat st;
    void *p;

    if (fstat(fd, &st) < 0)
        return err_errno(e, ERR_IO, "%s", m->path);
    if (!S_ISREG(st.st_mode))
        return blame(e, ERR_INVALID, m->path, "not a regular file");
    if (!st.st_size)
        return blame(e, ERR_CORRUPT, m->path, "the file is empty");
    p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
        return err_errno(e, errno == ENOMEM ? ERR_NOMEM : ERR_IO,
                         "%s: cannot map its %lld bytes", m->path, (long long)st.st_size);
    m->p = p;
    m->bytes = (size_t)st.st_size;
    if (enlist(m) < 0)
        return blame(e, ERR_TOOBIG, m->path,
                     "no more than %d files can be mapped at once", MAX_MAPS);
    return 0;
}

int map_open(const char *path, struct map **ret, struct err *e)
{
    /* O_NONBLOCK: a FIFO is refused, not waited for */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct map *m;
    int rc;

    if (fd < 0)
        return err_errno(e, errno == ENOENT || errno == ENOTDIR ? ERR_NOTFOUND : ERR_IO,
                         "%s", path);
    m = xcalloc(1, sizeof(*m));
    m->path = xstrdup(path);
    m->sentence =
        xasprintf("%s: the file was cut short while it was in use, or cannot be read any "
                  "more; the process ends\n",
                  path);
    m->sentence_len = strlen(m->sentence);
    rc = map_fd(fd, m, e);
    close(fd);
    if (rc < 0) {
        map_close(m);
        return -1;
    }
    *ret = m;
    return 0;
}

void map_close(struct map *m)
{
    if (!m)
        return;
    delist(m);
    if (m->p)
        munmap((void *)m->p, m->bytes);
    free(m->path);
    free(m->sentence);
    free(m);
}

const void *map_data(const struct map *m) { return m->p; }

size_t map_bytes(const struct map *m) { return m->bytes; }

const char *map_path(const struct map *m) { return m->path; }

void map_drop(const struct map *m, const void *p, size_t n)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), base = (uintptr_t)m->p;
    uintptr_t from = (uintptr_t)p, to = from + n;

    if (from < base || from - base > m->bytes || n > m->bytes - (from - base))
        return;
    from = (from + page - 1) & ~(page - 1);
    /* the last page of the file belongs to nobody else */
    to = to == base + m->bytes ? (to + page - 1) & ~(page - 1) : to & ~(page - 1);
    if (from < to)
        madvise((void *)from, to - from, MADV_DONTNEED);
}

static struct map *map_at(const void *addr)
{
    for (int i = 0; i < MAX_MAPS; i++) {
        struct map *m = atomic_load(&maps[i]);

        if (m && (uintptr_t)addr >= (uintptr_t)m->p &&
            (uintptr_t)addr - (uintptr_t)m->p < m->bytes)
            return m;
    }
    return NULL;
}

/* Zeros in place of the file from the page at addr to the map's end. */
static bool patch(struct map *m, uintptr_t addr)
{
    uintptr_t from = addr & ~(page_size - 1), to = (uintptr_t)m->p + m->bytes;
    int was = errno;
    void *p = mmap((void *)from, to - from, PROT_READ,
                   MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    errno = was;
    atomic_store(&m->torn, true);
    return p != MAP_FAILED;
}

static void on_sigbus(int sig, siginfo_t *info, void *context)
{
    struct map *m = map_at(info->si_addr);
    void (*last_words)(const char *) = atomic_load(&last_words_fn);
    ssize_t n;

    (void)context;
    if (m && atomic_load(&survive) && patch(m, (uintptr_t)info->si_addr))
        return;
    if (!m) { /* not ours: the instruction faults again and does what it always did */
        signal(sig, SIG_DFL);
        return;
    }
    if (atomic_flag_test_and_set(&dying))
        return; /* another thread is at it; this one faults again until it is done */
    n = write(STDERR_FILENO, m->sentence, m->sentence_len);
    (void)n;
    if (last_words)
        last_words(m->path);
    _exit(exit_code);
}

static void install(void)
{
    struct sigaction sa = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO};

    exit_code = err_exit(ERR_CORRUPT);
    page_size = (uintptr_t)sysconf(_SC_PAGESIZE);
    sigemptyset(&sa.sa_mask);
    sigaction(SIGBUS, &sa, NULL);
}

void map_sigbus_install(void (*last_words)(const char *path))
{
    atomic_store(&last_words_fn, last_words);
    atomic_store(&survive, false);
    install();
}

void map_sigbus_survive(void)
{
    atomic_store(&survive, true);
    install();
}

int map_check(const struct map *m, struct err *e)
{
    if (!atomic_load(&m->torn))
        return 0;
    return blame(
        e, ERR_CORRUPT, m->path,
        "the file was cut short while it was in use, or cannot be read any more");
}
