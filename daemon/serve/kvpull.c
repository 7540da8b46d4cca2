/* See kvpull.h. */
#include "daemon/serve/kvpull.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/queue.h"
#include "kernels/kv_block.h"

enum { PULLS_MAX = 1024 };

static const int64_t IDLE_WAIT_US = 3600ll * 1000 * 1000;

struct kvpull {
    const struct kvpull_ops *ops;
    struct queue *todo, *done;
    pthread_t thread;
    bool started;
    struct kvpull_job end; /* its address ends the thread */
};

/* ---- memory of this host ---- */

static void copy_row(const struct kvpull_piece *p, int i, int v)
{
    const struct kv_layout *l = p->layout;
    const uint8_t *src = p->src + (v ? l->head_bytes : 0);
    uint8_t *dst = p->dst + (v ? l->head_bytes : 0);
    int pad = kv_pad_dim(l->head_dim), from = p->src_tok[i], to = p->dst_tok[i];
    size_t bytes = kvmap_element(l);

    for (int d = 0; d < pad; d++) {
        size_t a = v ? kv_v_index(l->type, pad, from, d) : kv_k_index(l->type, from, d);
        size_t b = v ? kv_v_index(l->type, pad, to, d) : kv_k_index(l->type, to, d);
        memcpy(dst + b * bytes, src + a * bytes, bytes);
    }
}

static int64_t host_copy(const struct kvpull_piece *p, struct err *e)
{
    size_t kinds = p->layout->v_dim ? 1 : 2, bytes = kinds * p->layout->head_bytes;

    (void)e;
    if (p->whole) {
        memcpy(p->dst, p->src, bytes);
        return (int64_t)bytes;
    }
    for (int i = 0; i < p->n; i++)
        for (int v = 0; v < (int)kinds; v++)
            copy_row(p, i, v);
    return (int64_t)(bytes / KV_BLOCK_TOK) * p->n;
}

static int host_finish(struct err *e)
{
    (void)e;
    return 0;
}

const struct kvpull_ops kvpull_host = {host_copy, host_finish};

/* ---- one pull ---- */

struct kvpull_job *kvpull_job_new(const struct kvpull_job *from)
{
    struct kvpull_job *j = xmalloc(sizeof(*j));
    size_t blocks = (size_t)from->n * sizeof(*j->blocks);
    size_t table = (size_t)from->n_table * sizeof(*j->table);

    *j = *from;
    j->blocks = xmalloc(blocks + 1);
    j->table = xmalloc(table + 1);
    memcpy(j->blocks, from->blocks, blocks);
    memcpy(j->table, from->table, table);
    return j;
}

void kvpull_job_free(struct kvpull_job *j)
{
    if (!j)
        return;
    free(j->blocks);
    free(j->table);
    free(j);
}

/* Blocks that the maps have, positions that the blocks have. */
static int check_job(const struct kvpull_job *j, struct err *e)
{
    int sb = kvmap_block_tok(j->src), db = kvmap_block_tok(j->dst);

    if (j->from < 0 || j->from > j->upto || j->from / sb < j->first ||
        (int64_t)(j->first + j->n) * sb < j->upto || (int64_t)j->n_table * db < j->upto)
        return err_set(e, ERR_INTERNAL, "no blocks for positions %d to %d", j->from,
                       j->upto);
    for (int i = 0; i < j->n; i++)
        if (j->blocks[i].id < 0 || j->blocks[i].id >= kvmap_n_blocks(j->src))
            return err_set(e, ERR_CORRUPT, "KV block %d of %d", j->blocks[i].id,
                           kvmap_n_blocks(j->src));
    for (int i = j->from / db; i < j->n_table && (int64_t)i * db < j->upto; i++)
        if (j->table[i] < 0 || j->table[i] >= kvmap_n_blocks(j->dst))
            return err_set(e, ERR_INTERNAL, "own KV block %d of %d", j->table[i],
                           kvmap_n_blocks(j->dst));
    return 0;
}

struct puller {
    struct kvpull_job *j;
    const struct kvpull_ops *ops;
    struct kvtable src, dst;
};

/* Our positions pos[0..n), which stand in one head's block at place tok[i]: in pieces of
 * one block of the source each. */
static int copy_head(struct puller *u, const struct kvregion *r, size_t off, int layer,
                     int head, const int *pos, const uint8_t *tok, int n)
{
    struct kvpull_piece p = {.layout = &r->layout, .dst = r->mem + off};
    int64_t got = 0;

    for (int i = 0; i < n; i++) {
        struct kvspot s = kvmap_find(u->j->src, &u->src, layer, head, pos[i]);
        const uint8_t *src = s.in->mem + s.off;
        if (p.n && src != p.src) {
            if ((got = u->ops->copy(&p, &u->j->why)) < 0)
                return -1;
            u->j->bytes += (uint64_t)got;
            p.n = 0;
        }
        p.src = src;
        p.src_tok[p.n] = (uint8_t)s.tok;
        p.dst_tok[p.n++] = tok[i];
    }
    p.whole = p.n == n && tok[0] == 0; /* places after the last one are free */
    for (int i = 0; i < p.n; i++)
        p.whole &= p.src_tok[i] == i && p.dst_tok[i] == i;
    if (p.n && (got = u->ops->copy(&p, &u->j->why)) < 0)
        return -1;
    u->j->bytes += p.n ? (uint64_t)got : 0;
    return 0;
}

/* Block i of our table in one region. */
static int copy_block(struct puller *u, const struct kvregion *r, int i)
{
    const struct wire_arena *a = &r->at;
    int id = u->j->table[i], pos[KV_BLOCK_TOK], n = 0;
    uint8_t tok[KV_BLOCK_TOK];

    if (id / a->n_blocks != a->shard)
        return 0;
    for (int t = 0; t < KV_BLOCK_TOK; t++) {
        int p = i * a->block_tok +
                (a->striped ? t * a->cp + a->cp_at : a->cp_at * KV_BLOCK_TOK + t);
        if (p < u->j->from || p >= u->j->upto)
            continue;
        pos[n] = p;
        tok[n++] = (uint8_t)t;
    }
    size_t base = (size_t)(id % a->n_blocks) * r->layout.block_bytes;
    for (int l = 0; n && l < a->n_layer; l++)
        for (int h = 0; h < a->n_head; h++)
            if (copy_head(u, r, base + kv_head_off(&r->layout, l, 0, h),
                          a->first_layer + l, a->head_from + h, pos, tok, n) < 0)
                return -1;
    return 0;
}

static int check_sums(const struct puller *u, struct err *e)
{
    const struct kvpull_job *j = u->j;
    int bt = kvmap_block_tok(j->src);

    for (int i = 0; i < j->n; i++) {
        int from = (j->first + i) * bt, end = from + bt < j->upto ? from + bt : j->upto;
        if (!j->blocks[i].sum || from < j->from)
            continue;
        for (int c = 0; c < kvmap_copies(j->dst); c++)
            if (kvmap_sum(j->dst, &u->dst, from, end, c) != j->blocks[i].sum)
                return err_set(e, ERR_CORRUPT, "the copy of KV block %d has another sum",
                               j->blocks[i].id);
    }
    return 0;
}

static int pull(struct kvpull_job *j, const struct kvpull_ops *ops)
{
    int32_t *ids = xmalloc(((size_t)j->n + 1) * sizeof(*ids));
    struct puller u = {.j = j,
                       .ops = ops,
                       .src = {ids, j->first, j->n},
                       .dst = {j->table, 0, j->n_table}};
    int db, rc = check_job(j, &j->why);

    for (int i = 0; i < j->n; i++)
        ids[i] = j->blocks[i].id;
    db = rc < 0 ? 1 : kvmap_block_tok(j->dst);
    for (int g = 0; rc == 0 && g < kvmap_regions(j->dst); g++)
        for (int i = j->from / db; rc == 0 && (int64_t)i * db < j->upto; i++)
            rc = copy_block(&u, kvmap_region(j->dst, g), i);
    if (rc == 0)
        rc = ops->finish(&j->why);
    if (rc == 0 && !kvmap_still(j->src, j->incarnation, j->blocks, j->n))
        rc = err_set(&j->why, ERR_CONFLICT,
                     "the other engine has used its KV blocks for something else");
    if (rc == 0 && j->sums)
        rc = check_sums(&u, &j->why);
    free(ids);
    return rc;
}

void kvpull_run(struct kvpull_job *j, const struct kvpull_ops *ops)
{
    int64_t began = clock_now_us(clock_real());

    j->bytes = 0;
    j->rc = fault_hold("pull", 0) ? err_set(&j->why, ERR_IO, "a test lets it fail")
                                  : pull(j, ops);
    j->us = clock_now_us(clock_real()) - began;
}

/* ---- the thread ---- */

static void *pull_main(void *arg)
{
    struct kvpull *k = arg;

    for (;;) {
        struct kvpull_job *j = queue_pop_wait(k->todo, IDLE_WAIT_US);
        if (j == &k->end)
            return NULL;
        if (!j)
            continue;
        kvpull_run(j, k->ops);
        queue_push(k->done, j);
    }
}

int kvpull_new(const struct kvpull_ops *ops, struct kvpull **ret, struct err *e)
{
    struct kvpull *k = xcalloc(1, sizeof(*k));

    k->ops = ops;
    if (queue_new(PULLS_MAX + 1, &k->todo, e) < 0 ||
        queue_new(PULLS_MAX + 1, &k->done, e) < 0)
        goto fail;
    if (pthread_create(&k->thread, NULL, pull_main, k) != 0) {
        err_set(e, ERR_NOMEM, "cannot start the thread that takes KV over");
        goto fail;
    }
    k->started = true;
    pthread_setname_np(k->thread, "kvpull");
    *ret = k;
    return 0;

fail:
    kvpull_free(k);
    return -1;
}

void kvpull_free(struct kvpull *k)
{
    if (!k)
        return;
    if (k->started) {
        queue_push(k->todo, &k->end);
        pthread_join(k->thread, NULL);
        for (struct kvpull_job *j; (j = queue_pop(k->done));)
            kvpull_job_free(j);
    }
    queue_free(k->todo);
    queue_free(k->done);
    free(k);
}

int kvpull_fd(const struct kvpull *k) { return queue_fd(k->done); }

int kvpull_submit(struct kvpull *k, struct kvpull_job *j)
{
    if (queue_len(k->todo) + queue_len(k->done) >= PULLS_MAX - 1)
        return -1;
    return queue_push(k->todo, j);
}

struct kvpull_job *kvpull_poll(struct kvpull *k) { return queue_pop(k->done); }
