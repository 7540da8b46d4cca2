/* ctl/expert_counts.h - what a layer of experts counted, as tables: by kind of rows, and
 * by expert, those with the most time in work first. Pure. */
#ifndef CTL_EXPERT_COUNTS_H
#define CTL_EXPERT_COUNTS_H

#include "base/json.h"
#include "ctl/table.h"

struct buf;

/* layer: of an instance of GET /api/v1/experts. */
void expert_counts(const json_t *layer, const struct show_style *st, struct buf *out);

#endif
