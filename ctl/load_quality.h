/* ctl/load_quality.h - the quality result that a load run is kept with: what a quality
 * run said of the same model file, the same settings that change output and the same
 * build.
 *
 * Mode, layout and revision may be others: they change no answer. Blocks for the daemon's
 * answers. */
#ifndef CTL_LOAD_QUALITY_H
#define CTL_LOAD_QUALITY_H

#include "base/json.h"

struct err;
struct session;

/* served: of the contract. id: that quality run, refused unless it is one of these; NULL:
 * the newest. *ret: its figures, or null where none was measured; a new object. */
int load_quality(struct session *s, const json_t *served, const char *id, json_t **ret,
                 struct err *e);

#endif
