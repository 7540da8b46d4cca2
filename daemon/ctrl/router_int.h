/* daemon/ctrl/router_int.h - what router.c, router_show.c and target.c share. Not for
 * others. Everything in struct router and struct target is under router.lock, unless its
 * line says otherwise. */
#ifndef CTRL_ROUTER_INT_H
#define CTRL_ROUTER_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/list.h"
#include "daemon/ctrl/router.h"
#include "daemon/ctrl/split.h"
#include "daemon/serve/wire.h"

struct affinity;
struct queue;
struct rank_seat;
struct expertpage;
struct rankpage;
struct tracepage;

/* CHOICES: engines of one model that are compared. */
enum { ROUTER_ACCOUNTS = 128, ROUTER_BUCKETS = 1024, ROUTER_CHOICES = 64 };

/* A model as one engine serves it. */
struct model_box {
    struct served pub; /* first: what callers hold */
    struct tokenizer *tok;
    atomic_int refs;
};

struct req {
    struct list link;   /* in its bucket */
    struct list outbox; /* in target.outbox while an order waits */
    struct target *target;
    uint64_t id;
    struct gen_sink sink;
    struct wire_add add; /* as the next engine would get it: answer so far in prompt */
    int32_t *ids; /* add.prompt: prompt and answer, changed by the control thread */
    int cap;      /* of ids */
    char label[72], model[128];
    int n_prompt, n_out, n_scored, max_tokens;
    int64_t left;               /* tokens that it may still cost: prompt and answer */
    int64_t start_us, first_us; /* first_us: -1 before the first token */
    int64_t lost_us;            /* since when it waits to go on, 0 = it does not */
    int n_lost;                 /* engines that went with it */
    int n_times;                /* it began anew after it had a helper */
    int n_computed;             /* ids whose cost is off `left`; of its present engine */
    bool sent, cancelled;
    bool forgot;  /* no memory for its answer: it cannot go on elsewhere */
    bool at_home; /* its target has the prompt's KV itself, as far as one can tell */
    struct split_leg leg; /* changed by the control thread */
};

/* What was counted for a model (instance "") or by the engines of an instance that went
 * away: kept as long as the router, so that sums never fall. */
struct account {
    char model[128], instance[64];
    struct metric_page *page;
};

/* A page outlives its target while somebody reads pages. */
struct page_box {
    struct list link; /* in router.pages */
    struct metric_page *page;
    struct account *account; /* where it is kept; NULL before the model was known */
    bool dead;
};

struct target {
    struct list link; /* in router.targets */
    struct router *r;
    struct list outbox;
    struct model_box *model; /* NULL until the engine was ready once */
    struct served_hot hot;
    struct instance_status st;
    struct page_box *page;
    struct rankpage *ranks;     /* what its ranks do; NULL in tests */
    struct expertpage *experts; /* and its experts; likewise */
    struct tracepage *trace;    /* what it does while somebody asks; likewise */
    char emulate[64];           /* rack whose links its ranks emulate, "" none */
    struct rank_seat *seats;
    int n_seats;
    int n_live, n_sent, max_live;
    int64_t load;          /* sum of left */
    struct affinity *sent; /* prompts that its cache may have; NULL before it was ready */
    int sent_blocks;       /* what it was made for */
    bool draining;
    int64_t silent_us; /* since when it gives no sign of life, monotonic; 0: it does */

    struct split_end end;
    struct split_window window;
    struct queue *bell; /* any thread */
};

/* The last requests that ended, by the id that their clients got. */
enum { ROUTER_ENDED = 256 };

struct router {
    pthread_mutex_t lock;
    struct list bucket[ROUTER_BUCKETS], targets, pages;
    uint64_t next_id;
    char ended[ROUTER_ENDED][72];
    unsigned n_ended;
    int n_readers; /* of pages */
    bool draining;
    struct metric_page *page;                      /* the daemon's */
    struct account *accounts[ROUTER_ACCOUNTS + 1]; /* [0]: what found no other */
    int n_accounts;
};

struct req *router_find(struct router *r, uint64_t id);
/* The one that an engine means by add.params.id: the id, and over it how often it began
 * anew, so that what an engine still says of an earlier time is of nobody. */
enum { ROUTER_ID_BITS = 48, ROUTER_TIMES = 64 };
struct req *router_heard(struct router *r, uint64_t wire_id);
/* Out of the table; the caller owns it. */
void router_leave(struct router *r, struct req *q);
void router_req_free(struct req *q); /* NULL allowed */
/* Why the target takes no request now; 0 when it does. */
int router_not_ready(const struct target *t, struct err *e);
/* Why nothing is to be expected of it now: as above, or it takes them but gives no sign
 * of life. Such a one gets what no other can take, and answers it if it comes back. */
int router_not_answering(const struct target *t, struct err *e);
/* The metric says whether the server is ready. Under the lock. */
void router_tell_ready(struct router *r);
/* The one of these names, made when it is new. Under the lock. */
struct account *router_account(struct router *r, const char *model, const char *instance);
/* The best target of that name, or of any with NULL. Under the lock. */
struct target *router_named(struct router *r, const char *name);
/* Tokens that a request may still be answered with. */
int64_t router_max_answer(const struct served *m, const struct gen_params *p);
/* Blocks of a prompt by their hashes, made without the lock where that can be; free hash.
 */
struct router_prefix {
    uint64_t *hash; /* NULL without memory, or where there is no whole block */
    int n;
};
struct router_prefix router_prefix_of(const struct gen_submit *g);
/* Where n requests for m go: of the ready targets that have room the one that is done
 * first, one that gives no sign of life only where none does. One that is there for
 * prompts takes whole requests where there is no other, and those of one token or none.
 * NULL and why. Under the lock. */
struct target *router_choose(struct router *r, const struct served *m,
                             const struct gen_submit *g, int n,
                             const struct router_prefix *p, struct err *e);
/* Of n engines the one that has computed the prompt first; it is taken for told. Under
 * the lock. */
struct target *router_nearest(struct target **all, int n, const struct wire_add *a);
/* Orders that its engine has not heard of go to other engines of the model that have
 * room. Under the lock. */
void router_move(struct router *r, struct target *from);
/* The same file, as far as ids mean the same. */
bool router_same_model(const struct served *a, const struct served *b);
/* Tell the sink of a request that is out of the table, and free it. Control thread,
 * without the lock. */
void target_end(struct target *t, struct req *q, const struct gen_finish *how);
/* Fold pages of targets that are gone into their accounts, once nobody reads. */
void router_sweep(struct router *r);

#endif
