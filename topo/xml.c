/* topo/xml.c - see xml.h. The only file that knows expat.
 *
 * expat calls back per element; a callback that finds a fault notes it in the reader and
 * stops the parser, so the first fault is the one that is told. No external entity is
 * ever opened: the declaration of any entity already ends the parse. */
#include "topo/xml.h"

#include <errno.h>
#include <expat.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

struct xml {
    struct arena *arena;
    struct xml_node *root;
};

struct reader {
    XML_Parser parser;
    struct xml *x;
    struct xml_node *at;
    struct xml_node *last[XML_DEPTH_MAX + 1]; /* latest child by depth */
    int depth, elements, first_line;
    struct err *e;
    bool failed;
};

static int line_of(const struct reader *r)
{
    return r->first_line + (int)XML_GetCurrentLineNumber(r->parser) - 1;
}

#define FAIL(r, code, fmt, ...)                                                          \
    do {                                                                                 \
        if (!(r)->failed)                                                                \
            err_set((r)->e, code, "line %d: " fmt, line_of(r), __VA_ARGS__);             \
        (r)->failed = true;                                                              \
        XML_StopParser((r)->parser, XML_FALSE);                                          \
    } while (0)

static int copy_attrs(struct reader *r, struct xml_node *n, const char **attrs)
{
    int k = 0;

    while (attrs[k])
        k += 2;
    if (k / 2 > XML_ATTRS_MAX) {
        FAIL(r, ERR_TOOBIG, "<%.40s> has %d attributes, at most %d", n->name, k / 2,
             XML_ATTRS_MAX);
        return -1;
    }
    n->attrs = arena_alloc(r->x->arena, (k + 1) * sizeof(char *));
    for (int i = 0; i < k; i++) {
        size_t len = strlen(attrs[i]);
        if (len > XML_VALUE_MAX) {
            FAIL(r, ERR_TOOBIG, "<%.40s %.40s> is %zu bytes long, at most %d", n->name,
                 attrs[i & ~1], len, XML_VALUE_MAX);
            return -1;
        }
        n->attrs[i] = arena_strndup(r->x->arena, attrs[i], len);
    }
    return 0;
}

static void XMLCALL on_start(void *arg, const char *name, const char **attrs)
{
    struct reader *r = arg;

    if (r->failed)
        return;
    if (r->depth >= XML_DEPTH_MAX) {
        FAIL(r, ERR_TOOBIG, "<%.40s> is nested deeper than %d", name, XML_DEPTH_MAX);
        return;
    }
    if (++r->elements > XML_ELEMENTS_MAX) {
        FAIL(r, ERR_TOOBIG, "more than %d elements", XML_ELEMENTS_MAX);
        return;
    }
    if (strlen(name) > XML_VALUE_MAX) {
        FAIL(r, ERR_TOOBIG, "an element's name is longer than %d bytes", XML_VALUE_MAX);
        return;
    }
    struct xml_node *n = arena_alloc(r->x->arena, sizeof(*n));
    n->name = arena_strndup(r->x->arena, name, strlen(name));
    n->line = line_of(r);
    n->parent = r->at;
    if (copy_attrs(r, n, attrs) < 0)
        return;
    if (!r->at)
        r->x->root = n;
    else if (r->last[r->depth])
        r->last[r->depth]->next = n;
    else
        r->at->child = n;
    r->last[r->depth] = n;
    r->at = n;
    r->last[++r->depth] = NULL;
}

static void XMLCALL on_end(void *arg, const char *name)
{
    struct reader *r = arg;

    (void)name;
    if (r->failed)
        return;
    r->at = r->at->parent;
    r->depth--;
}

static void XMLCALL on_doctype(void *arg, const char *name, const char *sysid,
                               const char *pubid, int internal)
{
    struct reader *r = arg;

    (void)sysid;
    (void)pubid;
    /* hwloc names its DTD, which is never fetched; declarations of its own it has none */
    if (!internal && !strcmp(name, "topology"))
        return;
    FAIL(r, ERR_DENIED, "a DOCTYPE ('%.40s') is refused: no entities, no outside files",
         name);
}

static void XMLCALL on_entity(void *arg, const char *name, int param, const char *value,
                              int value_len, const char *base, const char *sysid,
                              const char *pubid, const char *notation)
{
    struct reader *r = arg;

    (void)param;
    (void)value;
    (void)value_len;
    (void)base;
    (void)sysid;
    (void)pubid;
    (void)notation;
    FAIL(r, ERR_DENIED, "the entity declaration '%.40s' is refused", name);
}

static int run(struct reader *r, const char *text, size_t n)
{
    if (XML_Parse(r->parser, text, (int)n, 1) == XML_STATUS_OK && !r->failed &&
        r->x->root)
        return 0;
    if (!r->failed)
        err_set(r->e, ERR_SYNTAX, "line %d: XML: %s", line_of(r),
                XML_ErrorString(XML_GetErrorCode(r->parser)));
    return -1;
}

int xml_parse(const char *text, size_t n, struct xml **ret, struct err *e)
{
    struct reader r = {.first_line = 1, .e = e};

    if (n > INT32_MAX / 2)
        return err_set(e, ERR_TOOBIG, "%zu bytes of XML", n);
    /* a prolog must stand first for expat; recorded files begin with blank lines */
    while (n && strchr(" \t\r\n", *text) && *text) {
        r.first_line += *text == '\n';
        text++;
        n--;
    }
    r.parser = XML_ParserCreate(NULL);
    if (!r.parser)
        return err_set(e, ERR_NOMEM, "no memory for an XML parser");
    r.x = xcalloc(1, sizeof(*r.x));
    r.x->arena = arena_new(64 * 1024);
    XML_SetUserData(r.parser, &r);
    XML_SetElementHandler(r.parser, on_start, on_end);
    XML_SetStartDoctypeDeclHandler(r.parser, on_doctype);
    XML_SetEntityDeclHandler(r.parser, on_entity);
    int rc = run(&r, text, n);
    XML_ParserFree(r.parser);
    if (rc < 0) {
        xml_free(r.x);
        return -1;
    }
    *ret = r.x;
    return 0;
}

void xml_free(struct xml *x)
{
    if (!x)
        return;
    arena_free(x->arena);
    free(x);
}

const struct xml_node *xml_root(const struct xml *x) { return x->root; }

const char *xml_attr(const struct xml_node *n, const char *name)
{
    for (int i = 0; n->attrs[i]; i += 2)
        if (!strcmp(n->attrs[i], name))
            return n->attrs[i + 1];
    return NULL;
}

int xml_int(const struct xml_node *n, const char *name, int64_t min, int64_t max,
            int64_t *ret, struct err *e)
{
    const char *s = xml_attr(n, name);
    char *end;

    if (!s)
        return 0;
    errno = 0;
    long long v = strtoll(s, &end, !strncmp(s, "0x", 2) ? 16 : 10);
    if (end == s || *end || errno)
        return err_param(e, ERR_INVALID, name,
                         "line %d: <%.40s %s=\"%.40s\"> is not a number", n->line,
                         n->name, name, s);
    if (v < min || v > max)
        return err_param(e, ERR_RANGE, name,
                         "line %d: <%.40s %s=\"%.40s\"> is not within %lld to %lld",
                         n->line, n->name, name, s, (long long)min, (long long)max);
    *ret = v;
    return 1;
}
