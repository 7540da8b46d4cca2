/* What moves of experts do to steps: pairs of runs of as many decode steps, without moves
 * and with one after the other, interleaved; the 99th percentile of a step with moves
 * over that without, and the median over the pairs. Two ranks, loader as documented.
 *
 *   bench_moves MODEL OUT.json [steps, 2000] [pairs, 7] */
#include "tests/unit/expert_rig.h"

enum { MOST_STEPS = 1 << 16, MOST_PAIRS = 32 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double at_share(double *v, int n, double share)
{
    qsort(v, (size_t)n, sizeof(*v), by_value);
    return v[(int)((double)(n - 1) * share)];
}

/* Steps, with moves one after the other or none; the 99th percentile. */
static double run(struct rig *r, int steps, bool moves, uint64_t *rng, uint64_t *ids)
{
    static double us[MOST_STEPS];
    static struct step_token out[SEQS];

    for (int i = 0; i < steps; i++) {
        struct move v;

        if (r->at >= CTX - 16)
            r->at = 0;
        if (moves && !engine_experts_waiting(r->g) &&
            random_move(engine_experts_routes(r->g), rng, *ids + 1, &v)) {
            (*ids)++;
            engine_experts_order(r->g, now(), &v);
        }
        step(r, out);
        us[i] = (double)r->step_us;
    }
    idle(r);
    return at_share(us, steps, 0.99);
}

int main(int argc, char **argv)
{
    int steps = argc > 3 ? atoi(argv[3]) : 2000, pairs = argc > 4 ? atoi(argv[4]) : 7;
    double ratio[MOST_PAIRS];
    uint64_t rng = 11, ids = 0;
    struct rig r;

    if (argc < 3 || steps < 10 || steps > MOST_STEPS || pairs < 1 || pairs > MOST_PAIRS) {
        fprintf(stderr, "usage: bench_moves MODEL OUT.json [steps] [pairs]\n");
        return 2;
    }
    rig_model = argv[1];
    rig_share = 0;
    rig_slice = 0;
    open_rig(&r, "", "tp2 ep2", 2, SPREAD_STATIC);
    run(&r, steps / 4, false, &rng, &ids);
    printf("%5s %14s %14s %8s %7s\n", "pair", "p99 us", "with moves", "ratio", "moves");
    for (int i = 0; i < pairs; i++) {
        uint64_t before = ids;
        double p[2];

        for (int k = 0; k < 2; k++) /* turn and turn about */
            p[(i + k) % 2] = run(&r, steps, (i + k) % 2, &rng, &ids);
        ratio[i] = p[1] / p[0];
        printf("%5d %14.0f %14.0f %8.3f %7llu\n", i, p[0], p[1], ratio[i],
               (unsigned long long)(ids - before));
    }
    double median = at_share(ratio, pairs, 0.5);
    printf("median ratio %.3f, %d moves done, %d aborted, %.1f MB loaded\n", median,
           r.n_done, r.n_aborted, (double)r.bytes / 1e6);
    FILE *f = fopen(argv[2], "w");
    if (f) {
        fprintf(f,
                "{\"moves.p99_ratio\": {\"value\": %.4f, \"goal\": 1.1, \"ok\": %s}}\n",
                median, median <= 1.1 ? "true" : "false");
        fclose(f);
    }
    close_rig(&r);
    return 0;
}
