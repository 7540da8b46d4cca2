/* ctl/option.h - the options of llmctl, as rows: before the verb, some also after it.
 *
 * The rows feed the command line, the usage text and the words of a line. Those of a
 * session (how to ask, wait and print) may stand anywhere behind the verb and hold for
 * that line; those that say where the daemon is stand before it. A word that the verb's
 * own row names (--dot, -f) and one inside a text stay the verb's. Pure. */
#ifndef CTL_OPTION_H
#define CTL_OPTION_H

#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>

struct err;
struct words;

struct option_row {
    struct option o;
    const char *arg, *help; /* "" none */
    bool in_line;
};
extern const struct option_row option_rows[];
extern const int n_option_rows;
enum { OPTION_ROWS_MAX = 16 };

/* What getopt_long wants of all rows, or of those that a line may have. */
struct option_set {
    char letters[2 * OPTION_ROWS_MAX + 3];
    struct option longs[OPTION_ROWS_MAX + 1];
};
void option_set(bool in_line, struct option_set *ret);

/* What a line said; zero = nothing. */
struct options {
    bool json, yes, no_wait;
    int64_t timeout_ms;
};
/* One of the options of a session; value NULL where it has none. 0 none of them, 1, -1.
 */
int option_apply(int letter, const char *value, struct options *o, struct err *e);
/* Word i of w when it is such an option: the count of words that it takes. 0: it is none;
 * -1: its value is wrong or missing, or it belongs before the verb. */
int option_take(const struct words *w, int i, struct options *o, struct err *e);

#endif
