/* Bytes as they could come from the other process: the first byte says whether they are a
 * stream of frames or one payload of the kind that it names. */
#include "daemon/serve/wire.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "daemon/serve/wire_experts.h"
#include "daemon/serve/wire_kv.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_payload(enum wire_kind kind, const void *p, size_t n)
{
    struct err e;
    union {
        struct wire_hello hello;
        struct wire_loading loading;
        struct wire_ready ready;
        struct wire_fail fail;
        struct wire_finish finish;
        uint64_t id;
        struct wire_arena arena;
        struct wire_reserved reserved;
        struct wire_pulled pulled;
        struct wire_lost lost;
        struct wire_moved moved;
    } any;
    struct wire_offer offer;
    struct wire_expert_orders orders;
    struct wire_recompute rec;
    const int32_t *ids;
    struct wire_add add = {0};
    struct wire_tokens toks;
    struct step_token *buf = NULL;
    size_t cap = 0;

    if (kind == WIRE_ADD)
        wire_parse_add(p, n, &add, &e);
    else if (kind == WIRE_TOKENS)
        wire_parse_tokens(p, n, &toks, &buf, &cap, &e);
    else if (kind == WIRE_EXPORT) {
        if (wire_parse_export(p, n, &offer, &e) == 0)
            for (int32_t i = 0; i < offer.h.n_gen; i++) /* all of it can be read */
                add.params.id += (uint64_t)offer.gen[i];
    } else if (kind == WIRE_RECOMPUTE) {
        if (wire_parse_recompute(p, n, &rec, &ids, &e) == 0)
            for (int32_t i = 0; i < rec.n_gen; i++)
                add.params.id += (uint64_t)ids[i];
    } else if (kind == WIRE_EXPERTS) {
        if (wire_parse_experts(p, n, &orders, &e) == 0) {
            for (int32_t i = 0; i < orders.h.n_moves; i++)
                for (int k = 0; k < orders.moves[i].n; k++)
                    add.params.id += (uint64_t)orders.moves[i].put[k].expert;
            for (int32_t i = 0; i < orders.h.n_layers * orders.h.n_slots; i++)
                add.params.id += (uint64_t)orders.shares[i] + (uint64_t)orders.layers[0];
        }
    } else
        wire_parse(kind, p, n, &any, &e);
    free(buf);
}

static void fuzz_stream(const uint8_t *data, size_t size)
{
    struct err e;
    enum wire_kind kind;
    const void *p;
    size_t n;
    int fd[2];

    if (size > 65536 || socketpair(AF_UNIX, SOCK_STREAM, 0, fd) != 0)
        return;
    struct wire_conn *c = wire_conn_new(fd[1], 1 << 20);
    if (write(fd[0], data, size) == (ssize_t)size) {
        close(fd[0]);
        fd[0] = -1;
        while (wire_fill(c, &e) == 0)
            while (wire_next(c, &kind, &p, &n, &e) == 1)
                fuzz_payload(kind, p, n);
    }
    if (fd[0] >= 0)
        close(fd[0]);
    wire_conn_free(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    if (data[0] == 0xff) {
        fuzz_stream(data + 1, size - 1);
        return 0;
    }
    /* payloads stand aligned to 8 in a connection's buffer */
    void *p = malloc(size);
    if (p && data[0] < WIRE_COUNT) {
        memcpy(p, data + 1, size - 1);
        fuzz_payload((enum wire_kind)data[0], p, size - 1);
    }
    free(p);
    return 0;
}
