/* daemon/serve/unicode.h - UTF-8 steps and NFC, linear in their input. Pure; any thread.
 */
#ifndef SERVE_UNICODE_H
#define SERVE_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct err;

/* Look at p[0..n), n > 0. Above 0: length of the whole character there, its code point in
 * *ret_cp (may be NULL). 0: a good beginning that is cut off. Below 0: minus the number
 * of bytes that can never become a character (the maximal subpart that Unicode replaces
 * by one U+FFFD). */
int utf8_next(const char *p, size_t n, uint32_t *ret_cp);
/* Write cp as UTF-8; yields 1..4. */
int utf8_put(uint32_t cp, char out[4]);
/* Bytes of p[0..n) up to the first that is not UTF-8 (a cut-off end counts as not). */
size_t utf8_span(const char *p, size_t n);
/* Unicode's White_Space property. */
bool unicode_is_space(uint32_t cp);
/* Append the NFC form of valid UTF-8 to out. */
int unicode_nfc(const char *p, size_t n, struct buf *out, struct err *e);

#endif
