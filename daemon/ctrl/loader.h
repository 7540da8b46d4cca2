/* daemon/ctrl/loader.h - opens what the daemon itself needs of a model: facts, tokenizer.
 *
 * On a thread of its own, since a large vocabulary takes a while and a file may be on a
 * slow disk; the outcome comes on the control thread. One model a loader. */
#ifndef CTRL_LOADER_H
#define CTRL_LOADER_H

#include "daemon/ctrl/router.h"

struct err;
struct loader;
struct loop;
struct shapes;
struct tokenizer;

struct loaded {
    struct served facts; /* tok is NULL */
    struct tokenizer *tok;
    struct shapes *shapes; /* for the ledger; malloc'd, NULL: not known */
};

/* name "" = the name in the file. Any thread. */
typedef int (*loader_open_fn)(const char *path, const char *name, struct loaded *ret,
                              struct err *e);
int loader_open_model(const char *path, const char *name, struct loaded *ret,
                      struct err *e);

/* One of the two is NULL; the callee takes m->tok and m->shapes and may free the loader.
 */
typedef void (*loader_done_fn)(void *arg, struct loaded *m, const struct err *why);

int loader_start(struct loop *l, loader_open_fn open, const char *path, const char *name,
                 loader_done_fn done, void *arg, struct loader **ret, struct err *e);
/* Waits for the thread; an outcome not yet handed over is dropped. */
void loader_free(struct loader *ld);

#endif
