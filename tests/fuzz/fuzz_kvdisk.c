/* tests/fuzz/fuzz_kvdisk.c - the file of a disk tier as it could lie there at a start.
 * The module itself writes a small one first; an input is what became of it. Its first
 * byte says how the rest is meant: 0 edits of 4 bytes (offset of two, a value, one
 * unused), 1 a length of two bytes at which the file ends, then edits, 2 the file itself.
 *
 * Whatever it is: a block is offered, and read as good, only where it is to the byte what
 * was written there, and once; one that is untouched under its head is read; and a file
 * of another hand is told. */
#include "daemon/serve/kvdisk.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    PAGE = 4096,
    HEAD = 48,
    BT = 4,
    DATA = 300,
    SLOTS = 4,
    WRITTEN = 3,
    FILE_MAX = 1 << 16,
    WAIT_MS = 5000
};
enum how { EDIT, CUT, ALL, HOWS };

static char path[64];
static int32_t toks[WRITTEN][BT];
static uint8_t mem[WRITTEN][DATA], whole[FILE_MAX];
static size_t n_whole;

static void must(int ok)
{
    if (!ok)
        abort();
}

static struct kv_key key(int i)
{
    return (struct kv_key){.hash = {{(uint64_t)i + 1, 5}},
                           .before = {{(uint64_t)i, 5}},
                           .depth = i,
                           .toks = toks[i]};
}

struct seen {
    bool slot[SLOTS];
};

/* Only what was written there: block i in slot i. */
static void found(void *arg, int32_t slot, const struct kv_key *k)
{
    struct seen *s = arg;

    must(slot >= 0 && slot < WRITTEN && !s->slot[slot]);
    s->slot[slot] = true;
    const struct kv_key was = key(slot);
    must(!memcmp(&k->hash, &was.hash, sizeof(was.hash)) &&
         !memcmp(&k->before, &was.before, sizeof(was.before)) && k->depth == was.depth &&
         !memcmp(k->toks, toks[slot], sizeof(toks[slot])));
}

static struct kvdisk *opened(struct seen *s)
{
    const struct kvdisk_cfg c = {.path = path,
                                 .whose = "a model",
                                 .n_slots = SLOTS,
                                 .block_tok = BT,
                                 .data_bytes = DATA,
                                 .secret = "0123456789abcde"};
    struct kvdisk *d = NULL;
    struct err e;

    *s = (struct seen){0};
    must(kvdisk_open(&c, found, s, &d, &e) == 0);
    return d;
}

static struct kvdisk_done run(struct kvdisk *d, bool write, int i, uint8_t *at)
{
    const struct kv_job j = {
        .id = (uint64_t)i + 1, .write = write, .disk = i, .key = key(i)};
    const struct iovec part[2] = {{at, 100}, {at + 100, DATA - 100}};
    struct pollfd p = {kvdisk_fd(d), POLLIN, 0};
    struct kvdisk_done done;

    kvdisk_submit(d, &j, part, 2);
    while (!kvdisk_poll(d, &done)) {
        int rc = poll(&p, 1, WAIT_MS);

        must(rc == 1 || (rc < 0 && errno == EINTR)); /* the fuzzer has a timer */
    }
    must(done.id == j.id && done.write == write);
    return done;
}

static void remove_it(void) { unlink(path); }

/* The valid file, of which every input is an alteration. */
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    struct seen s;
    FILE *f;

    (void)argc;
    (void)argv;
    snprintf(path, sizeof(path), "/dev/shm/llmrack-fuzz-kvdisk-%d", (int)getpid());
    if (access("/dev/shm", W_OK) != 0)
        snprintf(path, sizeof(path), "/tmp/llmrack-fuzz-kvdisk-%d", (int)getpid());
    remove_it();
    atexit(remove_it);
    for (int i = 0; i < WRITTEN; i++) {
        for (int k = 0; k < BT; k++)
            toks[i][k] = i * 100 + k;
        for (int k = 0; k < DATA; k++)
            mem[i][k] = (uint8_t)(i * 31 + k * 7);
    }
    struct kvdisk *d = opened(&s);
    for (int i = 0; i < WRITTEN; i++)
        must(run(d, true, i, mem[i]).ok);
    kvdisk_close(d);
    must((f = fopen(path, "rb")) != NULL);
    n_whole = fread(whole, 1, sizeof(whole), f);
    must(n_whole > 0 && n_whole < sizeof(whole));
    fclose(f);
    return 0;
}

/* The file that the input makes, and its length. */
static size_t make_file(const uint8_t *data, size_t size, uint8_t *to)
{
    size_t n = n_whole;
    enum how how = data[0] % HOWS;

    data++;
    size--;
    if (how == ALL) {
        memcpy(to, data, size);
        return size;
    }
    memcpy(to, whole, n);
    if (how == CUT && size >= 2) {
        n = (data[0] | (size_t)data[1] << 8) % (n_whole + 1);
        data += 2;
        size -= 2;
    }
    for (; n && size >= 4; data += 4, size -= 4)
        to[(data[0] | (size_t)data[1] << 8) % n] = data[2];
    return n;
}

/* Whether offered or not: what is read is good only where it is as it was. */
static void read_back(struct kvdisk *d, const struct seen *s, const uint8_t *was,
                      size_t n)
{
    uint8_t got[DATA];

    for (int i = 0; i < WRITTEN; i++) {
        size_t at = PAGE + (size_t)i * PAGE, end = at + n_whole % PAGE;
        bool same = n >= end && !memcmp(was, whole, HEAD) &&
                    !memcmp(was + at, whole + at, end - at);
        struct kvdisk_done done = run(d, false, i, got);

        must(!done.ok || !memcmp(got, mem[i], DATA));
        must(!done.ok || s->slot[i]);
        must(!same || done.ok); /* and a whole one is not lost */
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t file[FILE_MAX];
    struct seen s;

    if (size < 1 || size > sizeof(file))
        return 0;
    size_t n = make_file(data, size, file);
    FILE *f = fopen(path, "wb");
    must(f && fwrite(file, 1, n, f) == n);
    fclose(f);
    struct kvdisk *d = opened(&s);
    if (n && (n < HEAD || memcmp(file, whole, HEAD)))
        must(kvdisk_note(d)[0]);
    read_back(d, &s, file, n);
    kvdisk_close(d);
    return 0;
}
