/* daemon/serve/forward_tier.c - KV blocks between a rank's arena and its part of the host
 * tier (kvtier.h).
 *
 * Host memory of n_host / adp slots, each as large as a block of the arena; it is mapped
 * at once and taken as it is used. Of a step's moves a rank makes those of its shard, in
 * their order, before anything else of the step. */
#include <stdlib.h>
#include <sys/mman.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/serve/forward_impl.h"
#include "daemon/serve/step.h"

int forward_tier_new(struct forward *f, struct err *e)
{
    size_t bytes;

    f->n_host = f->cfg.n_host / f->cfg.part.adp;
    if (!f->n_host)
        return 0;
    if (size_mul((size_t)f->n_host, f->kv_layout.block_bytes, &bytes) < 0)
        return err_set(e, ERR_TOOBIG, "%d KV blocks in host memory are too many",
                       f->n_host);
    f->moved = try_calloc((size_t)f->cfg.max_moves + 1, sizeof(*f->moved));
    f->host = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!f->moved || f->host == MAP_FAILED) {
        f->host = NULL;
        return err_set(e, ERR_NOMEM, "no memory for %zu bytes of KV in host memory",
                       bytes);
    }
    return 0;
}

void forward_tier_free(struct forward *f)
{
    if (f->host)
        munmap(f->host, (size_t)f->n_host * f->kv_layout.block_bytes);
    free(f->moved);
}

void *forward_host(const struct forward *f, int slot)
{
    int first = f->n_host * f->cfg.part.adp_at;

    if (slot < first || slot >= first + f->n_host)
        return NULL;
    return (char *)f->host + (size_t)(slot - first) * f->kv_layout.block_bytes;
}

int forward_moves(struct forward *f, const struct step *st, struct err *e)
{
    const struct step_move *m = step_moves(st);
    int own = f->cfg.n_blocks / f->cfg.part.adp, at = f->cfg.part.adp_at, n = 0;

    if (st->n_moves > (f->host ? f->cfg.max_moves : 0))
        return err_set(e, ERR_INTERNAL, "%d moves of KV blocks, at most %d", st->n_moves,
                       f->host ? f->cfg.max_moves : 0);
    for (int i = 0; i < st->n_moves; i++)
        if (m[i].block / own == at)
            f->moved[n++] = (struct kv_moved){m[i].block - own * at,
                                              m[i].slot - f->n_host * at, m[i].up != 0};
    const struct op_kv_move o = {f->kv, f->host, f->n_host, f->moved, n};
    return n ? op_kv_move(f->s, &o, e) : 0;
}
