/* daemon/service.h - llmrackd as a service: what its manager hears of it, and when.
 *
 * One timer on the control loop. It feeds the watchdog at half of its period, and only
 * while every loop makes progress: that it runs shows that the control loop passes,
 * `alive` has to say the same of the others. It sends a status text when that changed.
 * Without a manager nothing happens. Control thread. */
#ifndef DAEMON_SERVICE_H
#define DAEMON_SERVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct loop;
struct router;
struct service;

struct service_cfg {
    struct loop *loop;
    /* Every loop beside the control loop makes progress. */
    bool (*alive)(void *arg);
    /* One line for `systemctl status`; true while a model loads, which asks for time. */
    bool (*status)(void *arg, char *text, size_t cap);
    void *arg;
};

/* Such a line: how many instances are ready, and how far one is that loads. */
bool service_line(struct router *r, bool draining, char *text, size_t cap);

/* The start may take as long as this from now on (a schema upgrade, a slow disk). */
void service_starting(int64_t within_us);
struct service *service_new(const struct service_cfg *cfg);
void service_free(struct service *s); /* NULL allowed */
/* The control socket serves. */
void service_ready(struct service *s);
void service_reload(struct service *s, bool begins);
/* Draining begins and takes at most this long; the watchdog is fed on. */
void service_stopping(struct service *s, int64_t within_us);

#endif
