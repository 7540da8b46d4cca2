/* ctl/chat.c - the conversation of `llmctl chat` over /v1/chat/completions. */
#include "ctl/chat.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "ctl/line.h"
#include "ctl/show.h"
#include "ctl/wire.h"

struct chat {
    struct wire *wire;
    json_t *messages;
    /* the answer that is streaming */
    struct buf answer;
    int64_t start_us, first_us, last_us;
    int64_t n_tokens;
    struct err error;
};

struct chat *chat_new(struct wire *w)
{
    struct chat *c = xcalloc(1, sizeof(*c));

    c->wire = w;
    c->messages = json_array();
    buf_init(&c->answer, 0);
    return c;
}

void chat_free(struct chat *c)
{
    if (!c)
        return;
    json_decref(c->messages);
    buf_done(&c->answer);
    free(c);
}

void chat_reset(struct chat *c) { json_array_clear(c->messages); }

static void add_turn(struct chat *c, const char *role, const char *text)
{
    json_array_append_new(c->messages,
                          json_pack("{s:s, s:s}", "role", role, "content", text));
}

static void print_safe(const char *s)
{
    char *copy = xstrdup(s);

    show_clean(copy, "\n\t");
    fputs(copy, stdout);
    fflush(stdout);
    free(copy);
}

static bool on_frame(void *arg, const char *event, const char *line)
{
    static const struct js_limits lim = {1 << 20, 32};
    struct chat *c = arg;
    const char *text;
    json_t *f, *usage;

    (void)event;
    if (strcmp(line, "[DONE]") == 0)
        return true;
    if (js_parse(line, strlen(line), &lim, &f, &c->error) < 0)
        return false;
    text = json_string_value(json_object_get(json_object_get(f, "error"), "message"));
    if (text)
        err_set(&c->error, ERR_UNAVAIL, "%s", text);
    text = json_string_value(json_object_get(
        json_object_get(json_array_get(json_object_get(f, "choices"), 0), "delta"),
        "content"));
    if (text && *text) {
        c->last_us = clock_now_us(clock_real());
        if (!c->first_us)
            c->first_us = c->last_us;
        buf_puts(&c->answer, text);
        print_safe(text);
    }
    usage = json_object_get(f, "usage");
    if (json_is_object(usage))
        c->n_tokens = json_integer_value(json_object_get(usage, "completion_tokens"));
    json_decref(f);
    return c->error.code == ERR_OK;
}

static void print_speed(const struct chat *c)
{
    double seconds = (double)(c->last_us - c->first_us) / 1e6;

    if (!c->first_us)
        return;
    printf("[TTFT %.0f ms", (double)(c->first_us - c->start_us) / 1e3);
    if (c->n_tokens > 1 && seconds > 0)
        printf(", %lld tokens, %.0f tokens/s", (long long)c->n_tokens,
               (double)(c->n_tokens - 1) / seconds);
    printf("]\n");
}

int chat_ask(struct chat *c, const char *text, const volatile int *stop, bool speed,
             struct err *e)
{
    json_t *body;
    char *json;
    int rc;

    add_turn(c, "user", text);
    body = json_pack("{s:O, s:b, s:{s:b}}", "messages", c->messages, "stream", 1,
                     "stream_options", "include_usage", 1);
    json = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    if (!json) {
        json_array_remove(c->messages, json_array_size(c->messages) - 1);
        return err_set(e, ERR_INVALID, "the text is not UTF-8");
    }
    buf_clear(&c->answer);
    err_clear(&c->error);
    c->first_us = c->last_us = c->n_tokens = 0;
    c->start_us = clock_now_us(clock_real());
    rc = wire_stream(c->wire,
                     &(struct wire_request){
                         .method = "POST", .path = "/v1/chat/completions", .body = json},
                     stop, on_frame, c, e);
    free(json);
    if (c->answer.len) {
        putchar('\n');
        add_turn(c, "assistant", c->answer.p);
    } else {
        json_array_remove(c->messages, json_array_size(c->messages) - 1);
    }
    if (rc == 0 && c->error.code != ERR_OK) {
        *e = c->error;
        return -1;
    }
    if (speed)
        print_speed(c);
    return rc;
}

int chat_loop(struct chat *c, struct err *e)
{
    volatile int *stop = line_stop_flag();
    bool tty = line_is_terminal();
    int rc = 0;

    if (tty)
        puts("Type a message; /reset forgets the conversation, /exit leaves.");
    for (;;) {
        char *text = line_read("you> ", true);
        bool leave = !text || !strcmp(text, "/exit") || !strcmp(text, "/quit");

        if (leave) {
            free(text);
            return rc;
        }
        if (!strcmp(text, "/reset")) {
            chat_reset(c);
            puts("forgotten");
        } else if (*text) {
            *stop = 0;
            err_clear(e);
            rc = chat_ask(c, text, stop, true, e);
            if (rc < 0 && tty && e->code != ERR_CANCELED)
                fprintf(stderr, "%s\n", e->msg);
            if (rc < 0 && e->code == ERR_CANCELED) {
                puts("[stopped]");
                rc = 0;
            }
        }
        free(text);
        if (rc < 0 && !tty)
            return rc;
    }
}
