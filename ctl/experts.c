/* ctl/experts.c - `experts show`: the heat map, in what the terminal can draw; of one
 * layer also what was counted. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "ctl/args.h"
#include "ctl/ask.h"
#include "ctl/expert_counts.h"
#include "ctl/heat.h"
#include "ctl/run.h"
#include "ctl/verb.h"
#include "ctl/wire.h"

/* Colours and blocks are for eyes at a terminal that has them. */
static enum heat_kind kind_of(const struct show_style *st)
{
    const char *lang = getenv("LC_ALL");

    if (st->colour)
        return HEAT_COLOURS;
    if (!isatty(STDOUT_FILENO))
        return HEAT_DIGITS;
    lang = lang && *lang ? lang : getenv("LC_CTYPE");
    lang = lang && *lang ? lang : getenv("LANG");
    return lang && (strcasestr(lang, "utf-8") || strcasestr(lang, "utf8")) ? HEAT_BLOCKS
                                                                           : HEAT_DIGITS;
}

static void put_instance(const json_t *one, const char *layer,
                         const struct show_style *st, struct buf *out)
{
    const json_t *l;
    size_t i;

    heat_instance(one, layer ? atoi(layer) : -1, st, kind_of(st), out);
    if (layer)
        json_array_foreach(json_object_get(one, "layers"), i, l)
        {
            expert_counts(l, st, out);
        }
}

int run_experts_show(struct session *s, const struct verb *v, const struct args *a,
                     struct err *e)
{
    const char *layer = args_get(a, "LAYER");
    struct show_style st = run_style();
    char *path = ask_path(v->path, a);
    struct answer ans = {.root = NULL};
    const json_t *list, *one;
    struct buf out;
    size_t i;
    int rc =
        run_call(s, &(struct wire_request){.method = v->method, .path = path}, &ans, e);

    buf_init(&out, 0);
    list = json_object_get(ans.root, "experts");
    if (rc == 0 && s->opt.json) {
        run_show(s, &ans, "", a);
    } else if (rc == 0) {
        json_array_foreach(list, i, one)
        {
            if (i)
                buf_putc(&out, '\n');
            if (layer && json_array_size(json_object_get(one, "layers")) == 0)
                rc = err_set(
                    e, ERR_NOTFOUND, "there is no layer %s of experts: 0 to %d", layer,
                    (int)json_integer_value(json_object_get(one, "n_layers")) - 1);
            else
                put_instance(one, layer, &st, &out);
        }
        if (json_array_size(list) == 0)
            buf_puts(&out, "no instance has experts that can move: experts.spare and "
                           "layout.ep of a mixture of experts\n");
        if (out.len && rc == 0)
            fputs(out.p, s->out);
    }
    buf_done(&out);
    answer_done(&ans);
    free(path);
    return rc;
}
