/* The ledger against what the CPU engine holds with the demo model loaded: its weights,
 * KV, activations and the kernels' scratch, within 3 %. */
#include "tests/model/mesh_rig.h"

#include <math.h>

#include "daemon/ctrl/capacity.h"
#include "daemon/ctrl/conf.h"
#include "topo/ledger.h"

/* The file keeps its embedding, which is the head too, wider than the rest. */
static enum weight_format embedding(void)
{
    struct model *m;
    struct err e;
    enum dtype t;

    rig_ok(model_open(test_demo_model(), &m, &e), &e);
    assert_string_equal(model_info(m)->main_type, "Q4_1");
    t = model_tensor(m, ROLE_TOK_EMBD, -1)->type;
    model_free(m);
    return t == DT_Q8_0 ? FORMAT_INT8 : t == DT_Q4_1 ? FORMAT_Q4_1 : FORMAT_BF16;
}

static void demo_model(void **st)
{
    static struct shapes s;
    struct rig_cfg c = {test_demo_model(), "cpu", "auto", DT_COUNT, 1};
    struct layout l = {1, 1, 1, 1, 1, 1, false, CP_NONE, 1, 1};
    struct backend_mem mem;
    struct ledger_ask a;
    struct ledger g;
    struct err e = {0};
    struct rig r;
    double held;

    (void)st;
    assert_true(rig_open(&r, &c));
    backend_mem_used(r.b, &mem);
    assert_int_equal(shapes_open("etc/models/smollm2-135m.json", &s, &e), 0);
    for (int p = 0; p < PART_NORM; p++)
        s.format[p] = FORMAT_Q4_1;
    s.format[PART_EMBED] = embedding();
    s.format[PART_NORM] = FORMAT_F32;
    ledger_ask_defaults(&a, 8e9, true);
    a.ctx = RIG_CTX;
    a.seqs = RIG_SEQS;
    a.budget = RIG_ROWS;
    ledger_count(&s, &l, &a, &g);
    held =
        (double)(mem.weight_bytes + mem.kv_bytes + mem.scratch_bytes + mem.other_bytes);
    printf("# MB held and counted: weights %.2f %.2f, KV %.2f %.2f, scratch %.2f %.2f, "
           "buffers %.2f %.2f\n",
           1e-6 * (double)mem.weight_bytes, 1e-6 * g.weights_all,
           1e-6 * (double)mem.kv_bytes, 1e-6 * g.kv_all, 1e-6 * (double)mem.scratch_bytes,
           1e-6 * g.workspace, 1e-6 * (double)mem.other_bytes, 1e-6 * g.activations);
    rig_close(&r);
    assert_true(fabs(g.weights_all / (double)mem.weight_bytes - 1) < 0.03);
    assert_true(fabs(g.kv_all / (double)mem.kv_bytes - 1) < 0.03);
    assert_true(fabs((g.total - g.margin - g.context) / held - 1) < 0.03);
}

static double held_by(const struct backend_mem *m)
{
    return (double)(m->weight_bytes + m->kv_bytes + m->scratch_bytes + m->other_bytes);
}

/* The fullest rank of a mesh is the device that the ledger counts. */
static void demo_model_cut(void **st)
{
    static const char *const layouts[] = {"tp3", "pp2", "pp2 tp3"};
    static int32_t toks[16];
    struct mesh_job job = {.model = test_demo_model(),
                           .backend = "cpu",
                           .isa = "auto",
                           .kv = DT_BF16,
                           .toks = toks,
                           .n_seq = 1,
                           .len = 16,
                           .budget = 16};
    struct shapes s;
    struct err e = {0};

    (void)st;
    assert_int_equal(capacity_shapes_of(test_demo_model(), &s, &e), 0);
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
        struct mesh_run *head, *r = mesh_run_all(layouts[i], &job, &head);
        struct ledger_ask a;
        struct ledger g;
        struct layout l;
        double most = 0, counted;

        assert_int_equal(layout_parse(layouts[i], &l, &e), 0);
        for (int k = 0; k < layout_ranks(&l); k++) {
            if (r[k].rc < 0)
                fail_msg("%s: rank %d: %s", layouts[i], k, r[k].e.msg);
            most = fmax(most, held_by(&r[k].mem));
            printf("# %s rank %d: weights %.2f KV %.2f scratch %.2f buffers %.2f MB\n",
                   layouts[i], k, 1e-6 * (double)r[k].mem.weight_bytes,
                   1e-6 * (double)r[k].mem.kv_bytes,
                   1e-6 * (double)r[k].mem.scratch_bytes,
                   1e-6 * (double)r[k].mem.other_bytes);
        }
        ledger_ask_defaults(&a, 8e9, true);
        a.ctx = RIG_CTX;
        a.seqs = RIG_SEQS;
        a.budget = RIG_ROWS;
        ledger_count(&s, &l, &a, &g);
        counted = g.total - g.margin - g.context;
        printf("# %s stage %d counted: weights %.2f KV %.2f scratch %.2f buffers %.2f "
               "comm %.2f MB; %.2f of %.2f\n",
               layouts[i], g.stage, 1e-6 * g.weights_all, 1e-6 * g.kv_all,
               1e-6 * g.workspace, 1e-6 * g.activations, 1e-6 * g.comm, 1e-6 * counted,
               1e-6 * most);
        assert_true(fabs(counted / most - 1) < 0.03);
        free(head->logits);
        free(r);
    }
}

/* The same from the file alone, as `config check` asks before an engine is started. */
static void capacity_of_the_file(void **st)
{
    struct rig_cfg c = {test_demo_model(), "cpu", "auto", DT_COUNT, 1};
    struct conf_instance i = {.name = "0",
                              .ctx = RIG_CTX,
                              .max_seqs = RIG_SEQS,
                              .step_tok = RIG_ROWS,
                              .isa = 0};
    struct backend_mem mem;
    struct capacity cap;
    struct err e = {0};
    struct rig r;
    double held, need;

    (void)st;
    assert_true(rig_open(&r, &c));
    backend_mem_used(r.b, &mem);
    i.kv.mib = (int64_t)(r.kv_bytes >> 20);
    if (capacity_check(test_demo_model(), &i, NULL, NULL, &cap, &e) < 0)
        fail_msg("%s", e.msg);
    assert_true(cap.fits);
    assert_int_equal(cap.n_ctx, RIG_CTX);
    need = cap.need - cap.ledger.margin - cap.ledger.context;
    held =
        (double)(mem.weight_bytes + mem.kv_bytes + mem.scratch_bytes + mem.other_bytes);
    printf("# MB held %.2f, said beforehand %.2f\n", 1e-6 * held, 1e-6 * need);
    rig_close(&r);
    assert_true(fabs(need / held - 1) < 0.03);

    i.kv.mib = 1 << 24; /* 16 TiB */
    assert_int_equal(capacity_check(test_demo_model(), &i, NULL, NULL, &cap, &e), 0);
    assert_false(cap.fits);
    assert_true(cap.why[0] && cap.cure[0]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(demo_model),
                                       cmocka_unit_test(demo_model_cut),
                                       cmocka_unit_test(capacity_of_the_file)};
    return test_main(argc, argv, "ledger_cpu", tests, sizeof(tests) / sizeof(tests[0]));
}
