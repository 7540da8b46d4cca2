/* base/queue.h - bounded multi-producer queue of pointers with an eventfd.
 *
 * Push from any thread; pop from the one consumer, by poll on queue_fd or with a
 * deadline. A full queue refuses at once (back-pressure is the caller's answer). */
#ifndef BASE_QUEUE_H
#define BASE_QUEUE_H

#include <stddef.h>
#include <stdint.h>

struct err;
struct queue;

int queue_new(size_t capacity, struct queue **ret, struct err *e);
void queue_free(struct queue *q); /* items left inside are the caller's to drain first */
int queue_push(struct queue *q, void *item); /* 0, or -1 when full */
void *queue_pop(struct queue *q);            /* NULL when empty; rearms the fd */
void *queue_pop_wait(struct queue *q, int64_t timeout_us); /* NULL on time-out */
int queue_fd(const struct queue *q);
size_t queue_len(const struct queue *q);

#endif
