/* daemon/api/server.h - what the files of daemon/api share of struct http. Not for
 * others.
 *
 * Reference counted like its requests: a generation whose last token comes after
 * http_stop still finds its counters. */
#ifndef API_SERVER_H
#define API_SERVER_H

#include <pthread.h>
#include <stdatomic.h>

#include "daemon/api/http.h"

struct MHD_Daemon;
struct conn;
struct ctlqueue;
struct news;
struct pool;
struct queue;
struct rules;
struct tls;
struct watch;

enum { HTTP_MAX_THREADS = 64, HTTP_MAX_KEYS = 64 };

struct listener {
    struct http *h;
    struct MHD_Daemon *mhd;
    int fd;
    bool local;      /* UNIX socket */
    struct tls *tls; /* NULL = plain */
};

struct http {
    struct http_cfg cfg;
    char *listen_host, *listen, *socket_path, *version;
    struct router *router;
    struct metric_page *page; /* NULL after the stop */
    struct listener tcp, local;
    int port;
    struct pool *pool;
    struct ctlqueue *control; /* NULL without a loop */
    struct news *news;        /* likewise */
    struct watch *watch;
    struct queue *idle; /* pushed when the last request completed during the stop */
    atomic_bool draining, stopping;
    atomic_bool crowded; /* told that connections run out */
    atomic_int refs, active, connections, requests;
    atomic_int tcp_connections;
    int local_max;        /* connections of the UNIX socket */
    atomic_int strangers; /* connections of local users who may nothing */
    pthread_mutex_t rules_lock;
    struct rules *rules;      /* the present ones */
    atomic_size_t body_bytes; /* request bodies in memory, all connections */
    atomic_int_fast64_t
        busy_us[HTTP_MAX_THREADS]; /* since when a callback runs, 0 idle */
    atomic_int n_threads;
    atomic_int_fast64_t loop_asked_us; /* since when the control loop owes a pass */
    atomic_uint_fast64_t loop_seen;
    atomic_bool upkeep;                 /* maintenance */
    atomic_bool restoring, selftesting; /* a worker is at it */
    pthread_mutex_t upkeep_lock;
    char upkeep_reason[256];
    pthread_mutex_t keys_lock;
    char *keys[HTTP_MAX_KEYS]; /* unknown field names that were logged */
    int n_keys;
};

/* The rules of now, with a reference. Any thread. */
struct rules *http_rules(struct http *h);
void http_ref(struct http *h);
void http_unref(struct http *h);
/* Metrics on the daemon's page; nothing after the stop. */
void http_count(struct http *h, int id, int label, double v);
/* A prompt or an answer into the log, where the configuration wants it. */
void http_log_content(const struct conn *c, const char *what, const char *text, size_t n);
/* Log a request field name that nobody knows, once a name. */
void http_note_key(struct http *h, const char *key);
/* Bracket every callback of a polling thread, for http_alive. */
void http_enter(struct http *h);
void http_leave(struct http *h);

#endif
