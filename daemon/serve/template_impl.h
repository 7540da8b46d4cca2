/* daemon/serve/template_impl.h - inside the templates: one rendering and its pieces.
 *
 * template.c has detection and the families of dense models, template_moe.c those of
 * mixtures of experts, harmony.c that of gpt-oss. */
#ifndef SERVE_TEMPLATE_IMPL_H
#define SERVE_TEMPLATE_IMPL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "daemon/serve/template.h"

enum role { ROLE_SYS, ROLE_USER, ROLE_ASSISTANT };

struct render {
    enum template_family family;
    const struct tokenizer *t;
    const char *source;         /* the shipped template */
    const char *today, *effort; /* or NULL */
    struct buf text;            /* plain text since the last special token */
    size_t max_ids;
    const atomic_bool *cancel;
    struct tok_ids *out;
    struct err *e;
};

struct span {
    const char *p;
    size_t n;
};

/* One rendering by put: its text, flushed; on failure r->out is as before. */
int tpl_run(struct render *r, int (*put)(struct render *r, const void *arg),
            const void *arg);
int tpl_special(struct render *r, const char *piece);
int tpl_bos(struct render *r);
int tpl_eos(struct render *r);
void tpl_text(struct render *r, const char *s);
void tpl_span(struct render *r, struct span s);
enum role tpl_role(const struct chat_msg *m);
struct span tpl_content(const struct chat_msg *m);
/* The last message is an assistant's: the answer goes on from there. */
bool tpl_is_open(const struct chat_msg *msgs, size_t n, size_t i);

/* By family: what only its shipped template has, and tokens that its rendering needs. */
struct template_mark {
    const char *mark; /* NULL: found by other means */
    const char *needs[8];
};
extern const struct template_mark template_marks[TEMPLATE_COUNT];

int template_olmoe(struct render *r, const struct chat_msg *msgs, size_t n);
int template_deepseek(struct render *r, const struct chat_msg *msgs, size_t n);
int template_kimi(struct render *r, const struct chat_msg *msgs, size_t n);
int template_harmony(struct render *r, const struct chat_msg *msgs, size_t n);

#endif
