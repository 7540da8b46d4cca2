/* daemon/api/linktable.c - links of the rack: what ranks sent over them, what the driver
 * counts.
 *
 * As rows of /api/v1/links and as series of the scrape. The first kind comes from the
 * collectives' own counts, laid on the paths between devices; the second from NVML, and
 * has traffic of others too. */
#include "daemon/api/linktable.h"

#include <stdlib.h>

#include "base/metric.h"
#include "daemon/api/conn.h"
#include "daemon/api/handler.h"
#include "daemon/api/server.h"
#include "daemon/ctrl/domain.h"
#include "daemon/ctrl/linkwatch.h"
#include "topo/nvlinks.h"

static void put_known(struct jw *w, const char *key, double v)
{
    if (v < 0)
        jw_knull(w, key);
    else
        jw_knum(w, key, v);
}

static void put_row(struct jw *w, const struct link_row *r)
{
    int most = 0;

    for (int k = 1; k < COMM_CALL_COUNT; k++)
        most = r->by_call[k] > r->by_call[most] ? k : most;
    jw_obj(w);
    jw_kstr(w, "rack", r->rack[0] ? r->rack : NULL);
    jw_kstr(w, "a", r->a);
    jw_kstr(w, "b", r->b);
    jw_kstr(w, "kind", r->kind);
    put_known(w, "bandwidth", r->bps > 0 ? r->bps : -1);
    jw_knum(w, "bytes_ab", r->bytes[0]);
    jw_knum(w, "bytes_ba", r->bytes[1]);
    jw_knum(w, "rate_ab", r->bytes_s[0]);
    jw_knum(w, "rate_ba", r->bytes_s[1]);
    put_known(w, "busy_share", r->share);
    jw_kstr(w, "state", r->congested ? "congested" : "ok");
    jw_kstr(w, "instance", r->by[0] ? r->by : NULL);
    jw_kstr(w, "mostly", comm_call_name((enum comm_call)most));
    jw_key(w, "calls");
    jw_obj(w);
    for (int k = 0; k < COMM_CALL_COUNT; k++)
        if (r->by_call[k] > 0)
            jw_knum(w, comm_call_name((enum comm_call)k), r->by_call[k]);
    jw_obj_end(w);
    jw_obj_end(w);
}

static double kib(int64_t v) { return v < 0 ? -1 : (double)v * 1024; }

static double busy(const struct nvlink_count *l)
{
    double most = l->tx_bps > l->rx_bps ? l->tx_bps : l->rx_bps;

    return most < 0 || l->bps <= 0 ? -1 : most / l->bps;
}

static void put_nvlink(struct jw *w, const struct nvlink_count *l)
{
    jw_obj(w);
    jw_kstr(w, "device", l->device);
    jw_kint(w, "link", l->link);
    jw_kstr(w, "to", l->to[0] ? l->to : NULL);
    put_known(w, "bandwidth", l->bps > 0 ? l->bps : -1);
    put_known(w, "bytes_sent", kib(l->tx_kib));
    put_known(w, "bytes_received", kib(l->rx_kib));
    put_known(w, "rate_sent", l->tx_bps);
    put_known(w, "rate_received", l->rx_bps);
    put_known(w, "busy_share", busy(l));
    jw_obj_end(w);
}

void control_links(struct conn *c)
{
    struct domain_view *v = c->h->cfg.domain ? domain_get(c->h->cfg.domain) : NULL;
    struct link_row *row = NULL;
    int64_t span_us = 0;
    int n = c->h->cfg.links ? linkwatch_rows(c->h->cfg.links, &row, &span_us) : 0;
    struct reply r;

    reply_open(&r);
    jw_knum(&r.w, "window_s", (double)span_us / 1e6);
    jw_key(&r.w, "links");
    jw_arr(&r.w);
    for (int i = 0; i < n; i++)
        put_row(&r.w, &row[i]);
    jw_arr_end(&r.w);
    jw_knum(&r.w, "driver_window_s", v ? (double)v->nvlinks_us / 1e6 : 0);
    jw_key(&r.w, "nvlinks");
    jw_arr(&r.w);
    for (int i = 0; v && i < v->n_nvlinks; i++)
        put_nvlink(&r.w, &v->nvlinks[i]);
    jw_arr_end(&r.w);
    reply_send(c, &r, 200);
    free(row);
    domain_put(v);
}

/* ---- series ---- */

static void put_head(struct buf *b, const char *name, const char *kind, const char *help)
{
    buf_printf(b, "# HELP %s %s (D)\n# TYPE %s %s\n", name, help, name, kind);
}

/* Names of nodes come from files too: they are escaped. */
static void put_ends(struct buf *b, const char *name, const struct link_row *r, bool back)
{
    buf_printf(b, "%s{rack=\"", name);
    metric_label(b, r->rack);
    buf_printf(b, "\",kind=\"%s\",from=\"", r->kind);
    metric_label(b, back ? r->b : r->a);
    buf_printf(b, "\",to=\"");
    metric_label(b, back ? r->a : r->b);
}

static void put_rows(const struct link_row *row, int n, struct buf *b)
{
    static const char bytes[] = "llmrack_link_bytes_total",
                      busy_share[] = "llmrack_link_busy_share",
                      congested[] = "llmrack_link_congested";

    put_head(b, bytes, "counter", "Bytes that ranks read over a link of the rack");
    for (int i = 0; i < n; i++)
        for (int d = 0; d < 2; d++) {
            put_ends(b, bytes, &row[i], d);
            buf_printf(b, "\"} %.17g\n", row[i].bytes[d]);
        }
    put_head(b, busy_share, "gauge",
             "Share of the last seconds that a link was taken, of the direction that was "
             "taken more");
    for (int i = 0; i < n; i++)
        if (row[i].share >= 0) {
            put_ends(b, busy_share, &row[i], false);
            buf_printf(b, "\"} %.17g\n", row[i].share);
        }
    put_head(b, congested, "gauge", "1 while a link is taken most of the time");
    for (int i = 0; i < n; i++) {
        put_ends(b, congested, &row[i], false);
        buf_printf(b, "\"} %d\n", row[i].congested);
    }
}

static void put_nvlink_bytes(struct buf *b, const struct nvlink_count *l, bool sent)
{
    int64_t v = sent ? l->tx_kib : l->rx_kib;

    if (v >= 0)
        buf_printf(
            b,
            "llmrack_nvlink_bytes_total{device=\"%s\",link=\"%d\",direction=\"%s\"} "
            "%.17g\n",
            l->device, l->link, sent ? "sent" : "received", kib(v));
}

static void put_nvlinks(const struct domain_view *v, struct buf *b)
{
    put_head(b, "llmrack_nvlink_bytes_total", "counter",
             "Bytes over an NVLink of a GPU, as the driver counts them");
    for (int i = 0; i < v->n_nvlinks; i++) {
        put_nvlink_bytes(b, &v->nvlinks[i], true);
        put_nvlink_bytes(b, &v->nvlinks[i], false);
    }
    put_head(
        b, "llmrack_nvlink_busy_share", "gauge",
        "Share of an NVLink's bandwidth between the last two readings of the driver, "
        "of the direction that carried more");
    for (int i = 0; i < v->n_nvlinks; i++)
        if (busy(&v->nvlinks[i]) >= 0)
            buf_printf(b, "llmrack_nvlink_busy_share{device=\"%s\",link=\"%d\"} %.17g\n",
                       v->nvlinks[i].device, v->nvlinks[i].link, busy(&v->nvlinks[i]));
}

void links_metrics(struct linkwatch *w, struct domain *d, struct buf *out)
{
    static const struct domain_view none;
    struct domain_view *v = d ? domain_get(d) : NULL;
    struct link_row *row;
    int64_t span_us;
    int n = linkwatch_rows(w, &row, &span_us);

    put_rows(row, n, out);
    put_nvlinks(v ? v : &none, out);
    free(row);
    domain_put(v);
}
