/* daemon/api/loads.h - what the daemon knows of the contract of a load run.
 *
 * The part of a contract that is not the sender's to say: which model and build, at which
 * precision, on which rack, in which mode and layout, under which revision. */
#ifndef API_LOADS_H
#define API_LOADS_H

#include "base/sha256.h"

struct conn;
struct err;
struct jw;
struct served;

/* Whose model a question about an instance is, from ?instance= (the only one where it is
 * not said), with the hash of its file; made on a worker, carried to the control thread.
 */
struct load_subject {
    const struct served *m; /* held */
    char model_hash[SHA256_CHARS + 1];
};
/* Reads the model's file. -1: answered already. Worker. */
int load_subject_new(struct conn *c, const char *instance, struct load_subject **ret);
/* Writes the object `served`. Control thread. */
int load_served_put(struct conn *c, const struct load_subject *s, struct jw *w,
                    struct err *e);

#endif
