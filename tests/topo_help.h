/* tests/topo_help.h - what the tests of topo/ share: files, graphs from text, checks. */
#ifndef TESTS_TOPO_HELP_H
#define TESTS_TOPO_HELP_H

#include "tests/test.h"

#include "base/buf.h"
#include "base/err.h"
#include "topo/file.h"
#include "topo/graph.h"
#include "topo/path.h"

static inline char *read_shared(const char *name, size_t *ret_n)
{
    char rel[256];
    snprintf(rel, sizeof(rel), "topologies/%s", name);
    FILE *f = fopen(test_shared(rel), "rb");
    assert_non_null(f);
    char *p = malloc(1 << 20);
    *ret_n = fread(p, 1, 1 << 20, f);
    fclose(f);
    return p;
}

static inline struct graph *load_shared_as(const char *name, const char *gpu)
{
    size_t n;
    char *p = read_shared(name, &n);
    struct graph *g = NULL;
    struct err e = {0};
    if (topo_load(p, n, name, gpu, &g, &e) < 0)
        fail_msg("%s", e.msg);
    free(p);
    assert_true(graph_emulated(g));
    return g;
}

static inline struct graph *load_shared(const char *name)
{
    return load_shared_as(name, NULL);
}

static inline struct graph *load_text(const char *text)
{
    struct graph *g = NULL;
    struct err e = {0};
    if (topo_load(text, strlen(text), "text", NULL, &g, &e) < 0)
        fail_msg("%s\n%s", e.msg, text);
    return g;
}

/* One clear error that has `part` in it. */
static inline void refuse_bytes(const char *text, size_t n, const char *part)
{
    struct graph *g = NULL;
    struct err e = {0};
    if (topo_load(text, n, "text", NULL, &g, &e) == 0)
        fail_msg("loaded, expected '%s'", part);
    assert_null(g);
    if (!strstr(e.msg, part))
        fail_msg("'%s' does not say '%s'", e.msg, part);
    assert_null(strchr(e.msg, '\n'));
}

static inline void refuse_text(const char *text, const char *part)
{
    refuse_bytes(text, strlen(text), part);
}

static inline int has_warning(const struct graph *g, const char *part)
{
    int n = 0;
    for (int i = 0; i < graph_n_warnings(g); i++)
        n += strstr(graph_warning(g, i), part) != NULL;
    return n;
}

static inline void tell_warnings(const struct graph *g)
{
    for (int i = 0; i < graph_n_warnings(g); i++)
        print_message("  warning: %s\n", graph_warning(g, i));
}

static inline void tell_diff(void *arg, enum graph_change c, const char *what)
{
    (void)arg;
    (void)c;
    print_message("  %s\n", what);
}

static inline int find_node(const struct graph *g, const char *name)
{
    for (int i = 0; i < graph_n_nodes(g); i++)
        if (!strcmp(graph_node(g, i)->name, name))
            return i;
    fail_msg("no node '%s'", name);
    return -1;
}

#endif
