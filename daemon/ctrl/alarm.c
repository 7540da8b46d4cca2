/* daemon/ctrl/alarm.c - two short arrays under one lock.
 *
 * The listener is called without the lock, on the control thread, so that it may list. */
#include "daemon/ctrl/alarm.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

enum { ALARMS_MAX = 1024, ENDED_MAX = 64 };

static const struct {
    const char *name;
    enum alarm_severity severity;
} engine_alarms[] = {
#define X(id, name, severity) {name, ALARM_##severity},
    ALARM_ENGINE_MAP(X)
#undef X
};

struct alarms {
    alarm_fn changed;
    void *arg;
    pthread_mutex_t lock; /* all below */
    struct alarm_status *active;
    int n, cap;
    struct alarm_status ended[ENDED_MAX]; /* a ring; next is overwritten next */
    int n_ended, next;
};

const char *alarm_severity_name(enum alarm_severity s)
{
    static const char *const names[] = {"warning", "major", "critical"};

    return names[s];
}

struct alarms *alarms_new(alarm_fn changed, void *arg)
{
    struct alarms *a = xcalloc(1, sizeof(*a));

    a->changed = changed;
    a->arg = arg;
    pthread_mutex_init(&a->lock, NULL);
    return a;
}

void alarms_free(struct alarms *a)
{
    if (!a)
        return;
    pthread_mutex_destroy(&a->lock);
    free(a->active);
    free(a);
}

static struct alarm_status *find(struct alarms *a, const char *id)
{
    for (int i = 0; i < a->n; i++)
        if (!strcmp(a->active[i].id, id))
            return &a->active[i];
    return NULL;
}

static struct alarm_status *add(struct alarms *a, const char *id)
{
    struct alarm_status s = {.since_ms = clock_wall_ms()};

    if (a->n == ALARMS_MAX)
        return NULL; /* so many faults at once are one fault; the first tell it */
    if (a->n == a->cap) {
        a->cap = a->cap ? 2 * a->cap : 16;
        a->active = xrealloc(a->active, (size_t)a->cap * sizeof(*a->active));
    }
    snprintf(s.id, sizeof(s.id), "%s", id);
    a->active[a->n] = s;
    return &a->active[a->n++];
}

void alarm_raise(struct alarms *a, const char *id, enum alarm_severity s,
                 const char *text)
{
    struct alarm_status copy;
    struct alarm_status *x;
    bool news = false;

    pthread_mutex_lock(&a->lock);
    x = find(a, id);
    if (!x) {
        x = add(a, id);
        news = x != NULL;
    }
    if (x) {
        news = news || x->severity != s;
        x->severity = s;
        snprintf(x->text, sizeof(x->text), "%s", text);
        copy = *x;
    }
    pthread_mutex_unlock(&a->lock);
    if (news && a->changed)
        a->changed(a->arg, &copy);
}

void alarm_clear(struct alarms *a, const char *id)
{
    struct alarm_status copy;
    struct alarm_status *x;

    pthread_mutex_lock(&a->lock);
    x = find(a, id);
    if (x) {
        x->ended_ms = clock_wall_ms();
        copy = *x;
        a->ended[a->next] = copy;
        a->next = (a->next + 1) % ENDED_MAX;
        if (a->n_ended < ENDED_MAX)
            a->n_ended++;
        memmove(x, x + 1, (size_t)(&a->active[--a->n] - x) * sizeof(*x));
    }
    pthread_mutex_unlock(&a->lock);
    if (x && a->changed)
        a->changed(a->arg, &copy);
}

enum alarm_engine alarm_engine_named(const char *name)
{
    int k = 0;

    while (k < ALARM_ENGINE_COUNT && strcmp(engine_alarms[k].name, name))
        k++;
    return (enum alarm_engine)k;
}

void alarm_engine(struct alarms *a, enum alarm_engine kind, const char *engine,
                  const char *why)
{
    char id[sizeof(((struct alarm_status *)0)->id)];

    snprintf(id, sizeof(id), "%s %.64s", engine_alarms[kind].name, engine);
    if (why)
        alarm_raise(a, id, engine_alarms[kind].severity, why);
    else
        alarm_clear(a, id);
}

int alarms_list(struct alarms *a, struct alarm_status *ret, int max)
{
    int n = 0;

    pthread_mutex_lock(&a->lock);
    for (int s = ALARM_CRITICAL; s >= ALARM_WARNING; s--)
        for (int i = 0; i < a->n && n < max; i++)
            if ((int)a->active[i].severity == s)
                ret[n++] = a->active[i];
    for (int i = 1; i <= a->n_ended && n < max; i++)
        ret[n++] = a->ended[(a->next - i + ENDED_MAX) % ENDED_MAX];
    pthread_mutex_unlock(&a->lock);
    return n;
}
