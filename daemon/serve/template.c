/* Chat messages to prompt ids, by template family.
 *
 * A family's own pieces name special tokens, which are pushed by id; everything between
 * two of them is gathered and encoded as one plain text, as the shipped template would
 * have it, so that words may join over the border of role and content. What users write
 * is never read for control tokens.
 *
 * Which family: by marks in the shipped template text that no other family's has. A text
 * with marks of a dialect that is not known here is not taken for the nearest family. */
#include "daemon/serve/template.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "daemon/serve/template_impl.h"
#include "daemon/serve/tokenizer.h"
#include "daemon/serve/unicode.h"

#define SMOLLM2_SYSTEM                                                                   \
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
#define QWEN25_SYSTEM                                                                    \
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
#define QWEN2_SYSTEM "You are a helpful assistant."

static const char *const role_names[] = {"system", "user", "assistant"};

const char *template_name(enum template_family f)
{
    static const char *const names[] = {
#define X(id, name) name,
        TEMPLATE_MAP(X)
#undef X
    };
    return (unsigned)f < TEMPLATE_COUNT ? names[f] : "none";
}

/* ---- which family ---- */

static bool has_all(const struct tokenizer *t, const char *const *pieces)
{
    for (; *pieces; pieces++)
        if (tokenizer_find(t, *pieces) < 0)
            return false;
    return true;
}

static bool has_chatml(const struct tokenizer *t)
{
    static const char *const need[] = {"<|im_start|>", "<|im_end|>", NULL};
    return has_all(t, need);
}

static bool has_llama3(const struct tokenizer *t)
{
    static const char *const need[] = {"<|start_header_id|>", "<|end_header_id|>",
                                       "<|eot_id|>", NULL};
    return has_all(t, need) && tokenizer_bos(t) >= 0;
}

static bool has_inst(const struct tokenizer *t)
{
    size_t n = 0;

    tokenizer_eog(t, &n);
    return n > 0 && tokenizer_bos(t) >= 0;
}

static enum template_family detect_chatml(const char *src)
{
    if (strstr(src, SMOLLM2_SYSTEM "<|im_end|>"))
        return TEMPLATE_SMOLLM2;
    if (strstr(src, "</think>"))
        return strstr(src, "last_query_index") ? TEMPLATE_QWEN3 : TEMPLATE_NONE;
    if (strstr(src, QWEN25_SYSTEM) || strstr(src, QWEN2_SYSTEM) ||
        strstr(src, "<tool_call>"))
        return TEMPLATE_QWEN2;
    return TEMPLATE_CHATML;
}

static enum template_family detect_inst(const char *src)
{
    if (strstr(src, "<<SYS>>"))
        return TEMPLATE_LLAMA2;
    return strstr(src, "[SYSTEM_PROMPT]") ? TEMPLATE_NONE : TEMPLATE_MISTRAL;
}

/* Marks in plain text, an end after answers alone, and bos. */
static bool is_olmoe(const char *src)
{
    return strstr(src, "bos_token") &&
           (strstr(src, "'<|user|>\n' + message['content'] }}") ||
            strstr(src, "'<|user|>\\n' + message['content'] }}"));
}

enum template_family template_detect(const struct tokenizer *t)
{
    const char *src = tokenizer_chat_template(t);
    bool none = !*src;

    if (none ? has_chatml(t) : strstr(src, "<|im_start|>") != NULL)
        return !has_chatml(t) ? TEMPLATE_NONE
               : none         ? TEMPLATE_CHATML
                              : detect_chatml(src);
    if (none ? has_llama3(t) : strstr(src, "<|start_header_id|>") != NULL)
        return has_llama3(t) ? TEMPLATE_LLAMA3 : TEMPLATE_NONE;
    for (int f = 0; !none && f < TEMPLATE_COUNT; f++)
        if (template_marks[f].mark && strstr(src, template_marks[f].mark))
            return has_all(t, template_marks[f].needs) ? (enum template_family)f
                                                       : TEMPLATE_NONE;
    if (!none && is_olmoe(src))
        return has_inst(t) ? TEMPLATE_OLMOE : TEMPLATE_NONE;
    if (!none && strstr(src, "[INST]"))
        return has_inst(t) ? detect_inst(src) : TEMPLATE_NONE;
    return TEMPLATE_NONE;
}

/* ---- pieces ---- */

static int flush(struct render *r)
{
    int rc = 0;

    if (r->text.over)
        return err_set(r->e, ERR_NOMEM, "no memory to gather the messages");
    if (r->cancel && atomic_load_explicit(r->cancel, memory_order_relaxed))
        return err_set(r->e, ERR_CANCELED, "rendering the messages was cancelled");
    if (r->text.len)
        rc = tokenizer_encode(r->t, r->text.p, r->text.len, 0, r->max_ids, r->cancel,
                              r->out, r->e);
    buf_clear(&r->text);
    return rc;
}

static int put_id(struct render *r, int32_t id, const char *what)
{
    if (flush(r) < 0)
        return -1;
    if (id < 0)
        return err_set(r->e, ERR_UNSUPPORTED,
                       "template '%s' needs the token '%s', the vocabulary has none",
                       template_name(r->family), what);
    if (r->max_ids && r->out->n >= r->max_ids)
        return err_set(r->e, ERR_CONTEXT, "messages have more than %zu tokens",
                       r->max_ids);
    tok_ids_add(r->out, id);
    return 0;
}

int tpl_special(struct render *r, const char *piece)
{
    return put_id(r, tokenizer_find(r->t, piece), piece);
}

int tpl_bos(struct render *r) { return put_id(r, tokenizer_bos(r->t), "bos"); }

int tpl_eos(struct render *r)
{
    size_t n = 0;
    const int32_t *eog = tokenizer_eog(r->t, &n);

    return put_id(r, n ? eog[0] : -1, "eos");
}

void tpl_text(struct render *r, const char *s) { buf_puts(&r->text, s); }
void tpl_span(struct render *r, struct span s) { buf_add(&r->text, s.p, s.n); }

/* ---- messages ---- */

static bool same(const char *a, const char *b) { return a && !strcmp(a, b); }

enum role tpl_role(const struct chat_msg *m)
{
    return same(m->role, "user")        ? ROLE_USER
           : same(m->role, "assistant") ? ROLE_ASSISTANT
                                        : ROLE_SYS;
}

static int check_roles(const struct chat_msg *msgs, size_t n, struct err *e)
{
    char at[64];

    if (!n)
        return err_param(e, ERR_INVALID, "messages", "messages is empty, one is needed");
    for (size_t i = 0; i < n; i++) {
        const char *role = msgs[i].role;

        if (tpl_role(&msgs[i]) != ROLE_SYS || same(role, "system") ||
            same(role, "developer"))
            continue;
        snprintf(at, sizeof(at), "messages[%zu].role", i);
        return err_param(
            e, ERR_INVALID, at,
            "%s '%.40s' is not supported, these are: system, developer, user, "
            "assistant",
            at, role ? role : "");
    }
    return 0;
}

/* White space as the templates' own trim has it. */
static bool is_blank(uint32_t cp)
{
    return unicode_is_space(cp) || (cp >= 0x1c && cp <= 0x1f);
}

static struct span trim(struct span s)
{
    while (s.n) {
        uint32_t cp = 0;
        int len = utf8_next(s.p, s.n, &cp);
        if (len <= 0 || !is_blank(cp))
            break;
        s.p += len;
        s.n -= (size_t)len;
    }
    while (s.n) {
        uint32_t cp = 0;
        size_t k = s.n - 1;
        while (k && ((unsigned char)s.p[k] & 0xc0) == 0x80)
            k--;
        if (utf8_next(s.p + k, s.n - k, &cp) != (int)(s.n - k) || !is_blank(cp))
            break;
        s.n = k;
    }
    return s;
}

struct span tpl_content(const struct chat_msg *m)
{
    return (struct span){m->content ? m->content : "", m->content ? m->n : 0};
}

/* The last message is an assistant's: the answer goes on from there. */
bool tpl_is_open(const struct chat_msg *msgs, size_t n, size_t i)
{
    return i == n - 1 && tpl_role(&msgs[i]) == ROLE_ASSISTANT;
}

/* ---- ChatML and Qwen ---- */

static int chatml_turn(struct render *r, const char *role, struct span s, bool open)
{
    if (tpl_special(r, "<|im_start|>") < 0)
        return -1;
    tpl_text(r, role);
    tpl_text(r, "\n");
    tpl_span(r, s);
    if (open)
        return 0;
    if (tpl_special(r, "<|im_end|>") < 0)
        return -1;
    tpl_text(r, "\n");
    return 0;
}

static const char *chatml_default(const struct render *r)
{
    if (r->family == TEMPLATE_SMOLLM2)
        return SMOLLM2_SYSTEM;
    if (r->family != TEMPLATE_QWEN2)
        return NULL;
    return strstr(r->source, QWEN25_SYSTEM)  ? QWEN25_SYSTEM
           : strstr(r->source, QWEN2_SYSTEM) ? QWEN2_SYSTEM
                                             : NULL;
}

static struct span strip_newlines(struct span s)
{
    while (s.n && s.p[0] == '\n') {
        s.p++;
        s.n--;
    }
    while (s.n && s.p[s.n - 1] == '\n')
        s.n--;
    return s;
}

/* Split an assistant's text at its last </think>. False when it has none. */
static bool split_thinking(struct span s, struct span *thought, struct span *answer)
{
    static const char close[] = "</think>", open[] = "<think>";
    const size_t nc = sizeof(close) - 1, no = sizeof(open) - 1;
    const char *first = memmem(s.p, s.n, close, nc), *last = first, *p = first;

    if (!first)
        return false;
    while ((p = memmem(p + nc, (size_t)(s.p + s.n - p) - nc, close, nc)))
        last = p;
    *answer = (struct span){last + nc, (size_t)(s.p + s.n - last) - nc};
    while (answer->n && answer->p[0] == '\n') {
        answer->p++;
        answer->n--;
    }
    *thought = (struct span){s.p, (size_t)(first - s.p)};
    while ((p = memmem(thought->p, thought->n, open, no))) {
        thought->n -= (size_t)(p - thought->p) + no;
        thought->p = p + no;
    }
    *thought = strip_newlines(*thought);
    return true;
}

/* Qwen 3: thinking is kept only after the last question. */
static int qwen3_answer(struct render *r, struct span s, bool after_question)
{
    struct span thought, answer;

    if (!split_thinking(s, &thought, &answer))
        return chatml_turn(r, "assistant", s, false);
    if (!after_question || !thought.n)
        return chatml_turn(r, "assistant", answer, false);
    if (tpl_special(r, "<|im_start|>") < 0)
        return -1;
    tpl_text(r, "assistant\n<think>\n");
    tpl_span(r, thought);
    tpl_text(r, "\n</think>\n\n");
    tpl_span(r, answer);
    if (tpl_special(r, "<|im_end|>") < 0)
        return -1;
    tpl_text(r, "\n");
    return 0;
}

static bool starts_with(struct span s, const char *mark)
{
    return s.n >= strlen(mark) && !memcmp(s.p, mark, strlen(mark));
}

static bool ends_with(struct span s, const char *mark)
{
    return s.n >= strlen(mark) && !memcmp(s.p + s.n - strlen(mark), mark, strlen(mark));
}

/* The last message of a user that is no tool's answer in disguise; n - 1 when none. */
static size_t last_question(const struct chat_msg *msgs, size_t n)
{
    for (size_t i = n; i-- > 0;) {
        struct span s = tpl_content(&msgs[i]);
        if (tpl_role(&msgs[i]) == ROLE_USER &&
            !(starts_with(s, "<tool_response>") && ends_with(s, "</tool_response>")))
            return i;
    }
    return n - 1;
}

/* The thinking-only releases of Qwen 3 open the thought themselves. The shipped text has
 * line ends as they are or escaped. */
static bool opens_thought(const struct render *r)
{
    return strstr(r->source, "<|im_start|>assistant\\n<think>\\n'") ||
           strstr(r->source, "<|im_start|>assistant\n<think>\n'");
}

static int render_chatml(struct render *r, const struct chat_msg *msgs, size_t n)
{
    const char *def = chatml_default(r);
    size_t question = last_question(msgs, n);

    if (strstr(r->source, "bos_token") && tpl_bos(r) < 0)
        return -1;
    if (def && tpl_role(&msgs[0]) != ROLE_SYS &&
        chatml_turn(r, "system", (struct span){def, strlen(def)}, false) < 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        enum role role = tpl_role(&msgs[i]);
        bool open = tpl_is_open(msgs, n, i);
        struct span s = tpl_content(&msgs[i]);
        int rc;

        if (r->family == TEMPLATE_QWEN3 && role == ROLE_ASSISTANT && !open)
            rc = qwen3_answer(r, s, i > question);
        else
            rc = chatml_turn(r, role_names[role], s, open);
        if (rc < 0)
            return -1;
    }
    if (tpl_is_open(msgs, n, n - 1))
        return 0;
    if (tpl_special(r, "<|im_start|>") < 0)
        return -1;
    tpl_text(r, opens_thought(r) ? "assistant\n<think>\n" : "assistant\n");
    return 0;
}

/* ---- Llama 3 ---- */

static int llama3_header(struct render *r, const char *role)
{
    if (tpl_special(r, "<|start_header_id|>") < 0)
        return -1;
    tpl_text(r, role);
    if (tpl_special(r, "<|end_header_id|>") < 0)
        return -1;
    tpl_text(r, "\n\n");
    return 0;
}

static int render_llama3(struct render *r, const struct chat_msg *msgs, size_t n)
{
    size_t i = 0;

    if (tpl_bos(r) < 0)
        return -1;
    if (strstr(r->source, "Cutting Knowledge Date")) {
        if (llama3_header(r, "system") < 0)
            return -1;
        tpl_text(r, "Cutting Knowledge Date: December 2023\nToday Date: ");
        tpl_text(r, r->today ? r->today : "26 Jul 2024");
        tpl_text(r, "\n\n");
        if (tpl_role(&msgs[0]) == ROLE_SYS)
            tpl_span(r, trim(tpl_content(&msgs[i++])));
        if (tpl_special(r, "<|eot_id|>") < 0)
            return -1;
    }
    for (; i < n; i++) {
        if (llama3_header(r, role_names[tpl_role(&msgs[i])]) < 0)
            return -1;
        tpl_span(r, trim(tpl_content(&msgs[i])));
        if (!tpl_is_open(msgs, n, i) && tpl_special(r, "<|eot_id|>") < 0)
            return -1;
    }
    return tpl_is_open(msgs, n, n - 1) ? 0 : llama3_header(r, "assistant");
}

/* ---- [INST]: Llama 2 and Mistral ---- */

/* An optional system message, then user and assistant in turn, beginning with user. */
static int check_turns(const struct chat_msg *msgs, size_t n, size_t from, struct err *e)
{
    char at[64];

    if (from == n)
        return err_param(e, ERR_INVALID, "messages",
                         "messages has no user message, this model's template needs one");
    for (size_t i = from; i < n; i++) {
        enum role want = (i - from) % 2 ? ROLE_ASSISTANT : ROLE_USER;

        if (tpl_role(&msgs[i]) == want)
            continue;
        snprintf(at, sizeof(at), "messages[%zu].role", i);
        return err_param(e, ERR_INVALID, at,
                         "%s is '%s' where this model's template needs '%s': user and "
                         "assistant take turns after an optional first system message",
                         at, msgs[i].role, role_names[want]);
    }
    return 0;
}

static int llama2_user(struct render *r, const struct chat_msg *sys, struct span user)
{
    struct buf joined;

    if (tpl_bos(r) < 0)
        return -1;
    buf_init(&joined, 0);
    if (sys) {
        buf_puts(&joined, "<<SYS>>\n");
        buf_add(&joined, tpl_content(sys).p, tpl_content(sys).n);
        buf_puts(&joined, "\n<</SYS>>\n\n");
    }
    buf_add(&joined, user.p, user.n);
    tpl_text(r, "[INST] ");
    tpl_span(r, trim((struct span){joined.p ? joined.p : "", joined.len}));
    r->text.over |= joined.over;
    tpl_text(r, " [/INST]");
    buf_done(&joined);
    return 0;
}

static int mistral_user(struct render *r, const struct chat_msg *sys, struct span user)
{
    /* v3 vocabularies have [INST] as a control token, earlier ones spell it */
    bool control = tokenizer_is_control(r->t, tokenizer_find(r->t, "[INST]"));

    if (control && tpl_special(r, "[INST]") < 0)
        return -1;
    if (!control)
        tpl_text(r, "[INST] ");
    if (sys) {
        tpl_span(r, tpl_content(sys));
        tpl_text(r, "\n\n");
    }
    tpl_span(r, user);
    if (control)
        return tpl_special(r, "[/INST]");
    tpl_text(r, " [/INST]");
    return 0;
}

static int inst_answer(struct render *r, struct span s, bool open)
{
    bool after_id = !r->text.len;

    s = trim(s);
    if (!after_id && (s.n || !open))
        tpl_text(r, " ");
    tpl_span(r, s);
    if (open)
        return 0;
    if (r->family == TEMPLATE_LLAMA2)
        tpl_text(r, " ");
    return tpl_eos(r);
}

static int render_inst(struct render *r, const struct chat_msg *msgs, size_t n)
{
    const struct chat_msg *sys = tpl_role(&msgs[0]) == ROLE_SYS ? &msgs[0] : NULL;
    size_t from = sys ? 1 : 0;

    if (check_turns(msgs, n, from, r->e) < 0)
        return -1;
    if (r->family == TEMPLATE_MISTRAL && tpl_bos(r) < 0)
        return -1;
    for (size_t i = from; i < n; i++) {
        struct span s = tpl_content(&msgs[i]);
        int rc;

        if (tpl_role(&msgs[i]) == ROLE_ASSISTANT)
            rc = inst_answer(r, s, tpl_is_open(msgs, n, i));
        else
            rc = (r->family == TEMPLATE_LLAMA2 ? llama2_user : mistral_user)(
                r, i == from ? sys : NULL, s);
        if (rc < 0)
            return -1;
    }
    return 0;
}

/* ---- */

typedef int (*family_fn)(struct render *r, const struct chat_msg *msgs, size_t n);

static const family_fn families[TEMPLATE_COUNT] = {
    [TEMPLATE_CHATML] = render_chatml,       [TEMPLATE_SMOLLM2] = render_chatml,
    [TEMPLATE_LLAMA3] = render_llama3,       [TEMPLATE_LLAMA2] = render_inst,
    [TEMPLATE_MISTRAL] = render_inst,        [TEMPLATE_QWEN2] = render_chatml,
    [TEMPLATE_QWEN3] = render_chatml,        [TEMPLATE_OLMOE] = template_olmoe,
    [TEMPLATE_DEEPSEEK] = template_deepseek, [TEMPLATE_KIMI] = template_kimi,
    [TEMPLATE_HARMONY] = template_harmony,
};

int tpl_run(struct render *r, int (*put)(struct render *r, const void *arg),
            const void *arg)
{
    size_t before = r->out->n;
    int rc;

    buf_init(&r->text, 0);
    rc = put(r, arg);
    if (rc == 0)
        rc = flush(r);
    buf_done(&r->text);
    if (rc < 0)
        r->out->n = before;
    return rc;
}

struct said {
    const struct chat_msg *msgs;
    size_t n;
};

static int put_said(struct render *r, const void *arg)
{
    const struct said *s = arg;

    return families[r->family](r, s->msgs, s->n);
}

int template_render(enum template_family f, const struct tokenizer *t,
                    const struct chat_msg *msgs, size_t n, const struct template_how *how,
                    size_t max_ids, const atomic_bool *cancel, struct tok_ids *out,
                    struct err *e)
{
    struct render r = {.family = f,
                       .t = t,
                       .source = tokenizer_chat_template(t),
                       .today = how ? how->today : NULL,
                       .effort = how ? how->effort : NULL,
                       .max_ids = max_ids,
                       .cancel = cancel,
                       .out = out,
                       .e = e};

    if ((unsigned)f >= TEMPLATE_COUNT || !families[f])
        return err_set(e, ERR_UNSUPPORTED,
                       "this model has no chat template that is known here; completions "
                       "work");
    if (check_roles(msgs, n, e) < 0)
        return -1;
    return tpl_run(&r, put_said, &(struct said){msgs, n});
}
