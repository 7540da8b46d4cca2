/* tests/model/test_moe.c - experts that move: whatever stands where, however many copies
 * there are and however one is chosen, not a bit of a logit differs; with experts that
 * are all different, so that a row at the wrong one shows. */
#include "tests/model/mesh_rig.h"

#include "daemon/serve/forward_cut.h"
#include "daemon/serve/routes.h"

enum { LEN = 40, SEQS = 3, SPARE = 2 };

static int32_t toks[SEQS * LEN];

static void make_tokens(void)
{
    uint64_t rng = test_seed() + 5;

    for (int i = 0; i < SEQS * LEN; i++)
        toks[i] = (int32_t)(test_rand(&rng) % 256);
}

static struct mesh_job job_of(const char *model, int budget)
{
    return (struct mesh_job){.model = model,
                             .backend = "cpu",
                             .isa = "portable",
                             .kv = DT_F16,
                             .toks = toks,
                             .n_seq = SEQS,
                             .len = LEN,
                             .budget = budget,
                             .seed = test_seed()};
}

/* ---- moves ---- */

/* What a rank's thread keeps: the tables, the same on all ranks. */
struct moves {
    struct routes *r;
    uint64_t rng;
    int first, n, changes, copies;
};

static void load(struct model *m, struct backend *b, int layer, int expert,
                 struct weight **w)
{
    for (int k = 0; k < MODEL_EXPERT_ROLES; k++) {
        enum model_role role = (enum model_role)(ROLE_EXP_GATE + k);
        const struct model_tensor *t = model_expert(m, role, layer, expert);
        bool bias = role >= ROLE_EXP_GATE_BIAS;
        struct weight_src src = {.name = "moved",
                                 .flags = bias ? WEIGHT_VECTOR : WEIGHT_MATMUL};
        void *copy = NULL;
        struct err e;

        w[k] = NULL;
        if (!t)
            continue;
        rig_ok(forward_cut(t, (struct run){0, t->rows}, (struct run){0, t->cols}, &src,
                           &copy, &e),
               &e);
        rig_ok(weight_new(b, &src, &w[k], &e), &e);
        free(copy);
    }
}

/* One random change of each layer of experts: a copy more, one less, another place. */
static void change(struct mesh_run *r, struct model *m, struct forward *f, int layer,
                   int wrong)
{
    struct moves *v = r->own;
    int rank = (int)(test_rand(&v->rng) % (uint64_t)v->r->d.n_rank);
    int slot = (int)(test_rand(&v->rng) % (uint64_t)v->r->d.n_slot);
    int x = (int)(test_rand(&v->rng) % (uint64_t)(v->r->d.n_expert + 1)) - 1;
    int model_layer = layer + model_info(m)->moe.n_dense;
    struct weight *w[MODEL_EXPERT_ROLES] = {NULL};
    struct err e;

    if (routes_put(v->r, layer, rank, slot, x, &e) < 0)
        return;
    v->changes++;
    for (int k = 0; k < v->r->d.n_expert; k++) {
        float share[8];
        int n = routes_copies(v->r, layer, k);

        v->copies += n > 1;
        for (int i = 0; i < n; i++)
            share[i] = (float)(1 + test_rand(&v->rng) % 7);
        rig_ok(routes_share(v->r, layer, k, share, n, &e), &e);
    }
    if (layer < v->first || layer >= v->first + v->n)
        return;
    if (rank == r->m->ranks[r->rank].at[MESH_EP]) {
        if (x >= 0)
            load(m, forward_backend(f), model_layer, (x + wrong) % v->r->d.n_expert, w);
        forward_slot_swap(f, layer, slot, w);
        for (int k = 0; k < MODEL_EXPERT_ROLES; k++)
            weight_free(w[k]);
    }
    rig_ok(forward_route_set(f, layer, v->r, &e), &e);
}

static void move(struct mesh_run *r, struct model *m, struct forward *f, int step,
                 int wrong)
{
    struct routes_dims d = {0};
    struct err e;
    struct moves *v = r->own;
    int layers = model_info(m)->n_layer - model_info(m)->moe.n_dense;

    if (!v) {
        v = r->own = xcalloc(1, sizeof(*v));
        v->rng = r->job->seed;
        assert_true(forward_route_dims(f, &d, &v->first, &v->n));
        rig_ok(routes_new(&d, layers, &v->r, &e), &e);
    }
    for (int i = 0; i < (step ? 2 : 12); i++)
        for (int layer = 0; layer < layers; layer++)
            change(r, m, f, layer, wrong);
}

static void move_right(struct mesh_run *r, struct model *m, struct forward *f, int step)
{
    move(r, m, f, step, 0);
}

static void move_wrong(struct mesh_run *r, struct model *m, struct forward *f, int step)
{
    move(r, m, f, step, 1);
}

/* How many changes there were; the moves are done with. */
static int end_moves(struct mesh_run *r, int n)
{
    struct moves *v = r[0].own;
    int changes = v->changes;

    assert_true(v->copies > 0); /* there were several of some */
    for (int i = 0; i < n; i++) {
        v = r[i].own;
        assert_int_equal(v->changes, changes);
        routes_free(v->r);
        free(v);
    }
    return changes;
}

/* ---- runs ---- */

static struct mesh_run *run(const char *layout, const struct mesh_job *job,
                            struct mesh_run **head, int *ret_n)
{
    struct mesh_run *r = mesh_run_all(layout, job, head);
    struct layout l;
    struct err e;

    rig_ok(layout_parse(layout, &l, &e), &e);
    *ret_n = layout_ranks(&l);
    for (int i = 0; i < *ret_n; i++)
        if (r[i].rc < 0)
            fail_msg("%s: rank %d: %s", layout, i, r[i].e.msg);
    return r;
}

static bool same(const struct mesh_run *a, const struct mesh_run *b)
{
    return !memcmp(a->logits, b->logits, sizeof(float) * SEQS * LEN * (size_t)a->n_vocab);
}

/* The run without moves against one with, for each policy; as a rank alone where the
 * layout shares no sums. */
static void compare(const char *family, const char *layout, const char *as, int budget,
                    int least_changes)
{
    struct mesh_run *still, *head, *r, *other;
    char dir[256];
    int n;

    make_tokens();
    snprintf(dir, sizeof(dir), "%s", tiny_model(family, test_seed()));
    struct mesh_job job = job_of(dir, budget);
    still = run(as, &job, &head, &n);
    for (int p = 0; p < SPREAD_COUNT; p++) {
        job.experts.spare = SPARE;
        job.experts.routing = (enum spread)p;
        job.between = move_right;
        job.seed = test_seed() + (uint64_t)p;
        r = run(layout, &job, &other, &n);
        int changes = end_moves(r, n);
        if (changes < least_changes)
            fail_msg("%s: %d changes only", layout, changes);
        if (!same(head, other))
            fail_msg("%s %s, policy %d: not the same bits after %d changes", family,
                     layout, p, changes);
        free(other->logits);
        free(r);
    }
    free(head->logits);
    free(still);
    tiny_remove(dir);
}

static void test_alone(void **state)
{
    (void)state;
    compare("qwen3_moe", "adp4 ep4", "tp1", 16, 20);
    compare("mixtral", "adp2 ep2", "tp1", 33, 6);
    compare("gpt_oss", "adp4 ep4", "tp1", 9, 20);
    compare("deepseek_v3", "adp2 ep2", "adp2 ep2", 25, 5);
}

static void test_layouts(void **state)
{
    static const char *const layouts[] = {"tp4 ep4", "tp4 ep4 sp", "adp2 tp2 ep4",
                                          "tp2 pp2 ep2", "cp2 ep2 ring"};

    (void)state;
    for (int i = 0; i < 5; i++)
        compare("qwen3_moe", layouts[i], layouts[i], 17, 10);
    compare("gpt_oss", "tp4 ep4", "tp4 ep4", 17, 15);
}

/* A row or two a step, and a change before each. */
static void test_hundred(void **state)
{
    (void)state;
    compare("qwen3_moe", "tp4 ep4", "tp4 ep4", 1, 100);
    compare("qwen3_moe", "adp2 ep2", "tp1", 2, 50);
}

/* The comparison sees a row that went to a wrong expert. */
static void test_wrong(void **state)
{
    struct mesh_run *still, *head, *r, *other;
    char dir[256];
    int n;

    (void)state;
    make_tokens();
    snprintf(dir, sizeof(dir), "%s", tiny_model("qwen3_moe", test_seed()));
    struct mesh_job job = job_of(dir, 40);
    still = run("adp4 ep4", &job, &head, &n);
    for (int p = 0; p < SPREAD_COUNT; p++) {
        job.experts.spare = SPARE;
        job.experts.routing = (enum spread)p;
        job.between = move_wrong;
        r = run("adp4 ep4", &job, &other, &n);
        end_moves(r, n);
        assert_false(same(head, other));
        free(other->logits);
        free(r);
    }
    free(head->logits);
    free(still);
    tiny_remove(dir);
}

/* ---- capacity, packed rows ---- */

static struct mesh_run *
run_with(struct mesh_job *job, const char *layout, const struct forward_experts *x,
         void (*between)(struct mesh_run *, struct model *, struct forward *, int),
         struct mesh_run **head, int *ret_n)
{
    job->experts = *x;
    job->between = between;
    struct mesh_run *r = run(layout, job, head, ret_n);
    if (between == move_right)
        end_moves(r, *ret_n);
    return r;
}

/* With experts at home and with experts that move: the same bits, or not. */
static void with(const char *layout, const struct forward_experts *x, bool as_plain,
                 bool as_moved)
{
    struct mesh_run *plain, *still, *moved, *a, *b, *c;
    const struct forward_experts none = {0};
    char dir[256];
    int n;

    make_tokens();
    snprintf(dir, sizeof(dir), "%s", tiny_model("qwen3_moe", test_seed()));
    struct mesh_job job = job_of(dir, 40);
    plain = run_with(&job, layout, &none, NULL, &a, &n);
    still = run_with(&job, layout, x, NULL, &b, &n);
    if (same(a, b) != as_plain)
        fail_msg("%s, overflow %d, transfer %d: %s bits", layout, (int)x->overflow,
                 (int)x->transfer, as_plain ? "other" : "the same");
    moved = run_with(&job, layout, x, move_right, &c, &n);
    if (as_moved && !same(b, c))
        fail_msg("%s, overflow %d, transfer %d: moves change bits", layout,
                 (int)x->overflow, (int)x->transfer);
    free(a->logits);
    free(b->logits);
    free(c->logits);
    free(plain);
    free(still);
    free(moved);
    tiny_remove(dir);
}

static void test_capacity(void **state)
{
    static const char *const layouts[] = {"adp4 ep4", "tp4 ep4", "tp2 ep2 sp"};

    (void)state;
    for (int i = 0; i < 3; i++)
        for (int p = 0; p < SPREAD_COUNT; p++) {
            struct forward_experts x = {.spare = SPARE,
                                        .routing = (enum spread)p,
                                        .capacity = 0.6,
                                        .overflow = OVERFLOW_REPLICA};
            with(layouts[i], &x, true, true);
            x.overflow = OVERFLOW_SECOND_PASS;
            with(layouts[i], &x, true, true);
            x.overflow = OVERFLOW_NEXT_BEST; /* decided before the copy is chosen */
            with(layouts[i], &x, false, true);
            x.overflow = OVERFLOW_DROP;
            with(layouts[i], &x, false, true);
        }
}

static void test_packed(void **state)
{
    struct forward_experts x = {.spare = SPARE, .transfer = TRANSFER_F8};

    (void)state;
    with("adp4 ep4", &x, false, true);
    with("tp4 ep4", &x, false, true);
    x.routing = SPREAD_LEAST_LOADED;
    with("tp2 ep2", &x, false, true);
}

/* ---- what is refused ---- */

static void try_wrong(struct mesh_run *r, struct model *m, struct forward *f, int step)
{
    struct routes_dims d, other;
    struct routes *t;
    struct err e;
    int first, n;

    (void)m;
    assert_true(forward_route_dims(f, &d, &first, &n));
    assert_int_equal(d.n_slot, TINY_EXPERTS / 2 + 1);
    if (step)
        return;
    rig_ok(routes_new(&d, 2, &t, &e), &e);
    assert_int_equal(forward_route_set(f, 2, t, &e), -1);
    rig_ok(routes_put(t, 0, 1, d.n_slot - 1, 0, &e), &e);
    if (r->m->ranks[r->rank].at[MESH_EP] == 1) {
        assert_int_equal(forward_route_set(f, 0, t, &e), -1);
        assert_non_null(strstr(e.msg, "of rank 1 is to hold expert 0 and is empty"));
    }
    routes_free(t);
    other = d;
    other.n_slot++;
    rig_ok(routes_new(&other, 2, &t, &e), &e);
    assert_int_equal(forward_route_set(f, 0, t, &e), -1);
    assert_non_null(strstr(e.msg, "not of this model's sizes"));
    routes_free(t);
}

static void test_refused(void **state)
{
    static const struct {
        const char *layout;
        int spare;
    } bad[] = {{"tp2", 1}, {"tp2 ep2", TINY_EXPERTS / 2 + 1}, {"tp2 ep2", -1}};
    char dir[256];
    int n;

    (void)state;
    make_tokens();
    snprintf(dir, sizeof(dir), "%s", tiny_model("qwen3_moe", test_seed()));
    struct mesh_job job = job_of(dir, 64);
    struct mesh_run *head, *r;
    job.experts.spare = 1;
    job.between = try_wrong;
    r = run("tp2 ep2", &job, &head, &n);
    free(head->logits);
    free(r);
    job.between = NULL;
    for (int i = 0; i < 3; i++) {
        job.experts.spare = bad[i].spare;
        r = mesh_run_all(bad[i].layout, &job, &head);
        assert_int_equal(r[0].rc, -1);
        assert_non_null(strstr(r[0].e.msg, "spare slots on each"));
        free(head->logits);
        free(r);
    }
    tiny_remove(dir);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),   cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_hundred), cmocka_unit_test(test_wrong),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_capacity),
        cmocka_unit_test(test_packed),
    };
    return test_main(argc, argv, "moe", tests, sizeof(tests) / sizeof(tests[0]));
}
