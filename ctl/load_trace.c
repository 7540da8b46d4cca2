/* ctl/load_trace.c - traces line by line. */
#include "ctl/load_trace.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/sha256.h"

enum { LINE_MAX_BYTES = 1 << 20, IDS_MAX = 1 << 24, LEN_MAX = 1 << 30 };

struct reader {
    struct load_trace t;
    int row_cap, id_cap;
};

static struct load_row *new_row(struct reader *r)
{
    if (r->t.n == r->row_cap) {
        r->row_cap = r->row_cap ? 2 * r->row_cap : 1024;
        r->t.row = xrealloc(r->t.row, (size_t)r->row_cap * sizeof(*r->t.row));
    }
    return &r->t.row[r->t.n];
}

static void add_id(struct reader *r, int64_t id)
{
    if (r->t.n_ids == r->id_cap) {
        r->id_cap = r->id_cap ? 2 * r->id_cap : 4096;
        r->t.id = xrealloc(r->t.id, (size_t)r->id_cap * sizeof(*r->t.id));
    }
    r->t.id[r->t.n_ids++] = id;
}

/* Days since 1970-01-01 of the Gregorian calendar. */
static int64_t days(int y, int m, int d)
{
    int64_t era, doy;

    y -= m <= 2;
    era = (y >= 0 ? y : y - 399) / 400;
    doy = (153 * (m > 2 ? m - 3 : m + 9) + 2) / 5 + d - 1;
    return era * 146097 + (y - era * 400) * 365 + (y - era * 400) / 4 -
           (y - era * 400) / 100 + doy - 719468;
}

/* A whole number of 0..LEN_MAX behind a comma; moves *p behind it. */
static int azure_len(const char **p, int *ret)
{
    char *end;
    long long v;

    if (**p != ',' || (*p)[1] < '0' || (*p)[1] > '9')
        return -1;
    v = strtoll(*p + 1, &end, 10);
    if (v > LEN_MAX)
        return -1;
    *p = end;
    *ret = (int)v;
    return 0;
}

/* "2023-11-16 18:17:03.9799600,4808,10" */
static int azure_row(struct reader *r, const char *line)
{
    int y, mo, d, h, mi, in, out, n = 0;
    double s;
    struct load_row *row = new_row(r);
    const char *p;

    if (sscanf(line, "%4d-%2d-%2d%*[ T]%2d:%2d:%12lf%n", &y, &mo, &d, &h, &mi, &s, &n) !=
            6 ||
        y < 0 || mo < 1 || mo > 12 || d < 1 || d > 31 || h < 0 || h > 23 || mi < 0 ||
        mi > 59 || !(s >= 0 && s < 61))
        return -1;
    p = line + n;
    if (azure_len(&p, &in) < 0 || azure_len(&p, &out) < 0 || p[strspn(p, "\r")])
        return -1;
    *row = (struct load_row){
        .at_us = ((days(y, mo, d) * 24 + h) * 60 + mi) * INT64_C(60000000) +
                 (int64_t)(s * 1e6),
        .n_in = in,
        .n_out = out,
    };
    r->t.n++;
    return 0;
}

static int mooncake_row(struct reader *r, const char *line, size_t n)
{
    static const struct js_limits lim = {LINE_MAX_BYTES, 4};
    struct load_row *row = new_row(r);
    double at = 0;
    int64_t in = 0, out = 0;
    json_t *o = NULL, *ids, *v;
    size_t i;
    int rc = -1;

    if (js_parse(line, n, &lim, &o, NULL) < 0)
        return -1;
    if (js_get_num(o, "timestamp", 0, 1e15, &at, NULL) == 1 &&
        js_get_int(o, "input_length", 0, LEN_MAX, &in, NULL) == 1 &&
        js_get_int(o, "output_length", 0, LEN_MAX, &out, NULL) == 1)
        rc = 0;
    *row = (struct load_row){.at_us = (int64_t)(at * 1e3),
                             .n_in = (int)in,
                             .n_out = (int)out,
                             .first_id = r->t.n_ids};
    ids = json_object_get(o, "hash_ids");
    json_array_foreach(ids, i, v)
    {
        if (!json_is_integer(v) || r->t.n_ids >= IDS_MAX)
            rc = -1;
        else
            add_id(r, json_integer_value(v));
    }
    row->n_id = r->t.n_ids - row->first_id;
    json_decref(o);
    if (rc == 0)
        r->t.n++;
    return rc;
}

static const char header[] = "TIMESTAMP,ContextTokens,GeneratedTokens";

int load_trace_parse(const char *text, size_t n, struct load_trace *ret, struct err *e)
{
    struct reader r = {.row_cap = 0};
    const char *p = text, *end = text + n;
    bool json = n && *text == '{';
    char sum[SHA256_CHARS + 1];
    int line = 0;

    while (p < end) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        size_t len = (size_t)((nl ? nl : end) - p);
        char *copy = NULL;
        int rc = 0;

        line++;
        if (len >= LINE_MAX_BYTES || r.t.n >= LOAD_TRACE_ROWS || memchr(p, 0, len))
            rc = -1;
        else if (len && (json || line > 1)) {
            copy = xstrndup(p, len);
            rc = json ? mooncake_row(&r, copy, strlen(copy)) : azure_row(&r, copy);
        } else if (len && !json &&
                   (len < sizeof(header) - 1 || memcmp(p, header, sizeof(header) - 1))) {
            rc = -1;
        }
        free(copy);
        if (rc == 0 && r.t.n > 1 && r.t.row[r.t.n - 1].at_us < r.t.row[r.t.n - 2].at_us)
            rc = -1;
        if (rc < 0) {
            load_trace_done(&r.t);
            return err_set(e, ERR_INVALID,
                           "line %d is no row of a trace in the order of time: "
                           "TIMESTAMP,ContextTokens,GeneratedTokens under such a header, "
                           "or JSON lines with timestamp, input_length, output_length, "
                           "hash_ids",
                           line);
        }
        p = nl ? nl + 1 : end;
    }
    if (!r.t.n)
        return err_set(e, ERR_INVALID, "a trace without a row");
    sha256_hex(text, n, sum);
    snprintf(r.t.hash, sizeof(r.t.hash), "%.16s", sum);
    *ret = r.t;
    return 0;
}

void load_trace_done(struct load_trace *t)
{
    free(t->row);
    free(t->id);
    memset(t, 0, sizeof(*t));
}

double load_trace_rate(const struct load_trace *t)
{
    double span = t->n > 1 ? (double)(t->row[t->n - 1].at_us - t->row[0].at_us) : 0;

    return span > 0 ? (t->n - 1) / (span / 1e6) : 1;
}
