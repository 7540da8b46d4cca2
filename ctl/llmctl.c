/* ctl/llmctl.c - the operator's shell: one verb from the command line, or a session.
 *
 * A thin client: every verb is a row of verb.def and REST over the daemon's UNIX socket,
 * or TCP with a key. Exit code: 0, or the class of the error (base/err.h). */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "ctl/args.h"
#include "ctl/complete.h"
#include "ctl/file.h"
#include "ctl/line.h"
#include "ctl/nouns.h"
#include "ctl/option.h"
#include "ctl/run.h"
#include "ctl/shell.h"
#include "ctl/verb.h"
#include "ctl/wire.h"

enum { KEY_MAX = 4096 };

static void usage(void)
{
    struct words none = {.n = 0};
    struct buf b;

    buf_init(&b, 0);
    verb_help(&none, line_width(), &b);
    printf("usage: llmctl [options] [verb ...]     without a verb: a shell\n\n");
    for (int i = 0; i < n_option_rows; i++) {
        const struct option_row *r = &option_rows[i];

        printf("  -%c, --%s %-*s %s%s\n", r->o.val, r->o.name,
               (int)(18 - strlen(r->o.name)), r->arg, r->help,
               r->in_line ? " (also after the verb)" : "");
    }
    printf("\nAny unambiguous prefix of a word will do.\n\n%s", b.p);
    printf("\nexit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 refused, 5 conflict, "
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

struct choice {
    const char *command, *complete, *ca;
    char *key;
};

/* From --key (struck out of argv, which others can see), a file, or the environment
 * (taken out of it, so that an editor or pager does not get it). */
static int read_key(char *arg, struct choice *c, struct err *e)
{
    struct buf b;

    free(c->key);
    c->key = NULL;
    if (!arg)
        return 0;
    if (*arg == '@') {
        if (file_read(arg + 1, KEY_MAX, &b, e) < 0)
            return err_wrap(e, "the key's file");
        c->key = xstrndup(b.p, strcspn(b.p, "\r\n"));
        explicit_bzero(b.p, b.len);
        buf_done(&b);
        return 0;
    }
    c->key = xstrdup(arg);
    memset(arg, '*', strlen(arg));
    return 0;
}

static void print_man(void)
{
    struct buf man;

    buf_init(&man, 0);
    verb_man(&man);
    fputs(man.p, stdout);
    buf_done(&man);
}

/* Options into *s and *c; -1 = go on, else the exit code. */
static int read_options(int argc, char **argv, struct session *s, struct choice *c)
{
    struct option_set set;
    struct err e = {0};
    int letter;

    option_set(false, &set);
    while ((letter = getopt_long(argc, argv, set.letters, set.longs, NULL)) != -1) {
        switch (letter) {
        case 's':
        case 'u':
            s->at = optarg;
            break;
        case 'k':
            read_key(optarg, c, &e);
            break;
        case 'a':
            c->ca = optarg;
            break;
        case 'c':
            c->command = optarg;
            break;
        case 'C':
            c->complete = optarg;
            break;
        case 'm':
            print_man();
            return 0;
        case 'h':
            usage();
            return 0;
        case 'V':
            printf("llmctl %s\n", LLMRACK_VERSION);
            return 0;
        default:
            if (option_apply(letter, optarg, &s->opt, &e))
                break;
            fprintf(stderr, "llmctl --help lists the options\n");
            return err_exit(ERR_INVALID);
        }
        if (e.code != ERR_OK) {
            fprintf(stderr, "llmctl: %s\n", e.msg);
            return err_exit(e.code);
        }
    }
    return -1;
}

/* What Tab would offer at the end of the line, one a line. */
static int complete(struct session *s, const char *line)
{
    struct nouns *n = nouns_new(s->wire);
    struct line_words words = {.n = 0};
    const char *part = strrchr(line, ' ') ? strrchr(line, ' ') + 1 : line;
    char *before = xstrndup(line, (size_t)(part - line));

    complete_line(before, part, nouns_get, n, &words);
    for (int i = 0; i < words.n; i++)
        puts(words.w[i]);
    line_words_done(&words);
    nouns_free(n);
    free(before);
    return 0;
}

int main(int argc, char **argv)
{
    struct session s = {.at = default_socket(), .out = stdout};
    struct choice c = {.command = NULL};
    char *line = NULL;
    struct err e = {0};
    int rc;

    read_key(getenv("LLMCTL_KEY"), &c, &e);
    unsetenv("LLMCTL_KEY");
    if (e.code != ERR_OK)
        goto fail;
    rc = read_options(argc, argv, &s, &c);
    if (rc >= 0)
        goto out;
    if (wire_open(
            &(struct wire_target){
                .at = s.at, .key = c.key, .ca = c.ca, .timeout_ms = s.opt.timeout_ms},
            &s.wire, &e) < 0)
        goto fail;
    if (!c.command && optind < argc)
        c.command = line = words_join(argv + optind, argc - optind);
    if (c.complete)
        rc = complete(&s, c.complete);
    else
        rc = shell_run(&s, c.command);
    goto out;

fail:
    fprintf(stderr, "llmctl: %s\n", e.msg);
    rc = err_exit(e.code);
out:
    wire_close(s.wire);
    if (c.key)
        explicit_bzero(c.key, strlen(c.key));
    free(c.key);
    free(line);
    return rc;
}
