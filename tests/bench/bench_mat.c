/* tests/bench/bench_mat.c - the linear layers of a small model, timed apart from the
 * rest.
 *
 *   bench_mat [threads=2] [type=Q4_1] [head type=Q8_0] [reps=5] [isa=avx512]
 * Makes the 30 layers and the head of SmolLM2-135M with random bits and runs them in the
 * order of a step, so that caches see what they see in the engine. For each M: the best
 * and median time of a pass over the layers and over the head, operations (2 per weight
 * and row) and weight bytes per second; the read bandwidth is taken beside each figure.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/team.h"
#include "kernels/cpu_mat.h"
#include "kernels/cpu_pool.h"

enum { LAYERS = 30, D = 576, KV = 192, FFN = 1536, VOCAB = 49152, MAX_M = 512 };

struct layer {
    struct cpu_mat *q, *k, *v, *o, *gate, *up, *down;
};

struct bench {
    struct team *team;
    struct cpu_pool *pool;
    enum cpu_isa isa;
    enum dtype type, head_type;
    struct layer layer[LAYERS];
    struct cpu_mat *head;
    size_t layer_bytes, head_bytes;
    float *x, *h, *y, *logits;
    void *scratch;
    uint64_t *sweep; /* for the read bandwidth */
};

enum { SWEEP_BYTES = 256 << 20, MAX_REPS = 64 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static enum dtype type_named(const char *s)
{
    for (int i = 0; i < DT_COUNT; i++)
        if (!strcmp(dtype_name(i), s))
            return i;
    fprintf(stderr, "bench_mat: no type %s\n", s);
    exit(2);
}

static struct cpu_mat *make(struct bench *b, enum dtype t, int rows, int cols,
                            size_t *sum)
{
    size_t n = (size_t)dtype_row_bytes(t, cols) * (size_t)rows;
    uint16_t *src = xmalloc(n);
    struct cpu_mat *m = NULL;
    struct err e;
    uint32_t s = 1;

    /* halves below 2.0 in size whatever field they are */
    for (size_t i = 0; i < n / 2; i++, s = s * 1664525 + 1013904223)
        src[i] = (uint16_t)(s >> 16 & 0xbfff);
    if (cpu_mat_new(b->isa, b->team, b->pool, t, rows, cols, src, &m, &e) < 0) {
        fprintf(stderr, "bench_mat: %s\n", e.msg);
        exit(1);
    }
    free(src);
    *sum += n;
    return m;
}

static void product(struct bench *b, int n, const float *x, int n_out, struct cpu_mat **m,
                    float *y, int y_ld, int step, int add, int glu, int cols)
{
    struct cpu_product p = {.isa = b->isa,
                            .n_rows = n,
                            .x = x,
                            .x_ld = cols,
                            .n_out = n_out,
                            .add = add,
                            .glu = glu,
                            .scratch = b->scratch};
    for (int j = 0; j < n_out; j++) {
        p.m[j] = m[j];
        p.y[j] = y + j * step;
        p.y_ld[j] = y_ld;
    }
    cpu_product_run(b->team, &p);
}

static void run_layers(struct bench *b, int n, double t[4])
{
    for (int i = 0; i < LAYERS; i++) {
        struct layer *l = &b->layer[i];
        double t0 = now();
        product(b, n, b->x, 3, (struct cpu_mat *[]){l->q, l->k, l->v}, b->h, 3 * D, D, 0,
                0, D);
        double t1 = now();
        product(b, n, b->x, 1, &l->o, b->y, D, 0, 1, 0, D);
        double t2 = now();
        product(b, n, b->x, 2, (struct cpu_mat *[]){l->gate, l->up}, b->h, FFN, 0, 0, 1,
                D);
        double t3 = now();
        product(b, n, b->h, 1, &l->down, b->y, D, 0, 1, 0, FFN);
        t[0] += t1 - t0, t[1] += t2 - t1, t[2] += t3 - t2, t[3] += now() - t3;
    }
}

static void sweep_member(void *arg, int member, int n_members)
{
    struct bench *b = arg;
    size_t n = SWEEP_BYTES / 8 / (size_t)n_members;
    const uint64_t *p = b->sweep + (size_t)member * n;
    uint64_t s = 0;

    for (size_t i = 0; i < n; i++)
        s += p[i];
    if (s == 1) /* never: keeps the loop */
        puts("");
}

static double read_gbs(struct bench *b)
{
    double t = now();
    team_run(b->team, sweep_member, b);
    return SWEEP_BYTES / (now() - t) / 1e9;
}

static void measure(struct bench *b, int n, int reps)
{
    double layers[MAX_REPS], head[MAX_REPS], rd[MAX_REPS], part[4] = {0};
    double macs = (double)LAYERS * (D * (2.0 * D + 2 * KV) + 3.0 * D * FFN);
    double head_macs = (double)D * VOCAB;
    int n_head = n > 32 ? 1 : n;

    for (int i = 0; i < reps; i++) {
        double one[4] = {0};
        rd[i] = read_gbs(b);
        double t = now();
        run_layers(b, n, one);
        layers[i] = now() - t;
        t = now();
        product(b, n_head, b->x, 1, &b->head, b->logits, VOCAB, 0, 0, 0, D);
        head[i] = now() - t;
        for (int k = 0; k < 4; k++)
            if (i == 0 || one[k] < part[k])
                part[k] = one[k];
    }
    qsort(layers, (size_t)reps, sizeof(double), by_value);
    qsort(head, (size_t)reps, sizeof(double), by_value);
    qsort(rd, (size_t)reps, sizeof(double), by_value);
    double tl = layers[reps / 2], th = head[reps / 2];
    printf("M %3d  layers %8.3f ms (best %8.3f: qkv %.3f o %.3f glu %.3f down %.3f) "
           "%6.0f GOP/s "
           "%5.1f GB/s | head %7.3f (best %7.3f) ms %5.1f GB/s %5.0f GOP/s | read %4.1f "
           "(best %4.1f) GB/s | %5.0f tok/s, "
           "%3.0f %% of read\n",
           n, tl * 1e3, layers[0] * 1e3, part[0] * 1e3, part[1] * 1e3, part[2] * 1e3,
           part[3] * 1e3, 2 * macs * n / tl / 1e9, (double)b->layer_bytes / tl / 1e9,
           th * 1e3, head[0] * 1e3, (double)b->head_bytes / th / 1e9,
           2 * head_macs * n_head / th / 1e9, rd[reps / 2], rd[reps - 1], n / (tl + th),
           (double)(b->layer_bytes + b->head_bytes) / (tl + th) / 1e9 / rd[reps / 2] *
               100);
}

static void make_model(struct bench *b)
{
    for (int i = 0; i < LAYERS; i++) {
        struct layer *l = &b->layer[i];
        l->q = make(b, b->type, D, D, &b->layer_bytes);
        l->k = make(b, b->type, KV, D, &b->layer_bytes);
        l->v = make(b, b->type, KV, D, &b->layer_bytes);
        l->o = make(b, b->type, D, D, &b->layer_bytes);
        l->gate = make(b, b->type, FFN, D, &b->layer_bytes);
        l->up = make(b, b->type, FFN, D, &b->layer_bytes);
        l->down = make(b, b->type, D, FFN, &b->layer_bytes);
    }
    b->head = make(b, b->head_type, VOCAB, D, &b->head_bytes);
}

int main(int argc, char **argv)
{
    struct bench *b = xcalloc(1, sizeof(*b));
    int threads = argc > 1 ? atoi(argv[1]) : 2, reps = argc > 4 ? atoi(argv[4]) : 5;
    struct err e;
    static const int rows[] = {1, 2, 4, 8, 16, 32, 512};

    b->type = type_named(argc > 2 ? argv[2] : "Q4_1");
    b->head_type = type_named(argc > 3 ? argv[3] : "Q8_0");
    b->isa = cpu_isa_best();
    for (int i = 0; argc > 5 && i <= (int)cpu_isa_best(); i++)
        if (!strcmp(argv[5], cpu_isa_name(i)))
            b->isa = i;
    int cpus[64];
    for (int i = 0; i < 64; i++)
        cpus[i] = i;
    if (reps < 1 || reps > MAX_REPS || team_new(threads, cpus, true, &b->team, &e) < 0)
        return 2;
    b->pool = cpu_pool_new();
    double t = now();
    make_model(b);
    printf("%s, %d thr, %s + %s: made in %.0f ms\n", cpu_isa_name(b->isa), threads,
           dtype_name(b->type), dtype_name(b->head_type), (now() - t) * 1e3);
    b->x = xcalloc(MAX_M * D, sizeof(float));
    b->h = xcalloc(MAX_M * 3 * D, sizeof(float));
    b->y = xcalloc(MAX_M * D, sizeof(float));
    b->logits = xcalloc(32 * VOCAB, sizeof(float));
    b->scratch = xmalloc(cpu_mat_scratch_bytes(MAX_M, FFN));
    b->sweep = xcalloc(SWEEP_BYTES, 1);
    memset(b->sweep, 1, SWEEP_BYTES);
    for (int i = 0; i < MAX_M * D; i++)
        b->x[i] = (float)(i % 2003 * 791 % 2001 - 1000) * 1e-3f;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        measure(b, rows[i], rows[i] > 32 ? (reps + 2) / 3 : reps);
    return 0;
}
