/* ctl/verb.c - matching, completion and help over the rows of verb.def.
 *
 * A line is compared word by word; each typed word must be a prefix of the verb's word.
 * An exact word beats a prefix, so that no verb can be hidden by a longer one. */
#include "ctl/verb.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"

static const struct verb verbs[VERB_COUNT] = {
#define VERB(id, words, args, help, path, view)                                          \
    {VERB_##id, words, args, help, path, view},
#include "ctl/verb.def"
#undef VERB
};

const struct verb *verb_at(int i) { return &verbs[i]; }

/* Next word of *p: its start, with *ret_n its length (0 at the end). */
static const char *next_word(const char **p, size_t *ret_n)
{
    const char *w;

    while (isspace((unsigned char)**p))
        (*p)++;
    w = *p;
    while (**p && !isspace((unsigned char)**p))
        (*p)++;
    *ret_n = (size_t)(*p - w);
    return w;
}

/* How well line matches v: -1 not, else the count of exact words; *ret_rest as above. */
static int match_one(const struct verb *v, const char *line, const char **ret_rest)
{
    const char *vp = v->words, *lp = line;
    int exact = 0;

    for (;;) {
        size_t vn, ln;
        const char *vw = next_word(&vp, &vn), *lw;

        if (vn == 0)
            break;
        lw = next_word(&lp, &ln);
        if (ln == 0 || ln > vn || strncmp(vw, lw, ln) != 0)
            return -1;
        exact += ln == vn;
    }
    while (isspace((unsigned char)*lp))
        lp++;
    *ret_rest = lp;
    return exact;
}

const struct verb *verb_match(const char *line, const char **ret_rest, struct err *e)
{
    const struct verb *best = NULL;
    int best_exact = -1, ties = 0;
    char names[256] = "";

    for (int i = 0; i < VERB_COUNT; i++) {
        const char *rest;
        int exact = match_one(&verbs[i], line, &rest);

        if (exact < 0 || exact < best_exact)
            continue;
        if (exact > best_exact) {
            ties = 0;
            names[0] = '\0';
        }
        best_exact = exact;
        best = &verbs[i];
        *ret_rest = rest;
        snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s'%s'",
                 ties++ ? ", " : "", verbs[i].words);
    }
    if (!best) {
        err_set(e, ERR_INVALID, "no verb fits '%s'; help lists them", line);
        return NULL;
    }
    if (ties > 1) {
        err_set(e, ERR_INVALID, "'%s' may mean %s", line, names);
        return NULL;
    }
    if (!best->args[0] && **ret_rest) {
        err_set(e, ERR_INVALID, "'%s' takes no argument, found '%s'", best->words,
                *ret_rest);
        return NULL;
    }
    return best;
}

const char *verb_complete(const char *before, const char *part, int i, char *word,
                          size_t cap)
{
    char seen[VERB_COUNT][32];
    int n_seen = 0;

    for (int k = 0; k < VERB_COUNT; k++) {
        const char *vp = verbs[k].words, *lp = before;
        size_t vn, ln;
        const char *vw = next_word(&vp, &vn), *lw = next_word(&lp, &ln);
        bool fits = true, dup = false;

        for (; ln > 0 && fits; lw = next_word(&lp, &ln), vw = next_word(&vp, &vn))
            fits = vn >= ln && strncmp(vw, lw, ln) == 0;
        if (!fits || vn == 0 || vn < strlen(part) || vn >= sizeof(seen[0]) ||
            strncmp(vw, part, strlen(part)) != 0)
            continue;
        for (int d = 0; d < n_seen; d++)
            dup |= strlen(seen[d]) == vn && strncmp(seen[d], vw, vn) == 0;
        if (dup)
            continue;
        if (n_seen == i && vn < cap) {
            memcpy(word, vw, vn);
            word[vn] = '\0';
            return word;
        }
        memcpy(seen[n_seen], vw, vn);
        seen[n_seen++][vn] = '\0';
    }
    return NULL;
}

/* Whether what is typed so far may still become v. */
static bool may_become(const struct verb *v, const char *line)
{
    const char *vp = v->words, *lp = line;
    size_t vn, ln;

    for (const char *lw = next_word(&lp, &ln); ln > 0; lw = next_word(&lp, &ln)) {
        const char *vw = next_word(&vp, &vn);

        if (vn == 0)
            return v->args[0] != '\0';
        if (vn < ln || strncmp(vw, lw, ln) != 0)
            return false;
    }
    return true;
}

void verb_help(const char *line, struct buf *out)
{
    for (int i = 0; i < VERB_COUNT; i++) {
        char left[64];

        if (!may_become(&verbs[i], line))
            continue;
        snprintf(left, sizeof(left), "%s %s", verbs[i].words, verbs[i].args);
        buf_printf(out, "  %-18s %s\n", left, verbs[i].help);
    }
}

void verb_man(struct buf *out)
{
    for (int i = 0; i < VERB_COUNT; i++)
        buf_printf(out, ".TP\n.B %s %s\n%s.\n", verbs[i].words, verbs[i].args,
                   verbs[i].help);
}
