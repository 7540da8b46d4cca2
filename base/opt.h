/* base/opt.h - command-line options from a table of rows.
 *
 * One row: name, kind, range, default, unit and help. The table feeds the parser, --help
 * and the man page. Values go to a struct by offset. `--name value` and `--name=value`;
 * flags take no value, `--no-name` clears. */
#ifndef BASE_OPT_H
#define BASE_OPT_H

#include <stddef.h>
#include <stdint.h>

struct buf;
struct err;

/* A switch is a flag that tells "not given" from off; a list may be given often. */
enum opt_kind { OPT_STR, OPT_INT, OPT_BOOL, OPT_ENUM, OPT_SWITCH, OPT_LIST };

enum { OPT_LIST_MAX = 64 };
struct opt_list {
    const char *v[OPT_LIST_MAX];
    int n;
};

struct opt_def {
    const char *name;
    enum opt_kind kind;
    size_t offset;       /* in the target: const char *, int64_t, bool, int; for a switch
                            const char * (NULL, "true", "false"), struct opt_list */
    int64_t min, max;    /* OPT_INT */
    const char *choices; /* OPT_ENUM: "a|b|c"; the value is the index */
    const char *def;     /* as text; NULL = unset */
    const char *arg;     /* placeholder in help, e.g. "MIB" */
    const char *help;
};

/* Fill target with defaults, then argv[1..]. Strings borrow from argv or the table.
 * *ret_rest = index of the first non-option. Unknown or bad options give one sentence
 * (with the nearest name). "--help" and "--version" are ordinary OPT_BOOL rows. */
int opt_parse(const struct opt_def *defs, int n, int argc, char **argv, void *target,
              int *ret_rest, struct err *e);
void opt_help(const struct opt_def *defs, int n, struct buf *out);
/* The same rows as a man page fragment (roff .TP entries). */
void opt_man(const struct opt_def *defs, int n, struct buf *out);
/* Edit distance, for "did you mean"; names of over 64 bytes count as far apart. */
size_t opt_distance(const char *a, size_t na, const char *b, size_t nb);

#endif
