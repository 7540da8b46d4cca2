/* daemon/serve/engine_fit.c - context and KV pool from options, model and memory. */
#include "daemon/serve/engine_fit.h"

#include <stdio.h>
#include <unistd.h>

#include "base/err.h"

enum { CTX_LEAST = 64 }; /* below this a served model is of no use */

static int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t blocks_for(int64_t tok, int block_tok)
{
    return (tok + block_tok - 1) / block_tok;
}

int engine_fit(const struct engine_fit_ask *a, struct engine_fit *ret, struct err *e)
{
    int64_t ctx = a->ctx ? a->ctx : a->model_ctx;
    uint64_t bytes = a->kv_mib ? (uint64_t)a->kv_mib << 20 : a->ram_bytes / 4;
    int64_t shards = a->shards ? a->shards : 1; /* one, most, want: blocks of each */
    int64_t most =
        min_i64((int64_t)(bytes / a->block_bytes), INT32_MAX / a->block_tok) / shards;

    if (ctx > a->model_ctx)
        return err_set(e, ERR_RANGE, "a context of %lld is over the model's %d",
                       (long long)ctx, a->model_ctx);
    if (most < blocks_for(ctx, a->block_tok) && !a->ctx)
        ctx = most * a->block_tok;
    if (a->ctx && ctx < min_i64(CTX_LEAST, a->model_ctx))
        return err_set(e, ERR_RANGE,
                       "a context of %lld is too short to serve: %lld or more",
                       (long long)ctx, (long long)min_i64(CTX_LEAST, a->model_ctx));
    if (a->kv_mib && bytes > a->ram_bytes)
        return err_set(
            e, ERR_NOFIT,
            "a KV pool of %llu MiB is over the memory of %llu MiB: lower kv.mib",
            (unsigned long long)(bytes >> 20), (unsigned long long)(a->ram_bytes >> 20));
    int64_t one = blocks_for(ctx, a->block_tok);
    if (one > most || ctx < min_i64(CTX_LEAST, a->model_ctx))
        return err_set(
            e, ERR_NOFIT,
            "one sequence of %lld tokens takes %llu MiB of KV and %s may "
            "be %llu MiB: lower ctx or raise kv.mib",
            (long long)(a->ctx ? a->ctx : a->model_ctx),
            (unsigned long long)((uint64_t)blocks_for(a->ctx ? a->ctx : a->model_ctx,
                                                      a->block_tok) *
                                     a->block_bytes >>
                                 20),
            shards > 1 ? "the part of a group" : "the pool",
            (unsigned long long)(bytes / (uint64_t)shards >> 20));
    int64_t want = most;
    if (!a->kv_mib)
        want = min_i64(most, (a->max_seqs + shards - 1) / shards *
                                 blocks_for(ctx / 4 + 1, a->block_tok));
    *ret = (struct engine_fit){(int)ctx, (int)((want > one ? want : one) * shards)};
    return 0;
}

static uint64_t ram_limit(const char *path, uint64_t otherwise)
{
    unsigned long long v;
    FILE *f = fopen(path, "re");

    if (!f)
        return otherwise;
    int n = fscanf(f, "%llu", &v); /* "max" is no number: no limit */
    fclose(f);
    return n == 1 && v && v < otherwise ? v : otherwise;
}

uint64_t engine_ram_bytes(void)
{
    uint64_t ram = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);

    ram = ram_limit("/sys/fs/cgroup/memory.max", ram);
    return ram_limit("/sys/fs/cgroup/memory/memory.limit_in_bytes", ram);
}
