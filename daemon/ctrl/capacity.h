/* daemon/ctrl/capacity.h - will a model with an instance's options fit the devices?
 *
 * The facts of a model's files become the planner's shapes; the context and the KV pool
 * are sized as the engine sizes them; the ledger counts the fullest device. So that
 * `config check` can say before anything is stopped which dimension is exceeded and what
 * cures it. Any thread. */
#ifndef CTRL_CAPACITY_H
#define CTRL_CAPACITY_H

#include <stdbool.h>
#include <stdint.h>

#include "topo/ledger.h"

struct conf_instance;
struct domain_view;
struct err;
struct model;

/* What planning knows of an opened model: shapes, and for each part the format that is
 * nearest to what its tensors take. */
int capacity_shapes(const struct model *m, struct shapes *ret, struct err *e);
/* The same of a file or folder, which is opened for the call. */
int capacity_shapes_of(const char *path, struct shapes *ret, struct err *e);

/* An instance's layout words. */
void capacity_layout(const struct conf_instance *i, struct layout *ret);

struct capacity {
    double need, have; /* bytes of the fullest device; of the roomiest one in service */
    double all;        /* of all ranks together, without the margin; 0 not counted */
    bool fits;
    int ranks, devices;  /* wanted, in service */
    int n_ctx, n_blocks; /* as the engine would size them; 0 when not even that fits */
    int block_tok;       /* positions of a block */
    struct ledger ledger;
    char why[256], cure[160]; /* empty when it fits */
};

/* -1 only when the model cannot be read or the layout does not suit it (then the error's
 * param is "layout"); that it does not fit is an answer. v NULL: this machine's memory as
 * one device a rank. layout NULL: one rank. */
int capacity_check(const char *model_path, const struct conf_instance *i,
                   const struct layout *layout, const struct domain_view *v,
                   struct capacity *ret, struct err *e);

/* What the ledger says of one rank, with the context and pool that the engine has. */
struct capacity_rank {
    double weights, kv, scratch;
};
void capacity_rank(const struct shapes *s, const struct layout *l,
                   const struct conf_instance *i, int n_ctx, int n_blocks, int rank,
                   struct capacity_rank *ret);

#endif
