/* ctl/llmctl.c - the operator's shell: one verb from the command line, or a session.
 *
 * A thin client: every verb is a row of verb.def and a REST call over the daemon's UNIX
 * socket. Exit code: 0, or the class of the error (base/err.h). */
#include <getopt.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "ctl/ask.h"
#include "ctl/chat.h"
#include "ctl/line.h"
#include "ctl/show.h"
#include "ctl/verb.h"
#include "ctl/wire.h"

struct session {
    struct wire *wire;
    bool json, leave;
};

/* Options: letter, name, argument, help. */
static const struct {
    struct option o;
    const char *arg, *help;
} options[] = {
    {{"socket", required_argument, NULL, 's'}, "PATH", "the daemon's UNIX socket"},
    {{"url", required_argument, NULL, 'u'},
     "URL",
     "http://host:port instead (chat only)"},
    {{"json", no_argument, NULL, 'j'}, "", "print the daemon's JSON"},
    {{"command", required_argument, NULL, 'c'}, "LINE", "run this line and leave"},
    {{"man", no_argument, NULL, 'm'}, "", "print the verbs as roff"},
    {{"help", no_argument, NULL, 'h'}, "", "this text"},
    {{"version", no_argument, NULL, 'V'}, "", "version of llmctl"},
};
enum { N_OPTIONS = sizeof(options) / sizeof(options[0]) };

static void usage(FILE *f)
{
    struct buf b;

    buf_init(&b, 0);
    verb_help("", &b);
    fprintf(f, "usage: llmctl [options] [verb ...]     without a verb: a shell\n\n");
    for (int i = 0; i < N_OPTIONS; i++)
        fprintf(f, "  -%c, --%s %-*s %s\n", options[i].o.val, options[i].o.name,
                (int)(14 - strlen(options[i].o.name)), options[i].arg, options[i].help);
    fprintf(f, "\nverbs (any unambiguous prefix of a word will do):\n%s", b.p);
    fprintf(f,
            "\nexit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 refused, 5 conflict, "
            "6 unavailable\n");
    buf_done(&b);
}

/* The daemon started by `make run` here, else the system's. */
static const char *default_socket(void)
{
    static const char *const paths[] = {"var/llmrackd.sock",
                                        "/run/llmrack/llmrackd.sock"};

    return access(paths[0], F_OK) == 0 ? paths[0] : paths[1];
}

/* GET v's path, or POST json to it; shown by view, or written to the FILE in rest. */
static int fetch(struct session *s, const struct verb *v, const char *view,
                 const char *rest, const char *json, struct err *e)
{
    struct buf body, text;
    int rc;

    buf_init(&body, 0);
    buf_init(&text, 0);
    rc = wire_call(s->wire, v->path, json, line_stop_flag(), &body, e);
    if (rc == 0 && !strcmp(view, "@file"))
        rc = ask_save(rest, body.p ? body.p : "", body.len, e);
    else if (rc == 0 && s->json)
        printf("%s\n", body.p);
    else if (rc == 0)
        rc = show_render(body.p, body.len, view, line_width(), &text, e);
    if (rc == 0 && text.len)
        fputs(text.p, stdout);
    buf_done(&body);
    buf_done(&text);
    return rc;
}

/* A verb whose words make a request body. */
static int post(struct session *s, const struct verb *v, char *json, struct err *e)
{
    int rc = json ? fetch(s, v, "@text", "", json, e) : -1;

    free(json);
    return rc;
}

static int talk(struct session *s, const char *text, struct err *e)
{
    struct chat *c = chat_new(s->wire);
    int rc;

    *line_stop_flag() = 0;
    rc = *text ? chat_ask(c, text, line_stop_flag(), line_width() > 0, e)
               : chat_loop(c, e);
    chat_free(c);
    return rc;
}

static int run_verb(struct session *s, const char *line, struct err *e)
{
    const char *rest;
    const struct verb *v = verb_match(line, &rest, e);
    struct buf text;

    if (!v)
        return -1;
    switch (v->id) {
    case VERB_HELP:
        buf_init(&text, 0);
        verb_help(rest, &text);
        if (text.len)
            fputs(text.p, stdout);
        buf_done(&text);
        return 0;
    case VERB_EXIT:
        s->leave = true;
        return 0;
    case VERB_CHAT:
        return talk(s, rest, e);
    case VERB_VERSION:
        if (!s->json)
            printf("llmctl  %s\n", LLMRACK_VERSION);
        return fetch(s, v, v->view, rest, NULL, e);
    case VERB_EXPLAIN:
        if (!*rest)
            return fetch(s, v, v->view, rest, NULL, e);
        return post(s, v, ask_words(rest, e), e);
    case VERB_PLAN_MAKE:
        return post(s, v, ask_plan(rest, e), e);
    default:
        return fetch(s, v, v->view, rest, NULL, e);
    }
}

static const char *complete(const char *before, const char *part, int i, char *word,
                            unsigned cap)
{
    return verb_complete(before, part, i, word, cap);
}

static char *question(const char *line)
{
    struct buf b;

    buf_init(&b, 0);
    verb_help(line, &b);
    return buf_take(&b);
}

static int shell(struct session *s)
{
    char *line;
    int rc = 0;

    if (line_is_terminal())
        printf("llmctl %s; help lists the verbs, Tab completes, ? shows what fits\n",
               LLMRACK_VERSION);
    while (!s->leave && (line = line_read("llmctl> ", true))) {
        struct err e = {0};
        const char *p = line + strspn(line, " \t");

        if (*p && *p != '#') {
            *line_stop_flag() = 0;
            rc = run_verb(s, p, &e) < 0 ? err_exit(e.code) : 0;
            if (rc)
                fprintf(stderr, "%s\n", e.msg);
            fflush(stdout);
        }
        free(line);
        if (rc && !line_is_terminal())
            break;
    }
    return rc;
}

static char *join(char **words, int n)
{
    struct buf b;

    buf_init(&b, 0);
    for (int i = 0; i < n; i++) {
        buf_puts(&b, i ? " " : "");
        buf_puts(&b, words[i]);
    }
    return buf_take(&b);
}

static char *history_path(void)
{
    const struct passwd *pw = getpwuid(getuid());
    const char *home = getenv("HOME");

    if ((!home || !*home) && pw)
        home = pw->pw_dir;
    return home && *home ? xasprintf("%s/.llmctl_history", home) : NULL;
}

/* Options into *s, *target and *line; -1 = go on, else the exit code. */
static int read_options(int argc, char **argv, struct session *s, const char **target,
                        const char **line)
{
    struct option longs[N_OPTIONS + 1] = {0};
    struct buf man;
    int c;

    for (int i = 0; i < N_OPTIONS; i++)
        longs[i] = options[i].o;
    while ((c = getopt_long(argc, argv, "+s:u:jc:mhV", longs, NULL)) != -1) {
        switch (c) {
        case 's':
        case 'u':
            *target = optarg;
            break;
        case 'j':
            s->json = true;
            break;
        case 'c':
            *line = optarg;
            break;
        case 'm':
            buf_init(&man, 0);
            verb_man(&man);
            fputs(man.p, stdout);
            buf_done(&man);
            return 0;
        case 'h':
            usage(stdout);
            return 0;
        case 'V':
            printf("llmctl %s\n", LLMRACK_VERSION);
            return 0;
        default:
            fprintf(stderr, "llmctl --help lists the options\n");
            return err_exit(ERR_INVALID);
        }
    }
    return -1;
}

int main(int argc, char **argv)
{
    struct session s = {0};
    const char *target = NULL, *command = NULL;
    char *line = NULL, *history = NULL;
    struct err e = {0};
    int rc = read_options(argc, argv, &s, &target, &command);

    if (rc >= 0)
        return rc;
    if (wire_open(target ? target : default_socket(), &s.wire, &e) < 0) {
        fprintf(stderr, "llmctl: %s\n", e.msg);
        return err_exit(e.code);
    }
    if (!command && optind < argc)
        command = line = join(argv + optind, argc - optind);
    if (!command && isatty(STDIN_FILENO))
        history = history_path();
    line_open(history, complete, question);
    if (command) {
        rc = run_verb(&s, command, &e) < 0 ? err_exit(e.code) : 0;
        if (rc)
            fprintf(stderr, "llmctl: %s\n", e.msg);
    } else {
        rc = shell(&s);
    }
    line_close();
    wire_close(s.wire);
    free(line);
    free(history);
    return rc;
}
