/* ctl/load_send.h - sends the requests of a run at their times and watches the answers.
 *
 * Open loop: a request is sent when its time has come, whatever is still open; only over
 * LOAD_OPEN_MAX open ones it waits on our side, and that time counts as its own. Streams
 * of /v1/completions with prompts of token ids and answers of a wanted length
 * (ignore_eos). One thread; Ctrl-C ends it at once. */
#ifndef CTL_LOAD_SEND_H
#define CTL_LOAD_SEND_H

#include <stdbool.h>
#include <stdint.h>

#include "base/load_stat.h"
#include "ctl/load_work.h"

struct err;
struct wire;

enum { LOAD_OPEN_MAX = 1000 };

struct load_target {
    const char *model;     /* its id in the API */
    const char *slo_class; /* NULL = none */
    double temperature;
};

struct load_progress {
    int n, come, open, ended, good;
    int64_t elapsed_us;
};

struct load_send {
    struct wire *wire;
    struct load_target to;
    const struct load_work *work;
    struct load_slo slo;
    int64_t max_us; /* what has not ended by then is given up */
    bool stop_lost; /* stop when the queue grows and the target cannot be met any more */
    const volatile int *stop;                                   /* Ctrl-C */
    void (*progress)(void *arg, const struct load_progress *p); /* twice a second */
    void *arg;
};

/* n requests in the order of their times; ret[i] what became of req[i]. *ret_n = how many
 * count: all, or those that had come when it was stopped early. -1: CANCELED by Ctrl-C,
 * UNAVAIL where no daemon is there any more (ret and *ret_n tell what was seen), or
 * nothing can be sent. */
int load_send(const struct load_send *s, const struct load_req *req, int n,
              struct load_seen *ret, int *ret_n, struct err *e);

#endif
