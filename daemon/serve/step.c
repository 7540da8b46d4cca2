/* daemon/serve/step.c - layout, copy and check of a step.
 *
 * One allocation: struct step, then the arrays in a fixed order, those with 64-bit
 * members first so that each is aligned. Their places follow from the capacities alone,
 * hence the same bytes mean the same step in another process. step_check looks at a step
 * that came from outside: after it, every index and range may be used without a further
 * look. */
#include "daemon/serve/step.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

enum part {
    P_ITEMS,
    P_SAMPLES,
    P_REFS,
    P_COPIES,
    P_BIASES,
    P_MOVES,
    P_TOKS,
    P_PARENTS,
    P_POSITIONS,
    P_BLOCKS,
    P_HIST,
    P_END
};

static const size_t part_size[P_END] = {
    [P_ITEMS] = sizeof(struct step_item),
    [P_SAMPLES] = sizeof(struct step_sample),
    [P_REFS] = sizeof(struct step_ref),
    [P_COPIES] = sizeof(struct step_copy),
    [P_BIASES] = sizeof(struct step_bias),
    [P_MOVES] = sizeof(struct step_move),
    [P_TOKS] = 4,
    [P_PARENTS] = 4,
    [P_POSITIONS] = 4,
    [P_BLOCKS] = 4,
    [P_HIST] = 4,
};

/* Entries of a part under these capacities. */
static size_t part_cap(const struct step_caps *c, enum part p)
{
    const int32_t cap[P_END] = {
        [P_ITEMS] = c->items,   [P_SAMPLES] = c->samples, [P_REFS] = c->refs,
        [P_COPIES] = c->copies, [P_BIASES] = c->biases,   [P_TOKS] = c->toks,
        [P_PARENTS] = c->toks,  [P_POSITIONS] = c->toks,  [P_BLOCKS] = c->blocks,
        [P_HIST] = c->hist,     [P_MOVES] = c->moves,
    };
    return (size_t)cap[p];
}

static size_t part_off(const struct step_caps *c, enum part p)
{
    size_t off = (sizeof(struct step) + 7) & ~(size_t)7;

    for (enum part i = 0; i < p; i++)
        off += part_cap(c, i) * part_size[i];
    return off;
}

static void *part_at(const struct step *s, enum part p)
{
    return (char *)s + part_off(&s->caps, p);
}

size_t step_bytes(const struct step_caps *c) { return part_off(c, P_END); }

struct step *step_new(const struct step_caps *c)
{
    size_t bytes = step_bytes(c);
    assert(bytes <= UINT32_MAX);

    struct step *s = xcalloc(1, bytes);
    s->bytes = (uint32_t)bytes;
    s->caps = *c;
    return s;
}

void step_clear(struct step *s)
{
    s->n_items = s->n_toks = s->n_blocks = s->n_samples = 0;
    s->n_hist = s->n_biases = s->n_copies = s->n_refs = s->n_moves = 0;
    s->number = 0;
}

static size_t part_used(const struct step *s, enum part p)
{
    const int32_t n[P_END] = {
        [P_ITEMS] = s->n_items,   [P_SAMPLES] = s->n_samples, [P_REFS] = s->n_refs,
        [P_COPIES] = s->n_copies, [P_BIASES] = s->n_biases,   [P_TOKS] = s->n_toks,
        [P_PARENTS] = s->n_toks,  [P_POSITIONS] = s->n_toks,  [P_BLOCKS] = s->n_blocks,
        [P_HIST] = s->n_hist,     [P_MOVES] = s->n_moves,
    };
    return (size_t)n[p];
}

void step_copy_to(struct step *dst, const struct step *src)
{
    assert(!memcmp(&dst->caps, &src->caps, sizeof(dst->caps)));
    memcpy(dst, src, sizeof(*dst));
    for (enum part p = 0; p < P_END; p++)
        memcpy(part_at(dst, p), part_at(src, p), part_used(src, p) * part_size[p]);
}

struct step_item *step_items(const struct step *s) { return part_at(s, P_ITEMS); }
int32_t *step_toks(const struct step *s) { return part_at(s, P_TOKS); }
int32_t *step_parents(const struct step *s) { return part_at(s, P_PARENTS); }
int32_t *step_positions(const struct step *s) { return part_at(s, P_POSITIONS); }
int32_t *step_blocks(const struct step *s) { return part_at(s, P_BLOCKS); }
struct step_sample *step_samples(const struct step *s) { return part_at(s, P_SAMPLES); }
int32_t *step_hist(const struct step *s) { return part_at(s, P_HIST); }
struct step_bias *step_biases(const struct step *s) { return part_at(s, P_BIASES); }
struct step_copy *step_copies(const struct step *s) { return part_at(s, P_COPIES); }
struct step_ref *step_refs(const struct step *s) { return part_at(s, P_REFS); }
struct step_move *step_moves(const struct step *s) { return part_at(s, P_MOVES); }

static bool in_range(int32_t off, int32_t n, int32_t total)
{
    return off >= 0 && n >= 0 && (int64_t)off + n <= total;
}

static int check_head(const struct step *s, size_t bytes, struct err *e)
{
    if (bytes < sizeof(*s))
        return err_set(e, ERR_CORRUPT, "a step of %zu bytes is shorter than its head",
                       bytes);
    for (enum part p = 0; p < P_END; p++)
        if (part_cap(&s->caps, p) > INT32_MAX)
            return err_set(e, ERR_CORRUPT, "a step has a negative capacity");
    if (s->caps.outs < 0 || s->bytes != bytes || step_bytes(&s->caps) != bytes)
        return err_set(e, ERR_CORRUPT, "a step of %zu bytes does not have that size",
                       bytes);
    for (enum part p = 0; p < P_END; p++)
        if (part_used(s, p) > part_cap(&s->caps, p))
            return err_set(e, ERR_CORRUPT, "a step holds more than its capacity");
    return 0;
}

static int check_tree(const struct step *s, const struct step_item *it, struct err *e)
{
    if (it->parent_off < 0)
        return 0;
    if (!in_range(it->parent_off, it->n_tok, s->n_toks))
        return err_set(e, ERR_CORRUPT, "a step item's parents are out of range");
    for (int32_t r = 0; r < it->n_tok; r++) {
        int32_t parent = step_parents(s)[it->parent_off + r];
        int32_t pos = step_positions(s)[it->parent_off + r];
        if (parent < -1 || parent >= r || pos < 0 || pos > INT32_MAX - it->first_pos)
            return err_set(e, ERR_CORRUPT, "row %d of a step item has a bad parent", r);
    }
    return 0;
}

static int check_item(const struct step *s, const struct step_item *it, struct err *e)
{
    if (it->n_tok < 1 || !in_range(it->tok_off, it->n_tok, s->n_toks))
        return err_set(e, ERR_CORRUPT, "a step item's tokens are out of range");
    if (it->first_pos < 0 || it->first_pos > INT32_MAX - it->n_tok)
        return err_set(e, ERR_CORRUPT, "a step item's position is out of range");
    if (!in_range(it->block_off, it->n_block, s->n_blocks))
        return err_set(e, ERR_CORRUPT, "a step item's blocks are out of range");
    if (it->out_from < 0 || it->out_from > it->n_tok || it->sample < -1 ||
        it->sample >= s->n_samples || it->n_top < -1 || it->n_top > STEP_TOP_MAX ||
        (it->decode & ~1) || it->unused)
        return err_set(e, ERR_CORRUPT, "a step item's outputs are out of range");
    bool out = it->out_from < it->n_tok;
    if (it->sample >= 0 ? !out || it->next != -1 : out != (it->next >= 0))
        return err_set(e, ERR_CORRUPT, "a step item's last row has no clear output");
    return check_tree(s, it, e);
}

static int check_sample(const struct step *s, const struct step_sample *p, struct err *e)
{
    if (!in_range(p->hist_off, p->n_hist, s->n_hist) ||
        !in_range(p->bias_off, p->n_bias, s->n_biases) || p->n_prompt < 0 ||
        (p->n_hist && p->n_prompt > p->n_hist) || p->out_pos < 0 || p->top_k < 0)
        return err_set(e, ERR_CORRUPT, "a step sample is out of range");
    if (!(p->temperature >= 0 && isfinite(p->temperature)) ||
        !(p->top_p > 0 && p->top_p <= 1) || !(p->min_p >= 0 && p->min_p <= 1) ||
        !(p->repetition > 0 && isfinite(p->repetition)) || !isfinite(p->presence) ||
        !isfinite(p->frequency))
        return err_set(e, ERR_CORRUPT, "a step sample has a parameter out of range");
    return 0;
}

static int check_toks(const struct step *s, struct err *e)
{
    const int32_t *tok = step_toks(s);
    int32_t n_ref = 0;

    for (int32_t i = 0; i < s->n_toks; i++) {
        if (tok[i] < 0 && tok[i] != STEP_TOK_REF)
            return err_set(e, ERR_CORRUPT, "token %d of a step is negative", i);
        n_ref += tok[i] == STEP_TOK_REF;
    }
    if (n_ref != s->n_refs)
        return err_set(e, ERR_CORRUPT, "a step has %d references and %d places for them",
                       s->n_refs, n_ref);
    int32_t last = -1;
    for (int32_t i = 0; i < s->n_refs; i++) {
        const struct step_ref *r = &step_refs(s)[i];
        if (r->at <= last || r->at >= s->n_toks || tok[r->at] != STEP_TOK_REF ||
            r->index < 0)
            return err_set(e, ERR_CORRUPT, "reference %d of a step is out of range", i);
        last = r->at;
    }
    return 0;
}

int step_check(const struct step *s, size_t bytes, struct err *e)
{
    int64_t outs = 0;

    if (check_head(s, bytes, e) < 0 || check_toks(s, e) < 0)
        return -1;
    for (int32_t i = 0; i < s->n_items; i++) {
        const struct step_item *it = &step_items(s)[i];
        if (check_item(s, it, e) < 0)
            return -1;
        outs += it->n_tok - it->out_from;
    }
    if (outs > s->caps.outs)
        return err_set(e, ERR_CORRUPT, "a step has more output rows than its capacity");
    for (int32_t i = 0; i < s->n_samples; i++)
        if (check_sample(s, &step_samples(s)[i], e) < 0)
            return -1;
    for (int32_t i = 0; i < s->n_blocks; i++)
        if (step_blocks(s)[i] < -1)
            return err_set(e, ERR_CORRUPT, "a step names a negative block");
    for (int32_t i = 0; i < s->n_copies; i++)
        if (step_copies(s)[i].src < 0 || step_copies(s)[i].dst < 0)
            return err_set(e, ERR_CORRUPT, "a step copies a negative block");
    for (int32_t i = 0; i < s->n_moves; i++)
        if (step_moves(s)[i].block < 0 || step_moves(s)[i].slot < 0 ||
            (step_moves(s)[i].up & ~1))
            return err_set(e, ERR_CORRUPT, "a step moves a block to nowhere");
    for (int32_t i = 0; i < s->n_biases; i++)
        if (step_biases(s)[i].id < 0 || !isfinite(step_biases(s)[i].bias))
            return err_set(e, ERR_CORRUPT, "a step has a bad bias");
    return 0;
}
