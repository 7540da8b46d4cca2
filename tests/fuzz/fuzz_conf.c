/* Any text as a configuration, then one edit of it.
 *
 * Input: a path, a value and the text, a line each (the text is the rest). A fault has a
 * sentence; a text that set made says the value, one that unset made does not. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "daemon/ctrl/conf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static struct conf_faults faults;

static struct conf *parse(const char *text, const struct conf_override *o, int n_over)
{
    struct conf *c;

    if (conf_parse(text, strlen(text), o, n_over, &c, &faults) == 0)
        return c;
    if (c || faults.n < 1 || !faults.v[0].msg[0])
        abort();
    return NULL;
}

static void must_be_equal(struct conf *a, struct conf *b)
{
    if (a && b && conf_diff(a, b, NULL, NULL) != 0)
        abort();
}

static void edit(const char *text, const char *path, const char *value)
{
    struct conf_override o = {path, value};
    struct conf *before = parse(text, NULL, 0), *with = parse(text, &o, 1), *c, *d;
    struct err e = {0};
    char *set = conf_text_set(text, path, value, &e), *out;
    struct buf diff;

    if (!set && !e.msg[0])
        abort();
    out = conf_text_unset(set ? set : text, path, &e);
    d = out ? parse(out, NULL, 0) : NULL;
    if (d)
        conf_unref(d);
    free(out);
    if (set) {
        c = parse(set, NULL, 0);
        must_be_equal(c, with);
        buf_init(&diff, 0);
        conf_text_diff(text, set, "a", "b", &diff);
        buf_done(&diff);
        out = conf_text_rebase(text, set, text, &e);
        if (out && before) {
            d = parse(out, NULL, 0);
            must_be_equal(c, d);
            conf_unref(d);
        }
        free(out);
        conf_unref(c);
    }
    free(set);
    conf_unref(before);
    conf_unref(with);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *copy = malloc(n + 1), *value, *text;
    struct conf *c;

    memcpy(copy, data, n);
    copy[n] = '\0';
    if (conf_parse(copy, n, NULL, 0, &c, &faults) == 0)
        conf_unref(c);
    value = strchr(copy, '\n');
    text = value ? strchr(value + 1, '\n') : NULL;
    if (text) {
        *value = *text = '\0';
        edit(text + 1, copy, value + 1);
    }
    free(copy);
    return 0;
}
