/* tests/unit/test_revision.c - revisions, the one row that says what runs, the draft. */
#include "tests/store_help.h"

#include "state/revision.h"

static int64_t put(const char *text, int64_t base)
{
    struct revision r = {.base = base, .author = "uid 0", .comment = "c"};

    r.text = (char *)text; /* borrowed by the call */
    ok(revision_put(st, &r, &e));
    return r.id;
}

static void set(struct rev_point p, int64_t id, enum rev_state state)
{
    const struct journal_note n = {.actor = "t", .what = "config.step", .result = "ok"};
    struct rev_change c = {id, state, "because"};

    ok(rev_point_set(st, &p, &c, 1, &n, &e));
}

static void a_revision_is_kept_whole(void **state)
{
    struct revision r = {.base = 0,
                         .text = (char *)"rack: auto\n# \xc3\xa4 'quoted'\n",
                         .author = "key ab",
                         .comment = "first",
                         .hypothesis = "faster",
                         .state = REV_CHECKED};
    struct revision got;
    char hash[REV_HASH_CHARS + 1];

    (void)state;
    ok(journal_add(st, "a", "b", "c", "ok", &e, "x"));
    ok(revision_put(st, &r, &e));
    assert_int_equal(r.id, 1);
    reopen();
    ok(revision_get(st, 1, &got, &e));
    assert_string_equal(got.text, r.text);
    rev_hash(r.text, hash);
    assert_string_equal(got.hash, hash);
    assert_string_equal(got.author, "key ab");
    assert_string_equal(got.comment, "first");
    assert_string_equal(got.hypothesis, "faster");
    assert_string_equal(got.before, "");
    assert_int_equal(got.state, REV_CHECKED);
    assert_int_equal(got.at_ms, r.at_ms);
    ok(journal_head(st, hash, &e));
    assert_string_equal(got.journal_head, hash);
    revision_done(&got);
    ok(revision_set_metrics(st, 1, "{\"n\":1}", NULL, &e));
    ok(revision_set_metrics(st, 1, NULL, "{\"n\":2}", &e));
    ok(revision_get(st, 1, &got, &e));
    assert_string_equal(got.before, "{\"n\":1}");
    assert_string_equal(got.after, "{\"n\":2}");
    revision_done(&got);
    revision_done(&got); /* twice is fine */
}

static void wrong_ones_are_refused(void **state)
{
    struct revision r = {0}, got;
    char *big = malloc(REV_TEXT_MAX + 2);

    (void)state;
    refused(revision_get(st, 1, &got, &e), ERR_NOTFOUND, "nor any other");
    put("a", 0);
    put("b", 1);
    refused(revision_get(st, 3, &got, &e), ERR_NOTFOUND, "there are 1 to 2");
    refused(revision_set_metrics(st, 9, "", "", &e), ERR_NOTFOUND, "revision 9");
    memset(big, 'x', REV_TEXT_MAX + 1);
    big[REV_TEXT_MAX + 1] = '\0';
    r.text = big;
    refused(revision_put(st, &r, &e), ERR_TOOBIG, "1048577");
    assert_int_equal(r.id, 0);
    refused(rev_draft_set(st, big, 0, "u", &e), ERR_TOOBIG, "1048577");
    big[REV_TEXT_MAX] = '\0';
    ok(revision_put(st, &r, &e));
    free(big);
    behind("UPDATE revision SET text = 'c' WHERE id = 2");
    refused(revision_get(st, 2, &got, &e), ERR_CORRUPT, "revision 2 does not fit");
    behind("UPDATE revision SET state = 'strange' WHERE id = 1");
    refused(revision_get(st, 1, &got, &e), ERR_CORRUPT, "strange");
    refused(revision_list(st, 2, &got, 1, &e), ERR_CORRUPT, "strange");
}

static void lists_go_back(void **state)
{
    struct revision r[3];

    (void)state;
    assert_int_equal(revision_list(st, 0, r, 3, &e), 0);
    for (int i = 0; i < 5; i++)
        put("t", i);
    assert_int_equal(revision_list(st, 0, r, 3, &e), 3);
    assert_int_equal(r[0].id, 5);
    assert_null(r[0].text);
    assert_int_equal(r[2].base, 2);
    assert_int_equal(revision_list(st, r[2].id, r, 3, &e), 2);
    assert_int_equal(r[1].id, 1);
}

static void the_point_is_one_row(void **state)
{
    struct rev_point p = {.running = 2,
                          .good = 1,
                          .pending = 2,
                          .phase = REV_PHASE_PENDING,
                          .boot_id = "b",
                          .deadline_us = INT64_MAX,
                          .deadline_ms = 17,
                          .guard = REV_GUARD_AUTO};
    struct rev_point got;
    struct revision r;

    (void)state;
    memset(&got, 1, sizeof(got));
    ok(rev_point_get(st, &got, &e));
    assert_int_equal(got.running, 0);
    assert_int_equal(got.phase, REV_IDLE);
    put("a", 0);
    put("b", 1);
    set(p, 2, REV_PENDING);
    reopen();
    ok(rev_point_get(st, &got, &e));
    assert_int_equal(got.running, 2);
    assert_int_equal(got.good, 1);
    assert_int_equal(got.pending, 2);
    assert_int_equal(got.phase, REV_PHASE_PENDING);
    assert_string_equal(got.boot_id, "b");
    assert_true(got.deadline_us == INT64_MAX);
    assert_int_equal(got.deadline_ms, 17);
    assert_int_equal(got.guard, REV_GUARD_AUTO);
    ok(revision_get(st, 2, &r, &e));
    assert_int_equal(r.state, REV_PENDING);
    assert_true(r.applied_ms > 0 && r.ended_ms == 0);
    revision_done(&r);
    set((struct rev_point){.running = 1, .good = 1}, 2, REV_ROLLED_BACK);
    ok(revision_get(st, 2, &r, &e));
    assert_string_equal(r.why, "because");
    assert_string_equal(rev_state_name(r.state), "rolled back");
    assert_true(r.ended_ms >= r.applied_ms);
    revision_done(&r);
}

static void a_change_that_fails_changes_nothing(void **state)
{
    const struct journal_note n = {.what = "config.step"};
    const struct rev_change c[2] = {{1, REV_CONFIRMED, ""}, {44, REV_FAILED, ""}};
    struct rev_point p = {.running = 1}, got;
    struct journal_row row;
    struct revision r;

    (void)state;
    put("a", 0);
    refused(rev_point_set(st, &p, c, 2, &n, &e), ERR_NOTFOUND, "revision 44");
    ok(rev_point_get(st, &got, &e));
    assert_int_equal(got.running, 0);
    ok(revision_get(st, 1, &r, &e));
    assert_int_equal(r.state, REV_CANDIDATE);
    revision_done(&r);
    assert_int_equal(journal_list(st, 0, &row, 1, &e), 0);
    ok(rev_point_set(st, &p, c, 1, &n, &e));
    assert_int_equal(journal_list(st, 0, &row, 1, &e), 1);
}

static void the_draft_stays_beside(void **state)
{
    char *text = NULL, author[64];
    struct rev_point p;
    int64_t base = -1;

    (void)state;
    assert_int_equal(rev_draft_get(st, &text, &base, author, &e), 0);
    ok(rev_draft_set(st, "", 0, "uid 1", &e)); /* an empty one is one too */
    assert_int_equal(rev_draft_get(st, &text, &base, author, &e), 1);
    assert_string_equal(text, "");
    free(text);
    put("a", 0);
    ok(rev_draft_set(st, "x: 1", 1, "uid 0", &e));
    set((struct rev_point){.running = 1, .good = 1}, 1, REV_CONFIRMED);
    reopen();
    assert_int_equal(rev_draft_get(st, &text, &base, author, &e), 1);
    assert_string_equal(text, "x: 1");
    assert_string_equal(author, "uid 0");
    assert_int_equal(base, 1);
    free(text);
    ok(rev_draft_set(st, NULL, 5, "uid 0", &e));
    assert_int_equal(rev_draft_get(st, &text, &base, author, &e), 0);
    ok(rev_point_get(st, &p, &e));
    assert_int_equal(p.running, 1);
}

static bool text_kept(int64_t id)
{
    struct revision r;

    if (revision_get(st, id, &r, &e) == 0) {
        revision_done(&r);
        return true;
    }
    assert_int_equal(e.code, ERR_NOTFOUND);
    assert_non_null(strstr(e.msg, "no longer kept"));
    return false;
}

static void prune_keeps_what_is_needed(void **state)
{
    struct revision r[10];

    (void)state;
    for (int i = 1; i <= 10; i++) {
        put("t", i == 5 ? 2 : 0);
        set((struct rev_point){0}, i, i == 3 ? REV_CHECKED : REV_SUPERSEDED);
    }
    set((struct rev_point){.running = 5, .good = 4, .pending = 5}, 5, REV_SUPERSEDED);
    ok(rev_draft_set(st, "d", 6, "u", &e));
    ok(revision_prune(st, 3, &e));
    for (int i = 1; i <= 10; i++) /* 2 base, 3 no end, 4 good, 5 runs, 6 draft's base */
        assert_int_equal(text_kept(i), (i >= 2 && i <= 6) || i > 7);
    assert_int_equal(revision_list(st, 0, r, 10, &e), 10); /* their rows stay */
}

static const struct CMUnitTest tests[] = {
    WITH_STORE(a_revision_is_kept_whole),
    WITH_STORE(wrong_ones_are_refused),
    WITH_STORE(lists_go_back),
    WITH_STORE(the_point_is_one_row),
    WITH_STORE(a_change_that_fails_changes_nothing),
    WITH_STORE(the_draft_stays_beside),
    WITH_STORE(prune_keeps_what_is_needed),
};

TEST_MAIN("revision", tests)
