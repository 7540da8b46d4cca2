/* daemon/place.c - files that belong to the program, and the one that seeds a store. */
#include "daemon/place.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/ctrl/conf.h"

char *place_beside(const char *rest)
{
    char self[PATH_MAX], *slash;
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

    self[n > 0 ? n : 0] = '\0';
    slash = strrchr(self, '/');
    return xasprintf("%.*s/%s", slash ? (int)(slash - self) : 0, self, rest);
}

char *place_models_dir(void)
{
    char *installed = place_beside("../share/llmrack/models");

    if (access(installed, R_OK) == 0)
        return installed;
    free(installed);
    return place_beside("../etc/models");
}

char *place_read_conf(const char *path, struct err *e)
{
    FILE *f = fopen(path, "re");
    char *text = NULL;
    size_t n;

    if (!f) {
        err_errno(e, ERR_NOTFOUND, "%s", path);
        return NULL;
    }
    text = xcalloc(CONF_MAX_TEXT + 2, 1);
    n = fread(text, 1, CONF_MAX_TEXT + 1, f);
    if (ferror(f) || n > CONF_MAX_TEXT) {
        err_set(e, ERR_TOOBIG, "%s: %s", path,
                n > CONF_MAX_TEXT ? "longer than a configuration may be"
                                  : "cannot be read");
        free(text);
        text = NULL;
    }
    fclose(f);
    return text;
}
