/* daemon/ctrl/conf_rows.h - the table of directives and what one value of each is.
 *
 * Internal to conf*.c. A row knows its pattern, where its value lives and how it is read
 * from and written to text. Groups are the maps of names: models, instances, slo_classes;
 * CONF_TOP is struct conf itself. Pure; any thread. */
#ifndef CTRL_CONF_ROWS_H
#define CTRL_CONF_ROWS_H

#include <stdbool.h>
#include <stddef.h>

#include "daemon/ctrl/conf.h"

struct arena;
struct buf;

enum conf_kind {
    CONF_STR,
    CONF_WORD,
    CONF_ENUM,
    CONF_INT,
    CONF_NUM,
    CONF_BOOL,
    CONF_LIST
};
/* What a string has to look like. */
enum conf_form {
    FORM_ANY,
    FORM_ADDRESS,
    FORM_HOST,
    FORM_ORIGIN,
    FORM_FILE, /* an absolute path */
    FORM_MODEL
};
enum conf_group { CONF_TOP, CONF_MODELS, CONF_INSTANCES, CONF_CLASSES, CONF_GROUPS };

struct conf_row {
    const char *path; /* the pattern */
    enum conf_kind kind;
    size_t offset, n_offset; /* in the struct of its group; n_offset: a list's count */
    double min, max;
    const char *choices, *def;
    enum conf_form form;
    const char *unit; /* or what the value is: HOST:PORT */
    enum conf_class class;
    const char *engine, *help;
};
extern const struct conf_row conf_rows[];
extern const int n_conf_rows;

/* A map of names in struct conf: pointer and count at these offsets. name is the first
 * member of each entry. */
struct conf_names {
    const char *prefix; /* "instances" */
    size_t size, at, n_at;
};
extern const struct conf_names conf_names[CONF_GROUPS]; /* [CONF_TOP] is empty */

enum conf_group conf_row_group(const struct conf_row *r);
const char *conf_row_suffix(const struct conf_row *r); /* within its group: "kv.mib" */
enum conf_group conf_group_of(const char *prefix);     /* "models"; CONF_TOP = none */
const struct conf_row *conf_row_find(const char *pattern);
bool conf_row_section(const char *pattern); /* rows begin with it: "listen" */
/* Nearest word that may follow the pattern ("" = at the top); false: none is near. */
bool conf_row_nearest(const char *pattern, const char *word, char ret[64]);
/* A path with real names -> its row and the name (of at most 63, "" at the top). NULL:
 * there is none. Names may hold dots. */
const struct conf_row *conf_row_of_path(const char *path, char name[64]);
bool conf_name_ok(const char *s, size_t n);
#define CONF_NAME_RULE                                                                   \
    "is no name; lower-case letters, digits, - _ and . would be right, at most 63, a "   \
    "letter or digit first"
/* May stand in a text or a value; -1 = not well-formed UTF-8, 0 = may not, else the
 * bytes of the character. */
int conf_char(const unsigned char *s, size_t n);

/* Read a scalar into base (the struct of its group); quoted: it stood in quotes, which
 * makes it text. Strings go to a. Else -1 and a sentence. */
int conf_value_read(const struct conf_row *r, const char *s, size_t n, bool quoted,
                    void *base, struct arena *a, char msg[256]);
/* One string of a list, checked. */
int conf_value_item(const struct conf_row *r, const char *s, size_t n, char msg[256]);
/* The value as text; a list as [a, b] in YAML. */
void conf_value_write(const struct conf_row *r, const void *base, struct buf *out);
/* A string as a YAML scalar, in quotes where it needs them. */
void conf_yaml_str(struct buf *out, const char *s);
void conf_row_type(const struct conf_row *r, struct conf_row_doc *ret);

/* Where things stand in a text: 1, 1 is its first character; 0, 0 is nowhere. */
struct conf_pos {
    int line, column;
    size_t at; /* byte */
};
void conf_fault(struct conf_faults *f, struct conf_pos pos, const char *path,
                const char *fmt, ...) __attribute__((format(printf, 4, 5)));

#endif
