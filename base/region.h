/* base/region.h - a region of memory in a memfd, which processes share.
 *
 * One that makes it hands the descriptor to the others; each unmaps it by itself. Any
 * thread. */
#ifndef BASE_REGION_H
#define BASE_REGION_H

#include <stdbool.h>
#include <stddef.h>

struct err;

/* A new memfd of zeroed bytes, sealed: nobody can cut it short under another one's feet.
 * name: of the memfd; what: for sentences ("the page of the ranks"). The descriptor, -1.
 */
int region_file(const char *name, const char *what, size_t bytes, struct err *e);
/* The same, mapped; *ret_fd owns it. Pages are taken as they are used. */
int region_new(const char *name, const char *what, size_t bytes, int *ret_fd, void **ret,
               struct err *e);
/* One that was made elsewhere; fd is borrowed. INVALID: it has another size. */
int region_map(int fd, const char *what, size_t bytes, void **ret, struct err *e);
/* From now on nobody, this process included, can map it to write or take the seal away;
 * who has it mapped goes on writing. fd is borrowed. */
int region_seal(int fd, const char *what, struct err *e);
/* Can it not be cut short? False for what is no sealed memfd. */
bool region_keeps_size(int fd);
void region_unmap(void *p, size_t bytes); /* NULL allowed */

#endif
