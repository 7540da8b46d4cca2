/* A disk tier whose disk is full, whose file was removed or cut, or that cannot be had at
 * all: a real engine says so once for each fault, answers as before, and takes the disk
 * again when it is well. */
#include <sys/resource.h>
#include <sys/stat.h>

#include "tests/split_rig.h"

enum { LAYERS = 8, NEW = 6, N = 16, DEADLINE_S = 60 };

static char folder[128], file[160];
static struct step_token first[N + 1][NEW];

static void ask_round(struct world *w, bool is_first)
{
    for (int i = 1; i <= N; i++)
        ask(w, params((uint64_t)i, 150 + i, NEW));
    run(w, 0);
    for (int i = 1; i <= N; i++) {
        assert_int_equal(w->req[i].f.reason, FINISH_LENGTH);
        assert_int_equal(w->req[i].n, NEW);
        if (is_first)
            memcpy(first[i], w->req[i].toks, sizeof(first[i]));
        assert_memory_equal(first[i], w->req[i].toks, sizeof(first[i]));
    }
}

static struct engine_cfg config(void)
{
    struct engine_cfg c = base_cfg(ENGINE_BOTH, NULL);

    c.ctx = 200;
    c.threads = 1;
    c.max_seqs = 4;
    c.kv_mib = 1; /* 1024 positions, of 2500 */
    c.kv_host_mib = 1;
    c.kv_disk_mib = 8;
    c.kv_file = file;
    return c;
}

/* Prompts that were never there: what they push out is not on the disk yet. */
static void ask_others(struct world *w)
{
    static int32_t other[PROMPT + 64];
    static uint64_t rng = 29;
    const int32_t *known = w->prompt;

    for (size_t i = 0; i < sizeof(other) / sizeof(*other); i++)
        other[i] = 1 + (int32_t)(test_rand(&rng) % 250);
    w->prompt = other;
    for (int i = 1; i <= N; i++)
        ask(w, params((uint64_t)(N + i), 150, NEW));
    run(w, 0);
    w->prompt = known;
}

/* Rounds until its notes have the words. */
static void until_told(struct world *w, const char *words)
{
    int64_t end = clock_now_us(clock_real()) + (int64_t)DEADLINE_S * 1000000;

    while (!strstr(w->p->notes, words)) {
        if (clock_now_us(clock_real()) > end)
            fail_msg("nothing of '%s' was said: %s", words, w->p->notes);
        ask_others(w);
        ask_round(w, false);
        run(w, 50000);
    }
}

static int count(const char *text, const char *words)
{
    int n = 0;

    for (; (text = strstr(text, words)); text++)
        n++;
    return n;
}

static void begin(struct world *w, struct side *s)
{
    struct engine_cfg c = config();

    world_init(w);
    launch(s, &c);
    w->p = w->d = s;
    ask_round(w, true);
}

static void end(struct world *w)
{
    check_no_blocks(w->p);
    assert_int_equal(stop(w->p), 0);
    world_done(w);
    unlink(file);
    rmdir(folder);
}

static void limit_files(rlim_t bytes)
{
    struct rlimit r;

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &r), 0);
    r.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &r), 0);
}

static void test_full(void **state)
{
    (void)state;
    struct side s;
    struct world w;

    begin(&w, &s);
    for (int i = 0; i < 3; i++)
        ask_round(&w, false);
    assert_string_equal(s.notes, "");
    assert_true(metric_get(s.page, M_KV_TIER_HITS, 1) > 0);
    signal(SIGXFSZ, SIG_IGN);
    limit_files(4096); /* a write beyond it fails, as on a full disk */
    until_told(&w, "KV on disk fails");
    assert_true(s.alarm);
    double failed = metric_get(s.page, M_KV_TIER_FAILED, 0);
    int64_t since = clock_now_us(clock_real());
    for (int i = 0; i < 3; i++)
        ask_round(&w, false);
    assert_int_equal(count(s.notes, "KV on disk fails"), 1);
    /* writes are tried every two seconds, not again and again */
    double tries = 2 + (double)((clock_now_us(clock_real()) - since) / 2000000);
    assert_true(metric_get(s.page, M_KV_TIER_FAILED, 0) <= failed + tries * 16);
    limit_files(RLIM_INFINITY);
    until_told(&w, "KV goes to disk again");
    assert_false(s.alarm);
    end(&w);
}

static void test_removed(void **state)
{
    (void)state;
    struct side s;
    struct world w;
    struct stat st;

    begin(&w, &s);
    assert_int_equal(unlink(file), 0);
    assert_int_equal(rmdir(folder), 0);
    until_told(&w, "the file was removed");
    until_told(&w, "KV goes to disk again");
    assert_false(s.alarm);
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    double hits = metric_get(s.page, M_KV_TIER_HITS, 1);
    for (int i = 0; i < 400 && metric_get(s.page, M_KV_TIER_HITS, 1) == hits; i++)
        ask_round(&w, false);
    assert_true(metric_get(s.page, M_KV_TIER_HITS, 1) > hits);
    end(&w);
}

static void test_cut(void **state)
{
    (void)state;
    struct side s;
    struct world w;

    begin(&w, &s);
    for (int i = 0; i < 2; i++)
        ask_round(&w, false);
    assert_int_equal(truncate(file, 4096 + 100), 0);
    until_told(&w, "not as it was written");
    assert_false(s.alarm);
    for (int i = 0; i < 2; i++)
        ask_round(&w, false);
    end(&w);
}

/* A place that cannot be: said once; when it can be, it is taken. */
static void test_no_place(void **state)
{
    (void)state;
    struct side s;
    struct world w;

    FILE *f = fopen(folder, "w"); /* where the folder should be */
    assert_non_null(f);
    fclose(f);
    begin(&w, &s);
    ask_round(&w, false);
    assert_non_null(strstr(s.notes, file));
    assert_int_equal(count(s.notes, "\n"), 1);
    assert_true(s.alarm);
    assert_int_equal(unlink(folder), 0);
    for (int64_t until = clock_now_us(clock_real()) + (int64_t)DEADLINE_S * 1000000;
         metric_get(s.page, M_KV_TIER_HITS, 1) == 0;) {
        assert_true(clock_now_us(clock_real()) < until);
        ask_round(&w, false);
        run(&w, 20000);
    }
    assert_false(s.alarm);
    end(&w);
}

/* What is in host memory when an engine ends in order is there for the next one. */
static void test_flush(void **state)
{
    (void)state;
    enum { FEW = 9, WRITTEN = 2 }; /* they leave host slots free: nothing is written */
    struct engine_cfg c = config();
    struct step_token was[FEW + 1][NEW];
    struct side s;
    struct world w;

    world_init(&w);
    w.p = w.d = &s;
    for (int life = 0; life < 2; life++) {
        launch(&s, &c);
        for (int i = 1; i <= FEW; i++)
            ask(&w, params((uint64_t)i, 150 + i, NEW));
        run(&w, 0);
        for (int i = 1; i <= FEW; i++) {
            if (!life)
                memcpy(was[i], w.req[i].toks, sizeof(was[i]));
            assert_memory_equal(was[i], w.req[i].toks, sizeof(was[i]));
        }
        check_no_blocks(&s);
        if (!life)
            assert_true(metric_get(s.page, M_KV_TIER_BYTES, 0) > 0 &&
                        metric_get(s.page, M_KV_TIER_BYTES, WRITTEN) == 0);
        else
            assert_true(metric_get(s.page, M_KV_TIER_HITS, 1) > 0);
        assert_string_equal(s.notes, "");
        assert_int_equal(stop(&s), 0);
    }
    world_done(&w);
    unlink(file);
    rmdir(folder);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_flush),    cmocka_unit_test(test_full),
    cmocka_unit_test(test_removed),  cmocka_unit_test(test_cut),
    cmocka_unit_test(test_no_place),
};

int main(int argc, char **argv)
{
    snprintf(folder, sizeof(folder), "/tmp/llmrack-tier-faults-%d", (int)getpid());
    snprintf(file, sizeof(file), "%s/main.kv", folder);
    tiny_size.layers = LAYERS;
    int rc =
        test_main(argc, argv, "tier_faults", tests, sizeof(tests) / sizeof(tests[0]));

    for (int i = 0; models[i].family; i++)
        tiny_remove(models[i].dir);
    return rc;
}
