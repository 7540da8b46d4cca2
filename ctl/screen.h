/* ctl/screen.h - the whole terminal for a while: frames that replace each other without
 * flicker, and single keys.
 *
 * The alternate screen, so that what stood there comes back. A frame is written in one
 * piece over the one before; nothing is cleared first. One owner thread. */
#ifndef CTL_SCREEN_H
#define CTL_SCREEN_H

#include <stdint.h>

struct buf;
struct err;

enum { SCREEN_TIMEOUT = 0, SCREEN_STOP = -1, SCREEN_RESIZED = -2 };

/* DENIED without a terminal. */
int screen_open(struct err *e);
void screen_close(void);
/* Lines of at most line_width() columns; those that are too many are left out. */
void screen_frame(const struct buf *text);
/* A key, or one of the above: at_us is the monotonic time to wait for at most. */
int screen_key(int64_t at_us);

#endif
