/* daemon/serve/ranks.c - the threads of the ranks: load, then steps until the end.
 *
 * The scheduler thread copies a step into a slot and pushes the slot. The leader (the
 * rank that gives out logits, with adp the first of them) resolves references to tokens
 * of the steps before it, raises `go` for the other ranks, runs its own share, samples,
 * waits for the others' `done`, and pushes the slot on the queue of completions, whose
 * descriptor the scheduler polls. Where the leader itself hangs, a rank that left the
 * step pushes it instead. Slots are used in turn; there are enough of them that the
 * results a step may refer to are still there while it runs: a step refers to tickets
 * that were in flight when it was submitted, itself in flight at most depth - 1 steps
 * behind the newest.
 *
 * Lifecycle: ranks_new starts the threads and waits for the leader's first word on the
 * completion queue (all loaded, or why not); free pushes the end marker and joins. A rank
 * that hangs outside any collective is named and left behind: the process is to end. */
#include "daemon/serve/ranks.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/queue.h"
#include "daemon/serve/exec_slot.h"
#include "daemon/serve/executor.h"
#include "daemon/serve/links.h"
#include "daemon/serve/model.h"
#include "daemon/serve/outs.h"
#include "daemon/serve/rank.h"
#include "daemon/serve/ranks_impl.h"

static const int64_t IDLE_WAIT_US = 3600ll * 1000 * 1000;
static const int64_t COMM_TIMEOUT_US = 30ll * 1000 * 1000;

/* ---- all ranks ---- */

int64_t ranks_timeout(const struct ranks *r)
{
    return r->cfg.comm_timeout_us ? r->cfg.comm_timeout_us : COMM_TIMEOUT_US;
}

void ranks_go(struct ranks *r)
{
    r->turn++;
    gate_raise(&r->go, r->turn);
}

int ranks_done(struct ranks *r, int64_t wait_us, struct err *e)
{
    int64_t deadline = clock_now_us(clock_real()) + wait_us;
    int rc = 0;

    for (int i = 0; i < r->mesh.n; i++) {
        struct rank *k = &r->rank[i];

        if (i == r->leader)
            continue;
        if (gate_wait(&k->done, r->turn, r->cfg.backend.spin, deadline, NULL) !=
            GATE_OPEN) {
            err_set(e, ERR_DEVICE, "rank %d has not ended its step within %.1f s", i,
                    (double)wait_us / 1e6);
            comm_abort(r->fabric, e);
            return -1;
        }
        if (k->failed && rc == 0) {
            *e = k->why;
            rc = -1;
        }
    }
    return rc;
}

bool ranks_settle(struct ranks *r, uint32_t turn)
{
    unsigned before = turn - 1;

    return atomic_compare_exchange_strong(&r->settled, &before, turn);
}

static void give_back(struct ranks *r, struct exec_slot *s, int64_t began_us,
                      const struct err *why)
{
    s->done.start_us = began_us;
    s->done.end_us = clock_now_us(clock_real());
    if (why) {
        s->why = *why;
        exec_slot_fail(s);
    }
    queue_push(r->done, s);
}

/* My step has failed; where the leader does not come back from it, somebody must. */
static void stand_in(struct rank *k, uint32_t turn)
{
    struct ranks *r = k->all;
    int64_t now = clock_now_us(clock_real());

    if (gate_wait(&r->rank[r->leader].done, turn, false, now + ranks_timeout(r) / 2,
                  &r->over) == GATE_TIMEOUT &&
        ranks_settle(r, turn))
        give_back(r, r->now, now, &k->why);
}

static void no_sink(void *arg, int first, int n, const float *logits)
{
    (void)arg, (void)first, (void)n, (void)logits;
}

static void *other_main(void *arg)
{
    struct rank *k = arg;
    struct ranks *r = k->all;
    uint32_t turn = 1; /* load */

    rank_open(k, r->m, NULL, NULL);
    gate_raise(&k->done, turn);
    while (!k->failed) {
        enum gate_end end =
            gate_wait(&r->go, turn + 1, r->cfg.backend.spin,
                      clock_now_us(clock_real()) + IDLE_WAIT_US, &r->over);
        if (end == GATE_TIMEOUT)
            continue;
        if (atomic_load(&r->over))
            break;
        turn++;
        if (r->change) {
            rank_change(k, r->change);
            gate_raise(&k->done, turn);
            continue;
        }
        struct outs_from from = {r->outs, k->mesh->ranks[k->index].at[MESH_ADP]};
        bool head = k->index == mesh_head(k->mesh, from.group);
        rank_run(k, r->now->st, head ? outs_sink : no_sink, &from);
        gate_raise(&k->done, turn);
        if (k->failed)
            stand_in(k, turn);
    }
    rank_close(k);
    gate_raise(&k->gone, 1);
    return NULL;
}

/* Once the step has failed, the others leave it as soon as they can. Else a rank that is
 * still at it beyond the time-out of a collective hangs somewhere else. */
static int run_all(struct ranks *r, struct exec_slot *s, struct err *why)
{
    struct err other;
    int rc;

    r->now = s;
    ranks_follow(r);
    outs_plan(r->outs, s);
    ranks_go(r);
    rc = rank_run(&r->rank[r->leader], s->st, outs_sink, &(struct outs_from){r->outs, 0});
    if (rc < 0)
        *why = r->rank[r->leader].why;
    if (ranks_done(r, rc < 0 ? ranks_timeout(r) / 4 : 2 * ranks_timeout(r), &other) < 0 &&
        rc == 0) {
        *why = other;
        rc = -1;
    }
    if (rc == 0 && outs_failed(r->outs))
        rc = err_set(why, ERR_INTERNAL, "the model gave no usable logits");
    for (int i = 0; i < r->mesh.n && rc == 0; i++)
        outs_altered(r->outs, r->rank[i].altered);
    return rc;
}

static void ranks_run(struct ranks *r, struct exec_slot *s)
{
    int64_t began = clock_now_us(clock_real());
    struct err why;
    int rc;

    if (r->fabric && comm_fabric_error(r->fabric, &why) < 0) {
        give_back(r, s, began, &why); /* it ended in a former step */
        return;
    }
    rc = run_all(r, s, &why);
    if (ranks_settle(r, r->turn))
        give_back(r, s, began, rc < 0 ? &why : NULL);
    gate_raise(&r->rank[r->leader].done, r->turn);
}

/* ---- the leader's thread ---- */

static int ranks_load(struct ranks *r, struct err *e)
{
    struct rank *k = &r->rank[r->leader];
    int rc = rank_open(k, r->m, r->progress, r->arg);

    if (rc < 0)
        *e = k->why;
    r->turn = 1;
    atomic_store(&r->settled, r->turn);
    if (ranks_done(r, 2 * ranks_timeout(r), rc < 0 ? &(struct err){0} : e) < 0 || rc < 0)
        return -1;
    r->cfg.forward.kv_type = k->kv_type;
    const struct outs_cfg oc = {
        .slots = r->slots,
        .n_slots = r->n_slots,
        .n_vocab = r->n_vocab,
        .max_items = r->cfg.caps.items,
        .max_rows = r->cfg.caps.outs,
        .n_groups = r->mesh.layout.adp,
        .group_blocks = r->cfg.forward.n_blocks / r->mesh.layout.adp,
    };
    if (outs_new(&oc, &r->outs, e) < 0)
        return -1;
    ranks_follow(r);
    return 0;
}

static void *leader_main(void *arg)
{
    struct ranks *r = ((struct rank *)arg)->all;

    r->loaded = ranks_load(r, &r->load_err) == 0;
    queue_push(r->done, &r->end);
    while (r->loaded) {
        struct exec_slot *s = queue_pop_wait(r->todo, IDLE_WAIT_US);
        if (s == &r->end)
            break;
        if (!s)
            continue;
        if (s == &r->turn_of_change)
            ranks_run_change(r, queue_pop(r->changes));
        else
            ranks_run(r, s);
    }
    atomic_store(&r->over, 1);
    gate_raise(&r->go, ++r->turn);
    rank_close(&r->rank[r->leader]);
    gate_raise(&r->rank[r->leader].gone, 1);
    return NULL;
}

/* ---- the scheduler's side ---- */

static int ranks_submit(struct executor *x, const struct step *st, uint64_t *ret_ticket,
                        struct err *e)
{
    struct ranks *r = (struct ranks *)x;

    if (r->in_flight == r->x.depth)
        return err_set(e, ERR_INTERNAL, "%d steps are in flight already", r->in_flight);
    uint64_t ticket = ++r->tickets;
    struct exec_slot *s = &r->slots[ticket % (uint64_t)r->n_slots];
    exec_slot_fill(s, st, ticket);
    r->in_flight++;
    queue_push(r->todo, s);
    *ret_ticket = ticket;
    return 0;
}

static bool ranks_poll(struct executor *x, struct step_done *ret)
{
    struct ranks *r = (struct ranks *)x;
    struct exec_slot *s = queue_pop(r->done);

    if (!s)
        return false;
    r->in_flight--;
    *ret = s->done;
    return true;
}

/* Join every thread that comes to its end in time. */
static bool ranks_join(struct ranks *r)
{
    int64_t deadline = clock_now_us(clock_real()) + 2 * ranks_timeout(r);
    bool all = true;

    for (int i = 0; r->rank && i < r->mesh.n; i++) {
        struct rank *k = &r->rank[i];

        if (!k->started)
            continue;
        if (gate_wait(&k->gone, 1, false, deadline, NULL) == GATE_OPEN)
            pthread_join(k->thread, NULL);
        else
            all = false;
    }
    return all;
}

static void ranks_free(struct executor *x)
{
    struct ranks *r = (struct ranks *)x;

    if (r->todo)
        queue_push(r->todo, &r->end);
    if (!ranks_join(r))
        return; /* what a hanging rank may still touch stays */
    for (int i = 0; r->slots && i < r->n_slots; i++)
        exec_slot_done(&r->slots[i]);
    outs_free(r->outs);
    comm_fabric_free(r->fabric);
    rank_links_done(&r->links);
    free(r->slots);
    queue_free(r->todo);
    queue_free(r->done);
    queue_free(r->changes);
    queue_free(r->changed);
    free(r->rank);
    cpuplan_done(&r->cpus);
    pthread_mutex_destroy(&r->cpus_lock);
    free(r);
}

static const struct executor_ops ranks_ops = {ranks_submit, ranks_poll, ranks_free};

/* ---- start ---- */

static int start_thread(struct ranks *r, int i, struct err *e)
{
    struct rank *k = &r->rank[i];
    void *(*run)(void *) = i == r->leader ? leader_main : other_main;
    char name[16];
    int rc = pthread_create(&k->thread, NULL, run, k);

    if (rc != 0) {
        errno = rc;
        return err_errno(e, ERR_NOMEM, "cannot start the thread of rank %d", i);
    }
    k->started = true;
    snprintf(name, sizeof(name), "rank%d", i);
    pthread_setname_np(k->thread, name);
    return 0;
}

/* The leader last, so that it waits for threads that exist. */
static int ranks_start(struct ranks *r, struct err *e)
{
    for (int i = 0; i < r->mesh.n; i++)
        if (i != r->leader && start_thread(r, i, e) < 0) {
            if (r->fabric)
                comm_abort(r->fabric, e);
            atomic_store(&r->over, 1);
            return -1;
        }
    if (start_thread(r, r->leader, e) < 0)
        return -1;
    while (!queue_pop_wait(r->done, IDLE_WAIT_US))
        continue;
    if (r->loaded)
        return 0;
    *e = r->load_err;
    return -1;
}

static int check_layout(const struct layout *l, const struct model_info *i, struct err *e)
{
    struct forward_part p;

    if (layout_cp_heads(l) < 1 || l->cp % layout_cp_heads(l))
        return err_param(e, ERR_INVALID, "layout", "cp_u %d does not divide cp %d",
                         l->cp_u, l->cp);
    forward_part_of(l, &p);
    return forward_part_check(i, &p, e);
}

/* Links between the ranks, from a rack or as given; and with them hosts. */
static int emulate_links(struct ranks *r, struct err *e)
{
    const struct rank_links *l = r->cfg.links;
    const char *rack = r->cfg.emulate;

    if (!l && (!rack || !rack[0]))
        return 0;
    if (!l && rank_links_named(rack, r->mesh.n, &r->links, e) < 0)
        return -1;
    if (l) {
        size_t n = (size_t)r->mesh.n * (size_t)r->mesh.n * sizeof(*l->path);
        assert(l->n == r->mesh.n);
        r->links = *l;
        r->links.path = xmalloc(n);
        memcpy(r->links.path, l->path, n);
    }
    mesh_place(&r->mesh, r->links.host);
    return 0;
}

static int make_mesh(struct ranks *r, const struct model_info *i, struct err *e)
{
    struct layout l = r->cfg.layout;

    if (!l.tp && layout_parse("tp1", &l, e) < 0)
        return -1;
    if (check_layout(&l, i, e) < 0 || mesh_make(&l, &r->mesh, e) < 0)
        return -1;
    if (r->cfg.forward.n_blocks % l.adp)
        return err_set(e, ERR_INVALID, "%d KV blocks are not shared out evenly by adp %d",
                       r->cfg.forward.n_blocks, l.adp);
    if (r->mesh.n > 1 && emulate_links(r, e) < 0)
        return -1;
    if (r->mesh.n > 1 && comm_fabric_new(r->mesh.groups, r->mesh.n_groups, r->mesh.n, 0,
                                         &r->fabric, e) < 0)
        return -1;
    if (r->cfg.cpus)
        cpuplan_copy(r->cfg.cpus, &r->cpus);
    else
        cpuplan_loose(r->cfg.backend.n_threads, r->mesh.n, &r->cpus);
    r->cfg.cpus = NULL;
    r->leader = mesh_head(&r->mesh, 0);
    r->rank = xcalloc((size_t)r->mesh.n, sizeof(*r->rank));
    for (int k = 0; k < r->mesh.n; k++) {
        r->rank[k] = (struct rank){
            .all = r, .index = k, .mesh = &r->mesh, .fabric = r->fabric, .cfg = r->cfg};
        r->rank[k].links = r->links.path ? &r->links : NULL;
        r->rank[k].cfg.backend.spin =
            r->cfg.backend.spin && r->cpus.n_threads >= r->mesh.n;
        r->rank[k].cpus_turn = r->cpus_turn;
    }
    return 0;
}

int ranks_new(struct model *m, const struct ranks_cfg *cfg, forward_progress_fn progress,
              void *arg, struct executor **ret, struct err *e)
{
    struct ranks *r = xcalloc(1, sizeof(*r));

    assert(cfg->depth >= 1 && (cfg->cpus || cfg->backend.n_threads >= 1));
    pthread_mutex_init(&r->cpus_lock, NULL);
    r->cpus_turn = 1; /* those that sample have followed none */
    r->x.ops = &ranks_ops;
    r->x.depth = cfg->depth;
    r->cfg = *cfg;
    r->n_vocab = model_info(m)->n_vocab;
    r->m = m;
    r->progress = progress;
    r->arg = arg;
    r->cfg.forward.max_copies = cfg->caps.copies;
    if (make_mesh(r, model_info(m), e) < 0)
        goto fail;
    r->n_slots = 2 * cfg->depth + 2;
    r->slots = xcalloc((size_t)r->n_slots, sizeof(*r->slots));
    for (int i = 0; i < r->n_slots; i++)
        if (exec_slot_init(&r->slots[i], &cfg->caps, e) < 0)
            goto fail;
    if (queue_new((size_t)r->n_slots + 2, &r->todo, e) < 0 ||
        queue_new((size_t)r->n_slots + 1, &r->done, e) < 0 ||
        queue_new(1, &r->changes, e) < 0 || queue_new(1, &r->changed, e) < 0)
        goto fail;
    r->x.fd = queue_fd(r->done);
    if (ranks_start(r, e) < 0)
        goto fail;
    *ret = &r->x;
    return 0;

fail:
    ranks_free(&r->x);
    return -1;
}

void ranks_mem(const struct executor *x, struct backend_mem *ret)
{
    const struct ranks *r = (const struct ranks *)x;

    *ret = (struct backend_mem){0};
    for (int i = 0; i < r->mesh.n; i++) {
        const struct backend_mem *m = &r->rank[i].mem;

        ret->weight_bytes += m->weight_bytes;
        ret->scratch_bytes += m->scratch_bytes;
        ret->kv_bytes += m->kv_bytes;
        ret->other_bytes += m->other_bytes;
    }
}

const char *ranks_isa(const struct executor *x)
{
    const struct ranks *r = (const struct ranks *)x;

    return backend_isa(r->rank[r->leader].b);
}

enum dtype ranks_kv_type(const struct executor *x)
{
    return ((const struct ranks *)x)->cfg.forward.kv_type;
}

int ranks_host(const struct executor *x, int slot, struct iovec *ret, int max)
{
    const struct ranks *r = (const struct ranks *)x;
    int n = 0;

    for (int i = 0; i < r->mesh.n && n < max; i++) {
        const struct forward *f = r->rank[i].f;
        void *p = forward_host(f, slot);
        if (p)
            ret[n++] = (struct iovec){p, forward_kv_layout(f)->block_bytes};
    }
    return n;
}

int ranks_count(const struct executor *x) { return ((const struct ranks *)x)->mesh.n; }

void ranks_kv(const struct executor *x, int rank, struct forward_kv *ret)
{
    forward_kv_part(((const struct ranks *)x)->rank[rank].f, ret);
}

void ranks_status(const struct executor *x, int rank, struct rank_status *ret)
{
    rank_status_of(&((const struct ranks *)x)->rank[rank], ret);
}
