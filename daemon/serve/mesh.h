/* daemon/serve/mesh.h - the ranks of an instance and the groups that they form. Pure.
 *
 * From a layout (topo/layout.h, whose rank order this is: tp fastest, then cp, adp, pp;
 * in an expert layer etp fastest, then ep) the coordinates of each rank and, for each
 * dimension, the group that it shares with the ranks that differ in that coordinate only.
 * Groups of one rank are none. What comm_fabric_new takes.
 *
 * A layout's cp falls into two dimensions: CP, whose ranks share the positions (R), and
 * CPU, whose ranks share the heads (U, the faster one): all of it by method ulysses, cp_u
 * of it by usp, else 1. */
#ifndef SERVE_MESH_H
#define SERVE_MESH_H

#include "kernels/comm.h"
#include "topo/layout.h"

struct err;

#define MESH_DIM_MAP(X)                                                                  \
    X(TP, "tp")                                                                          \
    X(CP, "cp")                                                                          \
    X(CPU, "cp_u")                                                                       \
    X(ADP, "adp")                                                                        \
    X(PP, "pp")                                                                          \
    X(EP, "ep")                                                                          \
    X(ETP, "etp")
enum mesh_dim {
#define X(id, name) MESH_##id,
    MESH_DIM_MAP(X)
#undef X
        MESH_DIM_COUNT
};
const char *mesh_dim_name(enum mesh_dim d);

struct mesh_rank {
    int at[MESH_DIM_COUNT];    /* coordinate in each dimension */
    int group[MESH_DIM_COUNT]; /* index into mesh.groups, -1 = alone */
};
struct mesh {
    struct layout layout;
    int n, size[MESH_DIM_COUNT];
    struct mesh_rank ranks[COMM_MAX_RANKS];
    struct comm_group groups[COMM_MAX_GROUPS];
    int n_groups;
};

/* ERR_RANGE for more ranks or groups than there may be, ERR_INVALID where a stage does
 * not regroup as ep x etp. *ret is large: allocate it. */
int mesh_make(const struct layout *l, struct mesh *ret, struct err *e);
/* host[r]: where each rank stands. Groups with members on several hosts, more than one on
 * some, then send their all-to-alls in two levels; without this all is one host, and
 * flat.
 */
void mesh_place(struct mesh *m, const uint8_t *host);
/* The rank that gives out logits: first of its tp and cp group in the last stage. */
int mesh_head(const struct mesh *m, int adp);

#endif
