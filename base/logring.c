/* base/logring.c - the last lines that were logged. A line for which there is no memory
 * is left out: to log must never end a program. */
#include "base/logring.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

static struct {
    pthread_mutex_t lock;
    uint64_t last;
    struct logring_line lines[LOGRING_LINES]; /* line seq stands at seq % LOGRING_LINES */
} ring = {.lock = PTHREAD_MUTEX_INITIALIZER};

void logring_add(enum log_level level, const char *text, size_t n)
{
    char *copy = strndup(text, n), *old = NULL;
    struct logring_line *l;

    if (!copy)
        return;
    pthread_mutex_lock(&ring.lock);
    l = &ring.lines[++ring.last % LOGRING_LINES];
    old = l->text;
    *l = (struct logring_line){ring.last, clock_wall_ms(), level, copy};
    pthread_mutex_unlock(&ring.lock);
    free(old);
}

int logring_get(uint64_t after, struct logring_line *ret, int max)
{
    int n = 0;

    pthread_mutex_lock(&ring.lock);
    if (ring.last > LOGRING_LINES && after < ring.last - LOGRING_LINES)
        after = ring.last - LOGRING_LINES;
    if (ring.last > (uint64_t)max && after < ring.last - (uint64_t)max)
        after = ring.last - (uint64_t)max;
    for (uint64_t seq = after + 1; seq <= ring.last; seq++) {
        ret[n] = ring.lines[seq % LOGRING_LINES];
        ret[n].text = xstrdup(ret[n].text);
        n++;
    }
    pthread_mutex_unlock(&ring.lock);
    return n;
}

uint64_t logring_last(void)
{
    uint64_t last;

    pthread_mutex_lock(&ring.lock);
    last = ring.last;
    pthread_mutex_unlock(&ring.lock);
    return last;
}
