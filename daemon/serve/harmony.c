/* daemon/serve/harmony.c - rendering and reading of harmony conversations. */
#include "daemon/serve/harmony.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "daemon/serve/template_impl.h"
#include "daemon/serve/tokenizer.h"

#define CHANNELS "analysis, commentary, final"

static bool is(const char *a, const char *b) { return a && strcmp(a, b) == 0; }

/* ---- rendering ---- */

static int begin(struct render *r, const char *author)
{
    if (tpl_special(r, "<|start|>") < 0)
        return -1;
    tpl_text(r, author);
    return 0;
}

/* A namespace under its headline; what is said of one that has functions is a comment. */
static void put_tools(struct render *r, const struct harmony_tools *t)
{
    tpl_text(r, "## ");
    tpl_text(r, t->name);
    tpl_text(r, "\n\n");
    if (t->functions)
        harmony_types(t, &r->text);
    else
        tpl_text(r, t->said ? t->said : "");
}

static int put_system(struct render *r, const struct harmony_chat *c)
{
    if (begin(r, "system") < 0 || tpl_special(r, "<|message|>") < 0)
        return -1;
    tpl_text(r, "You are ChatGPT, a large language model trained by OpenAI.\n"
                "Knowledge cutoff: ");
    tpl_text(r, c->cutoff ? c->cutoff : "2024-06");
    if (c->today) {
        tpl_text(r, "\nCurrent date: ");
        tpl_text(r, c->today);
    }
    tpl_text(r, "\n\nReasoning: ");
    tpl_text(r, c->effort);
    tpl_text(r, c->n_tools ? "\n\n# Tools" : "");
    for (int i = 0; i < c->n_tools; i++) {
        tpl_text(r, "\n\n");
        put_tools(r, &c->tools[i]);
    }
    tpl_text(r, "\n\n# Valid channels: ");
    tpl_text(r, c->channels ? c->channels : CHANNELS);
    tpl_text(r, ". Channel must be included for every message.");
    if (c->functions)
        tpl_text(r, "\nCalls to these tools must go to the commentary channel: "
                    "'functions'.");
    return tpl_special(r, "<|end|>");
}

static int put_developer(struct render *r, const struct harmony_chat *c)
{
    const struct harmony_tools own = {.name = "functions", .functions = c->functions};

    if (begin(r, "developer") < 0 || tpl_special(r, "<|message|>") < 0)
        return -1;
    if (c->rules) {
        tpl_text(r, "# Instructions\n\n");
        tpl_span(r, (struct span){c->rules, c->n_rules});
    }
    if (c->functions) {
        tpl_text(r, c->rules ? "\n\n# Tools\n\n" : "# Tools\n\n");
        put_tools(r, &own);
    }
    return tpl_special(r, "<|end|>");
}

static int put_message(struct render *r, const struct harmony_msg *m, bool open)
{
    bool calls = m->to && is(m->author, "assistant");

    if (begin(r, m->author) < 0)
        return -1;
    if (m->to) {
        tpl_text(r, " to=");
        tpl_text(r, m->to);
    }
    if (m->channel && tpl_special(r, "<|channel|>") < 0)
        return -1;
    tpl_text(r, m->channel ? m->channel : "");
    if (m->form) {
        tpl_text(r, " ");
        if (tpl_special(r, "<|constrain|>") < 0)
            return -1;
        tpl_text(r, m->form);
    }
    if (tpl_special(r, "<|message|>") < 0)
        return -1;
    tpl_span(r, (struct span){m->text, m->n});
    return open ? 0 : tpl_special(r, calls ? "<|call|>" : "<|end|>");
}

/* The user's last word, where an answer came before it: older thoughts are over. */
static size_t turns_over(const struct harmony_chat *c)
{
    size_t at = 0;
    bool answered = false;

    for (size_t i = 0; i < c->n_msgs; i++) {
        if (is(c->msgs[i].channel, "final"))
            answered = true;
        if (answered && is(c->msgs[i].author, "user"))
            at = i;
    }
    return at;
}

static int put_chat(struct render *r, const void *arg)
{
    const struct harmony_chat *c = arg;
    size_t over = c->keep_thoughts ? 0 : turns_over(c);

    if ((!c->no_system && put_system(r, c) < 0) ||
        (c->developer && put_developer(r, c) < 0))
        return -1;
    for (size_t i = 0; i < c->n_msgs; i++) {
        bool open = c->open && i + 1 == c->n_msgs;

        if (i < over && is(c->msgs[i].channel, "analysis"))
            continue;
        if (put_message(r, &c->msgs[i], open) < 0)
            return -1;
    }
    return c->open || c->ended ? 0 : begin(r, "assistant");
}

int harmony_render(const struct harmony_chat *c, const struct tokenizer *t,
                   size_t max_ids, const atomic_bool *cancel, struct tok_ids *out,
                   struct err *e)
{
    struct render r = {.family = TEMPLATE_HARMONY,
                       .t = t,
                       .source = "",
                       .max_ids = max_ids,
                       .cancel = cancel,
                       .out = out,
                       .e = e};

    return tpl_run(&r, put_chat, c);
}

/* ---- as the template of a chat ---- */

/* "26 Jul 2024" as 2024-07-26; NULL where it is not such a date. */
static const char *iso_date(const char *said, char ret[32])
{
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    char month[4] = "";
    unsigned day, year;
    const char *at;

    if (!said || sscanf(said, "%2u %3s %4u", &day, month, &year) != 3 ||
        strlen(month) != 3 || !(at = strstr(months, month)))
        return NULL;
    snprintf(ret, 32, "%04u-%02u-%02u", year % 10000, (unsigned)(at - months) / 3 + 1,
             day % 100);
    return ret;
}

/* The system message is the model's own; what an operator says is the developer's. A
 * later one stands where it was said. */
struct say_later {
    const struct harmony_chat *c;
    const struct chat_msg *msgs;
    size_t n;
};

static int put_said(struct render *r, const void *arg)
{
    const struct say_later *s = arg;

    if (put_system(r, s->c) < 0)
        return -1;
    for (size_t i = 0; i < s->n; i++) {
        enum role role = tpl_role(&s->msgs[i]);
        struct span text = tpl_content(&s->msgs[i]);
        const struct harmony_chat dev = {.rules = text.p, .n_rules = text.n};
        const struct harmony_msg m = {.author = role == ROLE_USER ? "user" : "assistant",
                                      .channel = role == ROLE_USER ? NULL : "final",
                                      .text = text.p,
                                      .n = text.n};
        int rc = role == ROLE_SYS ? put_developer(r, &dev)
                                  : put_message(r, &m, tpl_is_open(s->msgs, s->n, i));
        if (rc < 0)
            return -1;
    }
    return tpl_is_open(s->msgs, s->n, s->n - 1) ? 0 : begin(r, "assistant");
}

int template_harmony(struct render *r, const struct chat_msg *msgs, size_t n)
{
    char date[32];
    const struct harmony_chat c = {.effort = r->effort ? r->effort : "medium",
                                   .today = iso_date(r->today, date)};

    return put_said(r, &(struct say_later){&c, msgs, n});
}

/* ---- reading ---- */

void harmony_reader_init(struct harmony_reader *r, const struct tokenizer *t, bool open)
{
    *r = (struct harmony_reader){
        .t = t,
        .start = tokenizer_find(t, "<|start|>"),
        .channel = tokenizer_find(t, "<|channel|>"),
        .message = tokenizer_find(t, "<|message|>"),
        .end = tokenizer_find(t, "<|end|>"),
        .call = tokenizer_find(t, "<|call|>"),
        .ret = tokenizer_find(t, "<|return|>"),
        .constrain = tokenizer_find(t, "<|constrain|>"),
        .in_text = open,
        .author = "assistant",
    };
    if (open)
        snprintf(r->of, sizeof(r->of), "final");
}

static void take(char *to, const char *p, size_t n)
{
    if (n >= HARMONY_NAME)
        n = HARMONY_NAME - 1;
    memcpy(to, p, n);
    to[n] = '\0';
}

/* A header's words: the author (unless it stood before), "to=X", the word after the mark
 * of the channel, and the form, with or without its mark. '\1' and '\2' are the marks. */
static void read_header(struct harmony_reader *r)
{
    const char *p = r->header, *end = p + r->n_header;
    bool author = r->named, channel = false;

    r->to[0] = r->of[0] = r->form[0] = '\0';
    while (p < end) {
        const char *from;

        if (*p == '\1')
            channel = true;
        if (*p == '\1' || *p == '\2' || *p == ' ') {
            p++;
            continue;
        }
        for (from = p; p < end && *p != ' ' && *p != '\1' && *p != '\2';)
            p++;
        size_t n = (size_t)(p - from);
        if (n > 3 && memcmp(from, "to=", 3) == 0)
            take(r->to, from + 3, n - 3);
        else if (channel && !r->of[0])
            take(r->of, from, n);
        else if (!channel && author)
            take(r->author, from, n), author = false;
        else
            take(r->form, from, n);
    }
}

static bool add_header(struct harmony_reader *r, const char *p, size_t n)
{
    if (n > sizeof(r->header) - r->n_header)
        return false;
    memcpy(r->header + r->n_header, p, n);
    r->n_header += n;
    return true;
}

static bool header_piece(struct harmony_reader *r, int32_t id)
{
    struct buf b;
    bool fits;

    if (id == r->channel || id == r->constrain)
        return add_header(r, id == r->channel ? "\1" : "\2", 1);
    if (tokenizer_is_control(r->t, id))
        return true;
    buf_init(&b, 0);
    tokenizer_piece(r->t, id, false, false, &b);
    fits = add_header(r, b.p, b.len);
    buf_done(&b);
    return fits;
}

enum harmony_at harmony_read(struct harmony_reader *r, int32_t id)
{
    if (id < 0)
        return HARMONY_HEADER;
    if (id == r->start) {
        r->in_text = false;
        r->named = true;
        r->n_header = 0;
        return HARMONY_HEADER;
    }
    if (id == r->end || id == r->call || id == r->ret) {
        bool was = r->in_text;
        r->in_text = false;
        r->n_header = 0;
        return was ? HARMONY_END : HARMONY_HEADER;
    }
    if (r->in_text)
        return HARMONY_TEXT;
    if (id == r->message) {
        read_header(r);
        r->in_text = true;
        return HARMONY_HEADER;
    }
    if (header_piece(r, id))
        return HARMONY_HEADER;
    r->in_text = true;
    take(r->of, "final", 5);
    return HARMONY_TEXT;
}
