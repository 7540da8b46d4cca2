/* state/journal.c - the audit trail as a hash chain.
 *
 * hash(row) = SHA-256 of netstrings ("3:abc,"): the hash before, then the columns of
 * HASHED in their order, numbers in decimal. Ids come from SQLite's own sequence, which
 * outlives the rows, so that a cut end shows as well as a gap. Rows from before the chain
 * were sealed into it by migration 3. */
#include "state/journal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/sha256.h"
#include "state/store_impl.h"

#define HASHED "id, at_ms, actor, origin, what, subject, result, detail, revision"
enum { N_HASHED = 9, COL_HASH = N_HASHED, COL_ID = 0 };

static void net(struct buf *b, const char *p, size_t n)
{
    buf_printf(b, "%zu:", n);
    buf_add(b, p, n);
    buf_putc(b, ',');
}

static void net_int(struct buf *b, int64_t v)
{
    char t[24];
    net(b, t, (size_t)snprintf(t, sizeof(t), "%lld", (long long)v));
}

static void net_text(struct buf *b, const char *t) { net(b, t, strlen(t)); }

static void hash_row(const char *before, struct journal_row *r)
{
    struct buf b;

    buf_init(&b, 0);
    net_text(&b, before);
    net_int(&b, r->id);
    net_int(&b, r->at_ms);
    net_text(&b, r->actor);
    net_text(&b, r->origin);
    net_text(&b, r->what);
    net_text(&b, r->subject);
    net_text(&b, r->result);
    net_text(&b, r->detail);
    net_int(&b, r->revision);
    sha256_hex(b.p, b.len, r->hash);
    buf_done(&b);
}

/* The same from a statement that selects HASHED, whatever the columns' sizes. */
static void hash_stored(const char *before, struct stmt *st,
                        char ret[JOURNAL_HASH_CHARS + 1])
{
    struct buf b;

    buf_init(&b, 0);
    net_text(&b, before);
    for (int i = 0; i < N_HASHED; i++) {
        size_t n;
        const char *p = stmt_bytes(st, i, &n);
        net(&b, p, n);
    }
    sha256_hex(b.p, b.len, ret);
    buf_done(&b);
}

/* At most cap - 1 bytes, cut at a whole UTF-8 character; control bytes become spaces. */
static void bounded(char *out, size_t cap, const char *in)
{
    size_t n = strlen(in ? in : "");

    if (n >= cap) {
        n = cap - 1;
        while (n > 0 && ((unsigned char)in[n] & 0xC0) == 0x80)
            n--;
    }
    for (size_t i = 0; i < n; i++)
        out[i] = (unsigned char)in[i] < 0x20 || in[i] == 0x7F ? ' ' : in[i];
    out[n] = '\0';
}

#define BOUNDED(field, in) bounded(field, sizeof(field), in)

int journal_append(struct store *s, const struct journal_note *n, struct journal_row *ret,
                   struct err *e)
{
    char before[JOURNAL_HASH_CHARS + 1];
    int64_t last, seq;

    memset(ret, 0, sizeof(*ret));
    if (journal_head(s, before, e) < 0 ||
        stmt_number(s, "SELECT coalesce(max(id), 0) FROM journal", &last, e) < 0 ||
        stmt_number(
            s, "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'journal'",
            &seq, e) < 0 ||
        stmt_number(s, "SELECT coalesce(max(running), 0) FROM config", &ret->revision,
                    e) < 0)
        return -1;
    ret->id = (seq > last ? seq : last) + 1;
    ret->at_ms = clock_wall_ms();
    BOUNDED(ret->actor, n->actor);
    BOUNDED(ret->origin, n->origin);
    BOUNDED(ret->what, n->what);
    BOUNDED(ret->subject, n->subject);
    BOUNDED(ret->result, n->result);
    BOUNDED(ret->detail, n->detail);
    hash_row(before, ret);
    return stmt_run(s, e,
                    "INSERT INTO journal(" HASHED ", hash)"
                    " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    "iittttttit", ret->id, ret->at_ms, ret->actor, ret->origin, ret->what,
                    ret->subject, ret->result, ret->detail, ret->revision, ret->hash) < 0
               ? -1
               : 0;
}

void journal_tell(struct store *s, const struct journal_row *r)
{
    const struct store_journal *j = store_journal(s);

    if (j->fn)
        j->fn(j->arg, r);
}

struct append {
    const struct journal_note *note;
    struct journal_row row;
};

static int append_body(struct store *s, void *arg, struct err *e)
{
    struct append *a = arg;
    return journal_append(s, a->note, &a->row, e);
}

int journal_note(struct store *s, const struct journal_note *n, struct err *e)
{
    struct append a = {.note = n};

    if (store_write(s, true, append_body, &a, e) < 0)
        return -1;
    journal_tell(s, &a.row);
    return 0;
}

int journal_add(struct store *s, const char *actor, const char *what, const char *subject,
                const char *result, struct err *e, const char *fmt, ...)
{
    char detail[2 * sizeof(((struct journal_row *)0)->detail)];
    struct journal_note n = {.actor = actor,
                             .what = what,
                             .subject = subject,
                             .result = result,
                             .detail = detail};
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(detail, sizeof(detail), fmt, ap);
    va_end(ap);
    return journal_note(s, &n, e);
}

int journal_list(struct store *s, int64_t before_id, struct journal_row *ret, int max,
                 struct err *e)
{
    struct stmt *st = stmt_open(
        s, e,
        "SELECT " HASHED ", hash FROM journal WHERE id < ? ORDER BY id DESC LIMIT ?",
        "ii", before_id > 0 ? before_id : INT64_MAX, (int64_t)max);
    int n = 0, rc = st ? 0 : -1;

    while (st && n < max && (rc = stmt_step(s, st, e)) == 1) {
        struct journal_row *r = &ret[n++];
        r->id = stmt_int(st, 0);
        r->at_ms = stmt_int(st, 1);
        STMT_COPY(st, 2, r->actor);
        STMT_COPY(st, 3, r->origin);
        STMT_COPY(st, 4, r->what);
        STMT_COPY(st, 5, r->subject);
        STMT_COPY(st, 6, r->result);
        STMT_COPY(st, 7, r->detail);
        r->revision = stmt_int(st, 8);
        STMT_COPY(st, COL_HASH, r->hash);
    }
    return stmt_end(s, st, rc, n, e);
}

int journal_head(struct store *s, char ret[JOURNAL_HASH_CHARS + 1], struct err *e)
{
    return stmt_word(s, "SELECT hash FROM journal ORDER BY id DESC LIMIT 1", ret,
                     JOURNAL_HASH_CHARS + 1, e);
}

void journal_listen(struct store *s, journal_fn fn, void *arg)
{
    *store_journal(s) = (struct store_journal){.fn = fn, .arg = arg};
}

/* ---- the chain ---- */

int journal_seal(struct store *s, struct err *e)
{
    char hash[JOURNAL_HASH_CHARS + 1] = "";
    int64_t id = 0;

    for (;;) {
        struct stmt *st = stmt_open(
            s, e, "SELECT " HASHED " FROM journal WHERE id > ? ORDER BY id LIMIT 1", "i",
            id);
        int rc = stmt_step(s, st, e);

        if (rc == 1) {
            id = stmt_int(st, COL_ID);
            hash_stored(hash, st, hash);
        }
        if (stmt_end(s, st, rc, 0, e) < 0)
            return -1;
        if (rc == 0)
            return 0;
        if (stmt_run(s, e, "UPDATE journal SET hash = ? WHERE id = ?", "ti", hash, id) <
            0)
            return -1;
    }
}

/* The heads that revisions remember, in the order of revisions, which is the order in
 * which the journal grew: both are walked once. */
struct heads {
    struct stmt *st;
    int64_t id; /* 0 = no more */
    char hash[JOURNAL_HASH_CHARS + 1];
};

static int next_head(struct store *s, struct heads *h, struct err *e)
{
    int rc = stmt_step(s, h->st, e);

    h->id = 0;
    if (rc == 1) {
        h->id = stmt_int(h->st, 0);
        STMT_COPY(h->st, 1, h->hash);
    }
    return rc < 0 ? -1 : 0;
}

/* One row: *id and hash are those of the row before and become this one's. */
static int verify_row(struct stmt *st, int64_t *id, char hash[JOURNAL_HASH_CHARS + 1],
                      struct err *e)
{
    char want[JOURNAL_HASH_CHARS + 1], got[JOURNAL_HASH_CHARS + 8];
    int64_t here = stmt_int(st, COL_ID);

    if (here != *id + 1)
        return err_set(e, ERR_CORRUPT,
                       "journal: row %lld was removed (row %lld comes after row %lld)",
                       (long long)*id + 1, (long long)here, (long long)*id);
    hash_stored(hash, st, want);
    STMT_COPY(st, COL_HASH, got);
    if (strcmp(got, want))
        return err_set(e, ERR_CORRUPT,
                       "journal: row %lld does not fit its hash: it, or the hash of the "
                       "row before it, was changed",
                       (long long)here);
    memcpy(hash, want, sizeof(want));
    *id = here;
    return 0;
}

static int walk(struct store *s, struct heads *h, int64_t *id, struct err *e)
{
    char hash[JOURNAL_HASH_CHARS + 1] = "";
    struct stmt *st =
        stmt_open(s, e, "SELECT " HASHED ", hash FROM journal ORDER BY id", "");
    int rc;

    while ((rc = stmt_step(s, st, e)) == 1) {
        rc = verify_row(st, id, hash, e);
        while (rc == 0 && h->id && !strcmp(h->hash, hash))
            rc = next_head(s, h, e);
        if (rc < 0)
            break;
    }
    return stmt_end(s, st, rc, 0, e);
}

int journal_verify(struct store *s, int64_t *ret_rows, struct err *e)
{
    struct heads h = {.st = stmt_open(s, e,
                                      "SELECT id, journal_head FROM revision"
                                      " WHERE journal_head <> '' ORDER BY id",
                                      "")};
    int64_t id = 0, seq = 0;
    int rc = next_head(s, &h, e);

    if (rc == 0)
        rc = walk(s, &h, &id, e);
    *ret_rows = id;
    if (rc == 0)
        rc = stmt_number(
            s, "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'journal'",
            &seq, e);
    if (rc == 0 && seq > id)
        rc = err_set(e, ERR_CORRUPT, "journal: rows %lld to %lld were cut off its end",
                     (long long)id + 1, (long long)seq);
    if (rc == 0 && h.id)
        rc = err_set(e, ERR_CORRUPT,
                     "journal: revision %lld remembers a head (%.12s..) that is not "
                     "among the %lld rows: the end was cut off or written anew",
                     (long long)h.id, h.hash, (long long)id);
    stmt_close(h.st);
    return rc;
}
