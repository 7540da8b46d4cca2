/* daemon/ctrl/need.h - how much memory an engine will take, by estimate.
 *
 * What capacity.h counts, kept until the file changes, so that a plan does not open it
 * again and again. Control thread only. */
#ifndef CTRL_NEED_H
#define CTRL_NEED_H

#include <stdint.h>

struct conf_instance;
struct layout;
struct need;

struct need *need_new(void);
void need_free(struct need *n);
/* What its KV pool is sized for; 0 = not known. */
struct need_pool {
    int ctx, block_tok;
};
/* Bytes; 0 = not known (the file cannot be read, or it is refused).
 * refused: why the model cannot be cut so, or has no such context or pool; "" it can. */
uint64_t need_bytes(struct need *n, const char *path, const struct conf_instance *i,
                    const struct layout *l, struct need_pool *ret, char refused[256]);

/* What is free on this machine, within the control group. */
uint64_t need_free_bytes(void);

#endif
