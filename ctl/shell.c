/* ctl/shell.c - the session: prompt, news, leaving.
 *
 * What is pending is asked of the daemon before each prompt, after events that may have
 * changed it, and when the countdown has ended; between, the seconds are counted here.
 * The state is file-local, as the hooks of the terminal have no argument. */
#include "ctl/shell.h"

#include <inttypes.h>
#include <poll.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "ctl/complete.h"
#include "ctl/follow.h"
#include "ctl/line.h"
#include "ctl/nouns.h"
#include "ctl/run.h"
#include "ctl/show.h"
#include "ctl/wire.h"

enum { LOOK_MS = 2000, FEED_AGAIN_US = 5000000, REMIND_S = 30 };

static struct {
    struct session *s;
    struct nouns *nouns;
    struct wire_feed *feed;
    int64_t feed_us; /* when it was opened last */
    int64_t pending; /* revision, 0 none */
    int64_t at_us;   /* when it is rolled back */
    bool stale;      /* ask again */
    bool reminded;   /* of this pending one */
    char self[64];   /* as the journal names us */
    char prompt[128];
} sh;

/* ---- what is pending ---- */

static int64_t left_s(void)
{
    int64_t us = sh.at_us - clock_now_us(clock_real());

    return us > 0 ? (us + 999999) / 1000000 : 0;
}

static void look(void)
{
    static const struct js_limits lim = {8 << 20, 32};
    struct wire_request r = {
        .method = "GET", .path = "/api/v1/status", .timeout_ms = LOOK_MS};
    const json_t *p, *left;
    json_t *root = NULL;
    int64_t was = sh.pending;
    struct buf b;

    buf_init(&b, 0);
    sh.pending = 0;
    sh.stale = false;
    if (wire_call(sh.s->wire, &r, NULL, &b, NULL, NULL) == 0 && b.len &&
        js_parse(b.p, b.len, &lim, &root, NULL) == 0) {
        p = json_object_get(root, "pending");
        left = json_object_get(p, "left_s");
        sh.pending = json_integer_value(json_object_get(p, "revision"));
        sh.at_us = clock_now_us(clock_real()) + (int64_t)(json_number_value(left) * 1e6);
        json_decref(root);
    }
    if (sh.pending != was)
        sh.reminded = sh.pending && left_s() <= REMIND_S;
    buf_done(&b);
}

static const char *prompt(void)
{
    struct show_style st = run_style();

    if (sh.pending)
        snprintf(sh.prompt, sizeof(sh.prompt),
                 "llmctl %s%s%s(rev %" PRId64 " pending %" PRId64 " s)%s%s%s> ",
                 st.colour ? "\001" : "", hue_begin(&st, HUE_WARN),
                 st.colour ? "\002" : "", sh.pending, left_s(), st.colour ? "\001" : "",
                 hue_end(&st), st.colour ? "\002" : "");
    else
        snprintf(sh.prompt, sizeof(sh.prompt), "llmctl> ");
    return sh.prompt;
}

static void remind(void)
{
    char *text;

    if (!sh.pending || sh.reminded || left_s() > REMIND_S)
        return;
    sh.reminded = true;
    text = xasprintf("revision %" PRId64 " is rolled back in %" PRId64
                     " s, unless: config confirm",
                     sh.pending, left_s());
    line_news(text);
    free(text);
}

/* ---- news ---- */

static bool on_event(void *arg, const char *event, const char *json)
{
    struct show_style st = run_style();
    char *text = follow_event(event, json, true, sh.self, &st);

    (void)arg;
    if (text)
        line_news(text);
    free(text);
    sh.stale |= !strcmp(event, "journal") || !strcmp(event, "operation");
    return true;
}

/* The feed is there, or is tried again after a while. */
static void keep_feed(void)
{
    int64_t now = clock_now_us(clock_real());

    if (sh.feed && !wire_feed_work(sh.feed)) {
        wire_feed_close(sh.feed);
        sh.feed = NULL;
    }
    if (sh.feed || (sh.feed_us && now - sh.feed_us < FEED_AGAIN_US))
        return;
    sh.feed_us = now;
    sh.feed = wire_feed_open(sh.s->wire, "/api/v1/events", on_event, NULL);
}

static int fds(struct pollfd *ret, int max)
{
    return sh.feed ? wire_feed_fds(sh.feed, ret, max) : 0;
}

static void work(void)
{
    keep_feed();
    if (sh.stale || (sh.pending && left_s() == 0))
        look();
    remind();
}

/* ---- Tab and ? ---- */

static void complete(const char *before, const char *part, struct line_words *ret)
{
    complete_line(before, part, nouns_get, sh.nouns, ret);
}

static char *question(const char *line)
{
    struct buf b;

    buf_init(&b, 0);
    complete_help(line, line_width(), nouns_get, sh.nouns, &b);
    return b.len ? buf_take(&b) : NULL;
}

/* ---- lines ---- */

static int run(const char *line)
{
    struct session *s = sh.s;
    struct err e = {0};
    const char *said;

    *line_stop_flag() = 0;
    if (run_line(s, line, &e) == 0) {
        fflush(stdout);
        return 0;
    }
    fflush(stdout);
    said = wire_said(s->wire);
    if (strlen(said) > strlen(e.msg)) { /* the daemon's whole text */
        char *copy = xstrdup(said);

        show_clean(copy, "\n\t");
        fprintf(stderr, "%s%s\n", s->shell ? "" : "llmctl: ", copy);
        free(copy);
    } else {
        show_clean(e.msg, "\n\t");
        fprintf(stderr, "%s%s\n", s->shell ? "" : "llmctl: ", e.msg);
    }
    return err_exit(e.code);
}

/* Leaving with a pending revision is asked about once. */
static bool may_leave(void)
{
    char *text;
    bool yes;

    if (!line_is_terminal() || sh.s->opt.yes)
        return true;
    look();
    if (!sh.pending)
        return true;
    text =
        xasprintf("Revision %" PRId64 " is not confirmed: it is rolled back in %" PRId64
                  " s. Leave all the same?",
                  sh.pending, left_s());
    yes = line_ask(text);
    free(text);
    return yes;
}

static int session(void)
{
    bool tty = line_is_terminal();
    int rc = 0;

    if (tty)
        printf("llmctl %s; help lists the verbs, Tab completes, ? shows what fits\n",
               LLMRACK_VERSION);
    for (;;) {
        char *line;
        const char *p;

        if (tty) {
            look();
            keep_feed();
        }
        line = line_read(NULL, true);
        if (!line) {
            if (line_ended() || may_leave())
                return rc;
            continue;
        }
        p = line + strspn(line, " \t");
        if (*p && *p != '#')
            rc = run(p);
        free(line);
        if (rc && !tty)
            return rc;
        if (sh.s->leave && may_leave())
            return rc;
        sh.s->leave = false;
    }
}

static char *history_path(void)
{
    const struct passwd *pw = getpwuid(getuid());
    const char *home = getenv("HOME");

    if ((!home || !*home) && pw)
        home = pw->pw_dir;
    return home && *home ? xasprintf("%s/.llmctl_history", home) : NULL;
}

int shell_run(struct session *s, const char *command)
{
    static const struct line_hooks hooks = {.complete = complete,
                                            .help = question,
                                            .prompt = prompt,
                                            .fds = fds,
                                            .work = work};
    char *history = !command && isatty(STDIN_FILENO) ? history_path() : NULL;
    int rc;

    sh.s = s;
    sh.nouns = nouns_new(s->wire);
    snprintf(sh.self, sizeof(sh.self), "uid %u", (unsigned)getuid());
    line_open(history, &hooks);
    s->shell = !command;
    rc = command ? run(command) : session();
    line_close();
    wire_feed_close(sh.feed);
    nouns_free(sh.nouns);
    free(history);
    return rc;
}
