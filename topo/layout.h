/* topo/layout.h - the layout words: how one instance is cut over devices.
 *
 * Ranks of an instance = pp x cp x tp x adp. In a layer of experts the cp x tp x adp
 * ranks of a stage regroup as ep x etp. sp reuses the TP ranks and is no factor; usp has
 * U = cp_u and R = cp / cp_u. Rank order: tp fastest, then cp, adp, pp; in an expert
 * layer etp fastest, then ep. Plain data, pure. Any thread. */
#ifndef TOPO_LAYOUT_H
#define TOPO_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>

struct err;
struct shapes;

#define CP_METHOD_MAP(X)                                                                 \
    X(NONE, "none")                                                                      \
    X(GATHER, "allgather")                                                               \
    X(RING, "ring")                                                                      \
    X(STRIPED, "striped")                                                                \
    X(ULYSSES, "ulysses")                                                                \
    X(USP, "usp")
enum cp_method {
#define X(id, name) CP_##id,
    CP_METHOD_MAP(X)
#undef X
        CP_METHOD_COUNT
};

struct layout {
    int pp, cp, tp, adp, ep, etp;
    bool sp;
    enum cp_method cp_method;
    int cp_u; /* of usp */
    int replicas;
};

/* Why a layout is refused: the groups under which a search reports. */
#define LAYOUT_FAULT_MAP(X)                                                              \
    X(NONE, "allowed")                                                                   \
    X(RANGE, "a word is below 1 or too large")                                           \
    X(REGROUP, "the ranks of a stage do not regroup as ep x etp")                        \
    X(LAYERS, "more stages than layers")                                                 \
    X(HEADS, "attention heads do not divide")                                            \
    X(KV_HEADS, "KV heads neither divide nor repeat evenly")                             \
    X(WIDTH, "an MLP's width does not divide")                                           \
    X(SCALES, "a cut goes through a quantisation block")                                 \
    X(EXPERTS, "experts do not divide")                                                  \
    X(DENSE, "a dense model has no experts to share over adp or ep")                     \
    X(CONTEXT, "context parallelism does not fit the attention")
enum layout_fault {
#define X(id, text) LAYOUT_##id,
    LAYOUT_FAULT_MAP(X)
#undef X
        LAYOUT_FAULT_COUNT
};

/* "pp4 tp2 adp8 ep8 etp2", "tp8", "tp4 cp2 ring", "cp8 usp cp_u4", "x2" (replicas); "="
 * may stand between word and number, commas between words. Words left out are 1; without
 * etp it follows from the others; cp without a method is a ring. */
int layout_parse(const char *text, struct layout *ret, struct err *e);
/* The same text without what follows from the rest; "tp1" for a single device. */
void layout_print(const struct layout *l, char *out, size_t cap);

bool layout_same(const struct layout *a, const struct layout *b);
int layout_ranks(const struct layout *l); /* of one instance */
int layout_stage(const struct layout *l); /* ranks of a stage */
/* U of cp = U x R: ranks that share the heads; the others share the positions. */
int layout_cp_heads(const struct layout *l);
/* Can the model be cut so? slots: expert replica slots of a layer, over all EP ranks.
 * LAYOUT_NONE, or why not with the sentence in e. */
enum layout_fault layout_check(const struct layout *l, const struct shapes *s, int slots,
                               struct err *e);
const char *layout_fault_text(enum layout_fault f);

/* Layers of a stage: [*ret_first, *ret_first + count). Stages differ by one layer at
 * most, the earlier ones are the shorter, since the last holds the head. */
int layout_layers(const struct layout *l, const struct shapes *s, int stage,
                  int *ret_first);

/* Every combination of words whose ranks are exactly n, allowed or not, in a fixed order.
 * cp > 1 only where with_cp. fn returns false to stop. */
typedef bool (*layout_fn)(void *arg, const struct layout *l, enum layout_fault f);
void layout_enumerate(const struct shapes *s, int n, bool with_cp, layout_fn fn,
                      void *arg);

#endif
