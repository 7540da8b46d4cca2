/* ctl/redact.h - texts without secrets and without prompts, for people outside. Pure.
 *
 * The daemon strikes out what it knows to be secret; this is the second look, at every
 * text of a bundle, and the only one when the daemon is dead. */
#ifndef CTL_REDACT_H
#define CTL_REDACT_H

#include <stddef.h>

struct buf;

/* text[0..n) into out with: API keys (id.secret), words after Bearer, private keys in
 * PEM, values of members and directives named secret, password, passwd, token, api_key
 * (but not counts) replaced by "(struck out)"; and logged prompts and answers cut. */
void redact(const char *text, size_t n, struct buf *out);

#endif
