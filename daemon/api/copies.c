/* daemon/api/copies.c - the state as bytes: a backup out, a backup in.
 *
 * Both are journalled on the control thread and then done on a worker by a view of the
 * store, so that a large state holds up nobody. A restored state is checked beside the
 * one that runs and staged; it takes its place when the daemon starts next. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "daemon/api/conn.h"
#include "daemon/api/handler.h"
#include "daemon/api/news.h"
#include "daemon/api/operation.h"
#include "daemon/api/pool.h"
#include "daemon/api/server.h"
#include "state/store.h"

enum { RESTORE_US = 600000000 };

/* ---- out ---- */

/* The file at path, open; the descriptor keeps the bytes when it has no name any more. */
static int open_copy(const char *path, uint64_t *ret_size, struct err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;

    if (fd >= 0 && fstat(fd, &st) == 0) {
        *ret_size = (uint64_t)st.st_size;
        return fd;
    }
    err_errno(e, ERR_IO, "backup '%s'", path);
    if (fd >= 0)
        close(fd);
    return -1;
}

static void backup_job(struct conn *c)
{
    char *path = NULL;
    struct store *view;
    uint64_t size = 0;
    struct err e;
    int fd = -1, rc = spool_reserve(c->h->cfg.state_dir, &path, &e);

    if (rc == 0)
        rc = store_view(c->h->cfg.store, &view, &e);
    if (rc == 0) {
        rc = store_backup(view, path, &e);
        store_close(view);
    }
    if (rc == 0)
        fd = open_copy(path, &size, &e);
    spool_release(path);
    if (fd < 0) {
        conn_answer_err(c, &e);
        return;
    }
    conn_header(c, "Content-Disposition", "attachment; filename=\"llmrack-state.db\"");
    conn_answer_file(c, fd, size, "application/octet-stream");
}

void control_backup(struct conn *c)
{
    struct err e;

    if (!handler_store(c))
        return;
    if (handler_note(c, "state.backup", "", "ok", "", &e) < 0 ||
        pool_push(c->h->pool, c, backup_job, &e) < 0)
        conn_answer_err(c, &e);
}

void control_journal_verify(struct conn *c)
{
    int64_t rows = 0;
    struct store *view;
    struct reply r;
    struct err e;
    int rc;

    if (!handler_store(c))
        return;
    rc = store_view(c->h->cfg.store, &view, &e);
    if (rc == 0) {
        rc = journal_verify(view, &rows, &e);
        store_close(view);
    }
    if (rc < 0 && e.code != ERR_CORRUPT) {
        conn_answer_err(c, &e);
        return;
    }
    reply_open(&r); /* a broken chain is an answer, not an error of this request */
    jw_kbool(&r.w, "whole", rc == 0);
    jw_kint(&r.w, "rows", rows);
    jw_kstr(&r.w, "fault", rc < 0 ? e.msg : NULL);
    reply_send(c, &r, 200);
}

/* ---- in ---- */

/* Shared by the worker and the operation that watches it. */
struct restore {
    atomic_int refs;
    atomic_int state; /* enum operation_state */
    struct conn *c;   /* a reference: the body's file is its */
    char *actor, *origin;
    struct err e; /* written before state becomes FAILED */
};

static void restore_unref(void *arg)
{
    struct restore *x = arg;

    if (atomic_fetch_sub(&x->refs, 1) != 1)
        return;
    conn_unref(x->c);
    free(x->actor);
    free(x->origin);
    free(x);
}

static void restore_job(struct conn *c)
{
    struct restore *x = c->carry;
    struct store *view;
    struct err *e = &x->e;
    int rc = store_view(c->h->cfg.store, &view, e);

    if (rc == 0) {
        rc = store_restore(view, c->spool.path, e);
        store_close(view);
    }
    spool_done(&c->spool);
    atomic_store(&x->state, rc < 0 ? OPERATION_FAILED : OPERATION_DONE);
    atomic_store(&c->h->restoring, false);
    restore_unref(x);
}

static enum operation_state restore_poll(void *arg, char message[512])
{
    struct restore *x = arg;
    enum operation_state s = (enum operation_state)atomic_load(&x->state);
    struct journal_note n = {x->actor, x->origin, "state.restore", "", "staged", ""};
    struct err e;

    if (s == OPERATION_RUNNING)
        return s;
    if (s == OPERATION_FAILED) {
        n.result = "failed";
        n.detail = x->e.msg;
    }
    snprintf(
        message, 512, "%s",
        s == OPERATION_FAILED
            ? x->e.msg
            : "checked; it takes the place of the state when the daemon starts next");
    if (journal_note(x->c->h->cfg.store, &n, &e) < 0) {
        snprintf(message, 512, "%s", e.msg);
        return OPERATION_FAILED;
    }
    return s;
}

void control_restore(struct conn *c)
{
    struct restore *x;
    struct err e;

    if (!handler_store(c))
        return;
    if (operation_room(news_operations(c->h->news), &e) < 0)
        ;
    else if (!c->spool.path)
        err_set(&e, ERR_INVALID, "the body must be a state as backup gives it");
    else if (atomic_exchange(&c->h->restoring, true))
        err_set(&e, ERR_CONFLICT, "a state is being restored already");
    else
        goto go;
    conn_answer_err(c, &e);
    return;

go:
    x = xcalloc(1, sizeof(*x));
    atomic_init(&x->refs, 2);
    x->c = conn_ref(c);
    x->actor = xstrdup(c->who.actor);
    x->origin = xstrdup(c->who.origin);
    c->carry = x;
    if (handler_note(c, "state.restore", "", "asked", "", &e) < 0 ||
        pool_push(c->h->pool, c, restore_job, &e) < 0) {
        atomic_store(&c->h->restoring, false);
        conn_answer_err(c, &e);
        restore_unref(x);
        restore_unref(x);
        return;
    }
    news_start(c->h->news, c, "state.restore", "",
               &(struct operation_watch){restore_poll, restore_unref, x, RESTORE_US}, "");
}
