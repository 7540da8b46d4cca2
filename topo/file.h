/* topo/file.h - rack graphs from and to bytes; one door that knows the formats.
 *
 * Nothing here opens a file: who has the bytes names them. Accepted: our own JSON (loses
 * nothing), NCCL topology XML, hwloc XML, `nvidia-smi topo -m` / `-L` / `nvlink -s` text.
 * A graph from bytes is emulated until the daemon has seen that it is this machine. Pure,
 * any thread. */
#ifndef TOPO_FILE_H
#define TOPO_FILE_H

#include <stddef.h>

struct buf;
struct err;
struct graph;
struct paths;

enum { TOPO_BYTES_MAX = 4 << 20 };

/* name: what to call the bytes in errors and as the source. gpu: the model that completes
 * a file which does not say ("H200"), NULL = none, then such a file is incomplete and its
 * warnings say in what. */
int topo_load(const char *bytes, size_t n, const char *name, const char *gpu,
              struct graph **ret, struct err *e);

/* By format; topo_load chooses among them. */
int topo_from_json(const char *bytes, size_t n, struct graph **ret, struct err *e);
int topo_from_nccl(const char *bytes, size_t n, const char *name, const char *gpu,
                   struct graph **ret, struct err *e);
int topo_from_hwloc(const char *bytes, size_t n, const char *name, const char *gpu,
                    struct graph **ret, struct err *e);
int topo_from_smi(const char *bytes, size_t n, const char *name, const char *gpu,
                  struct graph **ret, struct err *e);

/* p, of g, or NULL: with it also what was measured between devices. */
void topo_to_json(const struct graph *g, const struct paths *p, struct buf *b);
/* XML that NCCL accepts through NCCL_TOPO_FILE. A rack of CPU devices, or one whose GPUs
 * have no known PCI address, has no such form: an error says so. */
int topo_to_nccl(const struct graph *g, struct buf *b, struct err *e);

#endif
