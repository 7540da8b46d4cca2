/* daemon/ctrl/quality.h - settings that change what a model answers, and the stored
 * measurements that they need.
 *
 * Such a setting runs for everybody (allow_output_change: true) only with a kept quality
 * run of an instance with the same model file, the same such settings and the same build,
 * whose figures are within the instance's bounds; on trial it runs without one, for
 * administrators alone, so that it can be measured. That is looked at when a revision is
 * checked or committed; an instance that comes to run without (the first start, a file
 * that was replaced) answers administrators alone too. Control thread. */
#ifndef CTRL_QUALITY_H
#define CTRL_QUALITY_H

struct conf;
struct conf_instance;
struct err;
struct store;

enum { QUALITY_SETTINGS = 96, QUALITY_FILE = 17 };

/* "transfer=f8 capacity=1.25 overflow=drop": those that change output; "" = none. */
void quality_settings(const struct conf_instance *i, char ret[QUALITY_SETTINGS]);
/* A hash of the model's path, size and time: whether it is the file that was measured,
 * without reading it. */
int quality_file(const char *path, char ret[QUALITY_FILE], struct err *e);
/* May the instance answer everybody as it is configured (not so on trial)? Else the
 * figure that is missing or out of bounds is named. build NULL: a run of any build will
 * do. */
int quality_allows(struct store *s, const struct conf *c, const struct conf_instance *i,
                   const char *build, struct err *e);
/* May the configuration run? The first instance that may not is named. */
int quality_check(struct store *s, const struct conf *c, const char *build,
                  struct err *e);

#endif
