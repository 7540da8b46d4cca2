/* daemon/ctrl/modelpath.h - may the daemon open this path as a model?
 *
 * Clients name paths through the configuration; only regular files, and folders of such,
 * under a folder of model_roots are opened, wherever symbolic links lead. What the
 * command line laid over the configuration comes from who started the daemon and is not
 * asked about. Looks at the file system; any thread. */
#ifndef CTRL_MODELPATH_H
#define CTRL_MODELPATH_H

struct conf;
struct conf_override;
struct err;

/* DENIED with the roots there are, NOTFOUND, INVALID. */
int modelpath_check(const struct conf *c, const char *path, struct err *e);
/* All models of c, those of the overrides aside. One that `runs` (NULL: none) has under
 * the same path may be missing by now: that is no reason to refuse another change. */
int modelpath_check_all(const struct conf *c, const struct conf *runs,
                        const struct conf_override *over, int n_over, struct err *e);

#endif
