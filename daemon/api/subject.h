/* daemon/api/subject.h - the daemon's part of a contract: what answered when something
 * was measured.
 *
 * That part is not the sender's to say: which model and build, at which precision, on
 * which rack, in which mode and layout, under which revision. Made on a worker (the
 * model's file is read), used on the control thread. */
#ifndef API_SUBJECT_H
#define API_SUBJECT_H

#include <stdbool.h>

#include "base/json.h"
#include "base/sha256.h"

struct conn;
struct err;
struct served;

enum { SUBJECT_NAME = 64, SUBJECT_HASH = 16 /* characters of a hash that are shown */ };

/* The model that a question about an instance is about, with the hash of its file. */
struct subject {
    const struct served *m; /* held */
    char model_hash[SHA256_CHARS + 1];
};
/* Of the instance ("" = the only one). Reads the model's file. -1: answered already. */
int subject_new(struct conn *c, const char *instance, struct subject **ret);
void subject_free(void *arg);
/* The name that the operator chose, without that of one engine. */
void subject_instance(const struct served *m, char ret[SUBJECT_NAME]);
/* Is `name` the instance, or an engine of it: NAME:2 .., NAME/prefill, NAME/decode:2 ..?
 */
bool subject_belongs(const char *name, const char *instance);
/* "served": {..}; UNAVAIL when no engine of it is ready. */
int subject_put(struct conn *c, const struct subject *s, struct jw *w, struct err *e);
/* Devices (or the threads of CPUs', where they are more) of the engine that prefills and
 * of the one that decodes; 0 where that is no single engine. Control thread. */
void subject_parts(struct conn *c, const char *instance, int *ret_prefill,
                   int *ret_decode);
/* Is what a contract says of us ("served") still so? The member that is not is named. */
int subject_still(struct conn *c, const json_t *served, struct err *e);

#endif
