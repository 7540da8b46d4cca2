/* ctl/show.h - a JSON reply as aligned text, by the view of its verb's row.
 *
 * A view is a list of sections separated by ';':
 *   {A=a,B=b.c:fmt}     members of the root as lines; absent ones are left out
 *   key{A=a,..}         the array at key as a table (key? = nothing when it is empty)
 *   @text  @text:diff   the member `text` as it is; with its + and - coloured
 *   @rest               every member, by its own name
 *   =words {member}     one line
 * Formats: bytes count ms us s pct time (Unix ms) minute (Unix min); one with + shows
 * positive values only; state (coloured by its
 * word), on (shown when true), wrap (folded, last column). Control characters of shown
 * data are struck out. Pure. */
#ifndef CTL_SHOW_H
#define CTL_SHOW_H

#include <stddef.h>

#include "base/json.h"
#include "ctl/table.h"

struct buf;
struct err;

/* json[0..n) by view into out. */
int show_render(const char *json, size_t n, const char *view, const struct show_style *st,
                struct buf *out, struct err *e);
void show_json(const json_t *root, const char *view, const struct show_style *st,
               struct buf *out);
/* The member at "a.b" of obj, NULL when absent or null. */
const json_t *show_member(const json_t *obj, const char *path);
/* v as text by fmt, "" for none. */
void show_value(const json_t *v, const char *fmt, char *out, size_t cap);

/* Control characters of s (C0, DEL, C1) become '?', except the bytes in keep. */
void show_clean(char *s, const char *keep);

#endif
