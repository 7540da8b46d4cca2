/* daemon/serve/template_moe.c - chat templates of OLMoE, DeepSeek and Kimi: what
 * stands around a message, as their shipped templates have it. */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "daemon/serve/template_impl.h"

#define DS_USER "<\uff5cUser\uff5c>"
#define DS_ASSISTANT "<\uff5cAssistant\uff5c>"
#define KIMI_NAMED "You are Kimi, an AI assistant created by Moonshot AI."
#define KIMI_PLAIN "You are a helpful assistant"

const struct template_mark template_marks[TEMPLATE_COUNT] = {
    [TEMPLATE_DEEPSEEK] = {DS_ASSISTANT, {DS_USER, DS_ASSISTANT, NULL}},
    [TEMPLATE_KIMI] = {"<|im_middle|>",
                       {"<|im_system|>", "<|im_user|>", "<|im_assistant|>",
                        "<|im_middle|>", "<|im_end|>", NULL}},
    [TEMPLATE_HARMONY] = {"<|channel|>",
                          {"<|start|>", "<|channel|>", "<|message|>", "<|end|>", NULL}},
};

/* ---- OLMoE: marks are plain text ---- */

int template_olmoe(struct render *r, const struct chat_msg *msgs, size_t n)
{
    static const char *const marks[] = {"<|system|>\n", "<|user|>\n", "<|assistant|>\n"};

    if (tpl_bos(r) < 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        tpl_text(r, marks[tpl_role(&msgs[i])]);
        tpl_span(r, tpl_content(&msgs[i]));
        if (tpl_is_open(msgs, n, i))
            return 0;
        if (tpl_role(&msgs[i]) == ROLE_ASSISTANT && tpl_eos(r) < 0)
            return -1;
        tpl_text(r, "\n");
    }
    tpl_text(r, marks[ROLE_ASSISTANT]);
    return 0;
}

/* ---- DeepSeek V2.5, V3, R1 ---- */

/* An answer of a turn that is over goes on without its thoughts, where the template has
 * it so. */
static struct span after_thought(struct span s)
{
    static const char close[] = "</think>";
    const char *p;

    while ((p = memmem(s.p, s.n, close, sizeof(close) - 1))) {
        s.n -= (size_t)(p - s.p) + sizeof(close) - 1;
        s.p = p + sizeof(close) - 1;
    }
    return s;
}

/* All system messages come first, joined by an empty line. R1 opens the thought itself;
 * V3.1, which asks for none here, closes it at once. */
int template_deepseek(struct render *r, const struct chat_msg *msgs, size_t n)
{
    bool thinks = strstr(r->source, "<think>\\n'") || strstr(r->source, "<think>\n'");
    bool closes = strstr(r->source, "thinking") && strstr(r->source, "'</think>'");
    bool drops = strstr(r->source, "split('</think>')") != NULL, first = true;

    if (tpl_bos(r) < 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        if (tpl_role(&msgs[i]) != ROLE_SYS)
            continue;
        tpl_text(r, first ? "" : "\n\n");
        tpl_span(r, tpl_content(&msgs[i]));
        first = false;
    }
    for (size_t i = 0; i < n; i++) {
        bool open = tpl_is_open(msgs, n, i);
        struct span s = tpl_content(&msgs[i]);

        if (tpl_role(&msgs[i]) == ROLE_SYS)
            continue;
        if (tpl_role(&msgs[i]) == ROLE_USER) {
            if (tpl_special(r, DS_USER) < 0)
                return -1;
            tpl_span(r, s);
            continue;
        }
        if (tpl_special(r, DS_ASSISTANT) < 0)
            return -1;
        if (closes)
            tpl_text(r, "</think>");
        tpl_span(r, open || !drops ? s : after_thought(s));
        if (open)
            return 0;
        if (tpl_eos(r) < 0)
            return -1;
    }
    if (tpl_special(r, DS_ASSISTANT) < 0)
        return -1;
    tpl_text(r, closes ? "</think>" : thinks ? "<think>\n" : "");
    return 0;
}

/* ---- Kimi K2 ---- */

static int kimi_begin(struct render *r, enum role role)
{
    static const char *const marks[] = {"<|im_system|>", "<|im_user|>",
                                        "<|im_assistant|>"};
    static const char *const names[] = {"system", "user", "assistant"};

    if (tpl_special(r, marks[role]) < 0)
        return -1;
    tpl_text(r, names[role]);
    return tpl_special(r, "<|im_middle|>");
}

int template_kimi(struct render *r, const struct chat_msg *msgs, size_t n)
{
    const char *def = strstr(r->source, KIMI_NAMED)   ? KIMI_NAMED
                      : strstr(r->source, KIMI_PLAIN) ? KIMI_PLAIN
                                                      : NULL;

    if (def && tpl_role(&msgs[0]) != ROLE_SYS) {
        if (kimi_begin(r, ROLE_SYS) < 0)
            return -1;
        tpl_text(r, def);
        if (tpl_special(r, "<|im_end|>") < 0)
            return -1;
    }
    for (size_t i = 0; i < n; i++) {
        if (kimi_begin(r, tpl_role(&msgs[i])) < 0)
            return -1;
        tpl_span(r, tpl_content(&msgs[i]));
        if (tpl_is_open(msgs, n, i))
            return 0;
        if (tpl_special(r, "<|im_end|>") < 0)
            return -1;
    }
    return kimi_begin(r, ROLE_ASSISTANT);
}
