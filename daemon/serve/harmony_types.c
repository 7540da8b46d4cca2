/* daemon/serve/harmony_types.c - functions as TypeScript types, from their JSON schemas.
 *
 * One type a function, its description a comment before it. Of a schema: oneOf, enum,
 * lists of types, arrays, objects; title, description, examples as comments before a
 * member, its default after it. A schema may nest MAX_DEPTH deep; below that all is any.
 */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "daemon/serve/harmony.h"

enum { MAX_DEPTH = 32 };

struct types {
    struct buf *out;
    int depth; /* of members: spaces before them */
};

static void put_type(struct types *t, const json_t *schema, int depth);

static const char *word(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

/* Each line of text as a comment. */
static void comment(struct types *t, int indent, const char *text)
{
    while (text && *text) {
        size_t n = strcspn(text, "\n");

        buf_printf(t->out, "%*s//%s%.*s\n", indent, "", n ? " " : "", (int)n, text);
        text += n + (text[n] == '\n');
    }
}

static void put_value(struct types *t, const json_t *v, bool bare)
{
    char *s;

    if (bare && json_is_string(v)) {
        buf_puts(t->out, json_string_value(v));
        return;
    }
    s = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
    buf_puts(t->out, s ? s : "null");
    free(s);
}

/* The default, of an enumeration without quotes. */
static void put_default(struct types *t, const json_t *schema, const json_t *value)
{
    buf_puts(t->out, "default: ");
    put_value(t, value, json_array_size(json_object_get(schema, "enum")) > 0);
}

static void put_named(struct types *t, const char *type)
{
    static const struct {
        const char *schema, *typescript;
    } rows[] = {{"string", "string"},   {"number", "number"}, {"integer", "number"},
                {"boolean", "boolean"}, {"null", "null"},     {"object", "object"},
                {"array", "Array<any>"}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (type && strcmp(rows[i].schema, type) == 0) {
            buf_puts(t->out, rows[i].typescript);
            return;
        }
    buf_puts(t->out, "any");
}

static void put_list(struct types *t, const json_t *list, bool types)
{
    size_t i;
    json_t *v;

    json_array_foreach(list, i, v)
    {
        buf_puts(t->out, i ? " | " : "");
        if (types)
            put_named(t, json_string_value(v));
        else
            put_value(t, v, false);
    }
}

static bool nullable(const json_t *schema)
{
    return json_is_true(json_object_get(schema, "nullable"));
}

/* A variant of a oneOf, with what is said of it behind it. */
static void put_variant(struct types *t, const json_t *v, int depth)
{
    const json_t *value = json_object_get(v, "default");
    const char *said = word(v, "description");

    buf_puts(t->out, " | ");
    put_type(t, v, depth);
    if (nullable(v))
        buf_puts(t->out, " | null");
    if (!said && !value)
        return;
    buf_puts(t->out, " // ");
    buf_puts(t->out, said ? said : "");
    buf_puts(t->out, said && value ? " " : "");
    if (value)
        put_default(t, v, value);
}

static void put_examples(struct types *t, const json_t *list, int indent)
{
    size_t i;
    json_t *v;

    if (json_array_size(list))
        buf_printf(t->out, "%*s// Examples:\n", indent, "");
    json_array_foreach(list, i, v)
    {
        buf_printf(t->out, "%*s// - ", indent, "");
        put_value(t, v, false);
        buf_puts(t->out, "\n");
    }
}

static void put_member(struct types *t, const char *key, const json_t *v, bool needed,
                       int indent)
{
    const json_t *one = json_object_get(v, "oneOf"),
                 *value = json_object_get(v, "default");
    const char *title = word(v, "title");
    size_t i;
    json_t *variant;

    if (title) {
        comment(t, indent, title);
        buf_printf(t->out, "%*s//\n", indent, "");
    }
    comment(t, indent, word(v, "description"));
    put_examples(t, json_object_get(v, "examples"), indent);
    if (one && value) {
        buf_printf(t->out, "%*s// ", indent, "");
        put_default(t, v, value);
        buf_puts(t->out, "\n");
    }
    buf_printf(t->out, "%*s%s%s:", indent, "", key, needed ? "" : "?");
    if (one) {
        buf_puts(t->out, "\n");
        json_array_foreach(one, i, variant)
        {
            buf_printf(t->out, "%*s", indent, "");
            put_variant(t, variant, indent + 3);
            buf_puts(t->out, "\n");
        }
        buf_printf(t->out, "%*s,\n", indent, "");
        return;
    }
    buf_puts(t->out, " ");
    put_type(t, v, indent);
    buf_puts(t->out, nullable(v) ? " | null," : ",");
    if (value) {
        buf_puts(t->out, " // ");
        put_default(t, v, value);
    }
    buf_puts(t->out, "\n");
}

static void put_object(struct types *t, const json_t *schema, int indent)
{
    json_t *members = json_object_get(schema, "properties"), *v;
    const json_t *required = json_object_get(schema, "required");
    const char *key;

    if (word(schema, "description")) {
        buf_puts(t->out, indent ? "\n" : "");
        comment(t, indent, word(schema, "description"));
        buf_printf(t->out, "%*s", indent, "");
    }
    buf_puts(t->out, "{\n");
    json_object_foreach(members, key, v)
    {
        bool needed = false;
        for (size_t i = 0; i < json_array_size(required); i++) {
            const char *name = json_string_value(json_array_get(required, i));
            needed |= name && strcmp(name, key) == 0;
        }
        put_member(t, key, v, needed, indent);
    }
    buf_printf(t->out, "%*s}", indent, "");
}

static void put_type(struct types *t, const json_t *schema, int depth)
{
    const json_t *type = json_object_get(schema, "type"),
                 *list = json_object_get(schema, "enum"),
                 *one = json_object_get(schema, "oneOf");
    const char *name = json_string_value(type);
    size_t i;
    json_t *v;

    if (t->depth == MAX_DEPTH) {
        buf_puts(t->out, "any");
        return;
    }
    t->depth++;
    if (one) {
        json_array_foreach(one, i, v)
        {
            buf_printf(t->out, "\n%*s", depth, "");
            put_variant(t, v, depth + 3);
        }
    } else if (json_is_array(type)) {
        put_list(t, type, true);
    } else if (json_array_size(list)) {
        put_list(t, list, false);
    } else if (name && strcmp(name, "object") == 0) {
        put_object(t, schema, depth);
    } else if (name && strcmp(name, "array") == 0 && json_object_get(schema, "items")) {
        put_type(t, json_object_get(schema, "items"), depth);
        buf_puts(t->out, "[]");
    } else {
        put_named(t, name);
    }
    t->depth--;
}

void harmony_types(const struct harmony_tools *tools, struct buf *out)
{
    struct types t = {.out = out};
    size_t i;
    json_t *f;

    comment(&t, 0, tools->said);
    buf_printf(out, "namespace %s {\n\n", tools->name);
    json_array_foreach(tools->functions, i, f)
    {
        const json_t *args = json_object_get(f, "parameters");
        bool none = !json_object_size(json_object_get(args, "properties"));

        comment(&t, 0, word(f, "description"));
        buf_printf(out, "type %s = (", word(f, "name") ? word(f, "name") : "_");
        if (!none) {
            buf_puts(out, "_: ");
            put_type(&t, args, 0);
        }
        buf_puts(out, ") => any;\n\n");
    }
    buf_printf(out, "} // namespace %s", tools->name);
}
