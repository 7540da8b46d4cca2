/* state/inventory.h - models, instances and the rack as last applied, and what an
 * operator said of an instance. Control thread. */
#ifndef STATE_INVENTORY_H
#define STATE_INVENTORY_H

#include <stdbool.h>
#include <stdint.h>

struct err;
struct store;

struct model_row {
    char name[128], path[4096], family[16], main_type[8], format[16];
    uint64_t n_params, file_bytes;
    int64_t added_ms;
};
int inventory_put_model(struct store *s, const struct model_row *m, struct err *e);
int inventory_models(struct store *s, struct model_row *ret, int max, struct err *e);

struct instance_row {
    char name[64], model[128], mode[16], options[1024]; /* options: JSON as applied */
    int64_t applied_ms;
};
int inventory_put_instance(struct store *s, const struct instance_row *i, struct err *e);
int inventory_instances(struct store *s, struct instance_row *ret, int max,
                        struct err *e);

/* What an operator said of an instance; outlives restarts. state "" = as configured. */
struct admin_row {
    char instance[64], state[16], reason[256], actor[64]; /* "stopped", "draining" */
    int64_t at_ms;
};
int admin_put(struct store *s, const struct admin_row *a, struct err *e);
int admin_list(struct store *s, struct admin_row *ret, int max, struct err *e);

/* Experts of an instance that stay where they are, by an operator, until thawed. The list
 * gives names, at most max; returns the count. */
int freeze_put(struct store *s, const char *instance, bool on, const char *actor,
               const char *reason, int64_t at_ms, struct err *e);
int freeze_list(struct store *s, char (*ret)[64], int max, struct err *e);

/* name: what was asked for (auto, a built-in, a file); json: the graph. Replaces. */
int inventory_put_rack(struct store *s, const char *name, const char *json,
                       struct err *e);
/* 1 and malloc'd strings, 0 when none was recorded, -1. */
int inventory_rack(struct store *s, char **ret_name, char **ret_json, struct err *e);

#endif
