/* daemon/ctrl/facts.c - figures of a ready engine. */
#include "daemon/ctrl/facts.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "daemon/ctrl/router.h"
#include "daemon/serve/wire.h"
#include "state/store.h"

void facts_take(const struct wire_ready *r, struct instance_status *st)
{
    st->n_ctx = r->n_ctx;
    st->n_blocks = r->n_blocks;
    st->block_tok = r->block_tok;
    st->n_threads = r->n_threads;
    st->weight_bytes = r->weight_bytes;
    st->kv_bytes = r->kv_bytes;
    st->scratch_bytes = r->scratch_bytes;
    st->load_us = r->load_us;
    st->n_ranks = r->n_ranks;
    memcpy(st->layout, r->layout, sizeof(st->layout));
    memcpy(st->isa, r->isa, sizeof(st->isa));
    memcpy(st->kv_type, r->kv_type, sizeof(st->kv_type));
    st->error[0] = '\0';
    st->retry_at_us = 0;
}

int facts_store(struct store *s, const struct served *f, const char *instance,
                const char *mode, const char *options, struct err *e)
{
    struct model_row m = {.n_params = f->n_params, .file_bytes = f->file_bytes};
    struct instance_row i = {.applied_ms = clock_wall_ms()};

    m.added_ms = i.applied_ms;
    memcpy(m.name, f->name, sizeof(m.name));
    memcpy(m.path, f->path, sizeof(m.path));
    memcpy(m.family, f->family, sizeof(m.family));
    memcpy(m.main_type, f->main_type, sizeof(m.main_type));
    memcpy(m.format, f->format, sizeof(m.format));
    snprintf(i.name, sizeof(i.name), "%s", instance);
    memcpy(i.model, f->name, sizeof(i.model));
    snprintf(i.mode, sizeof(i.mode), "%s", mode);
    snprintf(i.options, sizeof(i.options), "%s", options);
    return inventory_put_model(s, &m, e) < 0 ? -1 : inventory_put_instance(s, &i, e);
}
