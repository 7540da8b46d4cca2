/* tests/model/mesh_rig.h - the ranks of a mesh as threads that run the same steps, for
 * tests; the logits of every row come from the mesh's head. */
#ifndef TESTS_MODEL_MESH_RIG_H
#define TESTS_MODEL_MESH_RIG_H

#include <pthread.h>

#include "base/mem.h"
#include "daemon/serve/mesh.h"
#include "tests/model/rig.h"

/* What is run: sequences of tokens, fed together in steps of at most `budget` rows. */
struct mesh_run;
struct mesh_job {
    const char *model, *backend, *isa;
    enum dtype kv;
    const int32_t *toks; /* [n_seq, len] */
    int n_seq, len, budget;
    int chunks;         /* in which rows go to experts */
    int per_host;       /* ranks that stand on a host; 0 = all */
    bool flat;          /* all-to-alls, also across hosts */
    int64_t timeout_us; /* of a wait; 0 = 20 s */
    forward_watch_fn watch;
    void *watch_arg;
    struct forward_experts experts;
    /* Before each step, on the rank's thread; NULL = nothing. */
    void (*between)(struct mesh_run *r, struct model *m, struct forward *f, int step);
    /* After each step, likewise; r->st is it. */
    void (*after)(struct mesh_run *r, struct forward *f, int step);
    uint64_t seed;    /* for them */
    unsigned decodes; /* sequences that generate what they are fed, a bit each */
};

struct mesh_run {
    struct mesh *m;
    struct comm_fabric *f;
    const struct mesh_job *job;
    int rank, n_vocab, rc;
    struct err e;
    float *logits; /* the head's: [n_seq * len, n_vocab], by sequence and position */
    struct comm_count tp[COMM_CALL_COUNT], pp[COMM_CALL_COUNT], ep[COMM_CALL_COUNT];
    struct comm_count cp[COMM_CALL_COUNT], cp_u[COMM_CALL_COUNT];
    struct backend_mem mem;
    pthread_t thread;
    struct step *st;
    void *own; /* of between and after */
};

/* Sequence s is of one of adp groups; its blocks are scattered over the group's shard. */
static inline int mesh_group(int s, int adp) { return rig_block(s, 0) % adp; }

static inline int mesh_block(int s, int i, int adp)
{
    return mesh_group(s, adp) * (RIG_BLOCKS / adp) + i * (RIG_SEQS / adp) +
           rig_block(s, 0) / adp;
}

static inline void mesh_sink(void *arg, int first, int n, const float *logits)
{
    struct mesh_run *r = arg;
    const struct step_item *it = step_items(r->st);
    size_t vocab = (size_t)r->n_vocab;
    int adp = r->m->layout.adp, mine = r->m->ranks[r->rank].at[MESH_ADP], own;

    if (!r->logits)
        return;
    for (int i = 0; i < n; first -= own, it++) {
        own = mesh_group((int)it->seq, adp) == mine ? it->n_tok : 0;
        for (; i < n && first < own; i++, first++) {
            size_t row =
                (size_t)it->seq * (size_t)r->job->len + (size_t)(it->first_pos + first);
            memcpy(r->logits + row * vocab, logits + (size_t)i * vocab,
                   vocab * sizeof(float));
        }
    }
}

/* A step with up to budget rows of the sequences in turn; false when all are done. */
static inline bool mesh_fill(const struct mesh_job *j, struct step *st, int adp,
                             int *done)
{
    int left = j->budget;

    step_clear(st);
    for (int s = 0; s < j->n_seq && left > 0; s++) {
        int n = j->len - done[s] < left ? j->len - done[s] : left;
        struct step_item *it = &step_items(st)[st->n_items];
        int blocks = (done[s] + n + KV_BLOCK_TOK - 1) / KV_BLOCK_TOK;

        if (!n)
            continue;
        st->n_items++;
        *it = (struct step_item){.seq = (uint64_t)s,
                                 .first_pos = done[s],
                                 .n_tok = n,
                                 .tok_off = st->n_toks,
                                 .parent_off = -1,
                                 .block_off = st->n_blocks,
                                 .n_block = blocks,
                                 .sample = -1,
                                 .n_top = -1,
                                 .decode = j->decodes >> s & 1};
        for (int i = 0; i < n; i++)
            step_toks(st)[st->n_toks++] = j->toks[s * j->len + done[s] + i];
        for (int i = 0; i < blocks; i++)
            step_blocks(st)[st->n_blocks++] = mesh_block(s, i, adp);
        done[s] += n;
        left -= n;
    }
    return st->n_items > 0;
}

static inline int mesh_join(struct mesh_run *r, enum mesh_dim d, struct comm **ret)
{
    int group = r->m->ranks[r->rank].group[d];
    struct comm_cfg cfg = {.rank = r->rank,
                           .timeout_us =
                               r->job->timeout_us ? r->job->timeout_us : 20000000};

    *ret = NULL;
    return group < 0 ? 0 : comm_join(r->f, group, &cfg, ret, &r->e);
}

static inline int mesh_steps(struct mesh_run *r, struct model *m, struct forward *f)
{
    int done[RIG_SEQS] = {0};

    for (int n = 0; mesh_fill(r->job, r->st, r->m->layout.adp, done); n++) {
        r->st->number = (uint64_t)n + 1;
        if (r->job->between)
            r->job->between(r, m, f, n);
        if (forward_run(f, r->st, mesh_sink, r, &r->e) < 0)
            return -1;
        if (r->job->after)
            r->job->after(r, f, n);
    }
    return 0;
}

static inline void mesh_work(struct mesh_run *r, struct model *m)
{
    const struct mesh_rank *at = &r->m->ranks[r->rank];
    struct forward_cfg fc = {.max_rows = RIG_ROWS,
                             .max_items = RIG_SEQS,
                             .max_ctx = RIG_CTX,
                             .max_outs = 16,
                             .max_copies = 8,
                             .kv_type = r->job->kv,
                             .n_blocks = RIG_BLOCKS,
                             .watch = r->job->watch,
                             .watch_arg = r->job->watch_arg,
                             .part = {.chunks = r->job->chunks,
                                      .experts = r->job->experts,
                                      .tp = r->m->size[MESH_TP],
                                      .tp_at = at->at[MESH_TP],
                                      .pp = r->m->size[MESH_PP],
                                      .pp_at = at->at[MESH_PP],
                                      .ep = r->m->size[MESH_EP],
                                      .ep_at = at->at[MESH_EP],
                                      .cp = r->m->size[MESH_CP],
                                      .cp_at = at->at[MESH_CP],
                                      .adp = r->m->size[MESH_ADP],
                                      .adp_at = at->at[MESH_ADP],
                                      .cp_u = r->m->size[MESH_CPU],
                                      .cp_u_at = at->at[MESH_CPU],
                                      .cp_method = r->m->layout.cp_method,
                                      .sp = r->m->layout.sp}};
    struct backend_cfg bc = {.name = r->job->backend, .n_threads = 1, .isa = r->job->isa};
    struct backend *b = NULL;
    struct forward *f = NULL;

    r->rc = forward_part_check(model_info(m), &fc.part, &r->e) < 0 ||
                    mesh_join(r, MESH_TP, &fc.part.tp_comm) < 0 ||
                    mesh_join(r, MESH_PP, &fc.part.pp_comm) < 0 ||
                    mesh_join(r, MESH_EP, &fc.part.ep_comm) < 0 ||
                    mesh_join(r, MESH_CP, &fc.part.cp_comm) < 0 ||
                    mesh_join(r, MESH_CPU, &fc.part.cp_u_comm) < 0
                ? -1
                : 0;
    if (r->rc < 0)
        return;
    forward_caps(model_info(m), &fc, &bc.caps);
    if (backend_open(&bc, &b, &r->e) < 0 ||
        forward_new(b, m, &fc, NULL, NULL, &f, &r->e) < 0 || mesh_steps(r, m, f) < 0) {
        r->rc = -1;
        comm_abort(r->f, &r->e);
    }
    if (fc.part.tp_comm)
        comm_counts(fc.part.tp_comm, r->tp);
    if (fc.part.pp_comm)
        comm_counts(fc.part.pp_comm, r->pp);
    if (fc.part.ep_comm)
        comm_counts(fc.part.ep_comm, r->ep);
    if (fc.part.cp_comm)
        comm_counts(fc.part.cp_comm, r->cp);
    if (fc.part.cp_u_comm)
        comm_counts(fc.part.cp_u_comm, r->cp_u);
    if (b)
        backend_mem_used(b, &r->mem);
    forward_free(f);
    backend_close(b);
    comm_leave(fc.part.tp_comm);
    comm_leave(fc.part.pp_comm);
    comm_leave(fc.part.ep_comm);
    comm_leave(fc.part.cp_comm);
    comm_leave(fc.part.cp_u_comm);
}

static inline void *mesh_main(void *arg)
{
    const struct step_caps caps = {.items = RIG_SEQS,
                                   .toks = RIG_ROWS,
                                   .blocks = RIG_BLOCKS,
                                   .samples = 1,
                                   .hist = 1,
                                   .biases = 1,
                                   .copies = 8,
                                   .refs = 1,
                                   .outs = RIG_ROWS};
    struct mesh_run *r = arg;
    struct model *m;

    r->st = step_new(&caps);
    r->rc = model_open(r->job->model, &m, &r->e);
    if (r->rc == 0) {
        r->n_vocab = model_info(m)->n_vocab;
        if (r->rank == mesh_head(r->m, r->m->ranks[r->rank].at[MESH_ADP]))
            r->logits = xcalloc((size_t)r->job->n_seq * (size_t)r->job->len,
                                (size_t)r->n_vocab * sizeof(float));
        mesh_work(r, m);
        model_free(m);
    }
    free(r->st);
    return NULL;
}

static inline void mesh_rig_place(struct mesh *m, const struct mesh_job *j)
{
    uint8_t host[COMM_MAX_RANKS] = {0};

    for (int i = 0; i < m->n && j->per_host; i++)
        host[i] = (uint8_t)(i / j->per_host);
    mesh_place(m, host);
    for (int i = 0; i < m->n_groups && j->flat; i++)
        m->groups[i].two_level = false;
}

/* What the head of group g has, to the first head. */
static inline void mesh_merge(struct mesh_run *to, struct mesh_run *from, int g)
{
    size_t one = (size_t)to->job->len * (size_t)to->n_vocab;

    for (int s = 0; s < to->job->n_seq && to->logits && from->logits; s++)
        if (mesh_group(s, to->m->layout.adp) == g)
            memcpy(to->logits + (size_t)s * one, from->logits + (size_t)s * one,
                   one * sizeof(float));
    free(from->logits);
    from->logits = NULL;
}

/* Random tokens of the job's size. */
static inline void mesh_tokens(int32_t *toks, int n, uint64_t seed)
{
    uint64_t rng = seed;

    for (int i = 0; i < n; i++)
        toks[i] = (int32_t)(test_rand(&rng) % 256);
}

/* The ranks' runs, [mesh.n] (free logits of the head, then the array); *ret_head. */
static inline struct mesh_run *
mesh_run_all(const char *layout, const struct mesh_job *job, struct mesh_run **ret_head)
{
    const struct comm_group alone = {.name = "alone", .n = 1, .ranks = {0}};
    struct mesh *m = xcalloc(1, sizeof(*m));
    struct comm_fabric *f;
    struct mesh_run *r;
    struct layout l;
    struct err e = {0};

    rig_ok(layout_parse(layout, &l, &e), &e);
    rig_ok(mesh_make(&l, m, &e), &e);
    mesh_rig_place(m, job);
    rig_ok(comm_fabric_new(m->n_groups ? m->groups : &alone,
                           m->n_groups ? m->n_groups : 1, m->n, 1 << 14, &f, &e),
           &e);
    r = xcalloc((size_t)m->n, sizeof(*r));
    for (int i = 0; i < m->n; i++) {
        r[i] = (struct mesh_run){.m = m, .f = f, .job = job, .rank = i};
        assert_int_equal(pthread_create(&r[i].thread, NULL, mesh_main, &r[i]), 0);
    }
    for (int i = 0; i < m->n; i++)
        pthread_join(r[i].thread, NULL);
    for (int g = 1; g < m->layout.adp; g++)
        mesh_merge(&r[mesh_head(m, 0)], &r[mesh_head(m, g)], g);
    if (ret_head)
        *ret_head = &r[mesh_head(m, 0)];
    comm_fabric_free(f);
    free(m);
    return r;
}

/* The same where every rank must succeed; logits: the head's, *ret_vocab wide (free). */
static inline struct mesh_run *mesh_run_ok(const char *layout, const struct mesh_job *job,
                                           float **ret_logits, int *ret_vocab)
{
    struct mesh_run *head, *r = mesh_run_all(layout, job, &head);
    struct layout l;
    struct err e;

    rig_ok(layout_parse(layout, &l, &e), &e);
    for (int i = 0; i < layout_ranks(&l); i++)
        if (r[i].rc < 0)
            fail_msg("%s: rank %d: %s", layout, i, r[i].e.msg);
    *ret_logits = head->logits;
    if (ret_vocab)
        *ret_vocab = head->n_vocab;
    return r;
}

static inline float *mesh_logits(const char *layout, const struct mesh_job *job,
                                 int *ret_vocab)
{
    float *logits;

    free(mesh_run_ok(layout, job, &logits, ret_vocab));
    return logits;
}

/* ---- logits of runs ---- */

/* The best token of a row, and how far it is from the next. */
static inline int mesh_best(const float *row, int n, float *ret_gap)
{
    float second = -INFINITY;
    int at = 0;

    for (int i = 1; i < n; i++)
        if (row[i] > row[at])
            at = i;
    for (int i = 0; i < n; i++)
        if (i != at && row[i] > second)
            second = row[i];
    *ret_gap = row[at] - second;
    return at;
}

/* Normalised error of n values. */
static inline double mesh_error(const float *want, const float *got, size_t n)
{
    double diff = 0, norm = 0;

    for (size_t i = 0; i < n; i++) {
        diff += ((double)want[i] - got[i]) * ((double)want[i] - got[i]);
        norm += (double)want[i] * want[i];
    }
    return sqrt(diff / norm);
}

/* The smallest gap of rows between the best token and the next. */
static inline float mesh_least_gap(const float *logits, int n_row, int n_vocab)
{
    float least = INFINITY, gap;

    for (int r = 0; r < n_row; r++) {
        mesh_best(logits + (size_t)r * (size_t)n_vocab, n_vocab, &gap);
        least = gap < least ? gap : least;
    }
    return least;
}

/* Rows whose best token is another, of those (most: asserted) whose choice is clearer
 * than `gap`. */
static inline int mesh_others(const float *want, const float *got, int n_row, int n_vocab,
                              float gap)
{
    int others = 0, sure = 0;

    for (int r = 0; r < n_row; r++, want += n_vocab, got += n_vocab) {
        float clear, unused;
        int choice = mesh_best(want, n_vocab, &clear);
        sure += clear > gap;
        others += clear > gap && mesh_best(got, n_vocab, &unused) != choice;
    }
    assert_true(sure > n_row * 3 / 4);
    return others;
}

#endif
