/* daemon/ctrl/lines.c - a ring of the last lines. See lines.h. */
#include "daemon/ctrl/lines.h"

#include <string.h>

static void whole(struct lines *l)
{
    l->part[l->n_part] = '\0';
    memcpy(l->kept[l->next], l->part, l->n_part + 1);
    l->next = (l->next + 1) % LINES_KEPT;
    l->n += l->n < LINES_KEPT;
    l->n_part = 0;
    if (l->line)
        l->line(l->arg, l->part);
}

void lines_put(struct lines *l, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (p[i] == '\n') {
            whole(l);
            continue;
        }
        if (l->n_part == LINES_BYTES)
            whole(l);
        l->part[l->n_part++] = p[i] ? p[i] : ' ';
    }
}

void lines_end(struct lines *l)
{
    if (l->n_part)
        whole(l);
}

void lines_text(const struct lines *l, char *out, size_t cap)
{
    size_t used = 0;
    int from = 0;

    for (int i = 1; i <= l->n; i++) { /* from the newest back, as many as fit */
        size_t n = strlen(l->kept[(l->next + LINES_KEPT - i) % LINES_KEPT]) + 1;
        if (used + n > cap)
            break;
        used += n;
        from = i;
    }
    used = 0;
    for (int i = from; i >= 1; i--) {
        const char *s = l->kept[(l->next + LINES_KEPT - i) % LINES_KEPT];
        size_t n = strlen(s);

        memcpy(out + used, s, n);
        used += n;
        if (i > 1)
            out[used++] = '\n';
    }
    if (cap)
        out[used] = '\0';
}
