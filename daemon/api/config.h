/* daemon/api/config.h - what config.c (drafts, commits) and config_show.c (what is there,
 * history) share. Control thread.
 *
 * The running configuration has the ETag "NUMBER-HASH", the draft "draft-HASH"; a change
 * with If-Match is refused (412) unless one of them is named, so that nobody works on
 * what he has not seen. */
#ifndef API_CONFIG_H
#define API_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/ctrl/confmgr.h"

struct conn;

enum { CONFIG_TAG = 48 };

/* NULL: the request was answered, there is none. */
struct confmgr *config_manager(struct conn *c);
int64_t config_running(struct confmgr *m);
void config_running_tag(int64_t id, const char *hash, char tag[CONFIG_TAG]);
void config_draft_tag(const char *text, char tag[CONFIG_TAG]);
/* 202 for revision id that is being applied; back: it is over when it no longer runs. */
void config_answer_started(struct conn *c, const char *kind, int64_t id, bool back);
extern const char *const config_guards[3]; /* by enum rev_guard */

#endif
