/* topo/xml.h - a small XML document as a tree, within limits.
 *
 * Elements and attributes only; text between elements is dropped. Any DOCTYPE (but
 * hwloc's bare one) or entity declaration is refused before it can expand, and so is more
 * depth, elements, attributes or bytes than the limits below. Everything lives in one
 * arena. One owner thread. */
#ifndef TOPO_XML_H
#define TOPO_XML_H

#include <stddef.h>
#include <stdint.h>

struct err;
struct xml;

enum {
    XML_DEPTH_MAX = 32,
    XML_ELEMENTS_MAX = 20000,
    XML_ATTRS_MAX = 32,
    XML_VALUE_MAX = 1024
};

struct xml_node {
    const char *name;
    const char **attrs; /* name, value, name, value, NULL */
    int line;
    struct xml_node *child, *next, *parent;
};

/* text is borrowed during the call only. Errors name the line. */
int xml_parse(const char *text, size_t n, struct xml **ret, struct err *e);
void xml_free(struct xml *x);
const struct xml_node *xml_root(const struct xml *x);

/* Value of an attribute, NULL where it is absent. */
const char *xml_attr(const struct xml_node *n, const char *name);
/* Decimal, or hexadecimal after 0x, within min..max. 1 there, 0 absent (*ret untouched),
 * -1 not such a number, with line and attribute in e. */
int xml_int(const struct xml_node *n, const char *name, int64_t min, int64_t max,
            int64_t *ret, struct err *e);

#endif
