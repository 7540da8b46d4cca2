/* base/redact.h - texts without secrets and without prompts, for people outside. Pure.
 *
 * For every text of a support bundle: by the daemon for what it stores, and by llmctl for
 * all that goes into the file. */
#ifndef BASE_REDACT_H
#define BASE_REDACT_H

#include <stddef.h>

struct buf;

/* text[0..n) into out with: API keys (id.secret), words after Bearer, private keys in
 * PEM, values of members and directives named secret, password, passwd, token, api_key
 * (but not counts) replaced by "(struck out)"; and logged prompts and answers cut. */
void redact(const char *text, size_t n, struct buf *out);

#endif
