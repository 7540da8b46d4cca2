/* daemon/ctrl/conf_tree.c - libyaml's events -> tree with places.
 *
 * libyaml counts characters, edits need bytes: `cursor` walks the text along with the
 * marks. The end mark of a block map or list is that of the token after it, past comments
 * and empty lines; ours is the end of its last child. */
#include "daemon/ctrl/conf_tree.h"

#include <string.h>
#include <yaml.h>

#include "base/mem.h"

struct reader {
    const char *text;
    size_t n;
    struct arena *a;
    struct conf_faults *faults;
    yaml_parser_t yaml;
    size_t cursor_char, cursor_byte;
    struct tree_node *root, *stack[TREE_MAX_DEPTH], *key[TREE_MAX_DEPTH];
    int depth, n_nodes, n_docs;
};

static bool is_lead(char c) { return ((unsigned char)c & 0xc0) != 0x80; }

static struct conf_pos place(struct reader *r, yaml_mark_t m)
{
    struct conf_pos p = {(int)m.line + 1, (int)m.column + 1, 0};

    while (r->cursor_char < m.index && r->cursor_byte < r->n) {
        r->cursor_byte++;
        while (r->cursor_byte < r->n && !is_lead(r->text[r->cursor_byte]))
            r->cursor_byte++;
        r->cursor_char++;
    }
    while (r->cursor_char > m.index && r->cursor_byte > 0) {
        r->cursor_byte--;
        while (r->cursor_byte > 0 && !is_lead(r->text[r->cursor_byte]))
            r->cursor_byte--;
        r->cursor_char--;
    }
    p.at = r->cursor_byte;
    return p;
}

/* Characters that no configuration may hold: all of them, with their places. false when
 * libyaml could not read on. */
static bool check_characters(const char *text, size_t n, struct conf_faults *faults)
{
    struct conf_pos p = {1, 1, 0};
    bool ok = true;

    while (p.at < n) {
        int k = text[p.at] == '\n' ? 1 : conf_char((const void *)(text + p.at), n - p.at);
        unsigned c = (unsigned char)text[p.at];

        if (k < 0)
            conf_fault(faults, p, "", "this byte (0x%02x) is not UTF-8", c);
        else if (k == 0 && c == '\t')
            conf_fault(faults, p, "", "a tab; spaces would be right");
        else if (k == 0 && c == '\r')
            conf_fault(faults, p, "", "a carriage return; lines end in a line feed only");
        else if (k == 0)
            conf_fault(faults, p, "", "a character that no configuration may hold");
        ok = ok && k > 0;
        if (k <= 0) /* once for what looks like one character */
            for (k = 1; p.at + (size_t)k < n && !is_lead(text[p.at + (size_t)k]);)
                k++;
        p.at += (size_t)k;
        p.column++;
        if (c == '\n') {
            p.line++;
            p.column = 1;
        }
    }
    return ok;
}

static struct tree_node *node_new(struct reader *r, enum tree_kind kind,
                                  const yaml_event_t *ev)
{
    struct tree_node *v = arena_alloc(r->a, sizeof(*v));

    v->kind = kind;
    v->from = place(r, ev->start_mark);
    v->to = place(r, ev->end_mark);
    r->n_nodes++;
    return v;
}

static void kid_add(struct reader *r, struct tree_node *to, struct tree_node *key,
                    struct tree_node *value)
{
    if (to->n_kids == to->cap) {
        int cap = to->cap ? to->cap * 2 : 8;
        struct tree_pair *kids = arena_alloc(r->a, (size_t)cap * sizeof(*kids));

        if (to->n_kids)
            memcpy(kids, to->kids, (size_t)to->n_kids * sizeof(*kids));
        to->kids = kids;
        to->cap = cap;
    }
    to->kids[to->n_kids++] = (struct tree_pair){key, value};
}

/* Scalars may hold anything by escapes; keys hold words. */
static bool is_word(const struct tree_node *v)
{
    size_t i = 0;
    int k = 1;

    if (v->kind != TREE_SCALAR || v->n == 0)
        return false;
    while (i < v->n && k > 0) {
        k = conf_char((const unsigned char *)v->s + i, v->n - i);
        i += k > 0 ? (size_t)k : 0;
    }
    return k > 0;
}

/* The start of a node: hang it into what is open. */
static void hang(struct reader *r, struct tree_node *v)
{
    struct tree_node *top = r->depth ? r->stack[r->depth - 1] : NULL;
    struct tree_node **key = r->depth ? &r->key[r->depth - 1] : NULL;

    if (!top) {
        r->root = v;
    } else if (top->kind == TREE_LIST) {
        kid_add(r, top, NULL, v);
    } else if (!*key) {
        if (!is_word(v)) {
            conf_fault(r->faults, v->from, "", "a key must be a word");
            v->bad = true;
        }
        *key = v;
    } else {
        kid_add(r, top, *key, v);
        *key = NULL;
    }
}

static void check_marks(struct reader *r, struct tree_node *v, const yaml_char_t *anchor,
                        const yaml_char_t *tag)
{
    if (anchor)
        conf_fault(r->faults, v->from, "",
                   "an anchor (&%.40s); write the value out where it is wanted",
                   (const char *)anchor);
    if (tag)
        conf_fault(r->faults, v->from, "",
                   "a tag (%.40s); each directive knows its own type", (const char *)tag);
}

static void on_scalar(struct reader *r, const yaml_event_t *ev)
{
    struct tree_node *v = node_new(r, TREE_SCALAR, ev);

    v->n = ev->data.scalar.length;
    v->s = arena_strndup(r->a, (const char *)ev->data.scalar.value, v->n);
    v->quoted = ev->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    check_marks(r, v, ev->data.scalar.anchor, ev->data.scalar.tag);
    hang(r, v);
}

static int on_start(struct reader *r, const yaml_event_t *ev, bool map)
{
    struct tree_node *v = node_new(r, map ? TREE_MAP : TREE_LIST, ev);

    v->flow = map ? ev->data.mapping_start.style == YAML_FLOW_MAPPING_STYLE
                  : ev->data.sequence_start.style == YAML_FLOW_SEQUENCE_STYLE;
    check_marks(r, v,
                map ? ev->data.mapping_start.anchor : ev->data.sequence_start.anchor,
                map ? ev->data.mapping_start.tag : ev->data.sequence_start.tag);
    hang(r, v);
    if (r->depth == TREE_MAX_DEPTH) {
        conf_fault(r->faults, v->from, "", "nested deeper than %d levels",
                   TREE_MAX_DEPTH);
        return -1;
    }
    r->key[r->depth] = NULL;
    r->stack[r->depth++] = v;
    return 0;
}

static void on_end(struct reader *r, const yaml_event_t *ev)
{
    struct tree_node *v = r->stack[--r->depth];

    if (v->flow) {
        v->to = place(r, ev->end_mark);
    } else if (v->n_kids) {
        struct tree_pair *last = &v->kids[v->n_kids - 1];

        v->to = last->value->to;
        if (last->key && v->to.at < last->key->to.at)
            v->to = last->key->to;
    }
}

/* -1: no use to read on. */
static int on_event(struct reader *r, const yaml_event_t *ev)
{
    struct tree_node *v;

    switch (ev->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (ev->data.document_start.version_directive ||
            ev->data.document_start.tag_directives.start !=
                ev->data.document_start.tag_directives.end)
            conf_fault(r->faults, place(r, ev->start_mark), "",
                       "a directive of YAML (%%); it is not wanted here");
        if (++r->n_docs == 1)
            return 0;
        conf_fault(r->faults, place(r, ev->start_mark), "",
                   "a second document; one is the whole configuration");
        return -1;
    case YAML_ALIAS_EVENT:
        v = node_new(r, TREE_SCALAR, ev);
        conf_fault(r->faults, v->from, "",
                   "an alias (*%.40s); write the value out where it is wanted",
                   (const char *)ev->data.alias.anchor);
        v->bad = true;
        v->s = arena_strndup(r->a, "*", 1);
        v->n = 1;
        hang(r, v);
        return 0;
    case YAML_SCALAR_EVENT:
        on_scalar(r, ev);
        return 0;
    case YAML_MAPPING_START_EVENT:
    case YAML_SEQUENCE_START_EVENT:
        return on_start(r, ev, ev->type == YAML_MAPPING_START_EVENT);
    case YAML_MAPPING_END_EVENT:
    case YAML_SEQUENCE_END_EVENT:
        on_end(r, ev);
        return 0;
    default:
        return 0;
    }
}

static void syntax_fault(struct reader *r)
{
    const yaml_parser_t *y = &r->yaml;

    if (y->error == YAML_MEMORY_ERROR)
        conf_fault(r->faults, (struct conf_pos){0}, "", "out of memory");
    else
        conf_fault(r->faults, place(r, y->problem_mark), "", "not YAML: %s%s%s",
                   y->problem ? y->problem : "unreadable", y->context ? ", " : "",
                   y->context ? y->context : "");
}

static int read_events(struct reader *r)
{
    for (;;) {
        yaml_event_t ev;
        bool end;
        int rc;

        if (!yaml_parser_parse(&r->yaml, &ev)) {
            syntax_fault(r);
            return -1;
        }
        end = ev.type == YAML_STREAM_END_EVENT;
        rc = on_event(r, &ev);
        if (rc == 0 && r->n_nodes > TREE_MAX_NODES) {
            conf_fault(r->faults, place(r, ev.start_mark), "",
                       "more than %d values; a configuration has fewer", TREE_MAX_NODES);
            rc = -1;
        }
        yaml_event_delete(&ev);
        if (rc < 0 || end)
            return rc;
    }
}

int tree_parse(const char *text, size_t n, struct arena *a, struct tree_node **ret,
               struct conf_faults *faults)
{
    struct reader r = {.text = text, .n = n, .a = a, .faults = faults};
    int rc;

    *ret = NULL;
    if (n > CONF_MAX_TEXT) {
        conf_fault(faults, (struct conf_pos){0}, "",
                   "the text has %zu bytes; at most %d may be", n, CONF_MAX_TEXT);
        return -1;
    }
    if (!check_characters(text, n, faults))
        return -1;
    if (!yaml_parser_initialize(&r.yaml)) {
        conf_fault(faults, (struct conf_pos){0}, "", "out of memory");
        return -1;
    }
    yaml_parser_set_encoding(&r.yaml, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.yaml, (const unsigned char *)text, n);
    rc = read_events(&r);
    yaml_parser_delete(&r.yaml);
    *ret = r.root;
    return rc;
}

bool tree_empty(const struct tree_node *v)
{
    return v->kind == TREE_SCALAR && !v->quoted && v->n == 0;
}

int tree_key(const struct tree_node *map, const char *key, size_t n)
{
    for (int i = 0; map->kind == TREE_MAP && i < map->n_kids; i++) {
        const struct tree_node *k = map->kids[i].key;
        if (k->kind == TREE_SCALAR && k->n == n && !memcmp(k->s, key, n))
            return i;
    }
    return -1;
}

void tree_find(struct tree_node *root, const char *path, struct tree_at *ret)
{
    *ret = (struct tree_at){.at = -1, .node = root, .rest = path};
    while (ret->node && ret->node->kind == TREE_MAP && *ret->rest) {
        size_t n = strlen(ret->rest);
        int at;

        while ((at = tree_key(ret->node, ret->rest, n)) < 0 && n) {
            do
                n--;
            while (n && ret->rest[n] != '.');
        }
        if (at < 0)
            return;
        ret->map = ret->node;
        ret->at = at;
        ret->node = ret->map->kids[at].value;
        ret->rest += n + (ret->rest[n] == '.');
    }
}
