/* daemon/serve/engine_load.h - from options and model files to an executor.
 *
 * Inside the engine only. */
#ifndef SERVE_ENGINE_LOAD_H
#define SERVE_ENGINE_LOAD_H

#include "daemon/serve/engine.h"
#include "daemon/serve/step.h"
#include "daemon/serve/wire.h"

struct executor;
struct model;

struct engine_loaded {
    struct executor *x;
    struct model *model; /* kept open where experts may move, else NULL */
    struct sched_cfg sched;
    struct step_caps caps;
    struct wire_ready ready;
    int32_t *eog; /* the model's end-of-generation ids */
    int n_eog;
};

/* Tells LOADING on conn. Any message that comes meanwhile, or its end, stops it with
 * ERR_CANCELED: before READY there is nothing to say but STOP. */
int engine_load(const struct engine_cfg *cfg, struct wire_conn *conn,
                struct engine_loaded *ret, struct err *e);
void engine_loaded_done(struct engine_loaded *l);

#endif
