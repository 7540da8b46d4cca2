/* base/list.h - intrusive doubly linked list; a head is a struct list pointing to
 * itself. Single owner thread. */
#ifndef BASE_LIST_H
#define BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *next, *prev;
};

#define list_entry(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))
#define list_for(it, head)                                                               \
    for (struct list *it = (head)->next; it != (head); it = it->next)
/* Safe when the body unlinks `it`. */
#define list_for_safe(it, tmp, head)                                                     \
    for (struct list *it = (head)->next, *tmp = it->next; it != (head);                  \
         it = tmp, tmp = it->next)

static inline void list_init(struct list *h) { h->next = h->prev = h; }
static inline bool list_empty(const struct list *h) { return h->next == h; }
static inline void list_insert(struct list *before, struct list *n)
{
    n->prev = before->prev;
    n->next = before;
    before->prev->next = n;
    before->prev = n;
}
static inline void list_push(struct list *h, struct list *n) { list_insert(h, n); }
static inline void list_push_front(struct list *h, struct list *n)
{
    list_insert(h->next, n);
}
static inline void list_del(struct list *n)
{
    n->prev->next = n->next;
    n->next->prev = n->prev;
    n->next = n->prev = n;
}

#endif
