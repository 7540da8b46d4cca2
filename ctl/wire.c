/* ctl/wire.c - REST calls through libcurl.
 *
 * One easy handle is reused, so the connection stays open between the verbs of a session.
 * The daemon's JSON error becomes a struct err whose exit code follows its status. */
#include "ctl/wire.h"

#include <stdlib.h>
#include <string.h>

#include <curl/curl.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"

enum { CALL_MS = 30000, CONNECT_MS = 3000, ANSWER_MAX = 64 << 20 };

struct wire {
    CURL *curl;
    char *target;
    bool local; /* a UNIX socket */
};

/* What one transfer collects: a whole body, or lines handed on at once. */
struct sink {
    struct buf body;
    wire_line_fn fn;
    void *arg;
    const volatile int *stop;
    CURL *curl;
    bool ended;
};

int wire_open(const char *target, struct wire **ret, struct err *e)
{
    struct wire *w = xcalloc(1, sizeof(*w));

    w->target = xstrdup(target);
    w->local = strncmp(target, "http://", 7) != 0 && strncmp(target, "https://", 8) != 0;
    w->curl = curl_easy_init();
    if (!w->curl) {
        wire_close(w);
        return err_set(e, ERR_INTERNAL, "libcurl does not start");
    }
    *ret = w;
    return 0;
}

void wire_close(struct wire *w)
{
    if (!w)
        return;
    if (w->curl)
        curl_easy_cleanup(w->curl);
    free(w->target);
    free(w);
}

static void hand_on_lines(struct sink *s)
{
    char *nl;

    while (!s->ended && s->body.len && (nl = memchr(s->body.p, '\n', s->body.len))) {
        size_t n = (size_t)(nl - s->body.p) + 1;

        *nl = '\0';
        if (nl > s->body.p && nl[-1] == '\r')
            nl[-1] = '\0';
        if (strncmp(s->body.p, "data: ", 6) == 0 && !s->fn(s->arg, s->body.p + 6))
            s->ended = true;
        buf_shift(&s->body, n);
    }
}

static size_t on_bytes(char *p, size_t size, size_t n, void *arg)
{
    struct sink *s = arg;
    long status = 0;

    buf_add(&s->body, p, size * n);
    if (s->body.over)
        return 0;
    curl_easy_getinfo(s->curl, CURLINFO_RESPONSE_CODE, &status);
    if (s->fn && status < 400)
        hand_on_lines(s);
    return s->ended ? 0 : size * n;
}

static int on_progress(void *arg, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    const struct sink *s = arg;

    (void)a, (void)b, (void)c, (void)d;
    return s->stop && *s->stop;
}

static enum err_code code_of_status(long status)
{
    static const enum err_code codes[] = {ERR_INVALID, ERR_DENIED,  ERR_NOTFOUND,
                                          ERR_METHOD,  ERR_TIMEOUT, ERR_CONFLICT,
                                          ERR_TOOBIG,  ERR_BUSY,    ERR_UNAVAIL};

    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
        if (err_status(codes[i]) == status)
            return codes[i];
    return status < 500 ? ERR_INVALID : ERR_INTERNAL;
}

/* The sentence of a JSON error body, or the status alone. */
static int fail_status(long status, const struct buf *body, struct err *e)
{
    static const struct js_limits lim = {1 << 20, 16};
    const char *msg = NULL;
    json_t *root = NULL;

    if (body->len && js_parse(body->p, body->len, &lim, &root, NULL) == 0)
        msg =
            json_string_value(json_object_get(json_object_get(root, "error"), "message"));
    err_set(e, code_of_status(status), "%s", msg ? msg : "the daemon gave no reason");
    if (!msg)
        err_wrap(e, "HTTP %ld", status);
    json_decref(root);
    return -1;
}

static int transfer(struct wire *w, const char *path, const char *body, struct sink *s,
                    struct err *e)
{
    struct curl_slist *headers = NULL;
    char *url = xasprintf("%s%s", w->local ? "http://localhost" : w->target, path);
    long status = 0;
    CURLcode rc;

    curl_easy_reset(w->curl);
    s->curl = w->curl;
    if (w->local)
        curl_easy_setopt(w->curl, CURLOPT_UNIX_SOCKET_PATH, w->target);
    curl_easy_setopt(w->curl, CURLOPT_URL, url);
    curl_easy_setopt(w->curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(w->curl, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    curl_easy_setopt(w->curl, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(w->curl, CURLOPT_WRITEDATA, s);
    curl_easy_setopt(w->curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(w->curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(w->curl, CURLOPT_XFERINFODATA, s);
    if (s->fn) { /* streams may last; two silent minutes end them */
        curl_easy_setopt(w->curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
        curl_easy_setopt(w->curl, CURLOPT_LOW_SPEED_TIME, 120L);
    } else {
        curl_easy_setopt(w->curl, CURLOPT_TIMEOUT_MS, (long)CALL_MS);
    }
    if (body) {
        headers = curl_slist_append(headers, "Content-Type: application/json");
        headers = curl_slist_append(headers, "Expect:");
        curl_easy_setopt(w->curl, CURLOPT_HTTPHEADER, headers);
        curl_easy_setopt(w->curl, CURLOPT_POSTFIELDS, body);
    }
    rc = curl_easy_perform(w->curl);
    curl_easy_getinfo(w->curl, CURLINFO_RESPONSE_CODE, &status);
    curl_slist_free_all(headers);
    free(url);

    if (s->body.over)
        return err_set(e, ERR_TOOBIG, "the answer of %s is over %d MiB", path,
                       ANSWER_MAX >> 20);
    if (rc == CURLE_ABORTED_BY_CALLBACK)
        return err_set(e, ERR_CANCELED, "stopped");
    if (rc != CURLE_OK && !s->ended)
        return err_set(e, ERR_UNAVAIL, "no daemon answers at %s (%s)", w->target,
                       curl_easy_strerror(rc));
    return status >= 400 ? fail_status(status, &s->body, e) : 0;
}

int wire_call(struct wire *w, const char *path, const char *body,
              const volatile int *stop, struct buf *ret_body, struct err *e)
{
    struct sink s = {.stop = stop};
    int rc;

    buf_init(&s.body, ANSWER_MAX);
    rc = transfer(w, path, body, &s, e);
    if (rc == 0)
        buf_add(ret_body, s.body.p ? s.body.p : "", s.body.len);
    buf_done(&s.body);
    return rc;
}

int wire_stream(struct wire *w, const char *path, const char *body,
                const volatile int *stop, wire_line_fn fn, void *arg, struct err *e)
{
    struct sink s = {.fn = fn, .arg = arg, .stop = stop};
    int rc;

    buf_init(&s.body, ANSWER_MAX);
    rc = transfer(w, path, body, &s, e);
    buf_done(&s.body);
    return rc;
}
