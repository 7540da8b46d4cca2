/* daemon/serve/harmony.h - conversations in the harmony format of gpt-oss. Pure.
 *
 * Rendering: a system message that is the model's own (who it is, how hard it thinks, its
 * channels and tools), a developer's message (instructions and functions), then messages
 * with author, recipient, channel and form. Functions are written as TypeScript types
 * (harmony_types.c). Thoughts (channel analysis) of turns that are over are left out.
 * Reading: what the model writes, token by token, falls into headers and text. */
#ifndef SERVE_HARMONY_H
#define SERVE_HARMONY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"

struct buf;
struct err;
struct tokenizer;
struct tok_ids;

/* A namespace of tools. functions: a list of {name, description, parameters (JSON
 * schema)}, borrowed; NULL: said is all there is. */
struct harmony_tools {
    const char *name, *said;
    const json_t *functions;
};

struct harmony_msg {
    const char *author;  /* user, assistant, or the name of a tool that answers */
    const char *to;      /* NULL = everybody */
    const char *channel; /* analysis, commentary, final; NULL */
    const char *form;    /* "json"; NULL = text */
    const char *text;
    size_t n;
};

struct harmony_chat {
    bool no_system;
    const char *effort;                /* low, medium, high */
    const char *cutoff;                /* of its knowledge; NULL = 2024-06 */
    const char *today;                 /* 2025-06-28; NULL = not said */
    const char *channels;              /* NULL = "analysis, commentary, final" */
    const struct harmony_tools *tools; /* of the system */
    int n_tools;
    bool developer;    /* with what follows */
    const char *rules; /* NULL */
    size_t n_rules;
    const json_t *functions; /* the developer's, NULL */
    const struct harmony_msg *msgs;
    size_t n_msgs;
    bool keep_thoughts; /* of all turns */
    bool open;          /* the last message goes on: no end */
    bool ended;         /* nothing follows: no header of an answer */
};

/* Ids of the whole conversation; as template_render. */
int harmony_render(const struct harmony_chat *c, const struct tokenizer *t,
                   size_t max_ids, const atomic_bool *cancel, struct tok_ids *out,
                   struct err *e);
/* The functions of a namespace as its text ("namespace x {..}"). */
void harmony_types(const struct harmony_tools *tools, struct buf *out);

/* ---- reading ---- */

enum { HARMONY_NAME = 64 };
enum harmony_at {
    HARMONY_HEADER, /* of a message, or between two */
    HARMONY_TEXT,   /* this token is text of it */
    HARMONY_END     /* this token ended it */
};
struct harmony_reader {
    const struct tokenizer *t;
    int32_t start, channel, message, end, call, ret, constrain; /* -1 = has none */
    bool in_text, named;           /* named: the channel follows */
    char header[4 * HARMONY_NAME]; /* as text; marks as <..> */
    size_t n_header;
    char author[HARMONY_NAME], to[HARMONY_NAME], of[HARMONY_NAME], form[HARMONY_NAME];
};
/* What follows "<|start|>assistant", or (open) goes on as text of the final channel. */
void harmony_reader_init(struct harmony_reader *r, const struct tokenizer *t, bool open);
/* of: the channel that the text is on, "" none. A header that never ends counts as text
 * of the final channel from its bound on. */
enum harmony_at harmony_read(struct harmony_reader *r, int32_t id);

#endif
