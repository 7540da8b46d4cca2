/* ctl/wire_many.c - streams over libcurl's multi interface. */
#include "ctl/wire_many.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/list.h"
#include "base/mem.h"
#include "ctl/wire_int.h"

enum { FRAME_MAX = 4 << 20, IDLE_HANDLES = 1024 };

struct one {
    struct list link;
    struct wire_many *m;
    struct sink sink;
    struct curl_slist *headers;
    char *url, *body;
    int id;
};

struct wire_many {
    struct wire *wire;
    struct wire_many_hooks hooks;
    CURLM *multi;
    struct list running;
    int n_running;
    CURL *idle[IDLE_HANDLES]; /* to be used again */
    int n_idle;
};

int wire_many_open(struct wire *w, const struct wire_many_hooks *hooks,
                   struct wire_many **ret, struct err *e)
{
    struct wire_many *m = xcalloc(1, sizeof(*m));

    m->wire = w;
    m->hooks = *hooks;
    list_init(&m->running);
    m->multi = curl_multi_init();
    if (!m->multi) {
        free(m);
        return err_set(e, ERR_INTERNAL, "libcurl does not start");
    }
    *ret = m;
    return 0;
}

static void free_one(struct one *o)
{
    struct wire_many *m = o->m;

    curl_multi_remove_handle(m->multi, o->sink.curl);
    if (m->n_idle < IDLE_HANDLES)
        m->idle[m->n_idle++] = o->sink.curl;
    else
        curl_easy_cleanup(o->sink.curl);
    list_del(&o->link);
    m->n_running--;
    curl_slist_free_all(o->headers);
    buf_done(&o->sink.body);
    free(o->url);
    free(o->body);
    free(o);
}

void wire_many_close(struct wire_many *m)
{
    if (!m)
        return;
    list_for_safe(it, next, &m->running) free_one(list_entry(it, struct one, link));
    while (m->n_idle)
        curl_easy_cleanup(m->idle[--m->n_idle]);
    curl_multi_cleanup(m->multi);
    free(m);
}

static bool on_line(void *arg, const char *event, const char *line)
{
    struct one *o = arg;

    (void)event;
    o->m->hooks.line(o->m->hooks.arg, o->id, line, clock_now_us(clock_real()));
    return true;
}

int wire_many_post(struct wire_many *m, int id, const char *path, char *body,
                   struct err *e)
{
    CURL *curl = m->n_idle ? m->idle[--m->n_idle] : curl_easy_init();
    struct wire_request r = {.method = "POST", .path = path, .body = body};
    struct one *o;

    if (!curl) {
        free(body);
        return err_set(e, ERR_INTERNAL, "libcurl does not start");
    }
    curl_easy_reset(curl);
    o = xcalloc(1, sizeof(*o));
    o->m = m;
    o->id = id;
    o->body = body;
    o->url = wire_url_of(m->wire, path);
    o->sink.fn = on_line;
    o->sink.arg = o;
    buf_init(&o->sink.body, FRAME_MAX);
    o->headers = wire_set_up(m->wire, curl, o->url, &o->sink);
    o->headers = wire_put_body(curl, &r, o->headers);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, o->headers);
    curl_easy_setopt(curl, CURLOPT_PRIVATE, o);
    list_push(&m->running, &o->link);
    m->n_running++;
    curl_multi_add_handle(m->multi, curl);
    return 0;
}

int wire_many_open_count(const struct wire_many *m) { return m->n_running; }

static void tell_end(struct one *o, CURLcode rc)
{
    struct wire_many *m = o->m;
    long status = 0;
    int id = o->id;

    curl_easy_getinfo(o->sink.curl, CURLINFO_RESPONSE_CODE, &status);
    free_one(o);
    m->hooks.end(m->hooks.arg, id, (int)status, rc == CURLE_OK,
                 clock_now_us(clock_real()));
}

/* false: nothing had ended. */
static bool take_ended(struct wire_many *m)
{
    bool any = false;
    CURLMsg *msg;
    int left;

    while ((msg = curl_multi_info_read(m->multi, &left))) {
        CURLcode rc = msg->data.result;
        char *o = NULL;

        if (msg->msg != CURLMSG_DONE)
            continue;
        curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, &o);
        tell_end((struct one *)(void *)o, rc);
        any = true;
    }
    return any;
}

void wire_many_work(struct wire_many *m, int64_t until_us)
{
    int running;
    int64_t left;

    curl_multi_perform(m->multi, &running);
    if (take_ended(m))
        return;
    left = until_us - clock_now_us(clock_real());
    if (left <= 0)
        return;
    curl_multi_poll(m->multi, NULL, 0, (int)((left + 999) / 1000), NULL);
    curl_multi_perform(m->multi, &running);
    take_ended(m);
}
