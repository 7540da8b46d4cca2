/* daemon/api/sse.c - frames of one streamed answer: `data: <one line of JSON>\n\n`. */
#include "daemon/api/sse.h"

#include "base/json.h"
#include "daemon/api/answer.h"
#include "daemon/api/logprobs.h"

void sse_init(struct sse *s, const struct sse_cfg *cfg)
{
    struct jw w;

    s->chat = cfg->chat;
    s->include_usage = cfg->include_usage;
    buf_init(&s->head, 0);
    buf_puts(&s->head, "data: ");
    jw_init(&w, &s->head);
    jw_obj(&w);
    jw_kstr(&w, "id", cfg->id);
    jw_kstr(&w, "object", cfg->chat ? "chat.completion.chunk" : "text_completion");
    jw_kint(&w, "created", cfg->created_s);
    jw_kstr(&w, "model", cfg->model);
    jw_kstr(&w, "system_fingerprint", cfg->fingerprint);
    buf_puts(&s->head, ",\"choices\":[");
}

void sse_done(struct sse *s) { buf_done(&s->head); }

static void open_choice(struct sse *s, int index, struct buf *out)
{
    buf_add(out, s->head.p, s->head.len);
    buf_printf(out, "{\"index\":%d,", index);
}

static void close_choice(struct sse *s, const char *reason, struct buf *out)
{
    if (reason)
        buf_printf(out, ",\"finish_reason\":\"%s\"}]", reason);
    else
        buf_puts(out, ",\"finish_reason\":null}]");
    buf_puts(out, s->include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
}

static void put_string(struct buf *out, const char *text, size_t n)
{
    struct jw w;

    jw_init(&w, out);
    jw_strn(&w, text, n);
}

void sse_role(struct sse *s, int index, struct buf *out)
{
    open_choice(s, index, out);
    buf_puts(out,
             "\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null");
    close_choice(s, NULL, out);
}

void sse_text(struct sse *s, int index, const char *text, size_t n, struct logprobs *lp,
              struct buf *out)
{
    open_choice(s, index, out);
    buf_puts(out, s->chat ? "\"delta\":{\"content\":" : "\"text\":");
    put_string(out, text, n);
    buf_puts(out, s->chat ? "},\"logprobs\":" : ",\"logprobs\":");
    if (lp)
        logprobs_write(lp, out);
    else
        buf_puts(out, "null");
    close_choice(s, NULL, out);
}

void sse_thought(struct sse *s, int index, const char *text, size_t n, struct buf *out)
{
    open_choice(s, index, out);
    buf_puts(out, "\"delta\":{\"reasoning_content\":");
    put_string(out, text, n);
    buf_puts(out, "},\"logprobs\":null");
    close_choice(s, NULL, out);
}

void sse_finish(struct sse *s, int index, const char *reason, struct buf *out)
{
    open_choice(s, index, out);
    buf_puts(out, s->chat ? "\"delta\":{},\"logprobs\":null"
                          : "\"text\":\"\",\"logprobs\":null");
    close_choice(s, reason, out);
}

void sse_usage(struct sse *s, const struct answer_usage *u, struct buf *out)
{
    struct jw w;

    buf_add(out, s->head.p, s->head.len);
    buf_puts(out, "],");
    jw_init(&w, out);
    answer_usage(&w, u);
    buf_puts(out, "}\n\n");
}

void sse_end(struct buf *out) { buf_puts(out, "data: [DONE]\n\n"); }

void sse_error(const struct err *e, struct buf *out)
{
    buf_puts(out, "data: ");
    answer_error(out, e);
    buf_puts(out, "\n\n");
}
