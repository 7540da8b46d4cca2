/* daemon/serve/expertload.c - the loader's thread: slices of rows, and rests. See
 * expertload.h.
 *
 * A slice is a run of rows, a multiple of WEIGHT_PART_ROWS, cut out of the file as at the
 * first load (forward_cut), so that the bits are the same. The rest after a slice is so
 * long that the thread works `share` of its time, or so many steps as the slice is too
 * large for one; it ends early when the job is stopped. */
#include "daemon/serve/expertload.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/gate.h"
#include "base/mem.h"
#include "base/queue.h"
#include "daemon/serve/forward_cut.h"
#include "kernels/backend.h"

static const int64_t IDLE_WAIT_US = 3600ll * 1000 * 1000;
static const int64_t END_WAIT_US = 5ll * 1000 * 1000;
static const int64_t LONGEST_US = 10ll * 1000 * 1000;
static const size_t SLICE_BYTES = 64 << 10;
static const double SHARE = 0.06;
enum { MILLIONTHS = 1000000, STEPS = 16 /* the mean of so many */ };

struct expertload {
    struct expertload_cfg cfg;
    pthread_t thread;
    bool started;
    struct queue *todo, *done;
    struct expertload_job *now; /* asked for; the owner's note */
    struct expertload_job end;  /* its address ends the thread */
    struct gate quit, gone;     /* quit is never raised: the thread rests on it */
    /* the owner's words to the thread; step_us: a mean */
    atomic_llong step_bytes, step_us;
    atomic_int share; /* in millionths */
};

static int64_t now_us(void) { return clock_now_us(clock_real()); }

/* ---- slices ---- */

/* A tensor of one expert, on its way. */
struct piece {
    struct expertload *l;
    struct expertload_job *j;
    const struct model_tensor *t;
    struct weight **w;
    bool vector;
    uint64_t file_sum, kept_sum; /* of the check */
};

static int slice_rows(const struct piece *p)
{
    size_t row = p->t->bytes / (size_t)(p->t->rows ? p->t->rows : 1) + 1;
    size_t n = p->l->cfg.slice_bytes / row / WEIGHT_PART_ROWS;

    if (p->t->form == TENSOR_STRIDED || p->t->form == TENSOR_MX)
        n = 4; /* bytes are those of all experts together */
    return (int)(n < 1 ? 1 : n > 4096 ? 4096 : n) * WEIGHT_PART_ROWS;
}

/* How long after its begin the next slice may begin, by what a step leaves. */
static int64_t by_steps(const struct piece *p, size_t bytes)
{
    const struct expertload *l = p->l;
    double most = (double)atomic_load(&l->step_bytes);
    double step = (double)atomic_load(&l->step_us);
    double all = (double)l->cfg.longest_us / (double)(p->j->all_bytes + 1);

    if (!(most > 0))
        return 0;
    return (int64_t)((double)bytes * (step / most < all ? step / most : all));
}

static int rest(const struct piece *p, int64_t began, size_t bytes)
{
    int64_t now = now_us(), took = now - began, steps = by_steps(p, bytes) - took;
    double share = (double)atomic_load(&p->l->share) / MILLIONTHS;
    int64_t pause = (int64_t)((double)took * (1 / share - 1));

    p->j->work_us += took;
    pause = pause < steps ? steps : pause;
    if (gate_wait(&p->l->quit, 1, false, now + pause, &p->j->stop) == GATE_STOPPED ||
        atomic_load(&p->j->stop))
        return err_set(&p->j->why, ERR_CANCELED, "loading was given up");
    return 0;
}

static int make(struct piece *p, struct backend *b)
{
    const struct model_tensor *t = p->t;
    struct weight_src src = {.name = t->name};
    /* MXFP4: how it is kept depends on all of its scales */
    int rows = p->vector || t->type == DT_MXFP4 ? t->rows : WEIGHT_PART_ROWS;
    void *copy = NULL;
    int rc = forward_cut(t, (struct run){0, rows < t->rows ? rows : t->rows},
                         (struct run){0, t->cols}, &src, &copy, &p->j->why);

    src.rows = t->rows;
    src.flags = WEIGHT_APART | (p->vector ? WEIGHT_VECTOR : WEIGHT_MATMUL);
    if (rc == 0)
        rc = weight_new(b, &src, p->w, &p->j->why);
    free(copy);
    return rc;
}

/* Mixes the bits of n values into a sum; zeros of both signs are alike. */
static uint64_t mix(uint64_t sum, const float *v, int n)
{
    for (int i = 0; i < n; i++) {
        float f = v[i] == 0 ? 0 : v[i];
        uint32_t bits;

        memcpy(&bits, &f, sizeof(bits));
        sum = (sum ^ bits) * UINT64_C(0x9fb21c651e98df25);
        sum ^= sum >> 32;
    }
    return sum;
}

static int compare(struct piece *p, const struct weight_src *part, int row)
{
    size_t n = (size_t)part->cols * sizeof(float);
    float *file = xmalloc(n), *kept = xmalloc(n);
    size_t step = (size_t)dtype_row_bytes(part->type, part->cols);
    int rc = 0;

    for (int r = 0; r < part->rows && rc == 0; r++) {
        dtype_to_f32(part->type, (const char *)part->data + (size_t)r * step, file,
                     part->cols);
        rc = weight_read(*p->w, row + r, kept, &p->j->why);
        p->file_sum = mix(p->file_sum, file, part->cols);
        p->kept_sum = mix(p->kept_sum, kept, part->cols);
    }
    free(file);
    free(kept);
    if (rc == 0 && p->file_sum != p->kept_sum)
        rc = err_set(&p->j->why, ERR_CORRUPT,
                     "%s: tensor '%s', rows %d..%d: the checksum of what was loaded is "
                     "%016llx, that of the file %016llx",
                     p->t->file, p->t->name, row, row + part->rows - 1,
                     (unsigned long long)p->kept_sum, (unsigned long long)p->file_sum);
    return rc;
}

static int slice(struct piece *p, int row, int n)
{
    struct weight_src src = {.name = p->t->name};
    void *copy = NULL;
    int rc = forward_cut(p->t, (struct run){row, n}, (struct run){0, p->t->cols}, &src,
                         &copy, &p->j->why);

    if (rc == 0 && p->j->kind == EXPERTLOAD_CHECK)
        rc = compare(p, &src, row);
    else if (rc == 0 && !p->vector)
        rc = weight_part(*p->w, &src, row, &p->j->why);
    free(copy);
    return rc;
}

static size_t row_bytes(const struct model_tensor *t)
{
    int64_t n = dtype_row_bytes(t->type, t->cols);

    return n > 0 ? (size_t)n : 0;
}

static int run_piece(struct piece *p, struct backend *b)
{
    int64_t began = now_us();
    int step = slice_rows(p);

    if (p->j->kind == EXPERTLOAD_LOAD && make(p, b) < 0)
        return -1;
    for (int row = 0; row < p->t->rows; row += step, began = now_us()) {
        int left = p->t->rows - row;

        if (fault_hold(p->j->kind == EXPERTLOAD_LOAD ? "expert_load" : "expert_check", 0))
            return err_set(&p->j->why, ERR_IO, "a test lets it fail");
        step = left < step ? left : step;
        if (slice(p, row, step) < 0 || rest(p, began, row_bytes(p->t) * (size_t)step) < 0)
            return -1;
    }
    if (p->j->kind == EXPERTLOAD_CHECK) {
        p->j->sum = (p->j->sum ^ p->file_sum) * UINT64_C(0x9fb21c651e98df25);
        model_drop_pages(p->l->cfg.model, p->t);
    }
    return 0;
}

/* ---- jobs ---- */

static size_t tensor_bytes(const struct model_tensor *t)
{
    return row_bytes(t) * (size_t)t->rows;
}

static int run_put(struct expertload *l, struct expertload_job *j, int at)
{
    for (int k = 0; k < MODEL_EXPERT_ROLES; k++) {
        enum model_role role = (enum model_role)(ROLE_EXP_GATE + k);
        struct piece p = {l,
                          j,
                          model_expert(l->cfg.model, role, j->layer, j->put[at].expert),
                          &j->put[at].w[k],
                          role >= ROLE_EXP_GATE_BIAS,
                          0,
                          0};

        if (!p.t)
            continue;
        if (run_piece(&p, j->put[at].b) < 0)
            return err_wrap(&j->why, "expert %d of layer %d", j->put[at].expert,
                            j->layer);
        if (j->kind == EXPERTLOAD_LOAD)
            j->bytes += tensor_bytes(p.t);
    }
    return 0;
}

static void run(struct expertload *l, struct expertload_job *j)
{
    j->failed = false;
    j->all_bytes = 0;
    for (int i = 0; i < j->n; i++)
        for (int k = 0; k < MODEL_EXPERT_ROLES && j->put[i].expert >= 0; k++) {
            const struct model_tensor *t =
                model_expert(l->cfg.model, (enum model_role)(ROLE_EXP_GATE + k), j->layer,
                             j->put[i].expert);
            j->all_bytes += t ? tensor_bytes(t) : 0;
        }
    for (int i = 0; i < j->n && !j->failed; i++)
        if (j->put[i].expert >= 0)
            j->failed = run_put(l, j, i) < 0;
}

static void *loader_main(void *arg)
{
    struct expertload *l = arg;

    for (;;) {
        struct expertload_job *j = queue_pop_wait(l->todo, IDLE_WAIT_US);

        if (j == &l->end)
            break;
        if (!j)
            continue;
        run(l, j);
        queue_push(l->done, j);
    }
    gate_raise(&l->gone, 1);
    return NULL;
}

void expertload_ask(struct expertload *l, struct expertload_job *j,
                    enum expertload_kind kind)
{
    j->kind = kind;
    l->now = j;
    queue_push(l->todo, j);
}

struct expertload_job *expertload_poll(struct expertload *l)
{
    struct expertload_job *j = queue_pop(l->done);

    if (j)
        l->now = NULL;
    return j;
}

int expertload_fd(const struct expertload *l) { return queue_fd(l->done); }

void expertload_pace(struct expertload *l, int64_t step_bytes, double share)
{
    if (step_bytes > 0)
        atomic_store(&l->step_bytes, step_bytes);
    if (share > 0 && share <= 1)
        atomic_store(&l->share, (int)ceil(share * MILLIONTHS));
}

void expertload_step(struct expertload *l, int64_t step_us)
{
    int64_t mean = atomic_load(&l->step_us);

    atomic_store(&l->step_us, mean ? mean + (step_us - mean) / STEPS : step_us);
}

void expertload_job_done(struct expertload_job *j)
{
    for (int i = 0; i < j->n; i++)
        for (int k = 0; k < MODEL_EXPERT_ROLES; k++) {
            weight_free(j->put[i].w[k]);
            j->put[i].w[k] = NULL;
        }
}

/* ---- life ---- */

int expertload_new(const struct expertload_cfg *cfg, struct expertload **ret,
                   struct err *e)
{
    struct expertload *l = xcalloc(1, sizeof(*l));
    int rc;

    l->cfg = *cfg;
    l->cfg.slice_bytes = cfg->slice_bytes ? cfg->slice_bytes : SLICE_BYTES;
    l->cfg.longest_us = cfg->longest_us ? cfg->longest_us : LONGEST_US;
    expertload_pace(l, 0, SHARE);
    expertload_pace(l, 0, cfg->share);
    if (queue_new(4, &l->todo, e) < 0 || queue_new(4, &l->done, e) < 0)
        goto fail;
    rc = pthread_create(&l->thread, NULL, loader_main, l);
    if (rc != 0) {
        errno = rc;
        err_errno(e, ERR_NOMEM, "cannot start the thread that loads experts");
        goto fail;
    }
    l->started = true;
    pthread_setname_np(l->thread, "expertload");
    *ret = l;
    return 0;

fail:
    expertload_free(l);
    return -1;
}

bool expertload_free(struct expertload *l)
{
    if (!l)
        return true;
    if (l->started) {
        if (l->now)
            expertload_stop(l->now);
        queue_push(l->todo, &l->end);
        if (gate_wait(&l->gone, 1, false, now_us() + END_WAIT_US, NULL) != GATE_OPEN) {
            pthread_detach(l->thread);
            return false;
        }
        pthread_join(l->thread, NULL);
        while (queue_pop(l->done))
            continue;
    }
    queue_free(l->todo);
    queue_free(l->done);
    free(l);
    return true;
}
