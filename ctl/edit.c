/* ctl/edit.c - `config edit`: the draft in $EDITOR, checked, and edited again if it must.
 *
 * The text stands in a file of the operator's own (mode 0600) while it is edited; it
 * becomes the draft only when it has no faults and nobody else changed the draft
 * meanwhile. What is not taken over is kept in the file, which is then named. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "ctl/config.h"
#include "ctl/file.h"
#include "ctl/line.h"
#include "ctl/run.h"
#include "ctl/verb.h"

enum { TEXT_MAX = 1 << 20 };

static int write_text(int fd, const char *text, struct err *e)
{
    size_t n = strlen(text);

    while (n) {
        ssize_t k = write(fd, text, n);

        if (k <= 0)
            return err_errno(e, ERR_IO, "cannot write the text to edit");
        text += k;
        n -= (size_t)k;
    }
    return 0;
}

/* A new file with the text; its name, malloc'd. */
static char *make_file(const char *text, struct err *e)
{
    const char *dir = getenv("TMPDIR");
    char *path = xasprintf("%s/llmctl-XXXXXX.yaml", dir && *dir ? dir : "/tmp");
    int fd = mkstemps(path, 5);

    if (fd < 0) {
        err_errno(e, ERR_IO, "cannot make '%s'", path);
    } else {
        int rc = write_text(fd, text, e);

        close(fd);
        if (rc == 0)
            return path;
        unlink(path);
    }
    free(path);
    return NULL;
}

/* $VISUAL, $EDITOR or vi, as the shell reads it, so that options may be in it. */
static int edit_file(const char *path, struct err *e)
{
    const char *editor = getenv("VISUAL");
    char *command;
    int status;
    pid_t pid;

    if (!editor || !*editor)
        editor = getenv("EDITOR");
    command = xasprintf("%s \"$1\"", editor && *editor ? editor : "vi");
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        execl("/bin/sh", "sh", "-c", command, "sh", path, (char *)NULL);
        _exit(127);
    }
    free(command);
    if (pid < 0)
        return err_errno(e, ERR_IO, "cannot start the editor");
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return err_errno(e, ERR_IO, "the editor");
    *line_stop_flag() = 0; /* a Ctrl-C was the editor's */
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return err_set(e, ERR_INTERNAL, "the editor failed (%s)",
                       WIFEXITED(status) && WEXITSTATUS(status) == 127
                           ? "not found; set EDITOR"
                           : "its exit status");
    return 0;
}

/* 1 = good, 0 = edit again, -1. */
static int check(struct session *s, const char *text, struct err *e)
{
    if (config_send(s, "POST", "/api/v1/config/check", json_pack("{s:s}", "text", text),
                    text, e) == 0)
        return 1;
    if (e->code != ERR_INVALID || !line_is_terminal())
        return -1;
    fprintf(s->out, "%s\n", e->msg);
    return line_ask("Edit again?") ? 0 : -1;
}

/* Nobody changed the draft since `before` was read. */
static int still(struct session *s, const char *before, struct err *e)
{
    struct answer now;
    int rc = config_draft(s, &now, e);

    if (rc == 0 && strcmp(json_string_value(json_object_get(now.root, "text")), before))
        rc = err_set(e, ERR_CONFLICT, "somebody else changed the draft meanwhile");
    answer_done(&now);
    return rc;
}

static int edit_loop(struct session *s, const char *path, const char *before,
                     const json_t *base, struct err *e)
{
    for (;;) {
        struct buf b;
        int rc;

        if (edit_file(path, e) < 0 || file_text(path, TEXT_MAX, &b, e) < 0)
            return -1;
        if (!strcmp(b.p, before)) {
            buf_done(&b);
            fprintf(s->out, "nothing was changed\n");
            return 0;
        }
        rc = check(s, b.p, e);
        if (rc > 0 && (rc = still(s, before, e)) == 0) {
            json_t *body = json_pack("{s:s}", "text", b.p);

            if (body && json_is_integer(base))
                json_object_set(body, "base", (json_t *)base);
            rc = config_put(s, body, e);
            if (rc == 0)
                puts("the draft is stored; `config commit` applies it");
            buf_done(&b);
            return rc;
        }
        buf_done(&b);
        if (rc < 0)
            return -1;
    }
}

int run_config_edit(struct session *s, const struct verb *v, const struct args *a,
                    struct err *e)
{
    struct answer draft;
    const char *text;
    const json_t *base;
    char *path;
    int rc = config_draft(s, &draft, e);

    (void)v, (void)a;
    if (rc == 0) {
        text = json_string_value(json_object_get(draft.root, "text"));
        base = json_object_get(draft.root, "base");
        if (!base)
            base = json_object_get(draft.root, "revision");
        path = make_file(text, e);
        rc = path ? edit_loop(s, path, text, base, e) : -1;
        if (rc == 0)
            unlink(path);
        else if (path)
            fprintf(s->out, "What was written is in %s\n", path);
        free(path);
    }
    answer_done(&draft);
    return rc;
}
