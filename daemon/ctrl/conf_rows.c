/* daemon/ctrl/conf_rows.c - the table of directives: lookups and paths. */
#include "daemon/ctrl/conf_rows.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/opt.h"

#define STR(p, m, d, f, u, cls, eng, h)                                                  \
    {.path = p,                                                                          \
     .kind = CONF_STR,                                                                   \
     .offset = offsetof(T, m),                                                           \
     .def = d,                                                                           \
     .form = f,                                                                          \
     .unit = u,                                                                          \
     .class = CONF_##cls,                                                                \
     .engine = eng,                                                                      \
     .help = h},
#define CHOICE(p, k, m, c, d, cls, eng, h)                                               \
    {.path = p,                                                                          \
     .kind = k,                                                                          \
     .offset = offsetof(T, m),                                                           \
     .choices = c,                                                                       \
     .def = d,                                                                           \
     .unit = "",                                                                         \
     .class = CONF_##cls,                                                                \
     .engine = eng,                                                                      \
     .help = h},
#define NUMBER(p, k, m, lo, hi, d, u, cls, eng, h)                                       \
    {.path = p,                                                                          \
     .kind = k,                                                                          \
     .offset = offsetof(T, m),                                                           \
     .min = lo,                                                                          \
     .max = hi,                                                                          \
     .def = d,                                                                           \
     .unit = u,                                                                          \
     .class = CONF_##cls,                                                                \
     .engine = eng,                                                                      \
     .help = h},
#define WORD(p, m, c, d, cls, eng, h) CHOICE(p, CONF_WORD, m, c, d, cls, eng, h)
#define ENUM(p, m, c, d, cls, eng, h) CHOICE(p, CONF_ENUM, m, c, d, cls, eng, h)
#define BOOL(p, m, d, cls, eng, h) CHOICE(p, CONF_BOOL, m, "true|false", d, cls, eng, h)
#define INT(p, m, lo, hi, d, u, cls, eng, h)                                             \
    NUMBER(p, CONF_INT, m, lo, hi, d, u, cls, eng, h)
#define NUM(p, m, lo, hi, d, u, cls, eng, h)                                             \
    NUMBER(p, CONF_NUM, m, lo, hi, d, u, cls, eng, h)
#define LIST(p, m, n, d, f, cls, h)                                                      \
    {.path = p,                                                                          \
     .kind = CONF_LIST,                                                                  \
     .offset = offsetof(T, m),                                                           \
     .n_offset = offsetof(T, n),                                                         \
     .def = d,                                                                           \
     .form = f,                                                                          \
     .unit = "",                                                                         \
     .class = CONF_##cls,                                                                \
     .help = h},

const struct conf_row conf_rows[] = {
#include "daemon/ctrl/conf.def"
};
const int n_conf_rows = sizeof(conf_rows) / sizeof(conf_rows[0]);

#define NAMES(prefix, entry, member, n_member)                                           \
    {                                                                                    \
        prefix, sizeof(struct entry), offsetof(struct conf, member),                     \
            offsetof(struct conf, n_member)                                              \
    }
const struct conf_names conf_names[CONF_GROUPS] = {
    [CONF_MODELS] = NAMES("models", conf_model, models, n_models),
    [CONF_INSTANCES] = NAMES("instances", conf_instance, instances, n_instances),
    [CONF_CLASSES] = NAMES("slo_classes", conf_class_slo, classes, n_classes),
};

enum conf_group conf_group_of(const char *prefix)
{
    for (int g = CONF_TOP + 1; g < CONF_GROUPS; g++)
        if (!strcmp(prefix, conf_names[g].prefix))
            return (enum conf_group)g;
    return CONF_TOP;
}

enum conf_group conf_row_group(const struct conf_row *r)
{
    const char *star = strchr(r->path, '*');

    for (int g = CONF_TOP + 1; star && g < CONF_GROUPS; g++)
        if (!strncmp(r->path, conf_names[g].prefix, (size_t)(star - r->path) - 1))
            return (enum conf_group)g;
    return CONF_TOP;
}

const char *conf_row_suffix(const struct conf_row *r)
{
    const char *star = strchr(r->path, '*');
    return star ? star + 2 : r->path;
}

const struct conf_row *conf_row_find(const char *pattern)
{
    for (int i = 0; i < n_conf_rows; i++)
        if (!strcmp(conf_rows[i].path, pattern))
            return &conf_rows[i];
    return NULL;
}

bool conf_row_section(const char *pattern)
{
    size_t n = strlen(pattern);

    for (int i = 0; i < n_conf_rows; i++)
        if (!strncmp(conf_rows[i].path, pattern, n) && conf_rows[i].path[n] == '.')
            return true;
    return false;
}

bool conf_row_nearest(const char *pattern, const char *word, char ret[64])
{
    size_t n = strlen(pattern), len = strlen(word), best = (size_t)-1;

    for (int i = 0; i < n_conf_rows; i++) {
        const char *p = conf_rows[i].path;
        size_t d, w;

        if (n && (strncmp(p, pattern, n) || p[n] != '.'))
            continue;
        p += n ? n + 1 : 0;
        w = strcspn(p, ".");
        d = opt_distance(word, len, p, w);
        if (d < best) {
            best = d;
            snprintf(ret, 64, "%.*s", (int)w, p);
        }
    }
    return best <= 1 + len / 3;
}

bool conf_name_ok(const char *s, size_t n)
{
    static const char ok[] = "abcdefghijklmnopqrstuvwxyz0123456789-_.";

    if (n == 0 || n > 63 || strchr("-_.", s[0]) || s[n - 1] == '.')
        return false;
    for (size_t i = 0; i < n; i++)
        if (!s[i] || !strchr(ok, s[i]))
            return false;
    return true;
}

/* The name between "instances." and ".kv.mib". */
static bool name_of(const struct conf_row *r, const char *path, char name[64])
{
    size_t prefix = (size_t)(strchr(r->path, '*') - r->path), n = strlen(path);
    size_t suffix = strlen(conf_row_suffix(r)) + 1;

    if (n <= prefix + suffix || strncmp(path, r->path, prefix) ||
        strcmp(path + n - suffix, r->path + prefix + 1) ||
        !conf_name_ok(path + prefix, n - prefix - suffix))
        return false;
    snprintf(name, 64, "%.*s", (int)(n - prefix - suffix), path + prefix);
    return true;
}

/* Of several readings that with the shortest name: main with prefill.threads, no
 * "main.prefill" with threads. */
const struct conf_row *conf_row_of_path(const char *path, char name[64])
{
    const struct conf_row *best = NULL;
    char here[64] = "";

    name[0] = '\0';
    for (int i = 0; i < n_conf_rows; i++) {
        const struct conf_row *r = &conf_rows[i];

        if (conf_row_group(r) == CONF_TOP) {
            if (!strcmp(path, r->path))
                return r;
        } else if (name_of(r, path, here) && (!best || strlen(here) < strlen(name))) {
            best = r;
            memcpy(name, here, sizeof(here));
        }
    }
    return best;
}

void conf_fault(struct conf_faults *f, struct conf_pos pos, const char *path,
                const char *fmt, ...)
{
    struct conf_fault *x;
    va_list ap;

    if (f->n++ >= CONF_MAX_FAULTS)
        return;
    x = &f->v[f->n - 1];
    x->line = pos.line;
    x->column = pos.column;
    snprintf(x->path, sizeof(x->path), "%s", path);
    va_start(ap, fmt);
    vsnprintf(x->msg, sizeof(x->msg), fmt, ap);
    va_end(ap);
    for (char *p = x->msg; *p; p++) /* what the text held may be shown on a terminal */
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
}
