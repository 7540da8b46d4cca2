/* ctl/live.c - `monitor` and `watch`: a screen that is drawn again and again. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "ctl/args.h"
#include "ctl/line.h"
#include "ctl/monitor.h"
#include "ctl/run.h"
#include "ctl/screen.h"
#include "ctl/show.h"
#include "ctl/verb.h"

enum { MONITOR_S = 1, WATCH_S = 2, SLO_S = 60, SLOW_EVERY = 5 };

static void clock_text(char out[64])
{
    char full[64];
    json_t *now = json_integer(clock_wall_ms());

    show_value(now, "time", full, sizeof(full));
    snprintf(out, 64, "%s", strchr(full, ' ') ? strchr(full, ' ') + 1 : full);
    json_decref(now);
}

/* When a loop of frames ends: never, or by --timeout. */
static int64_t end_of(const struct session *s)
{
    return s->opt.timeout_ms ? clock_now_us(clock_real()) + 1000 * s->opt.timeout_ms
                             : INT64_MAX;
}

/* A GET into *ret (replaced); what fails leaves NULL. */
static void look(struct session *s, const char *path, json_t **ret, struct err *e)
{
    struct answer a;

    json_decref(*ret);
    *ret = NULL;
    if (run_get(s, path, &a, e) == 0)
        *ret = json_incref(a.root);
    answer_done(&a);
}

static void look_all(struct session *s, struct monitor *m, int turn, struct err *e)
{
    json_t *status = NULL;
    struct err other;

    look(s, "status", &status, e);
    if (!status)
        return;
    monitor_take(m, status, clock_now_us(clock_real()));
    look(s, "slo?window_s=60", &m->slo, &other);
    look(s, "alarms", &m->alarms, &other);
    if (turn % SLOW_EVERY == 0)
        look(s, "devices", &m->devices, &other);
}

static void draw(const struct monitor *m, const char *why)
{
    struct show_style st = run_style();
    char now[64];
    struct buf b;

    buf_init(&b, 0);
    clock_text(now);
    monitor_frame(m, &st, now, why, &b);
    screen_frame(&b);
    buf_done(&b);
}

int run_monitor(struct session *s, const struct verb *v, const struct args *a,
                struct err *e)
{
    const char *seconds = args_get(a, "SECONDS");
    int64_t every_us =
        1000000 * (seconds && strtoll(seconds, NULL, 10) > 0 ? strtoll(seconds, NULL, 10)
                                                             : MONITOR_S);
    int64_t end = end_of(s);
    struct monitor m = {.status = NULL};
    int key = 0;

    (void)v;
    if (screen_open(e) < 0)
        return -1;
    for (int turn = 0; key != 'q' && key != SCREEN_STOP; turn++) {
        int64_t next = clock_now_us(clock_real()) + every_us;
        struct err why = {0};

        look_all(s, &m, turn, &why);
        do {
            draw(&m, why.msg);
            key = screen_key(next < end ? next : end);
        } while (key == SCREEN_RESIZED);
        if (clock_now_us(clock_real()) >= end)
            break;
    }
    screen_close();
    monitor_done(&m);
    return 0;
}

/* ---- watch ---- */

/* The verb's line and how often: a number at the end is the seconds, when what stands
 * before it is a verb of its own. */
static int split(const char *text, char **ret_line, int64_t *ret_s, struct err *e)
{
    struct words w;
    const struct verb *v;
    int n, rc = -1;

    *ret_s = WATCH_S;
    if (words_split(text, &w, e) < 0)
        return -1;
    *ret_line = xstrdup(text);
    if (w.n > 1 && strspn(w.w[w.n - 1], "0123456789") == strlen(w.w[w.n - 1])) {
        *ret_s = strtoll(w.w[w.n - 1], NULL, 10);
        (*ret_line)[w.raw[w.n - 1] - w.line] = '\0';
        free(w.w[--w.n]);
    }
    for (n = (int)strlen(*ret_line); n && isspace((unsigned char)(*ret_line)[n - 1]);)
        (*ret_line)[--n] = '\0';
    v = verb_match(&w, &n, e);
    if (v && (strcmp(v->method, "GET") || !strncmp(v->view, "", 1)))
        err_set(e, ERR_INVALID, "'%s' cannot be watched; verbs that show can", v->words);
    else if (v && (*ret_s < 1 || *ret_s > 86400))
        err_set(e, ERR_RANGE, "SECONDS is 1 to 86400");
    else if (v)
        rc = 0;
    words_done(&w);
    if (rc < 0)
        free(*ret_line);
    return rc;
}

/* What the verb prints, or why it does not, into b. */
static void take(struct session *s, const char *line, struct buf *b)
{
    FILE *out = s->out;
    char *text = NULL;
    size_t n = 0;
    struct err e = {0};

    s->out = open_memstream(&text, &n);
    if (!s->out)
        abort(); /* out of memory, as elsewhere */
    if (run_line(s, line, &e) < 0)
        fprintf(s->out, "%s\n", e.msg);
    fclose(s->out);
    s->out = out;
    buf_add(b, text, n);
    free(text);
}

static void title(const char *line, int64_t seconds, struct buf *b)
{
    struct show_style st = run_style();
    char now[64], *text, *cut;

    clock_text(now);
    text = xasprintf("%s   each %lld s   %s   q leaves", line, (long long)seconds, now);
    show_clean(text, "");
    cut = text_cut(text, st.width);
    buf_printf(b, "%s%s%s\n\n", hue_begin(&st, HUE_DIM), cut, hue_end(&st));
    free(cut);
    free(text);
}

static int watch_screen(struct session *s, const char *line, int64_t seconds,
                        struct err *e)
{
    int64_t end = end_of(s);
    int key = 0;

    if (screen_open(e) < 0)
        return -1;
    while (key != 'q' && key != SCREEN_STOP && clock_now_us(clock_real()) < end) {
        int64_t next = clock_now_us(clock_real()) + 1000000 * seconds;
        struct buf b;

        buf_init(&b, 0);
        title(line, seconds, &b);
        take(s, line, &b);
        screen_frame(&b);
        buf_done(&b);
        key = screen_key(next < end ? next : end);
    }
    screen_close();
    return 0;
}

/* Without a terminal: one after the other. */
static int watch_plain(struct session *s, const char *line, int64_t seconds,
                       struct err *e)
{
    int64_t end = end_of(s);

    for (bool first = true; !*line_stop_flag(); first = false) {
        int64_t next = clock_now_us(clock_real()) + 1000000 * seconds;

        if (!first)
            fputc('\n', s->out);
        if (run_line(s, line, e) < 0)
            return -1;
        fflush(s->out);
        if (next >= end)
            break;
        run_pause(next);
    }
    return 0;
}

int run_watch(struct session *s, const struct verb *v, const struct args *a,
              struct err *e)
{
    char *line;
    int64_t seconds;
    int rc;

    (void)v;
    if (split(args_get(a, "VERB"), &line, &seconds, e) < 0)
        return -1;
    rc = line_is_terminal() && line_width() ? watch_screen(s, line, seconds, e)
                                            : watch_plain(s, line, seconds, e);
    free(line);
    return rc;
}
