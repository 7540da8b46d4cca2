/* ctl/show.h - a JSON reply as aligned text, by the view of its verb's row.
 *
 * Tables fit the width given (the widest text column gives way); control characters of
 * shown data are struck out. Pure. */
#ifndef CTL_SHOW_H
#define CTL_SHOW_H

#include <stddef.h>

struct buf;
struct err;

/* json[0..n) by view (see verb.def) into out; width 0 = unlimited. */
int show_render(const char *json, size_t n, const char *view, int width, struct buf *out,
                struct err *e);

/* Control characters of s (C0, DEL, C1) become '?', except the bytes in keep. */
void show_clean(char *s, const char *keep);

#endif
