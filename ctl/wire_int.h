/* ctl/wire_int.h - one transfer, as wire.c and wire_many.c set it up. Not for others. */
#ifndef CTL_WIRE_INT_H
#define CTL_WIRE_INT_H

#include <curl/curl.h>

#include "base/buf.h"
#include "ctl/wire.h"

enum { WIRE_ANSWER_MAX = 64 << 20 };

struct wire {
    CURL *curl;
    char *at, *auth, *ca, *said;
    int64_t timeout_ms;
    bool local; /* a UNIX socket */
};

/* What one transfer collects: a whole body, or lines handed on at once. */
struct sink {
    struct buf body;
    wire_line_fn fn;
    void *arg;
    const volatile int *stop;
    CURL *curl;
    int64_t last_us, seen; /* when bytes came last, and how many until then */
    char event[32];        /* the kind of the data line that comes */
    bool ended;
};

char *wire_url_of(const struct wire *w, const char *path);
/* What every transfer has in common. The list of headers is the caller's to free, once
 * the transfer has ended. */
struct curl_slist *wire_set_up(const struct wire *w, CURL *curl, const char *url,
                               struct sink *s);
struct curl_slist *wire_put_body(CURL *curl, const struct wire_request *r,
                                 struct curl_slist *headers);

#endif
