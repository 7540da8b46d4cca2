/* tests/unit/test_confmgr.c - the machine of revisions on virtual time with a real store
 * and a fake fleet: each row of the state machine, each row of the crash table (the store
 * is opened again by a new confmgr, in the same boot or another), the guard, two editors.
 */
#include "tests/test.h"

#include <signal.h>
#include <sys/resource.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "daemon/ctrl/confmgr.h"
#include "daemon/ctrl/guard.h"
#include "state/journal.h"
#include "state/store.h"
#include "tests/files.h"

#define SECOND ((int64_t)1000000)

/* A fleet that does what it is told when the test says so. */
struct fix {
    char dir[64];
    struct store *store;
    struct clock clock;
    struct confmgr *m;
    const char *boot;

    struct conf *asked, *runs; /* being applied; applied last */
    void (*done)(void *arg, const struct err *why);
    void *done_arg;
    int n_applies;
    int64_t run_id; /* values in place are of this one */
    char run_level[16];
    bool refuse;  /* apply returns -1 */
    bool no_room; /* describe says that it does not fit */
    struct guard_window window;
    int n_windows;
    bool alarm;
    char alarm_text[300];
};

static const char seed_text[] = "log_level: info\n";
static const struct confmgr_who ann = {"ann", "unix"}, bob = {"bob", "192.0.2.7"};

static int fake_apply(void *arg, const struct conf *to,
                      void (*done)(void *arg2, const struct err *why), void *arg2,
                      struct err *e)
{
    struct fix *f = arg;

    assert_null(f->asked); /* one at a time */
    f->n_applies++;
    if (f->refuse)
        return err_set(e, ERR_NOFIT, "no room at all");
    f->asked = conf_ref(to);
    f->done = done;
    f->done_arg = arg2;
    return 0;
}

static void fake_runs(void *arg, const struct conf *c, int64_t id)
{
    struct fix *f = arg;

    f->run_id = id;
    snprintf(f->run_level, sizeof(f->run_level), "%s", c->log_level);
}

static void fake_window(void *arg, int64_t from_us, struct guard_window *ret)
{
    struct fix *f = arg;

    assert_true(from_us <= clock_now_us(&f->clock));
    f->n_windows++;
    *ret = f->window;
}

static void fake_figures(void *arg, int64_t from_us, struct buf *json)
{
    (void)arg, (void)from_us;
    buf_puts(json, "[{\"instance\":\"main\"}]");
}

static int fake_describe(void *arg, const struct conf *to, struct buf *json,
                         struct err *e)
{
    struct fix *f = arg;

    assert_non_null(to);
    buf_puts(json, "\"actions\":[{\"action\":\"hot\"}]");
    return f->no_room ? err_set(e, ERR_NOFIT, "needs 9 GiB, 4 GiB are there") : 0;
}

static void fake_alarm(void *arg, const char *id, bool on, const char *text)
{
    struct fix *f = arg;

    assert_string_equal(id, "config.rescue");
    f->alarm = on;
    snprintf(f->alarm_text, sizeof(f->alarm_text), "%s", text);
}

static struct confmgr_cfg config(struct fix *f)
{
    return (struct confmgr_cfg){
        .store = f->store,
        .clock = &f->clock,
        .boot_id = f->boot,
        .seed = seed_text,
        .ops = {fake_apply, fake_runs, fake_window, fake_figures, fake_describe,
                fake_alarm, f},
    };
}

/* The fleet is ready with what it was asked for, or failed (sentence). */
static void fleet_ends(struct fix *f, const char *sentence)
{
    struct conf *c = f->asked;
    struct err why;

    assert_non_null(c);
    f->asked = NULL;
    if (sentence) {
        conf_unref(c);
        err_set(&why, ERR_DEVICE, "%s", sentence);
    } else {
        conf_unref(f->runs);
        f->runs = c;
    }
    f->done(f->done_arg, sentence ? &why : NULL);
}

static void open_daemon(struct fix *f)
{
    struct confmgr_cfg cfg = config(f);
    struct err e = {0};

    if (store_open(f->dir, &f->store, &e) < 0)
        fail_msg("%s", e.msg);
    cfg.store = f->store;
    if (confmgr_new(&cfg, &f->m, &e) < 0 || confmgr_start(f->m, &e) < 0)
        fail_msg("%s", e.msg);
}

/* As SIGKILL leaves it: nothing is told or written. */
static void kill_daemon(struct fix *f)
{
    confmgr_free(f->m);
    store_close(f->store);
    conf_unref(f->asked);
    conf_unref(f->runs);
    f->m = NULL;
    f->asked = f->runs = NULL;
}

static void restart(struct fix *f, const char *boot)
{
    kill_daemon(f);
    f->boot = boot;
    open_daemon(f);
}

static int set_up(void **state)
{
    struct fix *f = calloc(1, sizeof(*f));

    files_temp(f->dir);
    clock_fake_init(&f->clock, 1000 * SECOND);
    f->boot = "boot-1";
    f->window = (struct guard_window){200, 190, 0, true};
    open_daemon(f);
    fleet_ends(f, NULL);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fix *f = *state;
    int64_t rows;
    struct err e = {0};

    if (journal_verify(f->store, &rows, &e) < 0)
        fail_msg("%s", e.msg);
    kill_daemon(f);
    files_remove(f->dir);
    free(f);
    return 0;
}

/* ---- what the tests look at ---- */

static struct rev_point point(struct fix *f)
{
    struct rev_point p;
    struct err e;

    assert_int_equal(rev_point_get(f->store, &p, &e), 0);
    return p;
}

static enum rev_state state_of(struct fix *f, int64_t id, char why[512])
{
    struct revision r = {0};
    struct err e;

    assert_int_equal(revision_get(f->store, id, &r, &e), 0);
    if (why)
        memcpy(why, r.why, 512);
    revision_done(&r);
    return r.state;
}

static void assert_state(struct fix *f, int64_t id, enum rev_state want,
                         const char *in_why)
{
    char why[512];
    enum rev_state s = state_of(f, id, why);

    if (s != want || (in_why && !strstr(why, in_why)))
        fail_msg("revision %lld is %s (%s)", (long long)id, rev_state_name(s), why);
}

static void assert_point(struct fix *f, enum rev_phase phase, int64_t running,
                         int64_t good, int64_t pending)
{
    struct rev_point p = point(f);

    if (p.phase != phase || p.running != running || p.good != good ||
        p.pending != pending)
        fail_msg("phase %d running %lld good %lld pending %lld", p.phase,
                 (long long)p.running, (long long)p.good, (long long)p.pending);
}

/* The newest row with this what has this result, and part in its detail. */
static void assert_journal(struct fix *f, const char *what, const char *actor,
                           const char *result, const char *part)
{
    struct journal_row *r = calloc(100, sizeof(*r));
    struct err e;
    int n = journal_list(f->store, 0, r, 100, &e), i = 0;

    while (i < n && strcmp(r[i].what, what))
        i++;
    if (i == n || strcmp(r[i].actor, actor) || strcmp(r[i].result, result) ||
        !strstr(r[i].detail, part))
        fail_msg("journal: %s by %s, %s: %s", i < n ? r[i].what : "(no row)",
                 i < n ? r[i].actor : "", i < n ? r[i].result : "",
                 i < n ? r[i].detail : "");
    free(r);
}

static int draft(struct fix *f, const char *text, int64_t base)
{
    struct err e = {0};
    int rc = confmgr_draft(f->m, &ann, text, base, &e);

    if (rc < 0)
        print_message("%s\n", e.msg);
    return rc;
}

static int64_t commit(struct fix *f, const char *text, const struct confmgr_commit *c)
{
    int64_t id = 0;
    struct err e = {0};

    assert_int_equal(draft(f, text, 0), 0);
    if (confmgr_commit(f->m, c, &id, &e) < 0)
        fail_msg("%s", e.msg);
    return id;
}

static const struct confmgr_commit plain = {.who = {"ann", "unix"}};
static const struct confmgr_commit windowed = {.who = {"ann", "unix"}, .confirm = true};
static const struct confmgr_commit guarded = {.who = {"ann", "unix"},
                                              .guard = REV_GUARD_ON};

static void pass(struct fix *f, int64_t seconds)
{
    clock_fake_advance(&f->clock, seconds * SECOND);
    confmgr_tick(f->m, clock_now_us(&f->clock));
}

static const char *level(struct fix *f) { return f->runs->log_level; }

static bool has_draft(struct fix *f)
{
    char *text = NULL, author[64];
    int64_t base;
    struct err e;
    int rc = rev_draft_get(f->store, &text, &base, author, &e);

    free(text);
    return rc == 1;
}

/* ---- the state machine ---- */

static void seed_is_revision_1(void **state)
{
    struct fix *f = *state;

    assert_point(f, REV_IDLE, 1, 1, 0);
    assert_state(f, 1, REV_CONFIRMED, NULL);
    assert_string_equal(level(f), "info");
    assert_journal(f, "config.seed", "daemon", "ok", "");
    restart(f, "boot-2"); /* the seed is no longer asked */
    fleet_ends(f, NULL);
    assert_point(f, REV_IDLE, 1, 1, 0);
}

static void commit_without_window(void **state)
{
    struct fix *f = *state;
    struct confmgr_status s;
    enum rev_state end;
    char message[512];
    int64_t id = commit(f, "log_level: warn\n", &plain);

    assert_int_equal(id, 2);
    assert_point(f, REV_PHASE_APPLYING, 1, 1, 2); /* stored before the fleet is told */
    assert_state(f, 2, REV_APPLYING, NULL);
    assert_string_equal(f->asked->log_level, "warn");
    assert_false(confmgr_settled(f->m, 2, &end, message));
    confmgr_status(f->m, &s);
    assert_true(s.applying && s.left_us == -1);
    assert_true(has_draft(f));
    fleet_ends(f, NULL);
    assert_point(f, REV_IDLE, 2, 2, 0);
    assert_state(f, 2, REV_CONFIRMED, "by ann at 20");
    assert_state(f, 1, REV_SUPERSEDED, NULL);
    assert_true(confmgr_settled(f->m, 2, &end, message));
    assert_int_equal(end, REV_CONFIRMED);
    assert_string_equal(level(f), "warn");
    assert_int_equal(f->run_id, 2);
    assert_string_equal(f->run_level, "warn");
    assert_false(has_draft(f));
    assert_journal(f, "config.commit", "ann", "ok", "without a window");
    assert_journal(f, "config.confirm", "ann", "ok", "");
    assert_int_equal(confmgr_tick(f->m, clock_now_us(&f->clock)), -1);
}

static void confirm_in_time(void **state)
{
    struct fix *f = *state;
    struct confmgr_status s;
    int64_t id = 0;
    struct err e = {0};

    commit(f, "log_level: warn\n", &windowed);
    assert_int_equal(confmgr_confirm(f->m, &ann, &id, &e), -1); /* not applied yet */
    assert_int_equal(e.code, ERR_CONFLICT);
    fleet_ends(f, NULL);
    assert_point(f, REV_PHASE_PENDING, 2, 1, 2);
    assert_state(f, 2, REV_PENDING, NULL);
    assert_int_equal(point(f).deadline_us, clock_now_us(&f->clock) + 600 * SECOND);
    assert_int_equal(confmgr_tick(f->m, clock_now_us(&f->clock)), point(f).deadline_us);
    pass(f, 599);
    confmgr_status(f->m, &s);
    assert_int_equal(s.left_us, SECOND);
    assert_int_equal(confmgr_confirm(f->m, &bob, &id, &e), 0);
    assert_int_equal(id, 2);
    assert_point(f, REV_IDLE, 2, 2, 0);
    assert_state(f, 2, REV_CONFIRMED, "by bob at 20");
    assert_state(f, 1, REV_SUPERSEDED, NULL);
    pass(f, 600);
    assert_null(f->asked);
    /* again, also after a restart: said, not refused */
    assert_int_equal(confmgr_confirm(f->m, &bob, &id, &e), 1);
    assert_non_null(strstr(e.msg, "revision 2 was already confirmed by bob at 20"));
    restart(f, "boot-1");
    fleet_ends(f, NULL);
    assert_int_equal(confmgr_confirm(f->m, &bob, &id, &e), 1);
    assert_int_equal(id, 2);
}

static void deadline_rolls_back(void **state)
{
    struct fix *f = *state;
    struct confmgr_commit c = windowed;
    enum rev_state end;
    char message[512];
    int64_t id = 0;
    struct err e = {0};

    c.confirm_s = 5;
    commit(f, "log_level: warn\n", &c);
    fleet_ends(f, NULL);
    assert_string_equal(level(f), "warn");
    pass(f, 4);
    assert_null(f->asked);
    pass(f, 1);
    assert_point(f, REV_PHASE_REVERTING, 2, 1, 2);
    assert_state(f, 2, REV_ROLLED_BACK, "not confirmed in time");
    assert_false(confmgr_settled(f->m, 2, &end, message));
    assert_int_equal(confmgr_confirm(f->m, &ann, &id, &e), -1); /* too late */
    fleet_ends(f, NULL);
    assert_point(f, REV_IDLE, 1, 1, 0);
    assert_string_equal(level(f), "info");
    assert_state(f, 1, REV_CONFIRMED, NULL);
    assert_true(confmgr_settled(f->m, 2, &end, message));
    assert_int_equal(end, REV_ROLLED_BACK);
    assert_non_null(strstr(message, "revision 1 runs again"));
    assert_int_equal(confmgr_confirm(f->m, &ann, &id, &e), -1);
    assert_non_null(strstr(e.msg, "revision 2 is rolled back: not confirmed in time"));
    assert_journal(f, "config.rollback", "daemon", "ok", "not confirmed in time");
    assert_journal(f, "config.confirm", "ann", "refused", "rolled back");
}

static void abort_now(void **state)
{
    struct fix *f = *state;
    int64_t id = 0;
    struct err e = {0};

    assert_int_equal(confmgr_abort(f->m, &bob, "", &id, &e), -1);
    assert_journal(f, "config.abort", "bob", "refused", "nothing is pending");
    commit(f, "log_level: warn\n", &windowed);
    fleet_ends(f, NULL);
    assert_int_equal(confmgr_abort(f->m, &bob, "too slow", &id, &e), 0);
    assert_int_equal(id, 2);
    assert_state(f, 2, REV_ROLLED_BACK, "aborted by bob: too slow");
    fleet_ends(f, NULL);
    assert_point(f, REV_IDLE, 1, 1, 0);
    assert_journal(f, "config.rollback", "bob", "ok", "too slow");
    /* while it is still being applied: as soon as the fleet is free */
    commit(f, "log_level: error\n", &plain);
    assert_int_equal(confmgr_abort(f->m, &bob, "", &id, &e), 0);
    assert_int_equal(f->n_applies, 4);
    fleet_ends(f, NULL);
    assert_state(f, 3, REV_ROLLED_BACK, "aborted by bob");
    assert_string_equal(f->asked->log_level, "info");
    fleet_ends(f, NULL);
    assert_point(f, REV_IDLE, 1, 1, 0);
}

static void failing_apply(void **state)
{
    struct fix *f = *state;

    commit(f, "log_level: warn\n", &windowed);
    fleet_ends(f, "engine 'main' ended: no such file; last line: oops");
    assert_point(f, REV_PHASE_REVERTING, 1, 1, 2);
    assert_state(f, 2, REV_FAILED, "last line: oops");
    assert_string_equal(f->asked->log_level, "info");
    assert_string_equal(f->run_level, "info");
    fleet_ends(f, NULL);
    assert_int_equal(f->run_id, 1);
    assert_point(f, REV_IDLE, 1, 1, 0);
    assert_state(f, 2, REV_FAILED, "last line: oops");
    assert_journal(f, "config.apply", "daemon", "failed", "last line: oops");
    assert_journal(f, "config.restored", "daemon", "ok", "last line: oops");
    assert_true(has_draft(f)); /* to be mended */
    assert_false(f->alarm);
}

static void refused_apply(void **state)
{
    struct fix *f = *state;
    int64_t id;
    struct err e = {0};

    f->no_room = true;
    assert_int_equal(draft(f, "log_level: warn\n", 0), 0);
    assert_int_equal(confmgr_commit(f->m, &plain, &id, &e), -1);
    assert_int_equal(e.code, ERR_NOFIT);
    assert_point(f, REV_IDLE, 1, 1, 0);
    assert_journal(f, "config.commit", "ann", "refused", "needs 9 GiB");
    f->no_room = false;
    f->refuse = true; /* and then the good one cannot be applied either */
    assert_int_equal(confmgr_commit(f->m, &plain, &id, &e), 0);
    assert_state(f, id, REV_FAILED, "no room at all");
    assert_true(f->alarm);
    assert_point(f, REV_IDLE, 0, 1, 0);
}

static void failing_rollback_is_rescued(void **state)
{
    struct fix *f = *state;
    struct confmgr_status s;
    int64_t id;

    commit(f, "log_level: warn\n", &windowed);
    fleet_ends(f, NULL);
    pass(f, 600);
    assert_false(f->alarm);
    fleet_ends(f, "the device is gone");
    assert_true(f->alarm);
    assert_non_null(strstr(f->alarm_text, "revision 1 cannot be applied: the device is"));
    assert_int_equal(f->asked->n_models, 0);
    assert_int_equal(f->run_id, 0);
    fleet_ends(f, NULL);
    assert_point(f, REV_IDLE, 0, 1, 0);
    assert_state(f, 2, REV_ROLLED_BACK, "not confirmed in time");
    assert_journal(f, "config.rescue", "daemon", "failed", "the device is gone");
    confmgr_status(f->m, &s);
    assert_true(s.rescue);
    /* the way out: any commit that can be applied */
    id = commit(f, "log_level: error\n", &plain);
    fleet_ends(f, NULL);
    assert_point(f, REV_IDLE, id, id, 0);
    assert_false(f->alarm);
    confmgr_status(f->m, &s);
    assert_false(s.rescue);
}

static void rescue_tries_again_at_start(void **state)
{
    struct fix *f = *state;

    commit(f, "log_level: warn\n", &plain);
    fleet_ends(f, "broken");
    fleet_ends(f, "broken too");
    fleet_ends(f, NULL);
    assert_point(f, REV_IDLE, 0, 1, 0);
    f->alarm = false;
    restart(f, "boot-2");
    assert_point(f, REV_IDLE, 1, 1, 0);
    assert_string_equal(f->asked->log_level, "info");
    fleet_ends(f, NULL);
    assert_false(f->alarm);
}

/* At a plain start the engines are the supervisors' affair: they try on. */
static void failing_start_is_no_rescue(void **state)
{
    struct fix *f = *state;
    struct confmgr_status s;

    restart(f, "boot-2");
    fleet_ends(f, "the model's file is not there");
    confmgr_status(f->m, &s);
    assert_false(s.rescue);
    assert_non_null(strstr(s.last, "not there"));
    assert_journal(f, "config.apply", "daemon", "failed", "not there");
    commit(f, "log_level: warn\n", &plain);
    fleet_ends(f, NULL);
    assert_point(f, REV_IDLE, 2, 2, 0);
}

static void rollback_is_a_new_revision(void **state)
{
    struct fix *f = *state;
    struct revision r = {0};
    int64_t id = 0;
    struct err e = {0};

    assert_int_equal(confmgr_rollback(f->m, 0, &plain, &id, &e), -1);
    assert_int_equal(e.code, ERR_NOTFOUND);
    commit(f, "log_level: warn\n", &plain);
    fleet_ends(f, NULL);
    commit(f, "log_level: error\n", &plain);
    fleet_ends(f, NULL);
    assert_int_equal(confmgr_rollback(f->m, 0, &windowed, &id, &e), 0);
    assert_int_equal(id, 4);
    fleet_ends(f, NULL);
    assert_string_equal(level(f), "warn");
    assert_int_equal(confmgr_confirm(f->m, &ann, &id, &e), 0);
    assert_int_equal(revision_get(f->store, 4, &r, &e), 0);
    assert_string_equal(r.comment, "as revision 2");
    assert_string_equal(r.text, "log_level: warn\n");
    assert_int_equal(r.base, 3);
    revision_done(&r);
    assert_journal(f, "config.rollback", "ann", "ok", "600 s; as revision 2");
    /* back again: what ran before the rollback */
    assert_int_equal(confmgr_rollback(f->m, 0, &plain, &id, &e), 0);
    fleet_ends(f, NULL);
    assert_string_equal(level(f), "error");
    assert_point(f, REV_IDLE, 5, 5, 0);
    assert_state(f, 3, REV_SUPERSEDED, NULL);
    assert_int_equal(confmgr_rollback(f->m, 1, &plain, &id, &e), 0);
    fleet_ends(f, NULL);
    assert_string_equal(level(f), "info");
    assert_int_equal(confmgr_rollback(f->m, 77, &plain, &id, &e), -1);
    assert_int_equal(e.code, ERR_NOTFOUND);
    assert_int_equal(confmgr_rollback(f->m, 1, &plain, &id, &e), -1);
    assert_non_null(strstr(e.msg, "nothing would change"));
}

static void one_at_a_time(void **state)
{
    struct fix *f = *state;
    int64_t id;
    struct err e = {0};

    commit(f, "log_level: warn\n", &windowed);
    for (int i = 0; i < 3; i++) { /* applying, pending, reverting */
        assert_int_equal(draft(f, "log_level: error\n", 0), 0);
        assert_int_equal(confmgr_commit(f->m, &plain, &id, &e), -1);
        assert_int_equal(e.code, ERR_CONFLICT);
        assert_int_equal(confmgr_rollback(f->m, 1, &plain, &id, &e), -1);
        assert_int_equal(e.code, ERR_CONFLICT);
        if (i == 1)
            assert_non_null(strstr(e.msg, "revision 2 waits for its confirmation, 600"));
        if (i == 0)
            fleet_ends(f, NULL);
        if (i == 1)
            assert_int_equal(confmgr_abort(f->m, &ann, "", &id, &e), 0);
    }
    fleet_ends(f, NULL);
    assert_int_equal(confmgr_commit(f->m, &plain, &id, &e), -1); /* it began from 2 */
    assert_string_equal(e.param, "base");
    assert_int_equal(draft(f, "log_level: error\n", 0), 0);
    assert_int_equal(confmgr_commit(f->m, &plain, &id, &e), 0);
    assert_int_equal(id, 3); /* the refused ones left nothing behind */
}

/* ---- crash table ---- */

static void crash_with_a_draft(void **state)
{
    struct fix *f = *state;

    assert_int_equal(draft(f, "log_level: warn\n", 0), 0);
    restart(f, "boot-1");
    fleet_ends(f, NULL);
    assert_true(has_draft(f));
    assert_point(f, REV_IDLE, 1, 1, 0);
    assert_int_equal(draft(f, NULL, 0), 0);
    restart(f, "boot-1");
    fleet_ends(f, NULL);
    assert_false(has_draft(f));
}

/* The revision is stored, the intent is not. */
static void crash_before_the_intent(void **state)
{
    struct fix *f = *state;
    struct revision r = {.state = REV_CHECKED, .text = strdup("log_level: warn\n")};
    struct err e;

    assert_int_equal(revision_put(f->store, &r, &e), 0);
    revision_done(&r);
    restart(f, "boot-1");
    fleet_ends(f, NULL);
    assert_point(f, REV_IDLE, 1, 1, 0);
    assert_state(f, 2, REV_DISCARDED, "before it was applied");
    assert_journal(f, "config.discard", "daemon", "ok", "");
}

/* An empty store, of which only the revision was stored. */
static void crash_in_the_seed(void **state)
{
    struct fix *f = *state;
    struct revision r = {.state = REV_CHECKED, .text = strdup(seed_text)};
    struct err e;

    kill_daemon(f);
    files_remove(f->dir);
    files_temp(f->dir);
    assert_int_equal(store_open(f->dir, &f->store, &e), 0);
    assert_int_equal(revision_put(f->store, &r, &e), 0);
    revision_done(&r);
    store_close(f->store);
    open_daemon(f);
    fleet_ends(f, NULL);
    assert_point(f, REV_IDLE, 1, 1, 0);
    assert_state(f, 1, REV_CONFIRMED, NULL);
}

static void crash_while_applying(void **state)
{
    struct fix *f = *state;

    for (int i = 0; i < 4; i++) { /* with and without a window, this boot and another */
        int64_t id = commit(f, "log_level: warn\n", i & 1 ? &windowed : &plain);

        restart(f, i < 2 ? f->boot : i == 2 ? "boot-2" : "boot-3");
        assert_point(f, REV_PHASE_REVERTING, 1, 1, id);
        assert_state(f, id, REV_ROLLED_BACK, "the daemon ended while it was applied");
        assert_string_equal(f->asked->log_level, "info");
        fleet_ends(f, NULL);
        assert_point(f, REV_IDLE, 1, 1, 0);
        assert_true(has_draft(f));
    }
}

static void crash_in_the_window_same_boot(void **state)
{
    struct fix *f = *state;
    int64_t id;
    struct err e = {0};

    commit(f, "log_level: warn\n", &windowed);
    fleet_ends(f, NULL);
    clock_fake_advance(&f->clock, 100 * SECOND);
    restart(f, "boot-1");
    assert_string_equal(f->asked->log_level, "warn"); /* goes on */
    assert_point(f, REV_PHASE_PENDING, 2, 1, 2);
    assert_int_equal(point(f).deadline_us, 1600 * SECOND);
    fleet_ends(f, NULL);
    pass(f, 499);
    assert_null(f->asked);
    pass(f, 1);
    assert_state(f, 2, REV_ROLLED_BACK, "not confirmed in time");
    fleet_ends(f, NULL);
    assert_point(f, REV_IDLE, 1, 1, 0);
    /* or it is confirmed */
    commit(f, "log_level: warn\n", &windowed);
    fleet_ends(f, NULL);
    restart(f, "boot-1");
    assert_int_equal(confmgr_confirm(f->m, &ann, &id, &e),
                     0); /* even before it is back */
    assert_int_equal(id, 3);
    fleet_ends(f, NULL);
    assert_point(f, REV_IDLE, 3, 3, 0);
    assert_string_equal(level(f), "warn");
}

/* Some grace, once: a revision that kills the daemon again and again is not kept by it.
 */
static void crash_near_the_deadline(void **state)
{
    struct fix *f = *state;

    commit(f, "log_level: warn\n", &windowed);
    fleet_ends(f, NULL);
    clock_fake_advance(&f->clock, 595 * SECOND);
    restart(f, "boot-1");
    assert_int_equal(point(f).deadline_us, (1595 + CONFMGR_GRACE_S) * SECOND);
    fleet_ends(f, NULL);
    clock_fake_advance(&f->clock, 20 * SECOND);
    restart(f, "boot-1");
    assert_int_equal(point(f).deadline_us, (1595 + CONFMGR_GRACE_S) * SECOND);
    fleet_ends(f, NULL);
    clock_fake_advance(&f->clock, 11 * SECOND);
    restart(f, "boot-1");
    assert_state(f, 2, REV_ROLLED_BACK, "not confirmed in time");
    assert_string_equal(f->asked->log_level, "info");
    fleet_ends(f, NULL);
    assert_point(f, REV_IDLE, 1, 1, 0);
}

/* The daemon was away for longer than the window. */
static void crash_past_the_deadline(void **state)
{
    struct fix *f = *state;

    commit(f, "log_level: warn\n", &windowed);
    fleet_ends(f, NULL);
    clock_fake_advance(&f->clock, 5000 * SECOND);
    restart(f, "boot-1");
    assert_int_equal(point(f).deadline_us, (6000 + CONFMGR_GRACE_S) * SECOND);
    clock_fake_advance(&f->clock, 31 * SECOND); /* while the engine still loads */
    confmgr_tick(f->m, clock_now_us(&f->clock));
    assert_string_equal(f->asked->log_level, "warn");
    fleet_ends(f, NULL);
    assert_state(f, 2, REV_ROLLED_BACK, "not confirmed in time");
    fleet_ends(f, NULL);
    assert_point(f, REV_IDLE, 1, 1, 0);
}

static void crash_in_the_window_other_boot(void **state)
{
    struct fix *f = *state;

    commit(f, "log_level: warn\n", &windowed);
    fleet_ends(f, NULL);
    restart(f, "boot-2");
    assert_state(f, 2, REV_ROLLED_BACK, "the machine was started again");
    assert_string_equal(f->asked->log_level, "info");
    fleet_ends(f, NULL);
    assert_point(f, REV_IDLE, 1, 1, 0);
    assert_journal(f, "config.rollback", "daemon", "ok", "the machine was started again");
}

static void resumed_one_fails(void **state)
{
    struct fix *f = *state;

    commit(f, "log_level: warn\n", &windowed);
    fleet_ends(f, NULL);
    restart(f, "boot-1");
    fleet_ends(f, "no memory");
    assert_state(f, 2, REV_ROLLED_BACK, "after a restart: no memory");
    fleet_ends(f, NULL);
    assert_point(f, REV_IDLE, 1, 1, 0);
}

/* Confirmed while its engines were still loading after a restart: then it is the good
 * one, and its engines are the supervisors' affair. */
static void confirmed_while_resumed(void **state)
{
    struct fix *f = *state;
    int64_t id;
    struct err e = {0};

    commit(f, "log_level: warn\n", &windowed);
    fleet_ends(f, NULL);
    restart(f, "boot-1");
    assert_int_equal(confmgr_confirm(f->m, &ann, &id, &e), 0);
    fleet_ends(f, "no memory");
    assert_point(f, REV_IDLE, 2, 2, 0);
    assert_state(f, 2, REV_CONFIRMED, "by ann");
    assert_journal(f, "config.apply", "daemon", "failed", "no memory");
    commit(f, "log_level: error\n", &plain);
    fleet_ends(f, NULL);
    assert_point(f, REV_IDLE, 3, 3, 0);
}

static void crash_during_the_rollback(void **state)
{
    struct fix *f = *state;

    commit(f, "log_level: warn\n", &windowed);
    fleet_ends(f, NULL);
    pass(f, 600);
    for (int i = 0; i < 3; i++) {
        restart(f, i == 1 ? "boot-2" : f->boot);
        assert_point(f, REV_PHASE_REVERTING, 2, 1, 2);
        assert_string_equal(f->asked->log_level, "info");
    }
    fleet_ends(f, NULL);
    assert_point(f, REV_IDLE, 1, 1, 0);
    assert_state(f, 2, REV_ROLLED_BACK, "not confirmed in time");
    /* a failed one that was being restored stays failed; rescue works from here too */
    commit(f, "log_level: warn\n", &plain);
    fleet_ends(f, "broken");
    restart(f, f->boot);
    assert_state(f, 3, REV_FAILED, "broken");
    fleet_ends(f, "broken too");
    assert_true(f->alarm);
    fleet_ends(f, NULL);
    assert_state(f, 3, REV_FAILED, "broken");
    assert_point(f, REV_IDLE, 0, 1, 0);
}

/* A text that this version no longer reads. */
static void unreadable_good_is_rescued(void **state)
{
    struct fix *f = *state;
    struct revision r = {.state = REV_CONFIRMED, .text = strdup("no_such_key: 1\n")};
    struct journal_note note = {"test", "", "test", "", "ok", ""};
    struct rev_point p = {.boot_id = "boot-1"};
    struct err e;

    assert_int_equal(revision_put(f->store, &r, &e), 0);
    p.running = p.good = r.id;
    assert_int_equal(rev_point_set(f->store, &p, NULL, 0, &note, &e), 0);
    revision_done(&r);
    restart(f, "boot-1");
    assert_true(f->alarm);
    assert_non_null(strstr(f->alarm_text, "no_such_key"));
    fleet_ends(f, NULL);
    assert_point(f, REV_IDLE, 0, 2, 0);
    commit(f, seed_text, &plain);
    fleet_ends(f, NULL);
    assert_point(f, REV_IDLE, 3, 3, 0);
    assert_false(f->alarm);
}

static void faulty_seed_and_option(void **state)
{
    struct fix *f = *state;
    struct confmgr_cfg cfg;
    const struct conf_override wrong = {"log_level", "loud"};
    struct confmgr *m;
    struct err e = {0};

    kill_daemon(f);
    assert_int_equal(store_open(f->dir, &f->store, &e), 0);
    cfg = config(f);
    cfg.over = &wrong; /* the option is at fault, not the text: no rescue */
    cfg.n_over = 1;
    assert_int_equal(confmgr_new(&cfg, &m, &e), -1);
    assert_non_null(strstr(e.msg, "log_level: 'loud'"));
    store_close(f->store);
    files_remove(f->dir);
    files_temp(f->dir);
    assert_int_equal(store_open(f->dir, &f->store, &e), 0);
    cfg = config(f);
    cfg.seed = "log_level: loud\nno_such_key: 1\n";
    assert_int_equal(confmgr_new(&cfg, &m, &e), -1);
    assert_non_null(strstr(e.msg, "line 1, column"));
    store_close(f->store);
    open_daemon(f); /* nothing was left behind */
    fleet_ends(f, NULL);
    assert_point(f, REV_IDLE, 1, 1, 0);
}

/* ---- two editors ---- */

static void stale_base(void **state)
{
    struct fix *f = *state;
    struct confmgr_commit c = plain;
    int64_t id = 0;
    struct err e = {0};
    struct buf json;

    commit(f, "log_level: warn\n", &plain);
    fleet_ends(f, NULL);
    assert_int_equal(draft(f, "log_level: info\nlimits:\n  drain_s: 9\n", 1), 0);
    assert_int_equal(confmgr_commit(f->m, &plain, &id, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_string_equal(e.param, "base");
    assert_non_null(strstr(e.msg, "log_level: info -> warn"));
    assert_journal(f, "config.commit", "ann", "refused", "log_level");
    buf_init(&json, 0);
    assert_int_equal(confmgr_diff(f->m, 1, CONFMGR_RUNNING, &json, &e), 0);
    assert_non_null(strstr(json.p, "-log_level: info\\n+log_level: warn"));
    assert_non_null(
        strstr(json.p, "\"path\":\"log_level\",\"from\":\"info\",\"to\":\"warn\""));
    buf_done(&json);
    c.rebase = true;
    assert_int_equal(confmgr_commit(f->m, &c, &id, &e), 0);
    fleet_ends(f, NULL);
    assert_string_equal(level(f), "warn"); /* theirs */
    assert_int_equal(f->runs->limits.drain_s, 9);
    assert_false(has_draft(f));
    /* a commit for another base than the one that runs */
    assert_int_equal(draft(f, "log_level: error\n", 0), 0);
    c = plain;
    c.if_base = 2;
    assert_int_equal(confmgr_commit(f->m, &c, &id, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    c.if_base = 3;
    assert_int_equal(confmgr_commit(f->m, &c, &id, &e), 0);
}

static void rebase_conflict(void **state)
{
    struct fix *f = *state;
    struct confmgr_commit c = plain;
    int64_t id = 0;
    struct err e = {0};

    c.rebase = true;
    commit(f, "log_level: warn\n", &plain);
    fleet_ends(f, NULL);
    assert_int_equal(draft(f, "log_level: error\n", 1), 0);
    assert_int_equal(confmgr_commit(f->m, &c, &id, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_non_null(strstr(e.msg, "log_level"));
    assert_point(f, REV_IDLE, 2, 2, 0);
    assert_true(has_draft(f));
}

/* What was edited while the commit was applied is not lost with it. */
static void draft_of_the_next(void **state)
{
    struct fix *f = *state;

    commit(f, "log_level: warn\n", &plain);
    assert_int_equal(draft(f, "log_level: error\n", 0), 0);
    fleet_ends(f, NULL);
    assert_true(has_draft(f));
}

static void faulty_drafts(void **state)
{
    struct fix *f = *state;
    struct confmgr_commit c = plain;
    struct buf json;
    int64_t id = 0;
    struct err e = {0};

    assert_int_equal(confmgr_commit(f->m, &plain, &id, &e), -1);
    assert_int_equal(e.code, ERR_NOTFOUND);
    assert_int_equal(confmgr_draft(f->m, &ann, "x", 9, &e), -1);
    assert_int_equal(e.code, ERR_NOTFOUND);
    assert_int_equal(draft(f, "log_level: loud\nno_such_key: 1\n", 0), 0); /* kept */
    assert_int_equal(confmgr_commit(f->m, &plain, &id, &e), -1);
    assert_int_equal(e.code, ERR_INVALID);
    assert_non_null(strstr(e.msg, "(and 1 more)"));
    buf_init(&json, 0);
    assert_int_equal(confmgr_check(f->m, NULL, &json, &e), -1);
    assert_non_null(strstr(json.p, "\"line\":1,\"column\":12"));
    assert_non_null(strstr(json.p, "\"line\":2,\"column\":1"));
    assert_non_null(strstr(json.p, "\"ok\":false"));
    buf_clear(&json);
    assert_int_equal(confmgr_check(f->m, "log_level: warn\n", &json, &e), 0);
    assert_non_null(strstr(json.p, "\"class\":\"hot\""));
    assert_non_null(strstr(json.p, "\"ok\":true,\"actions\":[{\"action\":\"hot\"}]}"));
    f->no_room = true;
    buf_clear(&json);
    assert_int_equal(confmgr_check(f->m, "log_level: warn\n", &json, &e), -1);
    assert_non_null(strstr(json.p, "\"fits\":false,\"ok\":false"));
    assert_non_null(strstr(json.p, "needs 9 GiB"));
    buf_done(&json);
    f->no_room = false;
    c.confirm_s = -1;
    assert_int_equal(confmgr_commit(f->m, &c, &id, &e), -1);
    assert_int_equal(e.code, ERR_RANGE);
    assert_int_equal(draft(f, seed_text, 0), 0);
    assert_int_equal(confmgr_commit(f->m, &plain, &id, &e), -1);
    assert_non_null(strstr(e.msg, "nothing would change"));
}

/* ---- a store that cannot be written ---- */

/* No file of this process grows any more, as on a full disk. */
static void disk(bool full)
{
    struct rlimit r = {full ? 0 : RLIM_INFINITY, RLIM_INFINITY};

    signal(SIGXFSZ, SIG_IGN);
    fflush(NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &r), 0);
}

static void full_disk_refuses(void **state)
{
    struct fix *f = *state;
    int64_t id = 0;
    int rc[3];
    struct err e[3] = {0};

    assert_int_equal(draft(f, "log_level: warn\n", 0), 0);
    disk(true);
    rc[0] = confmgr_commit(f->m, &plain, &id, &e[0]);
    disk(false);
    assert_int_equal(rc[0], -1);
    assert_true(e[0].code == ERR_IO || e[0].code == ERR_UNAVAIL);
    assert_true(strlen(e[0].msg) > 10);
    assert_null(f->asked); /* nothing was done */
    assert_point(f, REV_IDLE, 1, 1, 0);
    assert_int_equal(confmgr_commit(f->m, &windowed, &id, &e[0]), 0);
    fleet_ends(f, NULL);
    disk(true);
    rc[0] = confmgr_confirm(f->m, &ann, &id, &e[0]);
    rc[1] = confmgr_draft(f->m, &ann, "log_level: error\n", 0, &e[1]);
    disk(false);
    assert_int_equal(rc[0], -1); /* it was not confirmed, and nobody says so */
    assert_int_equal(rc[1], -1);
    assert_int_equal(point(f).phase, REV_PHASE_PENDING);
    assert_int_equal(confmgr_confirm(f->m, &ann, &id, &e[0]), 0);
}

/* The service comes first: it goes back, and the store follows. */
static void full_disk_stops_no_rollback(void **state)
{
    struct fix *f = *state;
    int64_t id, first, last;
    struct err e = {0};

    first = commit(f, "log_level: warn\n", &windowed);
    fleet_ends(f, NULL);
    disk(true);
    pass(f, 600);
    disk(false);
    assert_string_equal(f->asked->log_level, "info");
    disk(true);
    fleet_ends(f, NULL);
    disk(false);
    assert_int_equal(draft(f, "log_level: error\n", 0), 0);
    assert_int_equal(confmgr_commit(f->m, &plain, &id, &e), -1);
    assert_int_equal(e.code, ERR_UNAVAIL);
    assert_int_equal(point(f).phase, REV_PHASE_PENDING);
    pass(f, 1);
    assert_point(f, REV_IDLE, 1, 1, 0);
    assert_state(f, first, REV_ROLLED_BACK, "not confirmed in time");
    /* killed before the store could follow: the next start does it */
    last = commit(f, "log_level: warn\n", &windowed);
    fleet_ends(f, NULL);
    disk(true);
    pass(f, 600);
    fleet_ends(f, NULL);
    disk(false);
    restart(f, "boot-2");
    assert_state(f, last, REV_ROLLED_BACK, "the machine was started again");
    fleet_ends(f, NULL);
    assert_point(f, REV_IDLE, 1, 1, 0);
}

/* Applied, but it cannot be stored that it was: it is taken back. */
static void full_disk_after_apply(void **state)
{
    struct fix *f = *state;

    commit(f, "log_level: warn\n", &plain);
    disk(true);
    fleet_ends(f, NULL);
    disk(false);
    assert_string_equal(f->asked->log_level, "info");
    fleet_ends(f, NULL);
    assert_point(f, REV_IDLE, 1, 1, 0);
    assert_int_equal(state_of(f, 2, NULL), REV_FAILED);
}

static void restart_class_is_said(void **state)
{
    struct fix *f = *state;
    enum rev_state end;
    char message[512];

    commit(f, "listen:\n  address: 127.0.0.1:9999\n", &plain);
    fleet_ends(f, NULL);
    assert_true(confmgr_settled(f->m, 2, &end, message));
    assert_non_null(strstr(message, "next start of the daemon: listen.address"));
}

/* ---- guard ---- */

static void guard_breach(void **state)
{
    struct fix *f = *state;
    struct revision r = {0};
    struct confmgr_status s;
    int64_t id = commit(f, "log_level: warn\n", &guarded);
    struct err e;

    f->window.n = 10;
    f->window.met = 0;
    fleet_ends(f, NULL);
    assert_point(f, REV_PHASE_PENDING, 2, 1, 2); /* guard implies confirm */
    assert_int_equal(confmgr_tick(f->m, clock_now_us(&f->clock)),
                     clock_now_us(&f->clock) + 2 * SECOND);
    pass(f, 2);
    confmgr_status(f->m, &s);
    assert_string_equal(s.verdict, "insufficient data (10 of 50 requests since)");
    assert_null(f->asked);
    f->window.n = 100;
    f->window.met = 60;
    pass(f, 2);
    assert_state(f, id, REV_ROLLED_BACK, "SLO attainment fell from 95.00 % to 60.00 %");
    assert_journal(f, "config.rollback", "guard", "ok", "fell from 95.00 % to 60.00 %");
    fleet_ends(f, NULL);
    assert_point(f, REV_IDLE, 1, 1, 0);
    assert_int_equal(revision_get(f->store, id, &r, &e), 0);
    assert_non_null(strstr(r.before, "\"requests\":200,\"met\":190"));
    assert_non_null(strstr(r.after, "\"requests\":100,\"met\":60"));
    assert_non_null(strstr(r.after, "\"slo\":[{\"instance\":\"main\"}]"));
    revision_done(&r);
    assert_int_equal(revision_get(f->store, 1, &r, &e), 0);
    assert_non_null(strstr(r.after, "\"requests\":200"));
    revision_done(&r);
}

static void guard_readiness(void **state)
{
    struct fix *f = *state;

    commit(f, "log_level: warn\n", &guarded);
    fleet_ends(f, NULL);
    pass(f, 2);
    f->window.ready = false;
    pass(f, 2);
    assert_state(f, 2, REV_ROLLED_BACK, "readiness was lost");
    fleet_ends(f, NULL);
}

/* Good, but nobody confirmed: the deadline decides. */
static void guard_leaves_it_to_the_deadline(void **state)
{
    struct fix *f = *state;

    commit(f, "log_level: warn\n", &guarded);
    fleet_ends(f, NULL);
    pass(f, 599);
    assert_null(f->asked);
    pass(f, 1);
    assert_state(f, 2, REV_ROLLED_BACK, "not confirmed in time; no worse");
    fleet_ends(f, NULL);
}

static void guard_auto(void **state)
{
    struct fix *f = *state;
    struct confmgr_commit c = guarded;

    c.guard = REV_GUARD_AUTO;
    commit(f, "log_level: warn\n", &c);
    fleet_ends(f, NULL);
    pass(f, 300);
    assert_point(f, REV_PHASE_PENDING, 2, 1, 2); /* not before the end of the window */
    pass(f, 300);
    assert_point(f, REV_IDLE, 2, 2, 0);
    assert_state(f, 2, REV_CONFIRMED, "by guard");
    assert_journal(f, "config.confirm", "guard", "ok", "no worse: attainment 95.00 %");
    /* with too few requests it does not */
    commit(f, "log_level: error\n", &c);
    fleet_ends(f, NULL);
    f->window.n = f->window.met = 12;
    pass(f, 600);
    assert_state(f, 3, REV_ROLLED_BACK, "insufficient data (12 of 50 requests since)");
    fleet_ends(f, NULL);
    assert_point(f, REV_IDLE, 2, 2, 0);
}

/* The window before comes from the store after a restart. */
static void guard_after_a_restart(void **state)
{
    struct fix *f = *state;

    commit(f, "log_level: warn\n", &guarded);
    fleet_ends(f, NULL);
    restart(f, "boot-1");
    fleet_ends(f, NULL);
    f->window = (struct guard_window){100, 20, 0, true};
    pass(f, 2);
    assert_state(f, 2, REV_ROLLED_BACK, "fell from 95.00 % to 20.00 %");
    fleet_ends(f, NULL);
}

/* The same requests are not judged again and again. */
static void guard_looks_less_often(void **state)
{
    struct fix *f = *state;

    commit(f, "log_level: warn\n", &guarded);
    fleet_ends(f, NULL);
    f->window = (struct guard_window){100, 95, 0, true};
    pass(f, 2);
    f->window = (struct guard_window){110, 60, 0, true};
    pass(f, 2);
    assert_null(f->asked);
    f->window.n = 125;
    pass(f, 2);
    assert_state(f, 2, REV_ROLLED_BACK, "fell");
    fleet_ends(f, NULL);
}

static void guard_without_figures(void **state)
{
    struct fix *f = *state;
    struct confmgr_cfg cfg;
    int64_t id;
    struct err e = {0};

    kill_daemon(f);
    assert_int_equal(store_open(f->dir, &f->store, &e), 0);
    cfg = config(f);
    cfg.ops.window = NULL;
    assert_int_equal(confmgr_new(&cfg, &f->m, &e), 0);
    assert_int_equal(confmgr_start(f->m, &e), 0);
    fleet_ends(f, NULL);
    assert_int_equal(draft(f, "log_level: warn\n", 0), 0);
    assert_int_equal(confmgr_commit(f->m, &guarded, &id, &e), -1);
    assert_int_equal(e.code, ERR_UNSUPPORTED);
    assert_int_equal(confmgr_commit(f->m, &windowed, &id, &e), 0);
    fleet_ends(f, NULL);
    pass(f, 600);
    fleet_ends(f, NULL);
    assert_point(f, REV_IDLE, 1, 1, 0);
}

#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
static const struct CMUnitTest tests[] = {
    T(seed_is_revision_1),
    T(commit_without_window),
    T(confirm_in_time),
    T(deadline_rolls_back),
    T(abort_now),
    T(failing_apply),
    T(refused_apply),
    T(failing_rollback_is_rescued),
    T(rescue_tries_again_at_start),
    T(failing_start_is_no_rescue),
    T(rollback_is_a_new_revision),
    T(one_at_a_time),
    T(crash_with_a_draft),
    T(crash_before_the_intent),
    T(crash_in_the_seed),
    T(crash_while_applying),
    T(crash_in_the_window_same_boot),
    T(crash_near_the_deadline),
    T(crash_past_the_deadline),
    T(crash_in_the_window_other_boot),
    T(resumed_one_fails),
    T(confirmed_while_resumed),
    T(crash_during_the_rollback),
    T(unreadable_good_is_rescued),
    T(faulty_seed_and_option),
    T(stale_base),
    T(rebase_conflict),
    T(draft_of_the_next),
    T(faulty_drafts),
    T(full_disk_refuses),
    T(full_disk_stops_no_rollback),
    T(full_disk_after_apply),
    T(restart_class_is_said),
    T(guard_breach),
    T(guard_readiness),
    T(guard_leaves_it_to_the_deadline),
    T(guard_auto),
    T(guard_after_a_restart),
    T(guard_looks_less_often),
    T(guard_without_figures),
};

TEST_MAIN("confmgr", tests)
