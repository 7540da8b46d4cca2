/* ctl/args.h - the words of a line and the arguments that a verb takes from them.
 *
 * Words are split as a shell does: spaces, '..', "..", and \ before one character. What a
 * verb takes is a short text in its row (verb.def), parsed by args_spec:
 *
 *   NAME=instance      a value that must be there, and its type
 *   [N=rev]            one that may be there
 *   TEXT=text...       the rest of the line (also in brackets)
 *   [rebase] [--dot]   a word that is there or not
 *   [reason TEXT=text] a word and its value
 *   [confirm [S=seconds]]  a word whose value may be left out
 *
 * Types check what is typed and say what Tab offers; `a|b|c` as a type is a choice. Pure.
 */
#ifndef CTL_ARGS_H
#define CTL_ARGS_H

#include <stdbool.h>
#include <stddef.h>

#include "ctl/option.h"

struct buf;
struct err;

enum arg_type {
    ARG_TEXT,
    ARG_INSTANCE,
    ARG_MODEL,
    ARG_DEVICE,
    ARG_REV,     /* a revision's number */
    ARG_REVREF,  /* a number, `draft` or `running` */
    ARG_PATH,    /* of a directive */
    ARG_FILE,    /* here, on llmctl's side */
    ARG_SECONDS, /* 90, 90s, 10m, 12h, 7d */
    ARG_INT,
    ARG_KEY,     /* id of an API key */
    ARG_REQUEST, /* id of a request */
    ARG_OP,      /* id of an operation */
    ARG_RUN,     /* number of a load run */
    ARG_QUALITY, /* number of a quality run */
    ARG_VERB,
    ARG_CHOICE,
    ARG_TYPE_COUNT
};

enum { ARGS_MAX = 24, WORDS_MAX = 64, ARG_NAME = 24, ARG_CHOICES = 64 };

struct arg_spec {
    char key[ARG_NAME];  /* the word before the value, "" = positional */
    char name[ARG_NAME]; /* as help shows it; "" = a word without a value */
    enum arg_type type;
    char choices[ARG_CHOICES];
    bool optional, value_optional, rest;
};
/* Returns the count; asserts on a row that is not well-formed. */
int args_spec(const char *text, struct arg_spec ret[ARGS_MAX]);
/* "NAME [reason TEXT]": the same for people. */
void args_usage(const char *text, struct buf *out);

/* A line in words; raw[i] is where word i begins in the line. */
struct words {
    int n;
    char *w[WORDS_MAX], *line;
    const char *raw[WORDS_MAX];
    bool open; /* the last word's quote is not closed */
};
int words_split(const char *line, struct words *ret, struct err *e);
void words_done(struct words *w);
/* argv as a line that words_split takes apart again; malloc'd. */
char *words_join(char **argv, int n);

struct args {
    int n;
    struct {
        char name[ARG_NAME];
        char *value;
    } v[ARGS_MAX * 2];
    struct options opt; /* that stood among them */
};
/* The words from i on, by spec. INVALID with what is missing or odd. A text that must be
 * there (VALUE=text...) takes what looks like an option too. */
int args_parse(const char *spec, const struct words *w, int i, struct args *ret,
               struct err *e);
void args_done(struct args *a);
/* A positional by its name, a worded one by its word; NULL = not given, "" = the word
 * alone. */
const char *args_get(const struct args *a, const char *name);
/* For the word after w: the specs that may take it next. Returns their count. */
int args_next(const char *spec, const struct words *w, int i,
              struct arg_spec ret[ARGS_MAX]);

#endif
