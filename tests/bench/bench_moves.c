/* bench_moves MODEL FILE [STEPS, 2000] [PAIRS, 7]: what moves of experts do to steps; one
 * JSON object.
 *
 * Pairs of runs of as many decode steps, without moves and with one after the other,
 * interleaved; the 99th percentile of a step with moves over that without, and the median
 * over the pairs. Loader as documented. The goal is that of two ranks; with four ranks of
 * more slots, on as many cores as there are, three pairs are reported. Each pair stands
 * on stdout as soon as it is measured. */
#include "tests/unit/expert_rig.h"

#include "tests/bench/rows.h"

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

static const struct shape {
    const char *key, *layout;
    int spare, most_pairs;
    double goal; /* the ratio, at most */
    const char *text;
} shapes[] = {
    {"moves_2_ranks", "tp2 ep2", 2, MOST_PAIRS, 1.1, "at most 1.1, median of the pairs"},
    {"moves_4_ranks", "tp4 ep4", 4, 3, 1e9, "reported"},
};

static void measure(struct out *o, const struct shape *s, int steps, int pairs)
{
    double ratio[MOST_PAIRS], without = 0, with = 0;
    uint64_t rng = 11, ids = 0;
    char key[64];
    struct rig r;

    pairs = pairs < s->most_pairs ? pairs : s->most_pairs;
    open_rig(&r, "", s->layout, s->spare, SPREAD_STATIC);
    run(&r, steps / 4, false, &rng, &ids);
    printf("%s: %d slots a rank\n%5s %14s %14s %8s %7s\n", s->layout,
           engine_experts_routes(r.g)->d.n_slot, "pair", "p99 us", "with moves", "ratio",
           "moves");
    for (int i = 0; i < pairs; i++) {
        uint64_t before = ids;
        double p[2];

        for (int k = 0; k < 2; k++) /* turn and turn about */
            p[(i + k) % 2] = run(&r, steps, (i + k) % 2, &rng, &ids);
        ratio[i] = p[1] / p[0];
        without += p[0] / pairs;
        with += p[1] / pairs;
        printf("%5d %14.0f %14.0f %8.3f %7llu\n", i, p[0], p[1], ratio[i],
               (unsigned long long)(ids - before));
        fflush(stdout);
    }
    snprintf(key, sizeof(key), "%s_p99_ratio", s->key);
    put(o, key, at_share(ratio, pairs, 0.5), 0, s->goal, s->text);
    snprintf(key, sizeof(key), "%s_p99_us", s->key);
    put(o, key, without, 0, 1e9, "reported");
    snprintf(key, sizeof(key), "%s_p99_us_with_moves", s->key);
    put(o, key, with, 0, 1e9, "reported");
    snprintf(key, sizeof(key), "%s_done", s->key);
    put(o, key, r.n_done, pairs, 1e9, "at least one a pair");
    snprintf(key, sizeof(key), "%s_aborted", s->key);
    put(o, key, r.n_aborted, 0, 0, "none");
    snprintf(key, sizeof(key), "%s_loaded_mb", s->key);
    put(o, key, (double)r.bytes / 1e6, 0, 1e9, "reported");
    close_rig(&r);
}

int main(int argc, char **argv)
{
    int steps = argc > 3 ? atoi(argv[3]) : 2000, pairs = argc > 4 ? atoi(argv[4]) : 7;
    struct out o;

    if (argc < 3 || steps < 10 || steps > MOST_STEPS || pairs < 1 || pairs > MOST_PAIRS) {
        fprintf(stderr, "usage: bench_moves MODEL FILE [STEPS] [PAIRS]\n");
        return 2;
    }
    rig_model = argv[1];
    rig_share = 0;
    rig_slice = 0;
    out_begin(&o);
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        measure(&o, &shapes[i], steps, pairs);
    return out_end(&o, argv[2]);
}
