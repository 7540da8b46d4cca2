/* daemon/ctrl/traceview.c - pages of traces, target by target. */
#include "daemon/ctrl/traceview.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/ctrl/conf.h"
#include "daemon/ctrl/router_int.h"
#include "daemon/serve/rankpage.h"

enum { ENGINES = 16 }; /* of which events are copied at most */

static bool is_of(const struct target *t, const char *instance)
{
    size_t n = conf_name_len(t->st.name);

    return t->trace && (!*instance || !strcmp(t->st.name, instance) ||
                        (strlen(instance) == n && !strncmp(t->st.name, instance, n)));
}

int traceview_begin(struct router *r, const char *instance, int64_t now_us,
                    int64_t until_us, uint64_t request, struct err *e)
{
    int n = 0;

    pthread_mutex_lock(&r->lock);
    list_for(it, &r->targets)
    {
        const struct target *t = list_entry(it, struct target, link);

        if (!is_of(t, instance))
            continue;
        tracepage_begin(t->trace, now_us, until_us, request);
        n++;
    }
    pthread_mutex_unlock(&r->lock);
    if (!n)
        return err_param(e, ERR_NOTFOUND, "instance", "no instance '%.63s' has an engine",
                         instance);
    return n;
}

int traceview_take(struct router *r, const char *instance, struct trace_view **ret)
{
    struct trace_view *v = xcalloc(ENGINES, sizeof(*v));
    int64_t room;
    int n = 0;

    pthread_mutex_lock(&r->lock);
    list_for(it, &r->targets)
    {
        const struct target *t = list_entry(it, struct target, link);

        if (n == ENGINES || !is_of(t, instance))
            continue;
        tracepage_end(t->trace);
        memcpy(v[n].instance, t->st.name, sizeof(v[n].instance));
        memcpy(v[n].model, t->st.model, sizeof(v[n].model));
        v[n].generation = t->st.generation;
        v[n].n_ranks = t->ranks ? rankpage_count(t->ranks) : 0;
        room = tracepage_count(t->trace);
        room = room < TRACE_EVENTS ? room : TRACE_EVENTS;
        v[n].event = xcalloc((size_t)room + 1, sizeof(*v[n].event));
        v[n].n = tracepage_read(t->trace, v[n].event, (int)room, &v[n].lost);
        n++;
    }
    pthread_mutex_unlock(&r->lock);
    *ret = v;
    return n;
}

void traceview_free(struct trace_view *v, int n)
{
    for (int i = 0; i < n; i++)
        free(v[i].event);
    free(v);
}
