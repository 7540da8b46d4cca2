/* topo/file.c - the door: which format these bytes are.
 *
 * The first byte that is not blank decides: '{' is our JSON, '<' is XML (hwloc's
 * where it has a <topology>, else NCCL's), anything else is text of nvidia-smi. A size
 * limit stands before every parser. */
#include "topo/file.h"

#include <stdbool.h>
#include <string.h>

#include "base/err.h"
#include "topo/xml.h"

/* A byte order mark and blanks in front say nothing. */
static size_t blank_prefix(const char *s, size_t n)
{
    size_t i = n >= 3 && !memcmp(s, "\xEF\xBB\xBF", 3) ? 3 : 0;

    while (i < n && (s[i] == ' ' || s[i] == '\t' || s[i] == '\r' || s[i] == '\n'))
        i++;
    return i;
}

/* Read once for the root's name: the limits of xml.h make that cheap. */
static int load_xml(const char *bytes, size_t n, const char *name, const char *gpu,
                    struct graph **ret, struct err *e)
{
    struct xml *x;

    if (xml_parse(bytes, n, &x, e) < 0)
        return -1;
    bool hwloc = !strcmp(xml_root(x)->name, "topology");
    xml_free(x);
    return (hwloc ? topo_from_hwloc : topo_from_nccl)(bytes, n, name, gpu, ret, e);
}

static int load(const char *bytes, size_t n, const char *name, const char *gpu,
                struct graph **ret, struct err *e)
{
    size_t skip = blank_prefix(bytes, n);
    size_t mark = n >= 3 && !memcmp(bytes, "\xEF\xBB\xBF", 3) ? 3 : 0;

    if (n > TOPO_BYTES_MAX)
        return err_set(e, ERR_TOOBIG, "%zu bytes; a rack has at most %d", n,
                       TOPO_BYTES_MAX);
    if (skip == n)
        return err_set(e, ERR_SYNTAX, "nothing in it");
    if (memchr(bytes, '\0', n))
        return err_set(e, ERR_SYNTAX,
                       "a zero byte: neither JSON, XML nor text of nvidia-smi");
    if (bytes[skip] == '{')
        return topo_from_json(bytes + mark, n - mark, ret, e);
    if (bytes[skip] == '<')
        return load_xml(bytes + mark, n - mark, name, gpu, ret, e);
    return topo_from_smi(bytes + mark, n - mark, name, gpu, ret, e);
}

int topo_load(const char *bytes, size_t n, const char *name, const char *gpu,
              struct graph **ret, struct err *e)
{
    if (load(bytes, n, name, gpu, ret, e) < 0)
        return err_wrap(e, "rack '%.80s'", name);
    return 0;
}
