/* ctl/wire.c - REST calls through libcurl.
 *
 * One easy handle is reused, so the connection stays open between the verbs of a session;
 * a feed has its own. The daemon's JSON error becomes a struct err whose exit code
 * follows its status. */
#include "ctl/wire.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "ctl/wire_int.h"

enum { CALL_MS = 30000, CONNECT_MS = 3000, SILENT_S = 120 };

struct wire_feed {
    CURLM *multi;
    struct sink sink;
    struct curl_slist *headers;
    char *url;
};

int wire_open(const struct wire_target *t, struct wire **ret, struct err *e)
{
    struct wire *w = xcalloc(1, sizeof(*w));

    w->at = xstrdup(t->at);
    w->local = strncmp(t->at, "http://", 7) != 0 && strncmp(t->at, "https://", 8) != 0;
    w->auth = t->key && !w->local ? xasprintf("Authorization: Bearer %s", t->key) : NULL;
    w->ca = t->ca ? xstrdup(t->ca) : NULL;
    w->timeout_ms = t->timeout_ms ? t->timeout_ms : CALL_MS;
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
    if (w->auth)
        explicit_bzero(w->auth, strlen(w->auth));
    free(w->auth);
    free(w->ca);
    free(w->at);
    free(w->said);
    free(w);
}

const char *wire_said(const struct wire *w) { return w->said ? w->said : ""; }

static void hand_on_lines(struct sink *s)
{
    char *nl;

    while (!s->ended && s->body.len && (nl = memchr(s->body.p, '\n', s->body.len))) {
        size_t n = (size_t)(nl - s->body.p) + 1;

        *nl = '\0';
        if (nl > s->body.p && nl[-1] == '\r')
            nl[-1] = '\0';
        if (!s->body.p[0])
            s->event[0] = '\0'; /* the end of one event */
        else if (strncmp(s->body.p, "event: ", 7) == 0)
            snprintf(s->event, sizeof(s->event), "%s", s->body.p + 7);
        else if (strncmp(s->body.p, "data: ", 6) == 0 &&
                 !s->fn(s->arg, s->event, s->body.p + 6))
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

/* Ends a stream that is stopped, or silent for too long (the daemon says something each
 * 15 s). */
static int on_progress(void *arg, curl_off_t total, curl_off_t now, curl_off_t up_total,
                       curl_off_t up)
{
    struct sink *s = arg;
    int64_t at = clock_now_us(clock_real());

    (void)total, (void)up_total, (void)up;
    if (!s->last_us || now != s->seen) {
        s->seen = now;
        s->last_us = at;
    }
    if (s->fn && at - s->last_us > SILENT_S * INT64_C(1000000))
        return 1;
    return s->stop && *s->stop;
}

static enum err_code code_of_status(long status)
{
    for (int code = ERR_OK + 1; code < ERR_COUNT; code++)
        if (err_status((enum err_code)code) == status && status != 500 && status != 503)
            return (enum err_code)code;
    return status == 503 ? ERR_UNAVAIL : status < 500 ? ERR_INVALID : ERR_INTERNAL;
}

/* The sentence of a JSON error body, or the status alone. */
static int fail_status(struct wire *w, long status, const struct buf *body, struct err *e)
{
    static const struct js_limits lim = {1 << 20, 16};
    const char *msg = NULL, *missed;
    json_t *root = NULL;

    if (body->len && js_parse(body->p, body->len, &lim, &root, NULL) == 0)
        msg =
            json_string_value(json_object_get(json_object_get(root, "error"), "message"));
    err_set(e, code_of_status(status), "%s", msg ? msg : "the daemon gave no reason");
    missed = json_string_value(
        json_object_get(json_object_get(root, "missed"), "text")); /* of a stale commit */
    if (msg)
        w->said = xasprintf("%s%s%s", msg, missed ? "\n" : "", missed ? missed : "");
    else
        err_wrap(e, "HTTP %ld", status);
    json_decref(root);
    return -1;
}

/* What every transfer has in common. The list of headers is the caller's to free, once
 * the transfer has ended. */
struct curl_slist *wire_set_up(const struct wire *w, CURL *curl, const char *url,
                               struct sink *s)
{
    struct curl_slist *headers = NULL;

    s->curl = curl;
    if (w->local)
        curl_easy_setopt(curl, CURLOPT_UNIX_SOCKET_PATH, w->at);
    else
        curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    if (w->ca)
        curl_easy_setopt(curl, CURLOPT_CAINFO, w->ca);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_PROXY, "");
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, s);
    curl_easy_setopt(curl, CURLOPT_TCP_KEEPALIVE, 1L);
    if (w->auth)
        headers = curl_slist_append(headers, w->auth);
    return headers;
}

char *wire_url_of(const struct wire *w, const char *path)
{
    return xasprintf("%s%s", w->local ? "http://localhost" : w->at, path);
}

struct curl_slist *wire_put_body(CURL *curl, const struct wire_request *r,
                                 struct curl_slist *headers)
{
    char *type = xasprintf("Content-Type: %s", r->type ? r->type : "application/json");

    headers = curl_slist_append(headers, type);
    headers = curl_slist_append(headers, "Expect:");
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE,
                     (curl_off_t)(r->n ? r->n : strlen(r->body)));
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, r->body);
    free(type);
    return headers;
}

static int outcome(struct wire *w, CURLcode rc, long status, const char *path,
                   const struct sink *s, struct err *e)
{
    if (s->body.over)
        return err_set(e, ERR_TOOBIG, "the answer of %s is over %d MiB", path,
                       WIRE_ANSWER_MAX >> 20);
    if (rc == CURLE_ABORTED_BY_CALLBACK && !(s->stop && *s->stop))
        return err_set(e, ERR_TIMEOUT, "no news for %d s", SILENT_S);
    if (rc == CURLE_ABORTED_BY_CALLBACK)
        return err_set(e, ERR_CANCELED, "stopped");
    if (rc == CURLE_OPERATION_TIMEDOUT && status)
        return err_set(e, ERR_TIMEOUT, "not done in time");
    if (rc == CURLE_PEER_FAILED_VERIFICATION || rc == CURLE_SSL_CACERT_BADFILE)
        return err_set(e, ERR_DENIED,
                       "the certificate of %s is not trusted (%s); --ca FILE", w->at,
                       curl_easy_strerror(rc));
    if (rc != CURLE_OK && !s->ended)
        return err_set(e, ERR_UNAVAIL, "no daemon answers at %s (%s)", w->at,
                       curl_easy_strerror(rc));
    return status >= 400 ? fail_status(w, status, &s->body, e) : 0;
}

static int transfer(struct wire *w, const struct wire_request *r, struct sink *s,
                    int *ret_status, struct err *e)
{
    char *url = wire_url_of(w, r->path);
    struct curl_slist *headers;
    int64_t ms = r->timeout_ms ? r->timeout_ms : s->fn ? 0 : w->timeout_ms;
    long status = 0;
    CURLcode rc;

    free(w->said);
    w->said = NULL;
    curl_easy_reset(w->curl);
    headers = wire_set_up(w, w->curl, url, s);
    curl_easy_setopt(w->curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(w->curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(w->curl, CURLOPT_XFERINFODATA, s);
    curl_easy_setopt(w->curl, CURLOPT_TIMEOUT_MS, (long)ms);
    if (r->body)
        headers = wire_put_body(w->curl, r, headers);
    curl_easy_setopt(w->curl, CURLOPT_CUSTOMREQUEST, r->method);
    curl_easy_setopt(w->curl, CURLOPT_HTTPHEADER, headers);
    rc = curl_easy_perform(w->curl);
    curl_easy_getinfo(w->curl, CURLINFO_RESPONSE_CODE, &status);
    curl_slist_free_all(headers);
    free(url);
    if (ret_status)
        *ret_status = (int)status;
    return outcome(w, rc, status, r->path, s, e);
}

int wire_call(struct wire *w, const struct wire_request *r, const volatile int *stop,
              struct buf *ret_body, int *ret_status, struct err *e)
{
    struct sink s = {.stop = stop};
    int rc;

    buf_init(&s.body, WIRE_ANSWER_MAX);
    rc = transfer(w, r, &s, ret_status, e);
    if (rc == 0)
        buf_add(ret_body, s.body.p ? s.body.p : "", s.body.len);
    buf_done(&s.body);
    return rc;
}

int wire_stream(struct wire *w, const struct wire_request *r, const volatile int *stop,
                wire_line_fn fn, void *arg, struct err *e)
{
    struct sink s = {.fn = fn, .arg = arg, .stop = stop};
    int rc;

    buf_init(&s.body, WIRE_ANSWER_MAX);
    rc = transfer(w, r, &s, NULL, e);
    buf_done(&s.body);
    return rc;
}

/* ---- feeds ---- */

struct wire_feed *wire_feed_open(struct wire *w, const char *path, wire_line_fn fn,
                                 void *arg)
{
    struct wire_feed *f = xcalloc(1, sizeof(*f));
    CURL *curl = curl_easy_init();

    f->sink.fn = fn;
    f->sink.arg = arg;
    buf_init(&f->sink.body, WIRE_ANSWER_MAX);
    f->multi = curl_multi_init();
    f->url = wire_url_of(w, path);
    if (!curl || !f->multi) {
        wire_feed_close(f);
        return NULL;
    }
    f->headers = wire_set_up(w, curl, f->url, &f->sink);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, f->headers);
    curl_multi_add_handle(f->multi, curl);
    if (wire_feed_work(f))
        return f;
    wire_feed_close(f);
    return NULL;
}

void wire_feed_close(struct wire_feed *f)
{
    if (!f)
        return;
    if (f->sink.curl) {
        curl_multi_remove_handle(f->multi, f->sink.curl);
        curl_easy_cleanup(f->sink.curl);
    }
    if (f->multi)
        curl_multi_cleanup(f->multi);
    curl_slist_free_all(f->headers);
    buf_done(&f->sink.body);
    free(f->url);
    free(f);
}

int wire_feed_fds(struct wire_feed *f, struct pollfd *ret, int max)
{
    fd_set in, out, odd;
    int n = 0, top = -1;

    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_ZERO(&odd);
    curl_multi_fdset(f->multi, &in, &out, &odd, &top);
    for (int fd = 0; fd <= top && n < max; fd++) {
        short events = (short)((FD_ISSET(fd, &in) ? POLLIN : 0) |
                               (FD_ISSET(fd, &out) ? POLLOUT : 0));

        if (events)
            ret[n++] = (struct pollfd){.fd = fd, .events = events};
    }
    return n;
}

bool wire_feed_work(struct wire_feed *f)
{
    int running = 0;

    curl_multi_perform(f->multi, &running);
    return running > 0;
}
