/* daemon/serve/ranks.h - the real executor: one thread a rank, forward, then sampling.
 *
 * The scheduler thread submits; the rank thread owns backend, forward and samplers and
 * pushes completions. Results of the last steps are kept so that a step may refer to a
 * token of the one before it (depth 2). */
#ifndef SERVE_RANKS_H
#define SERVE_RANKS_H

#include <stdint.h>

#include "daemon/serve/forward.h"
#include "daemon/serve/step.h"
#include "kernels/backend.h"

struct err;
struct executor;
struct model;

struct ranks_cfg {
    struct backend_cfg backend; /* its caps are filled in by ranks_new */
    struct forward_cfg forward; /* kv_type DT_COUNT = what the backend likes best */
    struct step_caps caps;      /* of the steps submitted; forward fits them */
    int depth;
};

/* Loads the weights in the rank thread and returns when it is ready; the model may be
 * freed afterwards. progress as in forward_new (called on the rank thread). */
int ranks_new(struct model *m, const struct ranks_cfg *cfg, forward_progress_fn progress,
              void *arg, struct executor **ret, struct err *e);
/* Result of the rank's memory count, valid after ranks_new. */
void ranks_mem(const struct executor *x, struct backend_mem *ret);
const char *ranks_isa(const struct executor *x);
enum dtype ranks_kv_type(const struct executor *x);

/* An executor that answers at once with token ids in a cycle, for measuring the rest. */
int nullexec_new(const struct step_caps *caps, int n_vocab, struct executor **ret,
                 struct err *e);

#endif
