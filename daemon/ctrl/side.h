/* daemon/ctrl/side.h - one job at a time beside the control thread.
 *
 * For work that may be long or stuck: probes of the machine, files on a dead file system,
 * measurements. The job runs on a thread of its own and owns what it touches; when it has
 * ended, done is called on the thread of the loop. A job that never ends costs its thread
 * and its memory, never the daemon. Owner: the thread of the loop. */
#ifndef CTRL_SIDE_H
#define CTRL_SIDE_H

#include <stdbool.h>
#include <stdint.h>

struct err;
struct loop;
struct side;

struct side_job {
    void (*run)(void *arg);             /* on the other thread */
    void (*done)(void *arg, void *job); /* on the loop's; then the job is freed */
    void (*free)(void *job);            /* either thread */
    void *arg;                          /* of done */
    void *job;                          /* of run and free */
};

int side_new(struct loop *l, struct side **ret, struct err *e);
/* A job that runs gets a second to end; one that does not is left behind, to free itself.
 */
void side_free(struct side *s); /* NULL allowed */
/* Takes the job over. BUSY with how long the one before runs; then it is still yours. */
int side_start(struct side *s, const struct side_job *j, struct err *e);
bool side_busy(const struct side *s);
/* Blocks until done was called, for start-up: TIMEOUT, and the job goes on. */
int side_wait(struct side *s, int64_t timeout_us, struct err *e);

#endif
