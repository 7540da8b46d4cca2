/* daemon/serve/kvdisk.h - the file of the disk tier, and the thread that works on it.
 *
 * A header that says whose KV it is (model, layout, type, and the store's secret), then
 * records of one size, one a slot: what the block holds, and its data, each with a sum
 * that is keyed with the secret. A record that was cut short by a crash, or is of another
 * hand, does not pass its sum and is as if it were not there. Nothing is synced: what is
 * lost has to be computed again. Mode 0600; one engine at a time (flock). What is no
 * plain file, is another user's or has a second name is refused, and links are not
 * followed.
 *
 * kvdisk_submit and kvdisk_poll belong to the scheduler's thread; the thread reads and
 * writes the memory that a job names until it is polled. */
#ifndef SERVE_KVDISK_H
#define SERVE_KVDISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "daemon/serve/kvtier.h"

struct err;
struct kvdisk;

enum { KVDISK_PIECES = 128 };

struct kvdisk_cfg {
    const char *path;  /* absolute */
    const char *whose; /* a line: model and its hash, layout, KV type */
    int n_slots, block_tok;
    size_t data_bytes; /* of a block, over all ranks that have a part of it */
    uint8_t secret[16];
};

/* Each record that is whole, as far as its head tells; k is borrowed. */
typedef void (*kvdisk_found_fn)(void *arg, int32_t slot, const struct kv_key *k);
/* Opens or makes the file. BUSY: another engine has it. A file of somebody else is begun
 * anew; kvdisk_note says so, and what else was passed over ("" nothing). */
int kvdisk_open(const struct kvdisk_cfg *cfg, kvdisk_found_fn found, void *arg,
                struct kvdisk **ret, struct err *e);
/* Waits for what is under way, a few seconds at most. */
void kvdisk_close(struct kvdisk *d); /* NULL allowed */
const char *kvdisk_note(const struct kvdisk *d);

/* The parts of the block in memory, in order; they sum up to data_bytes, or less. */
void kvdisk_submit(struct kvdisk *d, const struct kv_job *j, const struct iovec *part,
                   int n_part);
/* Everything off the file, after what was submitted. */
void kvdisk_wipe(struct kvdisk *d);
struct kvdisk_done {
    uint64_t id;
    bool ok, write;
    bool torn; /* it was there, but not whole: not as it was written */
    int why;   /* errno of a transfer that failed; ENOENT: the file is gone; 0 none */
};
bool kvdisk_poll(struct kvdisk *d, struct kvdisk_done *ret);
/* Likewise, and waits for it. False: not yet. */
bool kvdisk_wait(struct kvdisk *d, int64_t us, struct kvdisk_done *ret);
int kvdisk_fd(const struct kvdisk *d); /* readable when poll has something */

#endif
