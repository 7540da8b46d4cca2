/* topo/finding.h - what is odd about a rack, as sentences with severity and evidence.
 *
 * Pure: of a graph, and of the difference from a baseline where one is given. A device
 * with a BAD finding should be left out of groups. Sorted by severity, then as found. */
#ifndef TOPO_FINDING_H
#define TOPO_FINDING_H

struct buf;
struct findings;
struct graph;

#define SEVERITY_MAP(X)                                                                  \
    X(BAD, "bad")   /* do not place on it */                                             \
    X(WARN, "warn") /* slower or less sure than it looks */                              \
    X(INFO, "info")
enum severity {
#define X(id, name) SEVERITY_##id,
    SEVERITY_MAP(X)
#undef X
        SEVERITY_COUNT
};

/* kind: a stable word for scripts. */
#define FINDING_KIND_MAP(X)                                                              \
    X(LINKS, "links-missing")                                                            \
    X(LOST, "lost")                                                                      \
    X(ADDED, "added")                                                                    \
    X(CHANGED, "changed")                                                                \
    X(NIC_FAR, "nic-other-socket")                                                       \
    X(CLIQUE, "clique-differs")                                                          \
    X(FABRIC, "fabric")                                                                  \
    X(IMEX, "imex")                                                                      \
    X(PARTIAL, "partial-rack")                                                           \
    X(PCI, "pci-down-trained")                                                           \
    X(MIG, "mig-on")                                                                     \
    X(NUMA, "numa-unknown")                                                              \
    X(CORDONED, "cordoned")                                                              \
    X(CORDON, "cordon-suggested")                                                        \
    X(HEALTH, "health")                                                                  \
    X(SOURCE, "source") /* what the reader of the rack had to assume */
enum finding_kind {
#define X(id, name) FINDING_##id,
    FINDING_KIND_MAP(X)
#undef X
        FINDING_KIND_COUNT
};

struct finding {
    enum severity severity;
    enum finding_kind kind;
    int node; /* that it is about, -1: the rack, or a node of the baseline */
    char text[400];
};

/* baseline: NULL = none. this_host: name of the host the daemon runs on, NULL = unknown.
 * Never fails; findings_free takes NULL. */
struct findings *findings_new(const struct graph *g, const struct graph *baseline,
                              const char *this_host);
/* Says which devices are cordoned, and which others have a bad finding and should be. */
void findings_note_cordons(struct findings *f, const struct graph *g, const int *cordoned,
                           int n);
void findings_free(struct findings *f);
int findings_count(const struct findings *f);
const struct finding *findings_get(const struct findings *f, int i);
const char *severity_name(enum severity s);
const char *finding_kind_name(enum finding_kind k);

#endif
