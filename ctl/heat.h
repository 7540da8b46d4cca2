/* ctl/heat.h - loads of experts and devices as a heat map of characters.
 *
 * From an instance of GET /api/v1/experts: all its layers, a line each, or one layer:
 * devices by experts where the screen is wide enough for that, else experts and devices
 * each for itself. A cell's shade says a load over the mean: a colour, a block, or a
 * digit where there are only letters (4 = the mean, 9 = 2.25 times that or more). Pure.
 */
#ifndef CTL_HEAT_H
#define CTL_HEAT_H

#include "base/json.h"
#include "ctl/table.h"

struct buf;

enum heat_kind { HEAT_DIGITS, HEAT_BLOCKS, HEAT_COLOURS };

/* layer < 0: all; else of the one layer that the answer has. Lines of at most st->width
 * columns. */
void heat_instance(const json_t *instance, int layer, const struct show_style *st,
                   enum heat_kind kind, struct buf *out);

#endif
