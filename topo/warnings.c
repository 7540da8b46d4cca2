/* topo/warnings.c - sentences of at most 400 bytes, in the order they were added. */
#include "topo/warnings.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"

void warnings_vadd(char ***list, int *n, const char *fmt, va_list ap)
{
    char text[400];

    vsnprintf(text, sizeof(text), fmt, ap);
    *list = xrealloc(*list, (size_t)(*n + 1) * sizeof(char *));
    (*list)[(*n)++] = xstrdup(text);
}

void warnings_free(char **list, int n)
{
    for (int i = 0; i < n; i++)
        free(list[i]);
    free(list);
}
