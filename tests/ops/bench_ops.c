/* tests/ops/bench_ops.c - how fast the ops are beside what the machine can do.
 *
 *   bench_ops [-t threads] [-i isa] [-k BF16|F16] [-r reps]
 * One line per case: median time of a launch and the rate that it comes to. Attention in
 * prefill counts 4 * dim operations per (query head, visible position); decode counts the
 * bytes of K and V. Run it alone on the machine; compare with the peak figures that it
 * prints first (BF16 dot products from registers, reads from memory). */
#include <getopt.h>

#include "tests/ops/rig.h"

#include <immintrin.h>

#include "base/clock.h"
#include "base/team.h"

struct bench {
    struct rig r;
    int threads, reps, cpus[64];
    enum dtype type;
    double peak_gflops, read_gbs;
};

static double now_s(void) { return (double)clock_now_us(clock_real()) * 1e-6; }

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* ---- the machine ---- */

enum { PEAK_LOOPS = 1 << 22 };

#define DOT(i) __asm__ volatile("vdpbf16ps %%zmm30,%%zmm31,%%zmm" #i ::: "xmm" #i);
__attribute__((target("avx512f,avx512bf16"))) static void peak_member(void *arg,
                                                                      int member, int n)
{
    (void)arg;
    (void)member;
    (void)n;
    __asm__ volatile("vpxord %%zmm30,%%zmm30,%%zmm30\n vpxord %%zmm31,%%zmm31,%%zmm31" ::
                         : "xmm30", "xmm31");
    for (int i = 0; i < PEAK_LOOPS; i++) {
        DOT(0)
        DOT(1) DOT(2) DOT(3) DOT(4) DOT(5) DOT(6) DOT(7) DOT(8) DOT(9) DOT(10) DOT(11)
    }
}

struct read_job {
    const char *mem;
    size_t bytes;
    uint64_t sum[64];
};

static void read_member(void *arg, int member, int n)
{
    struct read_job *j = arg;
    size_t share = j->bytes / (size_t)n / 64 * 64;
    const uint64_t *p = (const uint64_t *)(const void *)(j->mem + share * (size_t)member);
    uint64_t s[8] = {0};

    for (size_t i = 0; i < share / 8; i += 8)
        for (int k = 0; k < 8; k++)
            s[k] += p[i + (size_t)k];
    j->sum[member % 64] = s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}

static void measure_machine(struct bench *b)
{
    static struct read_job job;
    struct team *t;
    double best = 1e9, start;
    char *mem;

    rig_must(team_new(b->threads, b->cpus, true, &t, &b->r.e), &b->r.e);
    for (int i = 0; i < 3 && cpu_isa_best() == CPU_ISA_AVX512; i++) {
        start = now_s();
        team_run(t, peak_member, NULL);
        best = fmin(best, now_s() - start);
    }
    b->peak_gflops = 64.0 * 12 * PEAK_LOOPS * b->threads / best / 1e9;
    job.bytes = 512u << 20;
    mem = aligned_alloc(2 << 20, job.bytes);
    memset(mem, 1, job.bytes);
    job.mem = mem;
    best = 1e9;
    for (int i = 0; i < 5; i++) {
        start = now_s();
        team_run(t, read_member, &job);
        best = fmin(best, now_s() - start);
    }
    b->read_gbs = (double)job.bytes / best / 1e9;
    free(mem);
    team_free(t);
    printf("peak: %.0f GFLOP/s BF16, %.1f GB/s read, %d threads\n", b->peak_gflops,
           b->read_gbs, b->threads);
}

/* ---- attention ---- */

struct attn_case {
    const char *name;
    int n_head, n_kv_head, dim, items, depth, rows; /* rows of each item at depth */
    int layers;
};

struct attn_setup {
    struct kv_arena *kv;
    struct dbuf *q, *y, *row, *pos, *table;
    struct op_attn op;
};

static void attn_setup_open(struct bench *b, const struct attn_case *c,
                            struct attn_setup *s)
{
    int ctx = c->depth + c->rows, mb = (ctx + 15) / 16, n_rows = c->items * c->rows;
    int qc = c->n_head * c->dim, *row = calloc((size_t)c->items + 1, 4);
    int *pos = calloc((size_t)c->items, 4), *table = calloc((size_t)(c->items * mb), 4);
    float *q = malloc(sizeof(float) * (size_t)(qc * n_rows));
    struct kv_layout l = {c->layers, c->n_kv_head, c->dim, 16, b->type, 0, 0, 0, 0};
    uint64_t st = 1;

    rig_must(kv_arena_new(b->r.b, &l, mb * c->items, &s->kv, &b->r.e), &b->r.e);
    rig_fill(q, (size_t)(qc * n_rows), 3);
    for (int i = 0; i < c->items; i++) {
        row[i + 1] = (i + 1) * c->rows;
        pos[i] = c->depth;
    }
    for (int i = 0; i < c->items * mb; i++)
        table[i] = i;
    for (int i = c->items * mb - 1; i > 0; i--) {
        int j = (int)(test_rand(&st) % (uint64_t)(i + 1)), t = table[i];
        table[i] = table[j];
        table[j] = t;
    }
    s->q = rig_put(&b->r, q, sizeof(float) * (size_t)(qc * n_rows));
    s->y = rig_put(&b->r, NULL, sizeof(float) * (size_t)(qc * n_rows));
    s->row = rig_put(&b->r, row, 4 * (size_t)(c->items + 1));
    s->pos = rig_put(&b->r, pos, 4 * (size_t)c->items);
    s->table = rig_put(&b->r, table, 4 * (size_t)(c->items * mb));
    s->op = (struct op_attn){
        .span = {c->items,
                 n_rows,
                 mb,
                 ctx,
                 {s->row, 0, c->items + 1},
                 {s->pos, 0, c->items},
                 {s->table, 0, c->items * mb}},
        .y = {s->y, 0, n_rows, qc, qc},
        .q = {s->q, 0, n_rows, qc, qc},
        .n_head = c->n_head,
        .n_kv_head = c->n_kv_head,
        .head_dim = c->dim,
        .scale = 1.0f / sqrtf((float)c->dim),
        .kv = s->kv,
    };
    free(row);
    free(pos);
    free(table);
    free(q);
}

static void attn_setup_close(struct attn_setup *s)
{
    dbuf_free(s->q);
    dbuf_free(s->y);
    dbuf_free(s->row);
    dbuf_free(s->pos);
    dbuf_free(s->table);
    kv_arena_free(s->kv);
}

/* All layers in turn, as a step does, so that KV comes from memory. */
static void bench_attn(struct bench *b, const struct attn_case *c)
{
    struct attn_setup s;
    double t[64], visible, flops, bytes;

    attn_setup_open(b, c, &s);
    for (int i = 0; i < b->reps + 1; i++) {
        double start = now_s();
        for (int l = 0; l < c->layers; l++) {
            s.op.layer = l;
            rig_must(op_attn(b->r.s, &s.op, &b->r.e), &b->r.e);
        }
        t[i ? i - 1 : 0] = (now_s() - start) / c->layers;
    }
    qsort(t, (size_t)b->reps, sizeof(*t), by_value);
    visible = (double)c->rows * c->depth + (double)c->rows * (c->rows + 1) / 2;
    flops = 4.0 * c->dim * c->n_head * visible * c->items;
    bytes = 4.0 * c->dim * c->n_kv_head * (c->depth + c->rows) * c->items;
    printf(
        "%-28s %10.1f us  %7.1f GFLOP/s (%4.1f %% of peak)  KV %6.1f GB/s (%3.0f %%)\n",
        c->name, t[b->reps / 2] * 1e6, flops / t[b->reps / 2] / 1e9,
        100 * flops / t[b->reps / 2] / 1e9 / b->peak_gflops, bytes / t[b->reps / 2] / 1e9,
        100 * bytes / t[b->reps / 2] / 1e9 / b->read_gbs);
    attn_setup_close(&s);
}

static void bench_norm(struct bench *b, int rows, int cols)
{
    size_t n = (size_t)rows * (size_t)cols;
    float *x = malloc(n * sizeof(float));
    struct dbuf *d;
    struct weight *w;
    double start;
    int loops = 1000;

    rig_fill(x, n, 1);
    d = rig_put(&b->r, x, n * sizeof(float));
    w = rig_weight(&b->r, x, 1, cols, WEIGHT_VECTOR);
    struct op_norm o = {{d, 0, rows, cols, cols}, {d, 0, rows, cols, cols}, w, 1e-5f};
    start = now_s();
    for (int i = 0; i < loops; i++)
        rig_must(op_norm(b->r.s, &o, &b->r.e), &b->r.e);
    printf("norm %4d x %4d %24.2f us\n", rows, cols, (now_s() - start) / loops * 1e6);
    weight_free(w);
    dbuf_free(d);
    free(x);
}

/* The op before attention, on its buffers: one layer of the demo model's shape. */
static void bench_rope(struct bench *b, int items, int depth, int rows)
{
    struct attn_case c = {"", 9, 3, 64, items, depth, rows, 30};
    struct attn_setup s;
    float freq[32] = {1};
    int n = items * rows, loops = rows > 1 ? 30 : 300;
    struct dbuf *kv;
    struct weight *w;
    double start;

    attn_setup_open(b, &c, &s);
    kv = rig_put(&b->r, NULL, (size_t)n * 192 * sizeof(float));
    w = rig_weight(&b->r, freq, 1, 32, WEIGHT_VECTOR);
    struct op_rope_store o = {.span = s.op.span,
                              .q = s.op.q,
                              .k = {kv, 0, n, 192, 192},
                              .v = {kv, 0, n, 192, 192},
                              .n_head = 9,
                              .n_kv_head = 3,
                              .head_dim = 64,
                              .rot_dim = 64,
                              .neox = true,
                              .inv_freq = w,
                              .attn_scale = 1,
                              .kv = s.kv};
    rig_must(op_rope_store(b->r.s, &o, &b->r.e), &b->r.e);
    start = now_s();
    for (int i = 0; i < loops; i++) {
        o.layer = i % 30;
        rig_must(op_rope_store(b->r.s, &o, &b->r.e), &b->r.e);
    }
    printf("rope %2d x %3d at %4d %20.2f us\n", items, rows, depth,
           (now_s() - start) / loops * 1e6);
    weight_free(w);
    dbuf_free(kv);
    attn_setup_close(&s);
}

static int parse(int argc, char **argv, struct bench *b, const char **ret_isa)
{
    int c;

    while ((c = getopt(argc, argv, "t:i:k:r:")) != -1)
        switch (c) {
        case 't':
            b->threads = atoi(optarg);
            break;
        case 'i':
            *ret_isa = optarg;
            break;
        case 'k':
            b->type = strcmp(optarg, "F16") ? DT_BF16 : DT_F16;
            break;
        case 'r':
            b->reps = atoi(optarg);
            break;
        default:
            return -1;
        }
    return b->threads > 0 && b->threads <= 64 && b->reps > 0 && b->reps < 64 ? 0 : -1;
}

int main(int argc, char **argv)
{
    static const struct attn_case cases[] = {
        {"prefill 512", 9, 3, 64, 1, 0, 512, 4},
        {"prefill 2048", 9, 3, 64, 1, 0, 2048, 2},
        {"chunk 512 at 1536", 9, 3, 64, 1, 1536, 512, 4},
        {"prefill 2048, 32/8 of 128", 32, 8, 128, 1, 0, 2048, 1},
        {"decode 1 at 0", 9, 3, 64, 1, 0, 1, 30},
        {"decode 1 at 512", 9, 3, 64, 1, 512, 1, 30},
        {"decode 1 at 2048", 9, 3, 64, 1, 2048, 1, 30},
        {"decode 8 at 512", 9, 3, 64, 8, 512, 1, 30},
        {"decode 32 at 512", 9, 3, 64, 32, 512, 1, 30},
        {"decode 4 at 2048, 32/8 of 128", 32, 8, 128, 4, 2048, 1, 8},
    };
    struct bench b = {.threads = 2, .reps = 7, .type = DT_BF16};
    const char *isa = "auto";

    if (parse(argc, argv, &b, &isa) < 0) {
        fprintf(stderr, "bench_ops [-t threads] [-i isa] [-k BF16|F16] [-r reps < 64]\n");
        return 2;
    }
    for (int i = 0; i < b.threads; i++)
        b.cpus[i] = i;
    measure_machine(&b);
    struct backend_cfg cfg = {"cpu", b.threads, b.cpus,
                              true,  isa,       {2048, 4096, 32, 4096, 32, 128}};
    rig_must(backend_open(&cfg, &b.r.b, &b.r.e), &b.r.e);
    rig_must(stream_new(b.r.b, &b.r.s, &b.r.e), &b.r.e);
    printf("isa %s, KV %s\n", backend_isa(b.r.b), dtype_name(b.type));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        bench_attn(&b, &cases[i]);
    bench_norm(&b, 1, 576);
    bench_norm(&b, 8, 576);
    bench_norm(&b, 512, 576);
    bench_rope(&b, 1, 2048, 1);
    bench_rope(&b, 8, 512, 1);
    bench_rope(&b, 1, 0, 512);
    rig_close(&b.r);
    return 0;
}
