/* topo/path.h - best path class and narrowest bandwidth between all pairs. Pure.
 *
 * Computed once per graph. Better = lower class, then higher bandwidth, then fewer hops.
 * Never through a device, except one NVLink hop (NVB). */
#ifndef TOPO_PATH_H
#define TOPO_PATH_H

#include <stdbool.h>
#include <stdint.h>

struct err;
struct graph;
struct graph_pair;
struct paths;

#define PATH_CLASS_MAP(X)                                                                \
    X(LOC, "LOC")                                                                        \
    X(NVL, "NVL")                                                                        \
    X(NVB, "NVB")                                                                        \
    X(C2C, "C2C")                                                                        \
    X(PIX, "PIX")                                                                        \
    X(PXB, "PXB")                                                                        \
    X(PHB, "PHB")                                                                        \
    X(NODE, "NODE")                                                                      \
    X(SYS, "SYS")                                                                        \
    X(NET, "NET")                                                                        \
    X(DIS, "DIS")
enum path_class {
#define X(id, name) PATH_##id,
    PATH_CLASS_MAP(X)
#undef X
        PATH_CLASS_COUNT
};

struct path {
    enum path_class cls;
    double bps;        /* narrowest link, bytes/s one way; measured where all links are */
    double latency_us; /* sum over the hops */
    int hops;
    int measured;        /* 1 when every link's figure was measured */
    int degraded;        /* links on it that are not healthy */
    double spread;       /* of a figure measured as a pair: (max - min) / median */
    int64_t measured_ms; /* and when, Unix ms; of a group the oldest; 0 unknown */
};

/* What the graph has as measured pairs is laid over its links. */
int paths_new(const struct graph *g, struct paths **ret, struct err *e);
void paths_free(struct paths *p);
/* What copies between two devices really reach, instead of what their links say. Only
 * before the paths are shared. Pairs that are no ends are passed over; the count of those
 * that were taken. */
int paths_measure(struct paths *p, const struct graph_pair *m, int n);
/* Pairs whose figure was measured as such. */
int paths_measured(const struct paths *p);
/* Between two devices or NICs by node id. */
const struct path *paths_get(const struct paths *p, int a, int b);
/* The links on the way from a to b, each once. share: part of what goes there that takes
 * it (switches side by side share it by their width). Returns the count; 0: there is no
 * way, or it has more than max. */
enum { PATH_LINKS_MAX = 128 };
struct path_link {
    int link;          /* index in the graph */
    bool back;         /* it is taken from the link's b to its a */
    double share, bps; /* bps: of the link, measured where it was */
};
int paths_links(const struct paths *p, int a, int b, struct path_link *ret, int max);
/* Of a group of n devices in ring order: the worst neighbour pair (ring) or pair (all).
 */
void paths_ring(const struct paths *p, const int *dev, int n, struct path *ret);
void paths_all(const struct paths *p, const int *dev, int n, struct path *ret);
/* Steps that the computation took: what tests hold against a bound instead of time. */
uint64_t paths_work(const struct paths *p);
const char *path_class_name(enum path_class c);

#endif
