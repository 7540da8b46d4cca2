/* ctl/config.h - what config.c and edit.c share. */
#ifndef CTL_CONFIG_H
#define CTL_CONFIG_H

#include "base/json.h"

struct answer;
struct err;
struct session;

/* The draft, or what runs when there is none; has a string member `text`. */
int config_draft(struct session *s, struct answer *a, struct err *e);
/* Shows a check's answer: faults with their lines of text (NULL: without), changes and
 * actions. -1 when it could not be committed. */
int config_report(struct session *s, const struct answer *a, const char *text,
                  struct err *e);
/* A call with a body (taken) whose answer is a check's. */
int config_send(struct session *s, const char *method, const char *path, json_t *body,
                const char *text, struct err *e);
/* PUT of the draft (body taken), without a word. */
int config_put(struct session *s, json_t *body, struct err *e);

#endif
