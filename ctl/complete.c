/* ctl/complete.c - what may come next. */
#include "ctl/complete.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "ctl/line.h"
#include "ctl/verb.h"

enum { NOUNS_SHOWN = 40 };

static bool begins(const char *word, const char *part)
{
    return strncmp(word, part, strlen(part)) == 0;
}

static void add(struct line_words *ret, const char *word, const char *part)
{
    if (!begins(word, part))
        return;
    for (int i = 0; i < ret->n; i++)
        if (!strcmp(ret->w[i], word))
            return;
    line_words_add(ret, word);
}

static void add_choices(const char *choices, const char *part, struct line_words *ret)
{
    for (const char *p = choices; *p;) {
        size_t n = strcspn(p, "|");
        char *word = xstrndup(p, n);

        add(ret, word, part);
        free(word);
        p += n + (p[n] == '|');
    }
}

/* The values that one spec takes. */
static void add_values(const struct arg_spec *s, const char *part, noun_fn nouns,
                       void *arg, struct line_words *ret)
{
    struct line_words known = {.n = 0};

    if (s->type == ARG_FILE) {
        ret->files = true;
    } else if (s->type == ARG_CHOICE) {
        add_choices(s->choices, part, ret);
    } else {
        nouns(arg, s->type, &known);
        for (int i = 0; i < known.n; i++)
            add(ret, known.w[i], part);
    }
    line_words_done(&known);
}

/* `wait drained`, `wait operation`: what follows is named by the word before. */
static void add_which(const struct words *w, const char *part, noun_fn nouns, void *arg,
                      struct line_words *ret)
{
    const char *last = w->n ? w->w[w->n - 1] : "";
    struct arg_spec s = {.type = !strcmp(last, "drained")     ? ARG_INSTANCE
                                 : !strcmp(last, "operation") ? ARG_OP
                                                              : ARG_TEXT};

    add_values(&s, part, nouns, arg, ret);
}

static void complete_args(const struct verb *v, const struct words *w, int n,
                          const char *part, noun_fn nouns, void *arg,
                          struct line_words *ret)
{
    struct arg_spec next[ARGS_MAX];
    int k = args_next(v->args, w, n, next);

    for (int i = 0; i < k; i++) {
        if (next[i].type == ARG_VERB) { /* another line begins there */
            complete_line(w->n > n ? w->raw[n] : "", part, nouns, arg, ret);
            return;
        }
        if (v->id == VERB_WAIT && !strcmp(next[i].name, "WHICH"))
            add_which(w, part, nouns, arg, ret);
        else if (next[i].key[0])
            add(ret, next[i].key, part);
        else
            add_values(&next[i], part, nouns, arg, ret);
    }
}

void complete_line(const char *before, const char *part, noun_fn nouns, void *arg,
                   struct line_words *ret)
{
    const struct verb *v;
    struct words w;
    char word[64];
    int n;

    if (words_split(before, &w, NULL) < 0)
        return;
    for (int i = 0; verb_complete(&w, part, i, word, sizeof(word)); i++)
        add(ret, word, part);
    v = verb_match(&w, &n, NULL);
    if (v && v->args[0])
        complete_args(v, &w, n, part, nouns, arg, ret);
    words_done(&w);
}

void complete_help(const char *line, int width, noun_fn nouns, void *arg, struct buf *out)
{
    size_t len = strlen(line);
    bool inside = len && !isspace((unsigned char)line[len - 1]);
    struct line_words names = {.n = 0};
    struct words w;
    const struct verb *v;
    int n;

    if (words_split(line, &w, NULL) < 0)
        return;
    v = verb_match(&w, &n, NULL);
    if (v && n < w.n && inside) /* `?` within a value */
        goto out;
    verb_help(&w, width, out);
    if (v && !inside && v->args[0])
        complete_args(v, &w, n, "", nouns, arg, &names);
    if (names.n)
        buf_puts(out, "   ");
    for (int i = 0; i < names.n && i < NOUNS_SHOWN; i++)
        buf_printf(out, " %s", names.w[i]);
    if (names.n)
        buf_puts(out, names.n > NOUNS_SHOWN ? " ..\n" : "\n");
out:
    line_words_done(&names);
    words_done(&w);
}

const char *complete_bash(void)
{
    return "# bash completion for llmctl: eval \"$(llmctl completion bash)\"\n"
           "_llmctl() {\n"
           "    local line=\"${COMP_LINE:0:COMP_POINT}\" i=1 options=()\n"
           "    while [[ ${COMP_WORDS[i]} == -* ]] && ((i < COMP_CWORD)); do\n"
           "        case ${COMP_WORDS[i]} in\n"
           "        -s | --socket | -u | --url | -k | --key | -a | --ca)\n"
           "            options+=(\"${COMP_WORDS[i]}\" \"${COMP_WORDS[i + 1]}\")\n"
           "            ((i++)) ;;\n"
           "        esac\n"
           "        ((i++))\n"
           "    done\n"
           "    local words=(\"${COMP_WORDS[@]:i:COMP_CWORD - i}\")\n"
           "    local cur=\"${COMP_WORDS[COMP_CWORD]}\"\n"
           "    mapfile -t COMPREPLY < <(llmctl \"${options[@]}\" --complete \\\n"
           "        \"${words[*]} $cur\" 2>/dev/null)\n"
           "}\n"
           "complete -o default -F _llmctl llmctl\n";
}
