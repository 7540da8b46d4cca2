/* ctl/option.c - the rows, and one option from the words of a line. */
#include "ctl/option.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "ctl/args.h"

const struct option_row option_rows[] = {
    {{"socket", required_argument, NULL, 's'}, "PATH", "the daemon's UNIX socket", false},
    {{"url", required_argument, NULL, 'u'}, "URL", "http(s)://host:port instead", false},
    {{"key", required_argument, NULL, 'k'},
     "KEY|@FILE",
     "API key for --url; else LLMCTL_KEY",
     false},
    {{"ca", required_argument, NULL, 'a'},
     "FILE",
     "certificates to trust, as PEM",
     false},
    {{"json", no_argument, NULL, 'j'}, "", "print the daemon's JSON", true},
    {{"yes", no_argument, NULL, 'y'}, "", "do not ask, the answer is yes", true},
    {{"timeout", required_argument, NULL, 't'},
     "SECONDS",
     "of each call and each wait",
     true},
    {{"no-wait", no_argument, NULL, 'n'}, "", "do not follow what takes long", true},
    {{"command", required_argument, NULL, 'c'}, "LINE", "run this line and leave", false},
    {{"complete", required_argument, NULL, 'C'},
     "LINE",
     "what Tab would offer after it",
     false},
    {{"man", no_argument, NULL, 'm'}, "", "print the verbs as roff", false},
    {{"help", no_argument, NULL, 'h'}, "", "this text", false},
    {{"version", no_argument, NULL, 'V'}, "", "version of llmctl", false},
};
const int n_option_rows = sizeof(option_rows) / sizeof(option_rows[0]);

void option_set(bool in_line, struct option_set *ret)
{
    int n = 0;
    size_t at = 0;

    assert(n_option_rows <= OPTION_ROWS_MAX);
    memset(ret, 0, sizeof(*ret));
    ret->letters[at++] = '+'; /* stop at the first word that is none */
    if (in_line)
        ret->letters[at++] = ':'; /* the caller says what is wrong */
    for (int i = 0; i < n_option_rows; i++) {
        if (in_line && !option_rows[i].in_line)
            continue;
        ret->longs[n++] = option_rows[i].o;
        ret->letters[at++] = (char)option_rows[i].o.val;
        if (option_rows[i].o.has_arg)
            ret->letters[at++] = ':';
    }
}

static int read_timeout(const char *value, struct options *o, struct err *e)
{
    char *end;
    double v = strtod(value, &end);

    if (end == value || *end || !(v > 0 && v <= 86400))
        return err_set(e, ERR_INVALID, "--timeout cannot be '%s': seconds, at most 86400",
                       value);
    o->timeout_ms = (int64_t)(v * 1000 + 0.5);
    return 1;
}

int option_apply(int letter, const char *value, struct options *o, struct err *e)
{
    switch (letter) {
    case 'j':
        o->json = true;
        return 1;
    case 'y':
        o->yes = true;
        return 1;
    case 'n':
        o->no_wait = true;
        return 1;
    case 't':
        return read_timeout(value, o, e);
    default:
        return 0;
    }
}

/* "--socket" or "-s": an option, but of the command line. */
static bool stands_before(const char *word)
{
    size_t n = strcspn(word, "=");

    for (int i = 0; i < n_option_rows; i++) {
        const struct option *o = &option_rows[i].o;
        bool is_long = !strncmp(word, "--", 2) && strlen(o->name) == n - 2 &&
                       !strncmp(word + 2, o->name, n - 2);

        if (!option_rows[i].in_line && (is_long || (word[1] == (char)o->val && !word[2])))
            return true;
    }
    return false;
}

int option_take(const struct words *w, int i, struct options *o, struct err *e)
{
    char *argv[] = {(char *)"llmctl", w->w[i], i + 1 < w->n ? w->w[i + 1] : NULL, NULL};
    struct options got = *o;
    struct option_set set;
    int letter, argc = argv[2] ? 3 : 2, n, was = optind, says = opterr, rc = 1;

    if (w->w[i][0] != '-' || !w->w[i][1])
        return 0;
    if (stands_before(w->w[i]))
        return err_set(e, ERR_INVALID, "%s stands before the verb", w->w[i]);
    option_set(true, &set);
    optind = opterr = 0; /* begin anew, and say nothing */
    do {                 /* letters of one word, as in -jy */
        letter = getopt_long(argc, argv, set.letters, set.longs, NULL);
        if (letter == ':')
            rc = err_set(e, ERR_INVALID, "%s takes a value", w->w[i]);
        else
            rc = option_apply(letter, optarg, &got, e);
    } while (rc == 1 && optind == 1);
    n = optind - 1;
    optind = was;
    opterr = says;
    if (rc <= 0)
        return rc;
    *o = got;
    return n;
}
