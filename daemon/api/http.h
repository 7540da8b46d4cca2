/* daemon/api/http.h - HTTP in, JSON and SSE out, on TCP and on the UNIX socket.
 *
 * libmicrohttpd with a pool of polling threads. Routes are rows (route.def): method,
 * path, where they exist (tcp, unix or both) and the handler. Bodies are parsed and
 * tokenised on worker threads with the connection suspended; answers are resumed from the
 * control thread's callbacks. Header and body deadlines, idle streams and gone clients
 * are watched here, since a suspended connection sees neither. */
#ifndef API_HTTP_H
#define API_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct access;
struct alarm_status;
struct alarms;
struct confmgr;
struct domain;
struct err;
struct fleet;
struct http;
struct journal_row;
struct loop;
struct metric_page;
struct router;
struct slo;
struct store;

struct http_cfg {
    const char *listen; /* "127.0.0.1:8080", "[::1]:8080" or "" for none; port 0 = any */
    const char *socket_path; /* UNIX socket, mode 0600 */
    size_t max_body;
    int max_connections, n_threads, n_workers;
    int64_t header_us, body_us, idle_us; /* deadlines */
    const char *version;
    int schema; /* of the state store, for show version */
    int64_t start_us;
    const char *models_dir; /* published shapes, for plan */
    struct domain *domain;  /* the rack; NULL in tests that have none */
    struct loop *loop;      /* the control thread's; NULL in tests: no ROUTE_CONTROL */
    /* What the handlers of the control thread work on; each NULL in tests that have none.
     */
    struct access *access;
    struct alarms *alarms;
    struct confmgr *confmgr;
    struct fleet *fleet;
    struct slo *slo;
    struct store *store;
};

/* Borrows router, page and what cfg points to until http_stop; starts its threads.
 */
int http_start(const struct http_cfg *cfg, struct router *r, struct metric_page *page,
               struct http **ret, struct err *e);
int http_port(const struct http *h); /* the TCP port bound, 0 when none */
/* News for those who listen to /api/v1/events; h NULL allowed. Control thread. */
void http_on_journal(struct http *h, const struct journal_row *r);
void http_on_alarm(struct http *h, const struct alarm_status *a);
/* No new inference: 503 with Retry-After. Running requests, health and control go on. */
void http_drain(struct http *h);
/* Streams and requests still open. */
int http_active(const struct http *h);
/* Ends every request (answer or error frame), closes, joins and frees. Sinks of requests
 * that still run stay valid until their finish. Call it with the control loop stopped or
 * from its thread; the router must still be there. */
void http_stop(struct http *h);
/* Progress of every HTTP thread since the last call, for healthz and the watchdog. */
bool http_alive(struct http *h);

#endif
