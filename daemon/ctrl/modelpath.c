/* daemon/ctrl/modelpath.c - may the daemon open this path as a model? */
#include "daemon/ctrl/modelpath.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "daemon/ctrl/conf.h"

enum { FOLDER_FILES = 4096 };

/* Is real, a resolved path, below one of the roots? */
static bool below_a_root(const struct conf *c, const char *real)
{
    char root[PATH_MAX];

    for (int i = 0; i < c->n_model_roots; i++) {
        size_t n;

        if (!realpath(c->model_roots[i], root))
            continue;
        n = strlen(root);
        if (!strncmp(real, root, n) && (real[n] == '/' || !strcmp(root, "/")))
            return true;
    }
    return false;
}

static int outside(const struct conf *c, const char *path, struct err *e)
{
    struct buf roots;

    buf_init(&roots, 0);
    for (int i = 0; i < c->n_model_roots; i++)
        buf_printf(&roots, "%s'%s'", i ? ", " : "", c->model_roots[i]);
    err_set(e, ERR_DENIED, "'%.200s' is not below a folder of model_roots: %s", path,
            roots.len ? roots.p : "there is none");
    buf_done(&roots);
    return -1;
}

/* The file or folder itself, with no look inside. */
static int check_one(const struct conf *c, const char *path, struct stat *ret,
                     struct err *e)
{
    char real[PATH_MAX];

    if (!realpath(path, real) || stat(real, ret) < 0)
        return err_errno(e, errno == ENOENT ? ERR_NOTFOUND : ERR_INVALID, "'%.200s'",
                         path);
    return below_a_root(c, real) ? 0 : outside(c, path, e);
}

static int check_folder(const struct conf *c, const char *path, struct err *e)
{
    DIR *d = opendir(path);
    struct dirent *f;
    int rc = 0, n = 0;

    if (!d)
        return err_errno(e, ERR_INVALID, "'%.200s'", path);
    while (rc == 0 && (f = readdir(d))) {
        char *file;
        struct stat st;

        if (f->d_name[0] == '.')
            continue;
        file = xasprintf("%s/%s", path, f->d_name);
        rc = check_one(c, file, &st, e);
        if (rc == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
            rc = err_set(e, ERR_DENIED, "'%.200s' is no regular file", file);
        free(file);
        if (rc == 0 && ++n > FOLDER_FILES)
            rc = err_set(e, ERR_DENIED, "'%.200s' has more than %d files", path,
                         FOLDER_FILES);
    }
    closedir(d);
    return rc;
}

int modelpath_check(const struct conf *c, const char *path, struct err *e)
{
    struct stat st;

    if (check_one(c, path, &st, e) < 0)
        return -1;
    if (S_ISDIR(st.st_mode))
        return check_folder(c, path, e);
    return S_ISREG(st.st_mode)
               ? 0
               : err_set(e, ERR_DENIED, "'%.200s' is no regular file", path);
}

static bool laid_over(const struct conf_model *m, const struct conf_override *over, int n)
{
    char *path = xasprintf("models.%s.path", m->name);
    bool is = false;

    for (int i = 0; i < n && !is; i++)
        is = !strcmp(over[i].path, path) && !strcmp(over[i].value, m->path);
    free(path);
    return is;
}

static bool as_before(const struct conf_model *m, const struct conf *runs)
{
    const struct conf_model *was = runs ? conf_model(runs, m->name) : NULL;

    return was && !strcmp(was->path, m->path);
}

int modelpath_check_all(const struct conf *c, const struct conf *runs,
                        const struct conf_override *over, int n_over, struct err *e)
{
    for (int i = 0; i < c->n_models; i++) {
        const struct conf_model *m = &c->models[i];
        struct err why;

        if (laid_over(m, over, n_over) || modelpath_check(c, m->path, &why) == 0 ||
            (why.code == ERR_NOTFOUND && as_before(m, runs)))
            continue;
        *e = why;
        return err_wrap(e, "models.%s.path", m->name);
    }
    return 0;
}
