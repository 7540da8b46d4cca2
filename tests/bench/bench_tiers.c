/* tests/bench/bench_tiers.c - what the tiers below the device's KV find of two recorded
 * traces, through the scheduler itself. Counted, not timed.
 *
 *   make bench-tiers      REQUESTS=n: only the first n of each trace
 * The requests of a trace go one after another through the scheduler on the simulated
 * device (simsched.h), lengths divided by 32: without tiers, with a host tier, with host
 * and disk; after each step the disk works until it has nothing to do. Beside it stands
 * the exact LRU of test_kv_trace.c with as many blocks.
 *
 * Each tier holds what those above it do not, but for the blocks of the host tier that
 * are on disk already because they fall out of it next (kvtier_disk.c, margin()): the
 * goal is the LRU of as many blocks as the tiers hold without those. Beside it stand that
 * of the whole sum, and what a disk that mirrors the host tier could find at most: the
 * LRU of device and disk. */
#define main kv_trace_main /* its trace and LRU, not its tests */
#include "tests/unit/test_kv_trace.c"
#undef main

#include "tests/bench/rows.h"
#include "tests/unit/simsched.h"

enum { DEVICE = 600, HOST = 1500, DISK = 4000, CTX = DEVICE * BLOCK / 2, TEXT = 3 << 20 };

struct setup {
    const char *name;
    int host, disk;
    int twice; /* blocks that are in two tiers */
    const char *goal;
};

static const struct setup setups[] = {
    {"off", 0, 0, 0, "within 0.01 of the LRU of the device"},
    {"host", HOST, 0, 0, "within 0.01 of the LRU of device and host"},
    {"disk", HOST, DISK, HOST / 8, "within 0.01 of the LRU of all but what is in two"},
};
enum { SETUPS = sizeof(setups) / sizeof(setups[0]) };

struct found { /* shares of the prompt tokens */
    double device, host, disk;
    double computed; /* tokens */
    double written;  /* blocks, to disk */
    double asked;
};

static double total(const struct found *f) { return f->device + f->host + f->disk; }

static struct load_work work_of(const struct load_trace *t)
{
    return (struct load_work){.arrival = LOAD_TRACE,
                              .max_tok = CTX,
                              .n_vocab = 32000,
                              .seed = test_seed(),
                              .trace = t,
                              .length_scale = DIVIDE};
}

static struct sched_cfg config_of(const struct setup *u)
{
    struct sched_cfg c = sim_cfg(BLOCK, DEVICE);

    c.step_tok = 1024;
    c.max_ctx = CTX + BLOCK;
    c.kv.n_host = u->host;
    c.kv.n_disk = u->disk;
    c.kv.max_moves = 2 * (c.max_ctx / BLOCK + 1); /* as engine_tiers_fit has it */
    return c;
}

/* The disk works until it has nothing to do. */
static void settle(struct w *w)
{
    while (sched_tier(w->s) &&
           (sim_disk(&w->x, w->s, true, true) || sim_disk(&w->x, w->s, false, true)))
        ;
}

/* One request from its arrival to its end. */
static void serve(struct w *w, const struct load_req *r, const int32_t *toks, uint64_t id)
{
    static const int32_t eog[] = {SIM_EOS};
    struct gen_params p = req(id, r->n_in, r->n_out);
    struct sched_event ev = {
        .kind = SCHED_ADD, .params = &p, .prompt = toks, .eog = eog, .n_eog = 1};
    struct seen seen = {0};
    struct step_done d;

    sched_event(w->s, w->now, &ev);
    settle(w);
    while (sched_next(w->s, w->now, w->st)) {
        sched_submitted(w->s, w->now, sim_submit(&w->x, w->st));
        w->now += 1000;
        sim_run(&w->x, &d);
        sched_event(w->s, w->now, &(struct sched_event){.kind = SCHED_DONE, .done = &d});
        settle(w);
        look(w, id, &seen);
    }
    check(w);
    if (seen.finishes != 1 || seen.n_toks != r->n_out || !sched_idle(w->s)) {
        fprintf(stderr, "request %d did not end as it should: %s\n", (int)id,
                seen.last.error ? seen.last.error->msg : "no error");
        exit(1);
    }
}

static struct found replay_tiers(const struct load_trace *t, const struct load_req *r,
                                 const struct setup *u)
{
    const struct load_work lw = work_of(t);
    const struct sched_cfg c = config_of(u);
    int32_t *toks = xcalloc(CTX, sizeof(*toks));
    struct found f = {0};
    struct sched_stats v;
    struct w w;

    w_init(&w, &c);
    for (int i = 0; i < t->n; i++) {
        load_prompt(&lw, &r[i], toks);
        serve(&w, &r[i], toks, (uint64_t)i + 1);
        f.asked += r[i].n_in;
    }
    sched_stats(w.s, &v);
    f.device = (double)(v.kv.hit_tok - v.tier.host_hit_tok) / f.asked;
    f.host = ((double)v.tier.host_hit_tok - (double)v.tier.disk_hit_tok) / f.asked;
    f.disk = (double)v.tier.disk_hit_tok / f.asked;
    f.written = (double)v.tier.written;
    f.computed = f.asked - (double)v.kv.hit_tok;
    w_done(&w);
    free(toks);
    return f;
}

static double replay_lru(const struct load_trace *t, const struct load_req *r, int n)
{
    uint64_t *name = xcalloc(CTX / BLOCK + 1, sizeof(*name));
    double asked = 0, found = 0;
    struct lru l;

    lru_init(&l, n);
    for (int i = 0; i < t->n; i++) {
        int n_kv = r[i].n_in + r[i].n_out - 1; /* the last id of an answer has none */

        names_of(&r[i], n_kv / BLOCK, (uint64_t)i + 1, name);
        found += BLOCK * lru_request(&l, i, name, n_kv / BLOCK, (r[i].n_in - 1) / BLOCK,
                                     (n_kv + BLOCK - 1) / BLOCK);
        asked += r[i].n_in;
    }
    lru_done(&l);
    free(name);
    return found / asked;
}

static void put_setup(struct out *o, const char *trace, const struct setup *u,
                      const struct found *f, double less, const struct load_trace *t,
                      const struct load_req *r)
{
    double goal = replay_lru(t, r, DEVICE + u->host + u->disk - u->twice);
    double sum = replay_lru(t, r, DEVICE + u->host + u->disk);
    double mirror = replay_lru(t, r, DEVICE + (u->disk ? u->disk : u->host));
    char key[96];
    bool ok;

    snprintf(key, sizeof(key), "%s_%s_hit_rate", trace, u->name);
    ok = row(o, key, total(f), goal - 0.01, goal + 0.01, u->goal);
    snprintf(key, sizeof(key), "%s_%s_of_the_lru", trace, u->name);
    ok &= row(o, key, total(f) / goal, 0.95, 1e9, "at least 0.95 of it");
    snprintf(key, sizeof(key), "%s_%s_lru", trace, u->name);
    row(o, key, goal, 0, 1, "shown");
    snprintf(key, sizeof(key), "%s_%s_lru_of_the_sum", trace, u->name);
    row(o, key, sum, 0, 1, "shown");
    snprintf(key, sizeof(key), "%s_%s_lru_of_a_mirror", trace, u->name);
    row(o, key, mirror, 0, 1, "shown");
    snprintf(key, sizeof(key), "%s_%s_blocks_written", trace, u->name);
    row(o, key, f->written, 0, 1e9, "shown");
    snprintf(key, sizeof(key), "%s_%s_computed_tokens", trace, u->name);
    row(o, key, f->computed, 0, f->asked, "shown");
    snprintf(key, sizeof(key), "%s_%s_gain", trace, u->name);
    ok &= row(o, key, total(f) - less, 0, 1, "at least what less tiers find");
    printf("%-14s %-5s %7.4f %7.4f %7.4f %7.4f %9.0f %8.0f %7.4f %7.4f %7.4f  %s\n",
           trace, u->name, f->device, f->host, f->disk, total(f), f->computed, f->written,
           goal, sum, mirror, ok ? "ok" : "MISSED");
    fflush(stdout);
}

static int replay_file(struct out *o, const char *trace, const char *path, int max)
{
    FILE *in = fopen(path, "rbe");
    char *text = xmalloc(TEXT);
    size_t n = in ? fread(text, 1, TEXT, in) : 0;
    struct load_trace t;
    struct err e;
    double less = 0;

    if (in)
        fclose(in);
    if (load_trace_parse(text, n, &t, &e) < 0) {
        fprintf(stderr, "%s: %s\n", path, e.msg);
        free(text);
        return -1;
    }
    t.n = t.n < max ? t.n : max;
    struct load_req *r = xcalloc((size_t)t.n, sizeof(*r));
    const struct load_work lw = work_of(&t);
    load_work_make(&lw, 1, t.n, 0, r);
    printf("%s: %d requests\n", trace, t.n);
    for (int i = 0; i < SETUPS; i++) {
        struct found f = replay_tiers(&t, r, &setups[i]);

        put_setup(o, trace, &setups[i], &f, less, &t, r);
        less = total(&f);
    }
    free(r);
    load_trace_done(&t);
    free(text);
    return 0;
}

int main(int argc, char **argv)
{
    static const char *const traces[][2] = {
        {"conversation", "traces/mooncake_fast25_conversation.first.jsonl"},
        {"synthetic", "traces/mooncake_fast25_synthetic.jsonl"}};
    const char *dir = getenv("SHARED"), *max = getenv("REQUESTS");
    char path[4096];
    struct out o;

    if (argc != 2) {
        fprintf(stderr, "usage: bench_tiers FILE\n");
        return 2;
    }
    out_begin(&o);
    printf("%d blocks on the device, %d host, %d disk, of %d tokens\n", DEVICE, HOST,
           DISK, BLOCK);
    printf("%-14s %-5s %7s %7s %7s %7s %9s %8s %7s %7s %7s\n", "trace", "tiers", "device",
           "host", "disk", "all", "computed", "written", "LRU", "of sum", "mirror");
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%s/%s", dir ? dir : "../shared", traces[i][1]);
        if (replay_file(&o, traces[i][0], path, max ? atoi(max) : 1 << 20) < 0)
            return 1;
    }
    return out_end(&o, argv[1]);
}
