/* state/revision.c - the tables revision and config. */
#include "state/revision.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/sha256.h"
#include "state/store_impl.h"

static const char *const states[REV_STATE_COUNT] = {
#define X(id, text) text,
    REV_STATE_MAP(X)
#undef X
};
static const char *const phases[] = {"idle", "applying", "pending", "reverting"};
static const char *const guards[] = {"off", "on", "auto"};
#define COUNT(v) ((int)(sizeof(v) / sizeof((v)[0])))

const char *rev_phase_name(enum rev_phase p) { return phases[p]; }

const char *rev_state_name(enum rev_state s)
{
    return (unsigned)s < REV_STATE_COUNT ? states[s] : "?";
}

/* The index of a column's word in names, or -1 and a sentence. */
static int word(struct stmt *st, int col, const char *const *names, int n, struct err *e)
{
    char t[32];

    STMT_COPY(st, col, t);
    for (int i = 0; i < n; i++)
        if (!strcmp(t, names[i]))
            return i;
    return err_set(e, ERR_CORRUPT, "the state database knows a '%s' that nobody wrote",
                   t);
}

void revision_done(struct revision *r)
{
    free(r->text);
    free(r->before);
    free(r->after);
    r->text = r->before = r->after = NULL;
}

void rev_hash(const char *text, char ret[REV_HASH_CHARS + 1])
{
    sha256_hex(text, strlen(text), ret);
}

/* ---- revisions ---- */

static int check_text(const char *text, struct err *e)
{
    if (strlen(text) > REV_TEXT_MAX)
        return err_set(e, ERR_TOOBIG,
                       "the configuration has %zu bytes, more than the %d that are kept",
                       strlen(text), REV_TEXT_MAX);
    return 0;
}

static int put_body(struct store *s, void *arg, struct err *e)
{
    struct revision *r = arg;

    if (journal_head(s, r->journal_head, e) < 0)
        return -1;
    if (stmt_run(s, e,
                 "INSERT INTO revision(text, hash, base, author, at_ms, comment,"
                 " hypothesis, state, why, applied_ms, ended_ms, journal_head,"
                 " before_json, after_json)"
                 " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                 "ttitittttiittt", r->text, r->hash, r->base, r->author, r->at_ms,
                 r->comment, r->hypothesis, rev_state_name(r->state), r->why,
                 r->applied_ms, r->ended_ms, r->journal_head, r->before ? r->before : "",
                 r->after ? r->after : "") < 0)
        return -1;
    r->id = store_last_id(s);
    return 0;
}

int revision_put(struct store *s, struct revision *r, struct err *e)
{
    if (check_text(r->text, e) < 0)
        return -1;
    rev_hash(r->text, r->hash);
    if (!r->at_ms)
        r->at_ms = clock_wall_ms();
    if (store_write(s, false, put_body, r, e) < 0) {
        r->id = 0;
        return -1;
    }
    return 0;
}

#define SHORT                                                                            \
    "id, base, hash, author, comment, hypothesis, at_ms, applied_ms, ended_ms, state,"   \
    " why, journal_head"
enum { COL_TEXT = 12, COL_BEFORE, COL_AFTER };

static int read_short(struct stmt *st, struct revision *r, struct err *e)
{
    int state = word(st, 9, states, REV_STATE_COUNT, e);

    memset(r, 0, sizeof(*r));
    r->id = stmt_int(st, 0);
    r->base = stmt_int(st, 1);
    STMT_COPY(st, 2, r->hash);
    STMT_COPY(st, 3, r->author);
    STMT_COPY(st, 4, r->comment);
    STMT_COPY(st, 5, r->hypothesis);
    r->at_ms = stmt_int(st, 6);
    r->applied_ms = stmt_int(st, 7);
    r->ended_ms = stmt_int(st, 8);
    STMT_COPY(st, 10, r->why);
    STMT_COPY(st, 11, r->journal_head);
    if (state < 0)
        return -1;
    r->state = (enum rev_state)state;
    return 0;
}

static int not_there(struct store *s, int64_t id, struct err *e)
{
    int64_t first, last;

    if (stmt_number(s, "SELECT coalesce(min(id), 0) FROM revision", &first, e) < 0 ||
        stmt_number(s, "SELECT coalesce(max(id), 0) FROM revision", &last, e) < 0)
        return -1;
    if (!last)
        return err_set(e, ERR_NOTFOUND, "there is no revision %lld, nor any other yet",
                       (long long)id);
    return err_set(e, ERR_NOTFOUND, "there is no revision %lld; there are %lld to %lld",
                   (long long)id, (long long)first, (long long)last);
}

/* A text that is stored must be the one that was hashed; one that was pruned is not given
 * out as an empty configuration. */
static int check_whole(const struct revision *r, bool kept, struct err *e)
{
    char hash[REV_HASH_CHARS + 1];

    if (!kept)
        return err_set(e, ERR_NOTFOUND,
                       "the text of revision %lld is no longer kept (it is old and was "
                       "%s)",
                       (long long)r->id, rev_state_name(r->state));
    rev_hash(r->text, hash);
    if (strcmp(hash, r->hash))
        return err_set(e, ERR_CORRUPT,
                       "the text of revision %lld does not fit its hash: it was changed",
                       (long long)r->id);
    return 0;
}

int revision_get(struct store *s, int64_t id, struct revision *ret, struct err *e)
{
    struct revision r = {0};
    struct stmt *st = stmt_open(
        s, e,
        "SELECT " SHORT ", text, before_json, after_json FROM revision WHERE id = ?", "i",
        id);
    int rc = stmt_step(s, st, e), found = rc;
    bool kept = false;

    if (rc == 1) {
        rc = read_short(st, &r, e);
        kept = !stmt_null(st, COL_TEXT);
        r.text = stmt_dup(st, COL_TEXT);
        r.before = stmt_dup(st, COL_BEFORE);
        r.after = stmt_dup(st, COL_AFTER);
    }
    rc = stmt_end(s, st, rc, 0, e);
    if (rc == 0)
        rc = found ? check_whole(&r, kept, e) : not_there(s, id, e);
    if (rc < 0) {
        revision_done(&r);
        return -1;
    }
    *ret = r;
    return 0;
}

int revision_list(struct store *s, int64_t before, struct revision *ret, int max,
                  struct err *e)
{
    struct stmt *st = stmt_open(
        s, e, "SELECT " SHORT " FROM revision WHERE id < ? ORDER BY id DESC LIMIT ?",
        "ii", before > 0 ? before : INT64_MAX, (int64_t)max);
    int n = 0, rc = st ? 0 : -1;

    while (n < max && (rc = stmt_step(s, st, e)) == 1) {
        rc = read_short(st, &ret[n], e);
        if (rc < 0)
            break;
        n++;
    }
    return stmt_end(s, st, rc, n, e);
}

int revision_set_metrics(struct store *s, int64_t id, const char *before,
                         const char *after, struct err *e)
{
    int n = stmt_run(s, e,
                     "UPDATE revision SET before_json = coalesce(?, before_json),"
                     " after_json = coalesce(?, after_json) WHERE id = ?",
                     "tti", before, after, id);

    return n == 0 ? not_there(s, id, e) : n < 0 ? -1 : 0;
}

int revision_prune(struct store *s, int keep, struct err *e)
{
    return stmt_run(s, e,
                    "UPDATE revision SET text = NULL WHERE text IS NOT NULL"
                    " AND id <= (SELECT max(id) FROM revision) - ?"
                    " AND state IN ('superseded', 'discarded', 'failed', 'rolled back')"
                    " AND id NOT IN (SELECT running FROM config"
                    "   UNION SELECT good FROM config UNION SELECT pending FROM config"
                    "   UNION SELECT draft_base FROM config"
                    "   UNION SELECT r.base FROM revision r, config c"
                    "     WHERE r.id IN (c.running, c.good, c.pending))",
                    "i", (int64_t)keep) < 0
               ? -1
               : 0;
}

/* ---- what runs and what waits ---- */

int rev_point_get(struct store *s, struct rev_point *ret, struct err *e)
{
    struct rev_point p = {0};
    struct stmt *st = stmt_open(s, e,
                                "SELECT running, good, pending, phase, boot_id,"
                                " deadline_us, deadline_ms, guard FROM config",
                                "");
    int rc = stmt_step(s, st, e);

    if (rc == 1) {
        int phase = word(st, 3, phases, COUNT(phases), e);
        int guard = phase < 0 ? -1 : word(st, 7, guards, COUNT(guards), e);

        p.running = stmt_int(st, 0);
        p.good = stmt_int(st, 1);
        p.pending = stmt_int(st, 2);
        STMT_COPY(st, 4, p.boot_id);
        p.deadline_us = stmt_int(st, 5);
        p.deadline_ms = stmt_int(st, 6);
        rc = guard < 0 ? -1 : 0;
        p.phase = (enum rev_phase)(phase < 0 ? 0 : phase);
        p.guard = (enum rev_guard)(guard < 0 ? 0 : guard);
    }
    if (stmt_end(s, st, rc, 0, e) < 0)
        return -1;
    *ret = p;
    return 0;
}

/* The states of a change also date it: applied when it began to run, ended when it
 * ceased to. */
static int change_body(struct store *s, const struct rev_change *c, struct err *e)
{
    bool began = c->state == REV_PENDING || c->state == REV_CONFIRMED;
    bool ended = c->state >= REV_SUPERSEDED;
    int64_t now = clock_wall_ms();
    int n = stmt_run(s, e,
                     "UPDATE revision SET state = ?, why = ?,"
                     " applied_ms = iif(applied_ms = 0, ?, applied_ms),"
                     " ended_ms = iif(ended_ms = 0, ?, ended_ms) WHERE id = ?",
                     "ttiii", rev_state_name(c->state), c->why ? c->why : "",
                     began ? now : (int64_t)0, ended ? now : (int64_t)0, c->id);

    return n == 0 ? not_there(s, c->id, e) : n < 0 ? -1 : 0;
}

struct point {
    const struct rev_point *p;
    const struct rev_change *c;
    int n;
    const struct journal_note *note;
    struct journal_row row;
};

static int point_body(struct store *s, void *arg, struct err *e)
{
    struct point *x = arg;
    const struct rev_point *p = x->p;

    if (stmt_run(s, e,
                 "INSERT INTO config(one, running, good, pending, phase, boot_id,"
                 " deadline_us, deadline_ms, guard, draft, draft_base, draft_author)"
                 " VALUES(1, ?, ?, ?, ?, ?, ?, ?, ?, NULL, 0, '')"
                 " ON CONFLICT(one) DO UPDATE SET running = excluded.running,"
                 " good = excluded.good, pending = excluded.pending,"
                 " phase = excluded.phase, boot_id = excluded.boot_id,"
                 " deadline_us = excluded.deadline_us,"
                 " deadline_ms = excluded.deadline_ms, guard = excluded.guard",
                 "iiittiit", p->running, p->good, p->pending, phases[p->phase],
                 p->boot_id, p->deadline_us, p->deadline_ms, guards[p->guard]) < 0)
        return -1;
    for (int i = 0; i < x->n; i++)
        if (change_body(s, &x->c[i], e) < 0)
            return -1;
    return journal_append(s, x->note, &x->row, e);
}

int rev_point_set(struct store *s, const struct rev_point *p, const struct rev_change *c,
                  int n, const struct journal_note *note, struct err *e)
{
    struct point x = {.p = p, .c = c, .n = n, .note = note};

    if (store_write(s, true, point_body, &x, e) < 0)
        return -1;
    journal_tell(s, &x.row);
    return 0;
}

/* ---- the draft ---- */

int rev_draft_set(struct store *s, const char *text, int64_t base, const char *author,
                  struct err *e)
{
    if (text && check_text(text, e) < 0)
        return -1;
    return stmt_run(s, e,
                    "INSERT INTO config(one, running, good, pending, phase, boot_id,"
                    " deadline_us, deadline_ms, guard, draft, draft_base, draft_author)"
                    " VALUES(1, 0, 0, 0, 'idle', '', 0, 0, 'off', ?, ?, ?)"
                    " ON CONFLICT(one) DO UPDATE SET draft = excluded.draft,"
                    " draft_base = excluded.draft_base,"
                    " draft_author = excluded.draft_author",
                    "tit", text, text ? base : (int64_t)0, text ? author : "") < 0
               ? -1
               : 0;
}

int rev_draft_get(struct store *s, char **ret_text, int64_t *ret_base, char author[64],
                  struct err *e)
{
    struct stmt *st = stmt_open(s, e,
                                "SELECT draft, draft_base, draft_author FROM config"
                                " WHERE draft IS NOT NULL",
                                "");
    int rc = stmt_step(s, st, e), found = rc;
    char *text = NULL;

    if (rc == 1) {
        text = stmt_dup(st, 0);
        *ret_base = stmt_int(st, 1);
        stmt_text(st, 2, author, 64);
    }
    if (stmt_end(s, st, rc, 0, e) < 0) {
        free(text);
        return -1;
    }
    if (found)
        *ret_text = text;
    return found;
}
