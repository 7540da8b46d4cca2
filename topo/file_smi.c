/* topo/file_smi.c - reads text of nvidia-smi: `topo -m`, `-L`, `nvlink -s`.
 *
 * The text comes from terminals, issue reports and logs: with colours, with tabs or
 * blanks between the cells, wrapped, with columns missing on the right, several reports
 * in one file behind lines of dashes. Rules that hold over all of them:
 *   - the header also starts with GPU0 once trimmed; it is what has no cell as second
 * word
 *   - the first words of a row are its cells, as many as the header names; a short row
 * goes on in the next line where that starts with a cell; then the tail (CPUs, NUMA node)
 *   - the diagonal must be X and the matrix symmetric, else nothing is believed
 * The order of GPUs is no identity: it shifts when one is lost. A warning says so. */
#include "topo/file_smi.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "topo/facts.h"
#include "topo/file.h"
#include "topo/graph.h"

enum { LINES_MAX = 20000, WORD_MAX = 63, WARNED_P2P_MAX = 8 };

struct text {
    char *clean;
    char **line;
    int n;
};

struct tail {
    bool cpu, numa;
};

/* ---- lines and words ---- */

/* Copies without colours and carriage returns; bytes beyond ASCII become '?'. */
static char *clean_copy(const char *s, size_t n)
{
    char *out = try_malloc(n + 1), *w = out;

    for (size_t i = 0; out && i < n; i++) {
        if (s[i] == '\033') {
            size_t k = i + 1;
            k += k < n && s[k] == '[';
            while (k < n && (isdigit((unsigned char)s[k]) || s[k] == ';'))
                k++;
            i = k < n && isalpha((unsigned char)s[k]) ? k : k - 1;
            continue;
        }
        if (s[i] == '\r')
            continue;
        *w++ = (s[i] & 0x80) || (iscntrl((unsigned char)s[i]) && !strchr("\t\n", s[i]))
                   ? '?'
                   : s[i];
    }
    if (out)
        *w = '\0';
    return out;
}

static int split(const char *s, size_t n, struct text *t, struct err *e)
{
    t->clean = clean_copy(s, n);
    t->line = try_calloc(LINES_MAX, sizeof(char *));
    if (!t->clean || !t->line)
        return err_set(e, ERR_NOMEM, "no memory for %zu bytes of text", n);
    for (char *at = t->clean; at && *at;) {
        if (t->n == LINES_MAX)
            return err_set(e, ERR_TOOBIG, "more than %d lines", LINES_MAX);
        char *end = strchr(at, '\n');
        t->line[t->n++] = at;
        if (end)
            *end++ = '\0';
        at = end;
    }
    return 0;
}

/* The next word, cut to WORD_MAX; NULL at the end of the line. Moves *at past it. */
static const char *word(const char **at, char *ret)
{
    size_t n = 0;

    while (**at == ' ' || **at == '\t')
        (*at)++;
    if (!**at)
        return NULL;
    for (; **at && **at != ' ' && **at != '\t'; (*at)++)
        if (n < WORD_MAX)
            ret[n++] = **at;
    ret[n] = '\0';
    return ret;
}

static bool parse_cell(const char *w, struct smi_cell *ret)
{
    static const struct {
        const char *word;
        enum smi_level level;
    } levels[] = {{"X", LEVEL_PIX},   {"PIX", LEVEL_PIX}, {"PSB", LEVEL_PIX},
                  {"PXB", LEVEL_PXB}, {"PHB", LEVEL_PHB}, {"NODE", LEVEL_NODE},
                  {"SYS", LEVEL_SYS}, {"SOC", LEVEL_SYS}};
    int nv, used = 0;

    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++)
        if (!strcmp(levels[i].word, w)) {
            *ret = (struct smi_cell){.level = levels[i].level, .set = true};
            return true;
        }
    if (sscanf(w, "NV%3d%n", &nv, &used) == 1 && !w[used] && nv > 0 && nv <= 200) {
        *ret = (struct smi_cell){
            .level = LEVEL_HIDDEN, .nv = (unsigned char)nv, .set = true};
        return true;
    }
    return false;
}

/* "GPU12" -> 12, else -1. */
static int gpu_number(const char *w)
{
    int n, used = 0;

    if (sscanf(w, "GPU%4d%n", &n, &used) != 1 || w[used] || n < 0)
        return -1;
    return n;
}

/* ---- the matrix ---- */

/* Does a header start here? Its second word is a name or a title, never a cell. */
static bool is_header(const char *line)
{
    char w[WORD_MAX + 1];
    const char *at = line;
    struct smi_cell cell;

    if (!word(&at, w) || gpu_number(w) < 0)
        return false;
    if (!word(&at, w))
        return false; /* a lone GPU0: nothing follows */
    return !parse_cell(w, &cell) &&
           (gpu_number(w) >= 0 || strstr(line, "Affinity") || strchr(" \t", *line));
}

static int add_end(struct smi *s, const char *w, struct err *e)
{
    if (s->n_ends == SMI_ENDS_MAX)
        return err_set(e, ERR_TOOBIG, "more than %d columns", SMI_ENDS_MAX);
    for (int i = 0; i < s->n_ends; i++)
        if (!strcmp(s->ends[i].label, w))
            return err_set(e, ERR_CONFLICT, "column '%s' stands there twice", w);
    struct smi_end *d = &s->ends[s->n_ends++];
    *d = (struct smi_end){.number = gpu_number(w), .numa = -1};
    d->gpu = d->number >= 0;
    snprintf(d->label, sizeof(d->label), "%.31s", w);
    snprintf(d->name, sizeof(d->name), "%s", w);
    return 0;
}

static int header_words(struct smi *s, const char *line, struct tail *tail, struct err *e)
{
    char w[WORD_MAX + 1];
    const char *at = line;

    while (word(&at, w)) {
        if (!strcmp(w, "CPU"))
            tail->cpu = true;
        else if (!strcmp(w, "NUMA"))
            tail->numa = true;
        else if (!tail->cpu && !tail->numa && strcmp(w, "GPU") && add_end(s, w, e) < 0)
            return -1;
    }
    return 0;
}

static struct smi_end *end_of(struct smi *s, const char *label)
{
    for (int i = 0; i < s->n_ends; i++)
        if (!strcmp(s->ends[i].label, label))
            return &s->ends[i];
    return NULL;
}

/* What follows the cells. Tabs keep empty columns, blanks do not. */
static void read_tail(struct smi_end *d, const char *at, const struct tail *tail)
{
    char cpus[256] = "", numa[64] = "", *end;

    while (*at == ' ')
        at++;
    if (*at == '\t') {
        size_t n = strcspn(++at, "\t");
        snprintf(cpus, sizeof(cpus), "%.*s", (int)(n > 255 ? 255 : n), at);
        at += n + (at[n] == '\t');
        snprintf(numa, sizeof(numa), "%.*s", (int)strcspn(at, "\t"), at);
    } else {
        sscanf(at, "%255s %63s", cpus, numa);
    }
    if (tail->cpu && isdigit((unsigned char)cpus[0]) &&
        cpus[strspn(cpus, "0123456789,- ")] == '\0')
        snprintf(d->cpus, sizeof(d->cpus), "%.*s", (int)strcspn(cpus, " "), cpus);
    long v = strtol(numa, &end, 10);
    while (*end == ' ')
        end++;
    if (tail->numa && end != numa && !*end && v >= 0 && v < 65536)
        d->numa = (int)v;
}

/* Reads the row that starts in line *i; leaves *i at its last line. */
static int read_row(struct smi *s, const struct text *t, int *i, const struct tail *tail,
                    struct err *e)
{
    char w[WORD_MAX + 1];
    const char *at = t->line[*i], *next;
    struct smi_end *d;
    struct smi_cell cell;

    word(&at, w);
    d = end_of(s, w);
    int row = (int)(d - s->ends), start = *i + 1;
    if (d->seen)
        return err_set(e, ERR_CONFLICT, "line %d: a second row '%s'", start, d->label);
    d->seen = true;
    for (int k = 0; k < s->n_ends; k++) {
        while (!word(&at, w)) {
            next = *i + 1 < t->n ? t->line[*i + 1] : "";
            const char *peek = next;
            if (!word(&peek, w) || !parse_cell(w, &cell))
                return err_set(
                    e, ERR_SYNTAX,
                    "line %d: row '%s' has %d cells, the header has %d columns", start,
                    d->label, k, s->n_ends);
            at = next;
            ++*i;
        }
        if (!parse_cell(w, &cell))
            return err_set(e, ERR_SYNTAX,
                           "line %d: row '%s': '%.20s' in cell %d of %d is not one of X "
                           "NV# PIX PXB PHB NODE SYS",
                           *i + 1, d->label, w, k + 1, s->n_ends);
        if ((k == row) != !strcmp(w, "X"))
            return err_set(e, ERR_SYNTAX, "line %d: row '%s': '%.20s' in column '%s'",
                           *i + 1, d->label, w, s->ends[k].label);
        s->cells[row * s->n_ends + k] = cell;
    }
    read_tail(d, at, tail);
    return 0;
}

static int check_matrix(struct smi *s, struct err *e)
{
    for (int i = 0; i < s->n_ends; i++)
        if (!s->ends[i].seen)
            return err_set(e, ERR_SYNTAX, "column '%s' has no row", s->ends[i].label);
    for (int i = 0; i < s->n_ends; i++)
        for (int k = 0; k < i; k++) {
            const struct smi_cell *a = &s->cells[i * s->n_ends + k];
            const struct smi_cell *b = &s->cells[k * s->n_ends + i];
            if (a->level != b->level || a->nv != b->nv)
                return err_set(e, ERR_CONFLICT,
                               "not symmetric: row '%s', column '%s' differs from row "
                               "'%s', column '%s'",
                               s->ends[i].label, s->ends[k].label, s->ends[k].label,
                               s->ends[i].label);
        }
    return 0;
}

static int read_matrix(struct smi *s, const struct text *t, int *i, struct err *e)
{
    struct tail tail = {0};
    char w[WORD_MAX + 1];

    if (s->n_ends)
        return err_set(e, ERR_CONFLICT, "line %d: a second topo -m matrix in one text",
                       *i + 1);
    if (header_words(s, t->line[*i], &tail, e) < 0)
        return -1;
    /* a wrapped header goes on until the first row */
    for (; *i + 1 < t->n; ++*i) {
        const char *at = t->line[*i + 1];
        struct smi_cell cell;
        if (!word(&at, w) || (end_of(s, w) && word(&at, w) && parse_cell(w, &cell)))
            break;
        if (header_words(s, t->line[*i + 1], &tail, e) < 0)
            return -1;
    }
    s->cells = try_calloc((size_t)s->n_ends * s->n_ends + 1, sizeof(*s->cells));
    if (!s->cells)
        return err_set(e, ERR_NOMEM, "no memory for a matrix of %d columns", s->n_ends);
    for (; *i + 1 < t->n; ++*i) {
        const char *at = t->line[*i + 1];
        if (!word(&at, w) || !end_of(s, w) || is_header(t->line[*i + 1]))
            break;
        ++*i;
        if (read_row(s, t, i, &tail, e) < 0)
            return -1;
        --*i;
    }
    return check_matrix(s, e);
}

/* "  NIC0: mlx5_0" */
static void read_legend(struct smi *s, const char *line)
{
    char label[32], name[64];

    if (sscanf(line, " %31[^: ]: %63s", label, name) != 2)
        return;
    struct smi_end *d = end_of(s, label);
    if (d && !d->gpu)
        snprintf(d->name, sizeof(d->name), "%s", name);
}

/* ---- the lists ---- */

const struct smi_gpu *smi_gpu_at(const struct smi *s, int number)
{
    for (int i = 0; i < s->n_gpus; i++)
        if (s->gpus[i].number == number)
            return &s->gpus[i];
    return NULL;
}

/* The text between "(UUID: " and ")". */
static void read_uuid(const char *line, char *ret, size_t n)
{
    const char *at = strstr(line, "(UUID: ");

    if (at)
        snprintf(ret, n, "%.*s", (int)strcspn(at + 7, ")"), at + 7);
}

/* "GPU 3: NVIDIA H200 (UUID: GPU-..)": its place in gpus[], -1 error, -2 no such line. */
static int read_gpu_line(struct smi *s, const char *line, struct err *e)
{
    int number, used = 0;

    if (sscanf(line, "GPU %4d: %n", &number, &used) != 1 || !used || number < 0)
        return -2;
    for (int i = 0; i < s->n_gpus; i++)
        if (s->gpus[i].number == number)
            return i;
    if (s->n_gpus == SMI_GPUS_MAX)
        return err_set(e, ERR_TOOBIG, "more than %d GPUs", SMI_GPUS_MAX);
    struct smi_gpu *g = &s->gpus[s->n_gpus];
    const char *end = strstr(line, " (UUID:");
    *g = (struct smi_gpu){.number = number};
    snprintf(g->model, sizeof(g->model), "%.*s",
             end ? (int)(end - line - used) : (int)strlen(line + used), line + used);
    read_uuid(line, g->uuid, sizeof(g->uuid));
    return s->n_gpus++;
}

static int read_mig_line(struct smi *s, int gpu, const char *line, struct err *e)
{
    struct smi_mig m = {.gpu = gpu};

    if (sscanf(line, " MIG %23s Device %4d:", m.profile, &m.number) != 2 || m.number < 0)
        return 0;
    if (s->n_migs == SMI_MIGS_MAX)
        return err_set(e, ERR_TOOBIG, "more than %d MIG instances", SMI_MIGS_MAX);
    read_uuid(line, m.uuid, sizeof(m.uuid));
    s->migs[s->n_migs++] = m;
    return 0;
}

/* A line below "GPU n:". */
static int read_gpu_detail(struct smi *s, int gpu, const char *line, struct err *e)
{
    struct smi_gpu *g = &s->gpus[gpu];
    int link;

    if (strstr(line, "all links are inActive"))
        g->all_inactive = true;
    if (sscanf(line, " Link %3d:", &link) == 1 && !strstr(line, "Remote Device")) {
        g->links++;
        g->active += !strstr(line, "<inactive>");
    }
    return read_mig_line(s, gpu, line, e);
}

/* A row of `topo -p2p`: only OK counts. */
static void read_p2p(struct smi *s, const char *line, int *warned)
{
    char row[WORD_MAX + 1], w[WORD_MAX + 1];
    const char *at = line;

    if (!word(&at, row) || gpu_number(row) < 0)
        return;
    for (int k = 0; word(&at, w); k++)
        if (strcmp(w, "OK") && strcmp(w, "X") && gpu_number(w) < 0 &&
            ++*warned <= WARNED_P2P_MAX)
            graph_warn(s->b, "%s to GPU%d: peer-to-peer status %.20s, not OK", row, k, w);
}

static int read_text(struct smi *s, const struct text *t, struct err *e)
{
    bool p2p = false, skip = false;
    int gpu = -1, warned = 0;

    for (int i = 0; i < t->n; i++) {
        const char *line = t->line[i];
        int at;
        if (!strncmp(line, "---", 3)) {
            p2p = strstr(line, "-p2p") != NULL;
            skip = strstr(line, "nvlink -R") != NULL;
            gpu = -1;
        } else if (skip) {
            continue;
        } else if (p2p) {
            read_p2p(s, line, &warned);
        } else if (is_header(line)) {
            if (read_matrix(s, t, &i, e) < 0)
                return -1;
        } else if ((at = read_gpu_line(s, line, e)) != -2) {
            if (at < 0)
                return -1;
            gpu = at;
        } else if (gpu >= 0) {
            if (read_gpu_detail(s, gpu, line, e) < 0)
                return -1;
        } else if (s->n_ends) {
            read_legend(s, line);
        }
    }
    if (s->n_ends == 0 && s->n_gpus == 0)
        return err_set(e, ERR_SYNTAX,
                       "neither JSON, XML, a matrix of `nvidia-smi topo -m` nor a line "
                       "'GPU 0: NAME' of `nvidia-smi -L`");
    return 0;
}

int topo_from_smi(const char *bytes, size_t n, const char *name, const char *gpu,
                  struct graph **ret, struct err *e)
{
    struct smi s = {0};
    struct text t = {0};
    char source[128];
    int rc = -1;

    if (gpu && !(s.stated = facts_gpu(gpu)))
        return err_param(e, ERR_NOTFOUND, "gpu", "GPU model '%.40s' is not in the table",
                         gpu);
    s.ends = xcalloc(SMI_ENDS_MAX, sizeof(*s.ends));
    s.gpus = xcalloc(SMI_GPUS_MAX, sizeof(*s.gpus));
    s.migs = xcalloc(SMI_MIGS_MAX, sizeof(*s.migs));
    s.b = graph_builder_new();
    snprintf(source, sizeof(source), "nvidia-smi %.100s", name);
    if (split(bytes, n, &t, e) == 0 && read_text(&s, &t, e) == 0 && smi_build(&s, e) == 0)
        rc = graph_build(s.b, source, true, ret, e);
    else
        graph_builder_free(s.b);
    free(t.clean);
    free(t.line);
    free(s.ends);
    free(s.cells);
    free(s.gpus);
    free(s.migs);
    return rc;
}
