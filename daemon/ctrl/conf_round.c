/* daemon/ctrl/conf_round.c - see conf_round.h. */
#include "daemon/ctrl/conf_round.h"

#include <stdbool.h>

#include "daemon/ctrl/conf.h"
#include "topo/layout.h"

/* The rules of forward_part_check. */
static bool tp_can(int64_t tp, int64_t as)
{
    return tp == as || ((tp & (tp - 1)) == 0 && as % tp == 0);
}

static bool cp_can(int64_t ranks, int64_t as) { return ranks == as || ranks == 1; }

/* Ranks that share the positions; 0: one by one, as nothing else does. */
static int64_t sharing(const struct conf_instance *i)
{
    int method = CP_GATHER + i->layout.cp_method;

    if (i->layout.cp == 1 || method == CP_ULYSSES)
        return 1;
    if (method == CP_STRIPED)
        return 0;
    return method == CP_USP && i->layout.cp_u ? i->layout.cp / i->layout.cp_u
                                              : i->layout.cp;
}

static int64_t wider(int64_t a, int64_t b) { return a > b ? a : b; }

void conf_round_pools(struct conf_instance *prefill, struct conf_instance *decode)
{
    int64_t a = prefill->layout.tp, b = decode->layout.tp, tp = wider(a, b);
    int64_t p = sharing(prefill), d = sharing(decode), cp = wider(p, d);

    if (prefill->layout.automatic || decode->layout.automatic ||
        (prefill->round_as.tp && prefill->round_as.cp))
        return;
    prefill->round_as.unasked = !prefill->round_as.tp && !prefill->round_as.cp;
    if (!prefill->round_as.tp && tp_can(a, tp) && tp_can(b, tp))
        prefill->round_as.tp = tp;
    if (!prefill->round_as.cp && p && d && cp_can(p, cp) && cp_can(d, cp))
        prefill->round_as.cp = cp;
    decode->round_as = prefill->round_as;
}
