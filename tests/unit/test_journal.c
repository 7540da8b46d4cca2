/* tests/unit/test_journal.c - the chain: each way of changing the journal shows. */
#include "tests/store_help.h"

#include "base/sha256.h"
#include "state/revision.h"

static void note(const char *what, const char *detail)
{
    const struct journal_note n = {"uid 0", "unix", what, "main", "ok", detail};
    ok(journal_note(st, &n, &e));
}

static void rows(int n)
{
    char t[32];

    for (int i = 1; i <= n; i++) {
        snprintf(t, sizeof(t), "row %d", i);
        note("test.note", t);
    }
}

static void sha256_is_the_standard_one(void **state)
{
    char h[SHA256_CHARS + 1];

    (void)state;
    sha256_hex("abc", 3, h);
    assert_string_equal(
        h, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    sha256_hex("", 0, h);
    assert_string_equal(
        h, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

static void rows_are_chained(void **state)
{
    char head[65], want[65], text[256];
    struct journal_row r[3];
    int64_t n = -1;

    (void)state;
    ok(journal_head(st, head, &e));
    assert_string_equal(head, "");
    ok(journal_verify(st, &n, &e));
    assert_int_equal(n, 0);
    rows(2);
    reopen();
    ok(journal_list(st, 0, r, 3, &e));
    assert_string_equal(r[0].origin, "unix");
    ok(journal_head(st, head, &e));
    assert_string_equal(head, r[0].hash);
    /* the format is written down here too: what others may recompute */
    snprintf(text, sizeof(text),
             "64:%s,1:2,13:%lld,5:uid 0,4:unix,9:test.note,4:main,2:ok,5:row 2,1:0,",
             r[1].hash, (long long)r[0].at_ms);
    sha256_hex(text, strlen(text), want);
    assert_string_equal(head, want);
    ok(journal_verify(st, &n, &e));
    assert_int_equal(n, 2);
}

static void fields_are_cut_at_characters(void **state)
{
    char wide[1200] = "";
    struct journal_row r;
    int64_t n;

    (void)state;
    for (int i = 0; i < 399; i++)
        strcat(wide, "\xe2\x82\xac"); /* a sign of three bytes; 511 is no multiple */
    note("test.wide", wide);
    ok(journal_list(st, 0, &r, 1, &e));
    assert_int_equal(strlen(r.detail), 510);
    note("test\nline", NULL);
    ok(journal_list(st, 0, &r, 1, &e));
    assert_string_equal(r.what, "test line");
    assert_string_equal(r.detail, "");
    ok(journal_verify(st, &n, &e));
    assert_int_equal(n, 2);
}

static void every_change_shows(void **state)
{
    static const struct {
        const char *sql, *word;
        int fit; /* rows before the first that does not */
    } hands[] = {
        {"UPDATE journal SET detail = 'other' WHERE id = 3", "row 3", 2},
        {"UPDATE journal SET actor = 'uid 1' WHERE id = 1", "row 1", 0},
        {"UPDATE journal SET at_ms = at_ms + 1 WHERE id = 5", "row 5", 4},
        {"UPDATE journal SET origin = '' WHERE id = 2", "row 2", 1},
        {"UPDATE journal SET result = 'failed' WHERE id = 2", "row 2", 1},
        {"UPDATE journal SET revision = 9 WHERE id = 2", "row 2", 1},
        {"UPDATE journal SET subject = 'ma', result = 'inok' WHERE id = 4", "row 4", 3},
        {"UPDATE journal SET hash = '' WHERE id = 4", "row 4", 3},
        {"DELETE FROM journal WHERE id = 1", "row 1 was removed", 0},
        {"DELETE FROM journal WHERE id = 3", "row 3 was removed", 2},
        {"DELETE FROM journal WHERE id = 5", "rows 5 to 5 were cut", 4},
        {"DELETE FROM journal", "rows 1 to 5 were cut", 0},
    };
    int64_t n;

    (void)state;
    rows(5);
    for (size_t i = 0; i < sizeof(hands) / sizeof(hands[0]); i++) {
        behind("DROP TABLE IF EXISTS keep; CREATE TABLE keep AS SELECT * FROM journal");
        behind(hands[i].sql);
        refused(journal_verify(st, &n, &e), ERR_CORRUPT, hands[i].word);
        assert_int_equal(n, hands[i].fit);
        behind("DELETE FROM journal; INSERT INTO journal SELECT * FROM keep");
        ok(journal_verify(st, &n, &e));
        assert_int_equal(n, 5);
    }
}

/* A cut end with the sequence set back shows by what revisions remember. */
static void a_cut_end_shows_by_revisions(void **state)
{
    struct revision a = {.text = "a: 1\n"}, b = {.text = "b: 1\n"};
    int64_t n;

    (void)state;
    rows(2);
    ok(revision_put(st, &a, &e));
    rows(2);
    ok(revision_put(st, &b, &e));
    rows(1);
    behind("DELETE FROM journal WHERE id = 5;"
           "UPDATE sqlite_sequence SET seq = 4 WHERE name = 'journal'");
    ok(journal_verify(st, &n, &e)); /* nothing in the store remembers row 5 */
    behind("DELETE FROM journal WHERE id = 4;"
           "UPDATE sqlite_sequence SET seq = 3 WHERE name = 'journal'");
    refused(journal_verify(st, &n, &e), ERR_CORRUPT, "revision 2 remembers");
    assert_int_equal(n, 3);
    rows(2); /* grown again, with other rows */
    refused(journal_verify(st, &n, &e), ERR_CORRUPT, "revision 2 remembers");
}

static void a_removed_end_is_not_reused(void **state)
{
    struct journal_row r;
    int64_t n;

    (void)state;
    rows(3);
    behind("DELETE FROM journal WHERE id = 3");
    rows(1);
    ok(journal_list(st, 0, &r, 1, &e));
    assert_int_equal(r.id, 4);
    refused(journal_verify(st, &n, &e), ERR_CORRUPT, "row 3 was removed");
}

static struct journal_row heard;
static int n_heard;

static void hear(void *arg, const struct journal_row *r)
{
    assert_ptr_equal(arg, &n_heard);
    heard = *r;
    n_heard++;
}

static void listener_hears_what_is_stored(void **state)
{
    const struct journal_note n = {.what = "config.applying"};
    struct rev_point p = {.running = 7};
    struct rev_change none = {.id = 99};
    char head[65];

    (void)state;
    journal_listen(st, hear, &n_heard);
    n_heard = 0;
    rows(2);
    assert_int_equal(n_heard, 2);
    assert_string_equal(heard.detail, "row 2");
    ok(rev_point_set(st, &p, NULL, 0, &n, &e));
    assert_int_equal(n_heard, 3);
    assert_int_equal(heard.revision, 7);
    ok(journal_head(st, head, &e));
    assert_string_equal(head, heard.hash);
    assert_int_equal(rev_point_set(st, &p, &none, 1, &n, &e), -1);
    assert_int_equal(n_heard, 3); /* nothing stored, nothing said */
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(sha256_is_the_standard_one), WITH_STORE(rows_are_chained),
    WITH_STORE(fields_are_cut_at_characters),     WITH_STORE(every_change_shows),
    WITH_STORE(a_cut_end_shows_by_revisions),     WITH_STORE(a_removed_end_is_not_reused),
    WITH_STORE(listener_hears_what_is_stored),
};

TEST_MAIN("journal", tests)
