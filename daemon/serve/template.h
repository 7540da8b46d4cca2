/* daemon/serve/template.h - chat messages to prompt token ids, by template family.
 *
 * Known families only: chatml (and SmolLM2's default system turn), llama3, llama2/mistral
 * (Mixtral) [INST], qwen, and those of OLMoE, DeepSeek, Kimi and gpt-oss. A model whose
 * template is not recognised has TEMPLATE_NONE and chat is refused. Text of users is
 * encoded as plain text: special tokens exist only where the family's own pieces put
 * them. Pure; any thread. */
#ifndef SERVE_TEMPLATE_H
#define SERVE_TEMPLATE_H

#include <stdatomic.h>
#include <stddef.h>

struct err;
struct tokenizer;
struct tok_ids;

#define TEMPLATE_MAP(X)                                                                  \
    X(NONE, "none")                                                                      \
    X(CHATML, "chatml")                                                                  \
    X(SMOLLM2, "smollm2")                                                                \
    X(LLAMA3, "llama3")                                                                  \
    X(LLAMA2, "llama2")                                                                  \
    X(MISTRAL, "mistral")                                                                \
    X(QWEN2, "qwen2")                                                                    \
    X(QWEN3, "qwen3")                                                                    \
    X(OLMOE, "olmoe")                                                                    \
    X(DEEPSEEK, "deepseek")                                                              \
    X(KIMI, "kimi")                                                                      \
    X(HARMONY, "harmony")

enum template_family {
#define X(id, name) TEMPLATE_##id,
    TEMPLATE_MAP(X)
#undef X
        TEMPLATE_COUNT
};

struct chat_msg {
    const char *role;    /* system, developer (= system), user, assistant */
    const char *content; /* may hold NUL; n bytes */
    size_t n;
};

const char *template_name(enum template_family f);
/* From the shipped template text, else from the special tokens that the vocabulary has.
 */
enum template_family template_detect(const struct tokenizer *t);
/* Ids of the whole conversation with the generation prompt. A last assistant message is
 * continued (no end turn). how: NULL = nothing of it. Faults name the field:
 * messages[3].role. */
struct template_how {
    const char *today;  /* "26 Jul 2024", for llama3 and harmony; or NULL */
    const char *effort; /* low, medium, high, for harmony; NULL = medium */
};
int template_render(enum template_family f, const struct tokenizer *t,
                    const struct chat_msg *msgs, size_t n, const struct template_how *how,
                    size_t max_ids, const atomic_bool *cancel, struct tok_ids *out,
                    struct err *e);

#endif
