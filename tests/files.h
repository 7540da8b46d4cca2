/* tests/files.h - small model files made in memory, for the tests of their parsers.
 *
 * A GGUF builder and a safetensors builder that write whatever they are told, right or
 * wrong; a tiny llama model in both, with one tensor changed or left out at will; a
 * temporary folder. Values are small and of no meaning. */
#ifndef TESTS_FILES_H
#define TESTS_FILES_H

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "kernels/dtype.h"
#include "tests/test.h"

/* ---- bytes ---- */

static inline void put_u32(struct buf *b, uint32_t v) { buf_add(b, &v, sizeof(v)); }
static inline void put_u64(struct buf *b, uint64_t v) { buf_add(b, &v, sizeof(v)); }
static inline void put_str(struct buf *b, const char *s)
{
    put_u64(b, strlen(s));
    buf_add(b, s, strlen(s));
}
static inline void put_zeros(struct buf *b, size_t n)
{
    static const char zeros[4096];

    for (; n > sizeof(zeros); n -= sizeof(zeros))
        buf_add(b, zeros, sizeof(zeros));
    buf_add(b, zeros, n);
}

/* ---- GGUF ---- */

struct gb {
    struct buf kv, table, data;
    uint64_t n_kv, n_tensors;
    uint32_t version;
    size_t align;
};

static inline void gb_init(struct gb *g)
{
    *g = (struct gb){.version = 3, .align = 32};
    buf_init(&g->kv, 0);
    buf_init(&g->table, 0);
    buf_init(&g->data, 0);
}
static inline void gb_done(struct gb *g)
{
    buf_done(&g->kv);
    buf_done(&g->table);
    buf_done(&g->data);
}
/* Only key and type: the value follows by put_*(&g->kv, ..). */
static inline void gb_key(struct gb *g, const char *key, uint32_t type)
{
    put_str(&g->kv, key);
    put_u32(&g->kv, type);
    g->n_kv++;
}
static inline void gb_u32(struct gb *g, const char *key, uint32_t v)
{
    gb_key(g, key, 4);
    put_u32(&g->kv, v);
}
static inline void gb_f32(struct gb *g, const char *key, float v)
{
    gb_key(g, key, 6);
    buf_add(&g->kv, &v, sizeof(v));
}
static inline void gb_str(struct gb *g, const char *key, const char *v)
{
    gb_key(g, key, 8);
    put_str(&g->kv, v);
}
/* An array of n strings of one letter. */
static inline void gb_strs(struct gb *g, const char *key, int n)
{
    gb_key(g, key, 9);
    put_u32(&g->kv, 8);
    put_u64(&g->kv, (uint64_t)n);
    for (int i = 0; i < n; i++)
        put_str(&g->kv, (char[]){(char)('a' + i % 26), 0});
}
static inline void gb_entry(struct gb *g, const char *name, int n_dims,
                            const uint64_t *dims, uint32_t type, uint64_t offset)
{
    put_str(&g->table, name);
    put_u32(&g->table, (uint32_t)n_dims);
    buf_add(&g->table, dims, (size_t)n_dims * sizeof(dims[0]));
    put_u32(&g->table, type);
    put_u64(&g->table, offset);
    g->n_tensors++;
}
/* With data: bytes of value fill. rows 0: a vector. */
static inline void gb_tensor(struct gb *g, const char *name, uint32_t type, uint64_t cols,
                             uint64_t rows, const void *data, size_t bytes)
{
    uint64_t dims[2] = {cols, rows};

    gb_entry(g, name, rows ? 2 : 1, dims, type, g->data.len);
    if (data)
        buf_add(&g->data, data, bytes);
    else
        put_zeros(&g->data, bytes);
    put_zeros(&g->data, (size_t)(-g->data.len & (g->align - 1)));
}
static inline void gb_finish(const struct gb *g, struct buf *out)
{
    buf_add(out, "GGUF", 4);
    put_u32(out, g->version);
    put_u64(out, g->n_tensors);
    put_u64(out, g->n_kv);
    buf_add(out, g->kv.p, g->kv.len);
    buf_add(out, g->table.p, g->table.len);
    if (g->n_tensors)
        put_zeros(out, (size_t)(-out->len & (g->align - 1)));
    buf_add(out, g->data.p, g->data.len);
}

/* ---- a tiny llama ---- */

enum {
    T_LAYER = 2,
    T_EMBD = 32,
    T_HEAD = 4,
    T_KV = 2,
    T_DIM = 8,
    T_FF = 64,
    T_VOCAB = 40
};

/* What differs from the tiny model: one tensor, by its GGUF or safetensors name. */
struct tweak {
    const char *name;
    bool drop;
    const char *type;
    uint64_t rows, cols; /* 0: as they should be */
};

struct tiny_row {
    const char *gguf, *hf;
    bool per_layer;
    int rows, cols; /* rows 0: a vector */
};
static const struct tiny_row tiny_rows[] = {
    {"token_embd.weight", "model.embed_tokens.weight", 0, T_VOCAB, T_EMBD},
    {"output_norm.weight", "model.norm.weight", 0, 0, T_EMBD},
    {"output.weight", "lm_head.weight", 0, T_VOCAB, T_EMBD},
    {"attn_norm.weight", "input_layernorm.weight", 1, 0, T_EMBD},
    {"attn_q.weight", "self_attn.q_proj.weight", 1, T_HEAD *T_DIM, T_EMBD},
    {"attn_k.weight", "self_attn.k_proj.weight", 1, T_KV *T_DIM, T_EMBD},
    {"attn_v.weight", "self_attn.v_proj.weight", 1, T_KV *T_DIM, T_EMBD},
    {"attn_output.weight", "self_attn.o_proj.weight", 1, T_EMBD, T_HEAD *T_DIM},
    {"ffn_norm.weight", "post_attention_layernorm.weight", 1, 0, T_EMBD},
    {"ffn_gate.weight", "mlp.gate_proj.weight", 1, T_FF, T_EMBD},
    {"ffn_up.weight", "mlp.up_proj.weight", 1, T_FF, T_EMBD},
    {"ffn_down.weight", "mlp.down_proj.weight", 1, T_EMBD, T_FF},
};

static inline uint32_t gguf_number(const char *type)
{
#define X(id, name, elems, bytes, gguf)                                                  \
    if (!strcmp(type, name))                                                             \
        return gguf;
    DTYPE_MAP(X)
#undef X
    return (uint32_t)atoi(type); /* a number that we do not serve */
}
static inline size_t tiny_bytes(uint32_t number, uint64_t rows, uint64_t cols)
{
    int dt = dtype_from_gguf(number);
    int64_t row = dt < 0 ? (int64_t)cols : dtype_row_bytes((enum dtype)dt, (int64_t)cols);

    return (size_t)(row < 0 ? 64 : row) * (rows ? rows : 1);
}

static inline void tiny_gguf_keys(struct gb *g, const char *arch)
{
    static const struct {
        const char *key;
        uint32_t v;
    } ints[] = {
        {"block_count", T_LAYER},         {"context_length", 128},
        {"embedding_length", T_EMBD},     {"feed_forward_length", T_FF},
        {"attention.head_count", T_HEAD}, {"attention.head_count_kv", T_KV},
    };
    char key[128];

    gb_str(g, "general.architecture", arch);
    gb_str(g, "general.name", "tiny");
    for (size_t i = 0; i < sizeof(ints) / sizeof(ints[0]); i++) {
        snprintf(key, sizeof(key), "%s.%s", arch, ints[i].key);
        gb_u32(g, key, ints[i].v);
    }
    snprintf(key, sizeof(key), "%s.attention.layer_norm_rms_epsilon", arch);
    gb_f32(g, key, 1e-5f);
    gb_strs(g, "tokenizer.ggml.tokens", T_VOCAB);
}
static inline void tiny_gguf_tensors(struct gb *g, const char *type,
                                     const struct tweak *t)
{
    for (size_t i = 0; i < sizeof(tiny_rows) / sizeof(tiny_rows[0]); i++) {
        const struct tiny_row *r = &tiny_rows[i];

        for (int layer = 0; layer < (r->per_layer ? T_LAYER : 1); layer++) {
            uint64_t rows = (uint64_t)r->rows, cols = (uint64_t)r->cols;
            uint32_t number = gguf_number(r->rows ? type : "F32");
            char name[96];

            if (r->per_layer)
                snprintf(name, sizeof(name), "blk.%d.%s", layer, r->gguf);
            else
                snprintf(name, sizeof(name), "%s", r->gguf);
            if (t && !strcmp(t->name, name)) {
                if (t->drop)
                    continue;
                number = t->type ? gguf_number(t->type) : number;
                rows = t->rows ? t->rows : rows;
                cols = t->cols ? t->cols : cols;
            }
            gb_tensor(g, name, number, cols, rows, NULL, tiny_bytes(number, rows, cols));
        }
    }
}
static inline void tiny_gguf(struct buf *out, const char *arch, const char *type,
                             const struct tweak *t)
{
    struct gb g;

    gb_init(&g);
    tiny_gguf_keys(&g, arch);
    tiny_gguf_tensors(&g, type, t);
    gb_finish(&g, out);
    gb_done(&g);
}

/* ---- safetensors ---- */

struct sb {
    struct buf head, data;
};

static inline void sb_init(struct sb *s)
{
    buf_init(&s->head, 0);
    buf_init(&s->data, 0);
    buf_puts(&s->head, "{\"__metadata__\":{\"format\":\"pt\"}");
}
/* rows 0: a vector */
static inline void sb_tensor(struct sb *s, const char *name, const char *type,
                             uint64_t rows, uint64_t cols)
{
    size_t bytes = (!strcmp(type, "F32") ? 4 : 2) * (rows ? rows : 1) * cols;

    buf_printf(&s->head, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", name, type);
    if (rows)
        buf_printf(&s->head, "%llu,", (unsigned long long)rows);
    buf_printf(&s->head, "%llu],\"data_offsets\":[%zu,%zu]}", (unsigned long long)cols,
               s->data.len, s->data.len + bytes);
    put_zeros(&s->data, bytes);
}
/* pad: bytes of header beyond a multiple of 8. Frees s. */
static inline void sb_finish(struct sb *s, size_t pad, struct buf *out)
{
    buf_puts(&s->head, "}");
    while (s->head.len % 8 != pad)
        buf_putc(&s->head, ' ');
    put_u64(out, s->head.len);
    buf_add(out, s->head.p, s->head.len);
    buf_add(out, s->data.p, s->data.len);
    buf_done(&s->head);
    buf_done(&s->data);
}

static const char tiny_config[] =
    "{\"model_type\":\"llama\",\"hidden_size\":32,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":64,"
    "\"vocab_size\":40,\"max_position_embeddings\":128,\"rms_norm_eps\":1e-05,"
    "\"rope_theta\":10000.0,\"torch_dtype\":\"bfloat16\",\"eos_token_id\":[1,2]}";

/* The tensors of one shard of n; prefix instead of "model.". */
static inline void tiny_shard(struct buf *out, const char *type, const char *prefix,
                              int shard, int n, size_t pad, const struct tweak *t)
{
    struct sb s;
    int at = 0;

    sb_init(&s);
    for (size_t i = 0; i < sizeof(tiny_rows) / sizeof(tiny_rows[0]); i++) {
        const struct tiny_row *r = &tiny_rows[i];

        for (int layer = 0; layer < (r->per_layer ? T_LAYER : 1); layer++) {
            bool tweaked;
            char name[128];

            if (r->per_layer)
                snprintf(name, sizeof(name), "%slayers.%d.%s", prefix, layer, r->hf);
            else if (!strncmp(r->hf, "model.", 6))
                snprintf(name, sizeof(name), "%s%s", prefix, r->hf + 6);
            else
                snprintf(name, sizeof(name), "%s", r->hf);
            tweaked = t && !strcmp(t->name, name);
            if ((tweaked && t->drop) || at++ % n != shard)
                continue;
            sb_tensor(&s, name, tweaked && t->type ? t->type : type,
                      (uint64_t)(tweaked && t->rows ? (int)t->rows : r->rows),
                      (uint64_t)(tweaked && t->cols ? (int)t->cols : r->cols));
        }
    }
    sb_finish(&s, pad, out);
}

/* ---- files ---- */

static inline int files_remove_one(const char *path, const struct stat *st, int kind,
                                   struct FTW *f)
{
    (void)st, (void)kind, (void)f;
    return remove(path);
}
static inline void files_remove(const char *dir)
{
    nftw(dir, files_remove_one, 8, FTW_DEPTH | FTW_PHYS);
}
/* A new folder; dir has room for 64 bytes. */
static inline void files_temp(char *dir)
{
    snprintf(dir, 64, "/tmp/llmrack-test-XXXXXX");
    assert_non_null(mkdtemp(dir));
}
static inline void files_write(const char *dir, const char *name, const void *p, size_t n)
{
    char path[512];
    int fd;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, p, n), n);
    close(fd);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { FILES_SANITIZED = 1 };
#else
enum { FILES_SANITIZED = 0 };
#endif

/* What a parser may take for a hostile file: an address space of a little more than now.
 * Sanitizers need all of it, there the limit stays off. */
static inline void files_limit_memory(size_t more_bytes, struct rlimit *old)
{
    struct rlimit lim;
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");

    assert_int_equal(getrlimit(RLIMIT_AS, old), 0);
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld", &pages), 1);
    fclose(f);
    lim = *old;
    if (!FILES_SANITIZED)
        lim.rlim_cur = (rlim_t)pages * 4096 + more_bytes;
    assert_int_equal(setrlimit(RLIMIT_AS, &lim), 0);
}
static inline void files_unlimit_memory(const struct rlimit *old)
{
    assert_int_equal(setrlimit(RLIMIT_AS, old), 0);
}

#endif
