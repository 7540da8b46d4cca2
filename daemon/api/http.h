/* daemon/api/http.h - HTTP in, JSON and SSE out, on TCP and on the UNIX socket.
 *
 * libmicrohttpd with a pool of polling threads. Routes are rows (route.def): method,
 * path, where they exist (tcp, unix or both) and the handler. Bodies are parsed and
 * tokenised on worker threads with the connection suspended; answers are resumed from the
 * control thread's callbacks. Header and body deadlines (that of a TLS handshake with
 * them), idle streams and gone clients are watched here, since a suspended connection
 * sees neither. Who may do what: access.h. */
#ifndef API_HTTP_H
#define API_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct access;
struct alarm_status;
struct alarms;
struct conf;
struct confmgr;
struct domain;
struct err;
struct experts;
struct linkwatch;
struct fleet;
struct http;
struct journal_row;
struct loop;
struct metric_page;
struct router;
struct slo;
struct store;

struct http_cfg {
    /* listen, access, limits, instances[].kv.isolate; copied. An address of listen with
     * port 0 = any; "" = no TCP. */
    const struct conf *conf;
    const char *socket_path; /* UNIX socket */
    int socket_fd; /* it is open already, and stays when we end (systemd's); 0 = make it
                    */
    int n_threads, n_workers;
    const char *version;
    int schema; /* of the state store, for show version */
    int64_t start_us;
    const char *state_dir;  /* for copies of the state; NULL in tests that have none */
    const char *models_dir; /* published shapes, for plan */
    struct domain *domain;  /* the rack; NULL in tests that have none */
    struct loop *loop;      /* the control thread's; NULL in tests: no ROUTE_CONTROL */
    struct access *access;  /* never NULL */
    /* What the handlers of the control thread work on; each NULL in tests that have none.
     */
    struct alarms *alarms;
    struct confmgr *confmgr;
    struct experts *experts;
    struct fleet *fleet;
    struct linkwatch *links;
    struct slo *slo;
    struct store *store;
};

/* Borrows router, page and what cfg points to, its conf aside, until http_stop; starts
 * its threads. DENIED when the address can be reached from elsewhere without keys and
 * TLS. */
int http_start(const struct http_cfg *cfg, struct router *r, struct metric_page *page,
               struct http **ret, struct err *e);
int http_port(const struct http *h); /* the TCP port bound, 0 when none */
/* News for those who listen to /api/v1/events; h NULL allowed. Control thread. */
void http_on_journal(struct http *h, const struct journal_row *r);
void http_on_alarm(struct http *h, const struct alarm_status *a);
/* Could the listener of this configuration start? DENIED: reachable from elsewhere
 * without keys and TLS; INVALID: its address or its certificate files. Control thread. */
int http_check_conf(struct http *h, const struct conf *c, struct err *e);
/* Another configuration: limits, names, origins and access of requests from now on. What
 * is of the listener itself stays. Control thread. */
void http_set_conf(struct http *h, const struct conf *c);
/* Reads the certificate files again; on a fault the old certificate stays. Control
 * thread. */
int http_reload_tls(struct http *h, struct err *e);
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
