/* daemon/serve/idmap.h - 64-bit numbers to pointers, O(1). One owner thread. */
#ifndef SERVE_IDMAP_H
#define SERVE_IDMAP_H

#include <stddef.h>
#include <stdint.h>

struct idmap_slot {
    uint64_t id;
    void *p; /* NULL = empty */
};
struct idmap {
    struct idmap_slot *slot;
    size_t n, cap; /* cap: 0 or a power of two */
};

void idmap_done(struct idmap *m);
void *idmap_get(const struct idmap *m, uint64_t id); /* or NULL */
/* p is not NULL and id not there yet. */
void idmap_put(struct idmap *m, uint64_t id, void *p);
void idmap_del(struct idmap *m, uint64_t id); /* nothing when it is not there */

#endif
