/* daemon/serve/engine_fit.h - how large context and KV pool become. Pure but for
 * engine_ram_bytes; any thread. */
#ifndef SERVE_ENGINE_FIT_H
#define SERVE_ENGINE_FIT_H

#include <stddef.h>
#include <stdint.h>

struct err;

enum { ENGINE_HEAD_ROWS = 32 }; /* rows of logits held at once, at most */

struct engine_fit_ask {
    int ctx, model_ctx; /* 0 = the model's; the model's */
    int64_t kv_mib;     /* 0 = derived */
    int max_seqs, block_tok;
    int shards; /* that the pool is cut into; 0 = 1 */
    size_t block_bytes;
    uint64_t ram_bytes;
};
struct engine_fit {
    int n_ctx, n_blocks;
};

/* Without kv_mib the pool holds max_seqs sequences of a quarter of the context, within a
 * quarter of RAM. It always holds one sequence of full length: where it cannot, an unset
 * ctx becomes smaller, a set one is refused with ERR_NOFIT. Of a pool in shards each
 * holds one, and all have as many blocks. */
int engine_fit(const struct engine_fit_ask *a, struct engine_fit *ret, struct err *e);
/* Memory of this machine or of the control group, whichever is less. */
uint64_t engine_ram_bytes(void);

#endif
