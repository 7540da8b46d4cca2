/* daemon/ctrl/warming.c - a prompt of nothing and two tokens. */
#include "daemon/ctrl/warming.h"

#include "base/metric.h"
#include "daemon/ctrl/child.h"
#include "daemon/serve/expertpage.h"
#include "daemon/serve/wire.h"

enum { PROMPT = 8, TOKENS = 2 };

int warming_init(struct warming *w, struct err *e)
{
    return metric_page_new(metrics_defs, METRICS_N, NULL, &w->before, e);
}

void warming_done(struct warming *w) { metric_page_free(w->before); }

void warming_start(struct warming *w, struct child *c, struct metric_page *page)
{
    static const int32_t prompt[PROMPT];
    const struct wire_add a = {
        .params = {.id = WARMING_ID,
                   .max_tokens = TOKENS,
                   .top_p = 1,
                   .repetition = 1,
                   .n_top = -1,
                   .n_prompt = PROMPT,
                   .ignore_eos = true,
                   .no_cache = true},
        .prompt = prompt,
    };

    metric_page_recall(w->before, page);
    w->on = true;
    child_add(c, &a);
}

void warming_end(struct warming *w, struct metric_page *page, struct expertpage *experts)
{
    if (w->on)
        metric_page_recall(page, w->before);
    if (w->on && experts)
        expertpage_restart(experts);
    w->on = false;
}
