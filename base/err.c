/* base/err.c - fills struct err and answers from the one table of codes.
 *
 * Sentences are cut to the struct's size at a whole UTF-8 character and lose control
 * bytes, since file names and other outside text end up in them and they are later put
 * into log lines and JSON. */
#include "base/err.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int reply, status, exit;
    const char *type, *text;
} rows[ERR_COUNT] = {
#define X(id, reply, status, ex, type, text) {#id, reply, status, ex, type, text},
    ERR_MAP(X)
#undef X
};

/* Cut a trailing incomplete UTF-8 character and replace control bytes. */
static void tidy(char *s)
{
    size_t n = strlen(s), back = 0;

    while (back < 4 && back < n && ((unsigned char)s[n - 1 - back] & 0xC0) == 0x80)
        back++;
    if (back < n) {
        unsigned char lead = (unsigned char)s[n - 1 - back];
        size_t want = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : lead >= 0xC0 ? 1 : 0;
        if (want > back)
            s[n - 1 - back] = '\0';
    }
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7F)
            *s = ' ';
}

static void fill(struct err *e, enum err_code code, const char *param, const char *fmt,
                 va_list ap)
{
    char msg[sizeof(e->msg)]; /* the arguments may point into *e */

    vsnprintf(msg, sizeof(msg), fmt, ap);
    tidy(msg);
    e->code = code;
    snprintf(e->param, sizeof(e->param), "%s", param);
    memcpy(e->msg, msg, sizeof(msg));
}

int err_set(struct err *e, enum err_code code, const char *fmt, ...)
{
    va_list ap;

    if (!e)
        return -1;
    va_start(ap, fmt);
    fill(e, code, "", fmt, ap);
    va_end(ap);
    return -1;
}

int err_param(struct err *e, enum err_code code, const char *param, const char *fmt, ...)
{
    va_list ap;

    if (!e)
        return -1;
    va_start(ap, fmt);
    fill(e, code, param, fmt, ap);
    va_end(ap);
    return -1;
}

int err_errno(struct err *e, enum err_code code, const char *fmt, ...)
{
    int saved = errno;
    char head[sizeof(e->msg)], why[128];
    va_list ap;

    if (!e)
        return -1;
    va_start(ap, fmt);
    vsnprintf(head, sizeof(head), fmt, ap);
    va_end(ap);
    return err_set(e, code, "%s: %s", head, strerror_r(saved, why, sizeof(why)));
}

int err_wrap(struct err *e, const char *fmt, ...)
{
    char head[sizeof(e->msg)], whole[2 * sizeof(e->msg) + 2];
    va_list ap;

    if (!e)
        return -1;
    va_start(ap, fmt);
    vsnprintf(head, sizeof(head), fmt, ap);
    va_end(ap);
    snprintf(whole, sizeof(whole), "%s: %s", head, e->msg);
    whole[sizeof(e->msg) - 1] = '\0';
    tidy(whole);
    memcpy(e->msg, whole, strlen(whole) + 1);
    return -1;
}

void err_clear(struct err *e)
{
    if (!e)
        return;
    e->code = ERR_OK;
    e->param[0] = e->msg[0] = '\0';
}

static enum err_code known(enum err_code code)
{
    return (unsigned)code < ERR_COUNT ? code : ERR_INTERNAL;
}

const char *err_name(enum err_code code) { return rows[known(code)].name; }
const char *err_text(enum err_code code) { return rows[known(code)].text; }
const char *err_type(enum err_code code) { return rows[known(code)].type; }
int err_reply(enum err_code code) { return rows[known(code)].reply; }
int err_status(enum err_code code) { return rows[known(code)].status; }
int err_exit(enum err_code code) { return rows[known(code)].exit; }
