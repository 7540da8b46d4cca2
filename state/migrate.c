/* state/migrate.c - numbered migrations: schema.sql, embedded at build.
 *
 * A line "-- migration N" begins migration N; each runs in one transaction that also sets
 * our application id and user_version = N. What the tables of version N must look like is
 * found by running the migrations up to N on an empty database. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "state/store.h"
#include "state/store_impl.h"

static const char schema[] =
#include "schema.h"
    ;

/* Where the text of migration n begins, *ret_len its length; NULL past the last. */
static const char *migration(int n, size_t *ret_len)
{
    char mark[40];
    const char *from, *to;

    snprintf(mark, sizeof(mark), "\n-- migration %d\n", n);
    from = strstr(schema, mark);
    if (!from)
        return NULL;
    from += strlen(mark);
    to = strstr(from, "\n-- migration ");
    *ret_len = to ? (size_t)(to - from) : strlen(from);
    return from;
}

int migrate_newest(void)
{
    size_t len;
    int n = 0;

    while (migration(n + 1, &len))
        n++;
    return n;
}

int migrate_version(struct store *s, int *ret, struct err *e)
{
    int64_t version;
    int newest = migrate_newest();

    if (stmt_number(s, "PRAGMA user_version", &version, e) < 0)
        return -1;
    if (version > newest)
        return err_set(e, ERR_UNSUPPORTED,
                       "the state in '%s' has schema %lld, newer than the %d that this "
                       "build knows; run the newer llmrackd",
                       store_name(s), (long long)version, newest);
    if (version < 0)
        return err_set(e, ERR_CORRUPT, "the state in '%s' has schema %lld", store_name(s),
                       (long long)version);
    *ret = (int)version;
    return 0;
}

struct step {
    int n;
    const char *text;
    size_t len;
};

static int step_body(struct store *s, void *arg, struct err *e)
{
    const struct step *m = arg;
    char *sql = xasprintf("%.*s\nPRAGMA application_id=%d;\nPRAGMA user_version=%d;",
                          (int)m->len, m->text, STORE_APPLICATION_ID, m->n);
    int rc = store_script(s, sql, e);

    free(sql);
    if (rc == 0 && m->n == 3)
        rc = journal_seal(s, e);
    return rc;
}

int migrate_to(struct store *s, int from, int to, struct err *e)
{
    for (int n = from + 1; n <= to; n++) {
        struct step m = {.n = n};

        m.text = migration(n, &m.len);
        if (store_write(s, false, step_body, &m, e) < 0)
            return err_wrap(e, "migration %d", n);
    }
    return 0;
}

/* All tables and indices, as SQLite keeps their texts. */
static int schema_hash(struct store *s, char ret[SHA256_CHARS + 1], struct err *e)
{
    struct stmt *st = stmt_open(
        s, e, "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name",
        "");
    struct buf b;
    int rc;

    buf_init(&b, 0);
    while ((rc = stmt_step(s, st, e)) == 1)
        for (int i = 0; i < 4; i++) {
            size_t n;
            const char *p = stmt_bytes(st, i, &n);
            buf_add(&b, p, n);
            buf_putc(&b, '\0');
        }
    sha256_hex(b.p ? b.p : "", b.len, ret);
    buf_done(&b);
    return stmt_end(s, st, rc, 0, e);
}

int migrate_check_tables(struct store *s, int version, struct err *e)
{
    char want[SHA256_CHARS + 1], got[SHA256_CHARS + 1];
    struct store *model;
    int rc;

    if (store_attach(":memory:", &model, e) < 0)
        return -1;
    rc = migrate_to(model, 0, version, e);
    if (rc == 0)
        rc = schema_hash(model, want, e);
    store_close(model);
    if (rc < 0 || schema_hash(s, got, e) < 0)
        return -1;
    if (strcmp(want, got))
        return err_set(e, ERR_CORRUPT,
                       "the tables of '%s' are not those of a llmrackd's schema %d",
                       store_name(s), version);
    return 0;
}
