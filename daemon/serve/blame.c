/* See blame.h. The sentence of an error has room for 512 bytes: a path gets at most 160
 * of them (its end tells more than its beginning), a name from a file at most 79. */
#include "daemon/serve/blame.h"

#include <stdio.h>
#include <string.h>

enum { PATH_SHOWN = 160 };

int blame(struct err *e, enum err_code code, const char *path, const char *fmt, ...)
{
    char text[sizeof(e->msg)];
    size_t n = strlen(path);
    bool cut = n > PATH_SHOWN;
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return err_set(e, code, "%s%s: %s", cut ? "..." : "",
                   cut ? path + n - PATH_SHOWN : path, text);
}

const char *blame_name(struct blame_name *b, const char *p, size_t n)
{
    size_t room = sizeof(b->s) - 1, shown = n > room ? room - 3 : n;

    for (size_t i = 0; i < shown; i++)
        b->s[i] = p[i] > 0x1f && p[i] < 0x7f ? p[i] : '?';
    strcpy(b->s + shown, n > room ? "..." : "");
    return b->s;
}
