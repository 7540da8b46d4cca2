/* ctl/chat.h - `llmctl chat`: a streamed conversation with the model.
 *
 * Keeps the turns of the session and sends them all each time (the daemon's prefix cache
 * makes that cheap). Prints text as it comes and, at the end of an answer on a terminal,
 * TTFT and tokens/s. One owner thread. */
#ifndef CTL_CHAT_H
#define CTL_CHAT_H

#include <stdbool.h>

struct err;
struct wire;

struct chat;
struct chat *chat_new(struct wire *w);
void chat_free(struct chat *c);
void chat_reset(struct chat *c);
/* One turn. speed: print the line with TTFT and tokens/s after the answer. An answer that
 * was stopped with Ctrl-C stays in the conversation as far as it came. */
int chat_ask(struct chat *c, const char *text, const volatile int *stop, bool speed,
             struct err *e);
/* Lines from the terminal until /exit or the end of input. */
int chat_loop(struct chat *c, struct err *e);

#endif
