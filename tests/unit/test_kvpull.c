/* tests/unit/test_kvpull.c - KV that is pulled out of memory which its owner uses again
 * at any time: one exporter and several importers of other layouts, threads with their
 * own pools, states and copies. Clocks jump, so that leases end and blocks are taken back
 * under copies; messages get lost, copies fail and are slow, either end dies and comes
 * again, readers leave. Whatever comes when: what an importer accepts is what was offered
 * to it; nothing is written into blocks that have gone back; in the end all are there. */
#include "tests/test.h"

#include <poll.h>
#include <pthread.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/mem.h"
#include "base/queue.h"
#include "daemon/serve/handoff.h"
#include "daemon/serve/kvcache.h"
#include "daemon/serve/kvpull.h"
#include "tests/unit/kv_rig.h"

enum {
    READERS = 3,
    LIVE = 4,       /* requests of a reader at once */
    RUNNING = 6,    /* prompts that the exporter computes at once */
    PROMPT = 96,    /* positions at most */
    BLOCKS = 26,    /* of the exporter: few, so that they change hands soon */
    OWN_BLOCKS = 40 /* of a reader */
};

static const struct kv_shape from_shape = {2, 1, 1, false};
static const struct kv_shape shapes[READERS] = {
    {1, 1, 1, false}, {1, 2, 1, false}, {1, 1, 2, true}};

static const struct handoff_cfg out_times = {.lease_us = 400000,
                                             .quarantine_us = 400000,
                                             .quarantine_blocks = 8,
                                             .first_us = 1,
                                             .next_us = 1,
                                             .pull_us = 1,
                                             .tries = 1};
static const struct handoff_cfg in_times = {.lease_us = 1,
                                            .quarantine_us = 3600ll * 1000000,
                                            .quarantine_blocks = 1,
                                            .first_us = 4000000,
                                            .next_us = 4000000,
                                            .pull_us = 2000000,
                                            .tries = 3};

enum kind { ASK, OFFER, PULLED, CANCEL, GONE, END };
struct msg {
    enum kind kind;
    int reader;
    uint64_t id, who; /* incarnation: ASK, PULLED of the exporter; GONE */
    int n_tok;
    struct wire_pulled pulled;
    struct wire_export h;
    struct wire_block blocks[PROMPT / KV_BLOCK_TOK + 1];
};

/* What happened, of all. */
static struct {
    atomic_int done, conflicts, taken_back, failed, closing, late, deaths, wrong, spoilt,
        stuck, left;
    atomic_bool enough;
} count;

/* Who is the exporter now, as a daemon would know; under the lock. */
static struct {
    pthread_mutex_t lock;
    struct kv_body body;
    uint64_t incarnation;
} known = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct queue *to_exporter, *to_reader[READERS];

static __thread uint64_t rng;
static atomic_int n_threads;

static bool one_in(uint64_t n)
{
    if (!rng)
        rng = (test_seed() + 1) * 7919 + (uint64_t)atomic_fetch_add(&n_threads, 1);
    return test_rand(&rng) % n == 0;
}

static int below(int n)
{
    one_in(1);
    return (int)(test_rand(&rng) % (uint64_t)n);
}

/* Numbers of engines and requests: none comes twice. */
static uint64_t next_number(void)
{
    static atomic_ullong last;

    return atomic_fetch_add(&last, 1) + 1;
}

static void post(struct queue *q, const struct msg *m)
{
    struct msg *copy = xmalloc(sizeof(*copy));

    *copy = *m;
    while (queue_push(q, copy) < 0)
        clock_sleep_us(50);
}

/* ---- the exporter ---- */

struct prompt {
    struct list link;
    uint64_t id, reader_is;
    int reader, n_tok, told; /* blocks offered */
    struct kvseq *kv;        /* NULL: it waits */
};
struct exporter {
    struct handoff *h;
    struct kvcache *kv;
    struct kvmap *map;
    struct list prompts;
    uint64_t incarnation;
    int64_t ahead_us; /* its clock jumps */
    bool ending;
};

static int64_t out_now(const struct exporter *x)
{
    return clock_now_us(clock_real()) + x->ahead_us;
}

static void exporter_begin(struct exporter *x)
{
    struct kvcache_cfg c = {.block_tok = KV_BLOCK_TOK, .n_groups = 1};
    struct kv_body body;

    x->incarnation = next_number();
    kv_body_new(&body, &from_shape, BLOCKS, x->incarnation);
    c.group[0] = (struct kv_group){KV_FULL, BLOCKS, 0};
    c.gens = body.page->gen;
    x->kv = kvcache_new(&c);
    x->map = kv_body_map(&body, true);
    x->h = handoff_new(&out_times);
    list_init(&x->prompts);
    pthread_mutex_lock(&known.lock);
    known.body = body;
    known.incarnation = x->incarnation;
    pthread_mutex_unlock(&known.lock);
}

static void prompt_free(struct exporter *x, struct prompt *q)
{
    handoff_export_end(x->h, out_now(x), q->id);
    kvseq_free(q->kv);
    list_del(&q->link);
    free(q);
}

/* In order, with its page's end; or by a crash, where nothing is said. */
static void exporter_end(struct exporter *x, bool crash)
{
    struct handoff_stats st;
    struct kv_body body;

    pthread_mutex_lock(&known.lock);
    body = known.body;
    known.body = (struct kv_body){0};
    known.incarnation = 0;
    pthread_mutex_unlock(&known.lock);
    if (!crash)
        atomic_store(&body.page->incarnation, 0);
    handoff_stats(x->h, &st);
    atomic_fetch_add(&count.taken_back, (int)st.taken_back);
    handoff_free(x->h);
    list_for_safe(it, tmp, &x->prompts)
    {
        struct prompt *q = list_entry(it, struct prompt, link);
        kvseq_free(q->kv);
        free(q);
    }
    kvcache_free(x->kv);
    kvmap_free(x->map);
    kv_body_done(&body);
    for (int i = 0; i < READERS; i++)
        post(to_reader[i], &(struct msg){.kind = GONE, .who = x->incarnation});
}

/* The blocks of positions up to `len` that were not offered yet. */
static void offer(struct exporter *x, struct prompt *q, bool last)
{
    int len = kvseq_len(q->kv), n_table;
    const int32_t *table = kvseq_blocks(q->kv, 0, &n_table);
    int end = last ? n_table : len / KV_BLOCK_TOK;
    struct msg m = {.kind = OFFER, .id = q->id};

    m.h = (struct wire_export){.id = q->id,
                               .incarnation = x->incarnation,
                               .first = q->told,
                               .n = end - q->told,
                               .upto = last ? len : end * KV_BLOCK_TOK,
                               .n_tok = q->n_tok,
                               .block_tok = KV_BLOCK_TOK,
                               .n_gen = last,
                               .last = last};
    if (!m.h.n)
        return;
    kvcache_pin(x->kv, table + q->told, m.h.n);
    handoff_export(x->h, out_now(x), q->id, q->reader_is, table + q->told, m.h.n);
    for (int i = 0; i < m.h.n; i++)
        m.blocks[i] = (struct wire_block){.id = table[q->told + i],
                                          .gen = kvcache_gen(x->kv, table[q->told + i])};
    q->told = end;
    if (!one_in(200))
        post(to_reader[q->reader], &m);
}

/* A chunk of one prompt. */
static void compute(struct exporter *x, struct prompt *q)
{
    int32_t toks[PROMPT] = {0};
    int n_table, copies = 0, from, upto;

    if (!q->kv) {
        q->kv = kvseq_new(x->kv, 0, 0, false);
        if (kvseq_reserve(q->kv, 0, q->n_tok, NULL, &copies, 0) < 0) {
            kvseq_free(q->kv);
            q->kv = NULL;
            return;
        }
    }
    const int32_t *table = kvseq_blocks(q->kv, 0, &n_table);
    from = kvseq_len(q->kv);
    upto = from + 1 + below(40);
    upto = upto < q->n_tok ? upto : q->n_tok;
    kv_each(x->map, table, n_table, q->id, from, upto, true);
    kvseq_commit(q->kv, toks, upto - from);
    if (upto < q->n_tok && upto / KV_BLOCK_TOK < n_table) {
        offer(x, q, false);
        return;
    }
    if (upto < q->n_tok)
        return;
    offer(x, q, true);
    prompt_free(x, q);
}

static void exporter_hears(struct exporter *x, const struct msg *m)
{
    if (m->kind == END)
        x->ending = true;
    if (m->kind == PULLED && m->who == x->incarnation)
        handoff_acked(x->h, out_now(x), &m->pulled);
    if (m->kind == GONE)
        handoff_peer_gone(x->h, out_now(x), m->who);
    if (m->kind == GONE || m->kind == CANCEL)
        list_for_safe(it, tmp, &x->prompts)
        {
            struct prompt *q = list_entry(it, struct prompt, link);
            if (m->kind == GONE ? q->reader_is == m->who : q->id == m->id)
                prompt_free(x, q);
        }
    if (m->kind != ASK || m->who != x->incarnation)
        return;
    struct prompt *q = xcalloc(1, sizeof(*q));
    *q = (struct prompt){.id = m->id,
                         .reader = m->reader,
                         .reader_is = m->pulled.reader,
                         .n_tok = m->n_tok};
    list_push(&x->prompts, &q->link);
}

static void exporter_acts(struct exporter *x)
{
    const struct handoff_act *a;
    struct err e;
    size_t n = handoff_acts(x->h, &a);

    for (size_t i = 0; i < n; i++)
        if (a[i].kind == HANDOFF_UNPIN)
            kvcache_unpin(x->kv, a[i].ids, a[i].n);
    atomic_fetch_add(&count.wrong,
                     handoff_check(x->h, &e) < 0 || kvcache_check(x->kv, &e) < 0);
}

static void exporter_turn(struct exporter *x)
{
    int n = 0;
    int64_t at;

    for (struct msg *m; (m = queue_pop_wait(to_exporter, n ? 0 : 200)); free(m), n++)
        exporter_hears(x, m);
    if (one_in(20)) /* leases end, and with the second jump quarantines */
        x->ahead_us += out_times.lease_us + 1;
    at = handoff_deadline(x->h);
    if (at >= 0 && at <= out_now(x))
        handoff_tick(x->h, out_now(x));
    exporter_acts(x);
    n = 0;
    list_for_safe(it, tmp, &x->prompts)
    {
        if (n++ < RUNNING)
            compute(x, list_entry(it, struct prompt, link));
    }
    exporter_acts(x);
    if (one_in(300))
        clock_sleep_us(3000);
}

/* Nobody asks any more: all that was given out comes back. */
static void exporter_rest(struct exporter *x)
{
    struct kvcache_stats st;

    x->ahead_us += 2 * out_times.lease_us;
    for (int i = 0; i < 3; i++, x->ahead_us += 2 * out_times.lease_us) {
        handoff_tick(x->h, out_now(x));
        exporter_acts(x);
    }
    kvcache_stats(x->kv, &st);
    atomic_fetch_add(&count.left, st.n_used + st.n_pins + (st.n_free != BLOCKS));
}

static void *exporter_main(void *arg)
{
    struct exporter x = {0};

    (void)arg;
    exporter_begin(&x);
    while (!x.ending || !list_empty(&x.prompts)) {
        exporter_turn(&x);
        if (x.ending || !one_in(600))
            continue;
        exporter_end(&x, one_in(2));
        atomic_fetch_add(&count.deaths, 1);
        exporter_begin(&x);
    }
    exporter_rest(&x);
    exporter_end(&x, false);
    return NULL;
}

/* ---- a reader ---- */

struct want {
    uint64_t id, peer, pull; /* pull: that copies; 0 = none */
    bool used, over;         /* over: of no use, but a copy may write into its blocks */
    int have, got, n_tok, n_table;
    int32_t table[PROMPT / KV_BLOCK_TOK];
};
struct peer {
    uint64_t incarnation;
    struct kvmap *map;
    bool gone;
};
struct reader {
    int me, block_tok;
    uint64_t incarnation;
    struct handoff *h;
    struct kvpull *pulls;
    struct kv_body body;
    struct kvmap *own;
    struct want want[LIVE * 2];
    int32_t free[OWN_BLOCKS];
    int n_free;
    struct peer peer[16];
    int n_peers;
    int64_t ahead_us;
};

static int64_t in_now(const struct reader *r)
{
    return clock_now_us(clock_real()) + r->ahead_us;
}

/* Slow now and then, and not always with success. */
static int64_t slow_copy(const struct kvpull_piece *p, struct err *e)
{
    if (one_in(24))
        clock_sleep_us(below(400));
    if (one_in(400))
        return err_set(e, ERR_IO, "a copy that fails");
    return kvpull_host.copy(p, e);
}

static int copied(struct err *e)
{
    if (one_in(16))
        clock_sleep_us(below(2000));
    return kvpull_host.finish(e);
}

static const struct kvpull_ops copies = {slow_copy, copied};

/* A block that nobody has, and still nobody when it is taken again. */
static bool marked(struct reader *r, int32_t id, bool write)
{
    bool all = true;

    for (int i = 0; i < kvmap_regions(r->own); i++) {
        const struct kvregion *g = kvmap_region(r->own, i);
        uint8_t *p = g->mem + (size_t)id * g->layout.block_bytes;
        for (size_t k = 0; k < g->layout.block_bytes; k++)
            if (write)
                p[k] = 0xa5;
            else
                all &= p[k] == 0xa5;
    }
    return all;
}

static void give_back(struct reader *r, struct want *w)
{
    for (int i = 0; i < w->n_table; i++) {
        marked(r, w->table[i], true);
        r->free[r->n_free++] = w->table[i];
    }
    *w = (struct want){0};
}

static void over(struct reader *r, struct want *w)
{
    w->over = true;
    if (!w->pull)
        give_back(r, w);
}

static struct want *find(struct reader *r, uint64_t id, uint64_t pull)
{
    for (int i = 0; i < LIVE * 2; i++) {
        struct want *w = &r->want[i];
        if (w->used && (pull ? w->pull == pull : w->id == id && !w->over))
            return w;
    }
    return NULL;
}

static const struct kvmap *map_of(struct reader *r, uint64_t incarnation)
{
    for (int i = 0; i < r->n_peers; i++)
        if (r->peer[i].incarnation == incarnation)
            return r->peer[i].map;
    return NULL;
}

/* The exporter of now; 0: there is none. */
static uint64_t meet(struct reader *r)
{
    pthread_mutex_lock(&known.lock);
    uint64_t who = known.incarnation;
    if (who && !map_of(r, who) && r->n_peers < 16)
        r->peer[r->n_peers++] =
            (struct peer){who, kv_body_map(&known.body, false), false};
    pthread_mutex_unlock(&known.lock);
    return map_of(r, who) ? who : 0;
}

static void ask(struct reader *r)
{
    struct want *w = NULL;
    int n = 0;
    uint64_t peer;

    for (int i = 0; i < LIVE * 2; i++) {
        n += r->want[i].used && !r->want[i].over;
        w = r->want[i].used ? w : &r->want[i];
    }
    if (n >= LIVE || !w || r->n_free < PROMPT / r->block_tok || !(peer = meet(r)))
        return;
    *w = (struct want){
        .id = next_number(), .peer = peer, .used = true, .n_tok = 1 + below(PROMPT)};
    w->n_table = (w->n_tok + r->block_tok - 1) / r->block_tok;
    for (int i = 0; i < w->n_table; i++) {
        w->table[i] = r->free[--r->n_free];
        atomic_fetch_add(&count.spoilt, !marked(r, w->table[i], false));
    }
    if (w->n_table > 1 && one_in(3)) /* of a prefix that it has */
        w->have = r->block_tok;
    kv_each(r->own, w->table, w->n_table, w->id, 0, w->have, true);
    w->got = w->have;
    handoff_import(r->h, in_now(r), w->id, peer);
    handoff_reserved(r->h, in_now(r), w->id, w->have, w->n_tok);
    post(to_exporter, &(struct msg){.kind = ASK,
                                    .reader = r->me,
                                    .id = w->id,
                                    .who = peer,
                                    .n_tok = w->n_tok,
                                    .pulled.reader = r->incarnation});
}

static void begin_pull(struct reader *r, const struct handoff_act *a)
{
    struct want *w = find(r, a->id, 0);
    struct kvpull_job job = {.number = a->pull,
                             .src = map_of(r, a->peer),
                             .dst = r->own,
                             .incarnation = a->peer,
                             .blocks = a->blocks,
                             .first = a->first,
                             .n = a->n,
                             .table = w->table,
                             .n_table = w->n_table,
                             .from = w->got,
                             .upto = a->upto};

    w->pull = a->pull;
    atomic_fetch_add(&count.wrong, !job.src);
    if (kvpull_submit(r->pulls, kvpull_job_new(&job)) < 0)
        atomic_fetch_add(&count.wrong, 1); /* there are fewer than it takes */
}

static void pull_back(struct reader *r, struct kvpull_job *j)
{
    struct want *w = find(r, 0, j->number);

    w->pull = 0;
    if (j->rc == 0) {
        if (!kv_each(r->own, w->table, w->n_table, w->id, j->from, j->upto, false))
            atomic_fetch_add(&count.wrong, 1);
        w->got = j->upto;
    } else if (j->why.code == ERR_CONFLICT) {
        atomic_fetch_add(&count.conflicts, 1);
    } else {
        atomic_fetch_add(&count.failed, 1);
    }
    handoff_pull_end(r->h, in_now(r), j->number, j->rc < 0 ? &j->why : NULL, j->bytes,
                     j->us);
    atomic_fetch_add(&count.closing, w->over);
    if (w->over)
        give_back(r, w);
    kvpull_job_free(j);
}

static void act(struct reader *r, const struct handoff_act *a)
{
    struct want *w = find(r, a->id, 0);
    struct msg m = {.kind = PULLED, .id = a->id, .who = a->peer, .pulled = a->pulled};

    switch (a->kind) {
    case HANDOFF_PULL:
        begin_pull(r, a);
        return;
    case HANDOFF_PULLED:
        m.pulled.reader = r->incarnation;
        if (!one_in(50))
            post(to_exporter, &m);
        return;
    case HANDOFF_LOST: /* it is computed here: into other blocks, where a copy writes */
        atomic_fetch_add(&count.late, 1);
        post(to_exporter, &(struct msg){.kind = CANCEL, .id = a->id});
        handoff_recompute(r->h, in_now(r), a->id);
        over(r, w);
        return;
    case HANDOFF_DONE:
        if (w->got != w->n_tok ||
            !kv_each(r->own, w->table, w->n_table, w->id, 0, w->n_tok, false))
            atomic_fetch_add(&count.wrong, 1);
        atomic_fetch_add(&count.done, 1);
        over(r, w);
        return;
    case HANDOFF_STUCK:
        atomic_fetch_add(&count.stuck, 1);
        return;
    case HANDOFF_UNPIN:
        atomic_fetch_add(&count.wrong, 1);
    }
}

static void reader_begin(struct reader *r)
{
    struct err e;

    r->incarnation = next_number();
    r->h = handoff_new(&in_times);
    if (kvpull_new(&copies, &r->pulls, &e) < 0)
        abort();
    kv_body_new(&r->body, &shapes[r->me], OWN_BLOCKS, r->incarnation);
    r->own = kv_body_map(&r->body, true);
    r->block_tok = kvmap_block_tok(r->own);
    for (r->n_free = 0; r->n_free < OWN_BLOCKS; r->n_free++) {
        r->free[r->n_free] = r->n_free;
        marked(r, r->n_free, true);
    }
    memset(r->want, 0, sizeof(r->want));
}

static void drop_peers(struct reader *r, bool all)
{
    for (int i = 0; i < r->n_peers; i++) {
        struct peer *p = &r->peer[i];
        if (!all && (!p->gone || handoff_reads(r->h, p->incarnation)))
            continue;
        kvmap_free(p->map);
        *p = r->peer[--r->n_peers];
        i--;
    }
}

static void reader_end(struct reader *r)
{
    kvpull_free(r->pulls);
    drop_peers(r, true);
    handoff_free(r->h);
    kvmap_free(r->own);
    kv_body_done(&r->body);
    post(to_exporter, &(struct msg){.kind = GONE, .who = r->incarnation});
}

static void reader_hears(struct reader *r, const struct msg *m)
{
    static const int32_t gen[1] = {7};

    if (m->kind == OFFER && map_of(r, m->h.incarnation))
        handoff_offer(r->h, in_now(r), &(struct wire_offer){m->h, m->blocks, gen});
    if (m->kind != GONE)
        return;
    handoff_peer_gone(r->h, in_now(r), m->who);
    for (int i = 0; i < r->n_peers; i++)
        r->peer[i].gone |= r->peer[i].incarnation == m->who;
}

/* Something comes, or a little time goes by. */
static void reader_waits(const struct reader *r)
{
    struct pollfd fd[2] = {{queue_fd(to_reader[r->me]), POLLIN, 0},
                           {kvpull_fd(r->pulls), POLLIN, 0}};

    poll(fd, 2, 1);
}

static void reader_turn(struct reader *r)
{
    const struct handoff_act *a;
    struct err e;
    int64_t at;

    reader_waits(r);
    for (struct msg *m; (m = queue_pop(to_reader[r->me])); free(m))
        reader_hears(r, m);
    if (one_in(2)) /* else the news of its end comes later than its deadline */
        for (struct kvpull_job *j; (j = kvpull_poll(r->pulls));)
            pull_back(r, j);
    if (one_in(60))
        r->ahead_us += in_times.pull_us + 1;
    at = handoff_deadline(r->h);
    if (at >= 0 && at <= in_now(r))
        handoff_tick(r->h, in_now(r));
    for (size_t n; (n = handoff_acts(r->h, &a)) > 0;)
        for (size_t i = 0; i < n; i++)
            act(r, &a[i]);
    struct want *w = &r->want[below(LIVE * 2)];
    if (w->used && !w->over && one_in(20)) { /* its client goes */
        post(to_exporter, &(struct msg){.kind = CANCEL, .id = w->id});
        handoff_import_end(r->h, in_now(r), w->id);
        over(r, w);
    }
    drop_peers(r, false);
    if (handoff_check(r->h, &e) < 0)
        atomic_fetch_add(&count.wrong, 1);
    if (one_in(200))
        clock_sleep_us(4000);
}

static bool reader_idle(const struct reader *r) { return r->n_free == OWN_BLOCKS; }

static void *reader_main(void *arg)
{
    struct reader r = {.me = (int)(intptr_t)arg};

    reader_begin(&r);
    while (!atomic_load(&count.enough) || !reader_idle(&r)) {
        if (!atomic_load(&count.enough))
            ask(&r);
        reader_turn(&r);
        if (one_in(800)) {
            reader_end(&r);
            atomic_fetch_add(&count.deaths, 1);
            reader_begin(&r);
        }
    }
    for (int i = 0; i < OWN_BLOCKS; i++)
        atomic_fetch_add(&count.spoilt, !marked(&r, i, false));
    reader_end(&r);
    return NULL;
}

/* ---- tests ---- */

/* Each of the things that can happen has, often. */
static bool all_happened(void)
{
    return count.done >= 600 && count.conflicts >= 40 && count.taken_back >= 200 &&
           count.failed >= 20 && count.closing >= 60 && count.late >= 100 &&
           count.deaths >= 8;
}

static void drain(struct queue *q)
{
    for (struct msg *m; (m = queue_pop(q)) || (m = queue_pop(q)); free(m))
        continue;
    queue_free(q);
}

static void test_pulls_while_blocks_change_hands(void **state)
{
    (void)state;
    pthread_t exporter, reader[READERS];
    struct err e;

    assert_int_equal(queue_new(4096, &to_exporter, &e), 0);
    for (int i = 0; i < READERS; i++)
        assert_int_equal(queue_new(4096, &to_reader[i], &e), 0);
    assert_int_equal(pthread_create(&exporter, NULL, exporter_main, NULL), 0);
    for (intptr_t i = 0; i < READERS; i++)
        assert_int_equal(pthread_create(&reader[i], NULL, reader_main, (void *)i), 0);
    while (!all_happened() && !count.wrong && !count.spoilt)
        clock_sleep_us(5000);
    atomic_store(&count.enough, true);
    for (int i = 0; i < READERS; i++)
        pthread_join(reader[i], NULL);
    post(to_exporter, &(struct msg){.kind = END});
    pthread_join(exporter, NULL);
    printf("# %d whole, %d conflicts, %d blocks taken back, %d copies failed, %d ended "
           "for nobody, %d lost, %d ends of engines\n",
           count.done, count.conflicts, count.taken_back, count.failed, count.closing,
           count.late, count.deaths);
    assert_int_equal(count.wrong, 0);  /* accepted what it is not */
    assert_int_equal(count.spoilt, 0); /* written into what was given back */
    assert_int_equal(count.stuck, 0);
    assert_int_equal(count.left, 0);
    drain(to_exporter);
    for (int i = 0; i < READERS; i++)
        drain(to_reader[i]);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_pulls_while_blocks_change_hands),
};

TEST_MAIN("kvpull", tests)
