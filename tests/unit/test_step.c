/* tests/unit/test_step.c - layout and check of a step as bytes. */
#include "tests/test.h"

#include <math.h>

#include "base/err.h"
#include "daemon/serve/step.h"

static const struct step_caps caps = {.items = 3,
                                      .toks = 7,
                                      .blocks = 5,
                                      .samples = 3,
                                      .hist = 9,
                                      .biases = 4,
                                      .copies = 2,
                                      .refs = 3,
                                      .outs = 4};

/* Two items: a prompt of 3 with two scored rows and a sample, and one token by
 * reference. */
static struct step *example(void)
{
    struct step *s = step_new(&caps);
    const struct step_sample sp = {
        .top_p = 1, .repetition = 1, .n_hist = 3, .n_prompt = 2};

    s->n_items = 2, s->n_toks = 4, s->n_blocks = 3, s->n_samples = 2;
    s->n_hist = 3, s->n_refs = 1, s->n_copies = 1, s->n_biases = 1;
    step_items(s)[0] = (struct step_item){.seq = 1,
                                          .n_tok = 3,
                                          .parent_off = -1,
                                          .n_block = 1,
                                          .next = -1,
                                          .sample = 0,
                                          .n_top = 20};
    step_items(s)[1] = (struct step_item){.seq = 2,
                                          .first_pos = 20,
                                          .n_tok = 1,
                                          .tok_off = 3,
                                          .parent_off = -1,
                                          .block_off = 1,
                                          .n_block = 2,
                                          .next = -1,
                                          .sample = 1,
                                          .n_top = -1};
    for (int i = 0; i < 3; i++)
        step_toks(s)[i] = i, step_hist(s)[i] = i, step_blocks(s)[i] = i;
    step_toks(s)[3] = STEP_TOK_REF;
    step_refs(s)[0] = (struct step_ref){.ticket = 1, .seq = 2, .at = 3};
    step_samples(s)[0] = step_samples(s)[1] = sp;
    step_samples(s)[1].n_hist = step_samples(s)[1].n_prompt = 0;
    step_samples(s)[1].n_bias = 1;
    step_copies(s)[0] = (struct step_copy){1, 2};
    step_biases(s)[0] = (struct step_bias){5, 1.5f};
    return s;
}

static void test_layout(void **st)
{
    (void)st;
    struct step *s = step_new(&caps);
    struct part {
        char *p;
        size_t n;
    } part[] = {
        {(char *)step_items(s), caps.items * sizeof(struct step_item)},
        {(char *)step_samples(s), caps.samples * sizeof(struct step_sample)},
        {(char *)step_refs(s), caps.refs * sizeof(struct step_ref)},
        {(char *)step_copies(s), caps.copies * sizeof(struct step_copy)},
        {(char *)step_biases(s), caps.biases * sizeof(struct step_bias)},
        {(char *)step_toks(s), caps.toks * sizeof(int32_t)},
        {(char *)step_parents(s), caps.toks * sizeof(int32_t)},
        {(char *)step_positions(s), caps.toks * sizeof(int32_t)},
        {(char *)step_blocks(s), caps.blocks * sizeof(int32_t)},
        {(char *)step_hist(s), caps.hist * sizeof(int32_t)},
    };
    char *end = (char *)s + sizeof(*s);

    for (size_t i = 0; i < sizeof(part) / sizeof(part[0]); i++) {
        assert_true(part[i].p >= end); /* in order, none over another */
        assert_int_equal((uintptr_t)part[i].p % (i < 3 ? 8 : 4), 0);
        end = part[i].p + part[i].n;
    }
    assert_int_equal(end - (char *)s, step_bytes(&caps));
    assert_int_equal(s->bytes, step_bytes(&caps));
    free(s);
}

static void test_copy(void **st)
{
    (void)st;
    struct step *s = example(), *d = step_new(&caps);
    struct err e;

    step_copy_to(d, s);
    assert_int_equal(step_check(d, d->bytes, &e), 0);
    assert_memory_equal(step_items(d), step_items(s), 2 * sizeof(struct step_item));
    assert_int_equal(step_toks(d)[3], STEP_TOK_REF);
    assert_int_equal(step_refs(d)[0].at, 3);
    assert_int_equal(step_biases(d)[0].id, 5);
    assert_int_equal(step_copies(d)[0].dst, 2);
    step_clear(d);
    assert_int_equal(d->n_items + d->n_toks + d->n_refs + d->n_copies, 0);
    assert_int_equal(step_check(d, d->bytes, &e), 0);
    free(s);
    free(d);
}

static int check_of(const struct step *s)
{
    struct err e = {.msg = ""};
    int rc = step_check(s, step_bytes(&caps), &e);

    assert_int_equal(rc < 0, e.msg[0] != '\0');
    return rc;
}

/* The example is right, and after one change it is not. */
#define REFUSED(change)                                                                  \
    do {                                                                                 \
        struct step *s = example();                                                      \
        assert_int_equal(check_of(s), 0);                                                \
        change;                                                                          \
        assert_int_equal(check_of(s), -1);                                               \
        free(s);                                                                         \
    } while (0)

static void test_check(void **st)
{
    (void)st;
    struct step *whole = example();

    assert_int_equal(step_check(whole, 8, NULL), -1);
    assert_int_equal(step_check(whole, whole->bytes - 4, NULL), -1);
    free(whole);
    REFUSED(s->bytes--);
    REFUSED(s->caps.toks = -1);
    REFUSED(s->caps.toks = INT32_MAX);
    REFUSED(s->caps.outs = 3); /* 3 + 1 rows */
    REFUSED(s->n_items = 4);
    REFUSED(s->n_items = -1);
    REFUSED(s->n_refs = 0);
    REFUSED(s->n_hist = 2);
    REFUSED(step_items(s)[0].n_tok = 0);
    REFUSED(step_items(s)[0].n_tok = 5);
    REFUSED(step_items(s)[0].tok_off = -1);
    REFUSED(step_items(s)[0].first_pos = -1);
    REFUSED(step_items(s)[0].first_pos = INT32_MAX - 1);
    REFUSED(step_items(s)[1].block_off = 2);
    REFUSED(step_items(s)[1].block_off = INT32_MAX);
    REFUSED(step_items(s)[1].out_from = 2);
    REFUSED(step_items(s)[1].out_from = 1); /* samples, and no row for it */
    REFUSED(step_items(s)[1].sample = 2);
    REFUSED(step_items(s)[1].sample = -1); /* an output of nothing */
    REFUSED(step_items(s)[1].n_top = 21);
    REFUSED(step_items(s)[0].parent_off = 5);
    REFUSED(step_items(s)[0].parent_off = 0); /* row 0 would be its own parent */
    REFUSED(step_toks(s)[0] = -5);
    REFUSED(step_toks(s)[0] = STEP_TOK_REF);
    REFUSED(step_refs(s)[0].at = 2);
    REFUSED(step_refs(s)[0].at = 99);
    REFUSED(step_refs(s)[0].index = -1);
    REFUSED(step_samples(s)[0].hist_off = 1);
    REFUSED(step_samples(s)[0].n_hist = -1);
    REFUSED(step_samples(s)[0].n_prompt = 4);
    REFUSED(step_samples(s)[1].bias_off = 1);
    REFUSED(step_samples(s)[0].temperature = NAN);
    REFUSED(step_samples(s)[0].temperature = -1);
    REFUSED(step_samples(s)[0].top_p = 0);
    REFUSED(step_samples(s)[0].min_p = 1.5f);
    REFUSED(step_samples(s)[0].repetition = 0);
    REFUSED(step_samples(s)[0].presence = INFINITY);
    REFUSED(step_samples(s)[0].top_k = -1);
    REFUSED(step_blocks(s)[1] = -2);
    REFUSED(step_copies(s)[0].src = -1);
    REFUSED(step_biases(s)[0].id = -1);
    REFUSED(step_biases(s)[0].bias = NAN);
}

/* Random damage never makes the check read outside (the sanitizers watch). */
static void test_damage(void **st)
{
    (void)st;
    uint64_t rng = test_seed();
    int bad = 0;

    for (int i = 0; i < 20000; i++) {
        struct step *s = example();
        struct err e;
        size_t bytes = s->bytes;
        for (uint64_t n = 1 + test_rand(&rng) % 3; n; n--)
            ((uint8_t *)s)[test_rand(&rng) % bytes] = (uint8_t)test_rand(&rng);
        bad += step_check(s, bytes, &e) < 0;
        free(s);
    }
    assert_true(bad > 5000);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_copy),
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_damage),
    };
    return test_main(argc, argv, "step", tests, sizeof(tests) / sizeof(tests[0]));
}
