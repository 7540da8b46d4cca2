/* daemon/serve/mesh.c - coordinates by division, groups by equal remaining coordinates.
 */
#include "daemon/serve/mesh.h"

#include <stdio.h>

#include "base/err.h"

const char *mesh_dim_name(enum mesh_dim d)
{
    static const char *const names[] = {
#define X(id, name) name,
        MESH_DIM_MAP(X)
#undef X
    };
    return (unsigned)d < MESH_DIM_COUNT ? names[d] : "?";
}

/* Dimensions that tell two ranks apart where experts do not, and where they do. */
static const struct {
    enum mesh_dim dims[5];
    int n;
} views[2] = {{{MESH_PP, MESH_ADP, MESH_CP, MESH_CPU, MESH_TP}, 5},
              {{MESH_PP, MESH_EP, MESH_ETP}, 3}};

static void coordinates(const struct mesh *m, int rank, struct mesh_rank *ret)
{
    int stage = layout_stage(&m->layout), in = rank % stage;

    ret->at[MESH_TP] = in % m->size[MESH_TP];
    ret->at[MESH_CPU] = in / m->size[MESH_TP] % m->size[MESH_CPU];
    ret->at[MESH_CP] = in / m->size[MESH_TP] % m->layout.cp / m->size[MESH_CPU];
    ret->at[MESH_ADP] = in / (m->size[MESH_TP] * m->layout.cp);
    ret->at[MESH_PP] = rank / stage;
    ret->at[MESH_ETP] = in % m->size[MESH_ETP];
    ret->at[MESH_EP] = in / m->size[MESH_ETP];
    for (int d = 0; d < MESH_DIM_COUNT; d++)
        ret->group[d] = -1;
}

/* Do they differ in dimension d of this view only? */
static bool same_but(const struct mesh *m, int v, enum mesh_dim d, int a, int b)
{
    for (int i = 0; i < views[v].n; i++) {
        enum mesh_dim x = views[v].dims[i];
        if (x != d && m->ranks[a].at[x] != m->ranks[b].at[x])
            return false;
    }
    return true;
}

static int group_of(struct mesh *m, int v, enum mesh_dim d, int rank, struct err *e)
{
    struct comm_group *g = &m->groups[m->n_groups];

    if (m->n_groups == COMM_MAX_GROUPS)
        return err_set(e, ERR_RANGE, "the layout has more than %d groups of ranks",
                       COMM_MAX_GROUPS);
    *g = (struct comm_group){.n = 0};
    snprintf(g->name, sizeof(g->name), "%s%d", mesh_dim_name(d), rank);
    for (int r = 0; r < m->n; r++) /* in order of the coordinate, as ranks are */
        if (same_but(m, v, d, rank, r)) {
            m->ranks[r].group[d] = m->n_groups;
            g->ranks[g->n++] = r;
        }
    m->n_groups++;
    return 0;
}

static int groups_of(struct mesh *m, int v, enum mesh_dim d, struct err *e)
{
    for (int r = 0; m->size[d] > 1 && r < m->n; r++)
        if (m->ranks[r].group[d] < 0 && group_of(m, v, d, r, e) < 0)
            return -1;
    return 0;
}

int mesh_make(const struct layout *l, struct mesh *ret, struct err *e)
{
    int n = layout_ranks(l);
    int heads = layout_cp_heads(l);

    if (n < 1 || n > COMM_MAX_RANKS)
        return err_set(e, ERR_RANGE, "%d ranks: 1 to %d may form an instance", n,
                       COMM_MAX_RANKS);
    if (l->ep * l->etp != layout_stage(l))
        return err_set(e, ERR_INVALID,
                       "the %d ranks of a stage do not regroup as ep %d x etp %d",
                       layout_stage(l), l->ep, l->etp);
    if (heads < 1 || l->cp % heads)
        return err_set(e, ERR_INVALID, "cp_u %d does not divide cp %d", heads, l->cp);
    *ret = (struct mesh){
        .layout = *l,
        .n = n,
        .size = {[MESH_TP] = l->tp,
                 [MESH_CP] = l->cp / heads,
                 [MESH_CPU] = heads,
                 [MESH_ADP] = l->adp,
                 [MESH_PP] = l->pp,
                 [MESH_EP] = l->ep,
                 [MESH_ETP] = l->etp},
    };
    for (int r = 0; r < n; r++)
        coordinates(ret, r, &ret->ranks[r]);
    for (int v = 0; v < 2; v++)
        for (int i = 0; i < views[v].n; i++)
            if (!(v == 1 && i == 0) && groups_of(ret, v, views[v].dims[i], e) < 0)
                return -1; /* stages are the same in both views */
    return 0;
}

void mesh_place(struct mesh *m, const uint8_t *host)
{
    for (int i = 0; i < m->n_groups; i++) {
        struct comm_group *g = &m->groups[i];
        bool apart = false, together = false;

        for (int a = 0; a < g->n; a++) {
            g->host[a] = host[g->ranks[a]];
            for (int b = 0; b < a; b++) {
                apart |= g->host[a] != g->host[b];
                together |= g->host[a] == g->host[b];
            }
        }
        g->two_level = apart && together;
    }
}

int mesh_head(const struct mesh *m, int adp)
{
    int stage = layout_stage(&m->layout);

    return (m->size[MESH_PP] - 1) * stage + adp * m->size[MESH_TP] * m->layout.cp;
}
