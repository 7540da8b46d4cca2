/* daemon/ctrl/system.c - the CPU device for `show topology` and the descriptor limit. */
#include "daemon/ctrl/system.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"

/* Flags that decide which kernels can run, as /proc/cpuinfo spells them. */
static const char *const isa_flags[] = {
    "avx2",     "fma",      "f16c",       "avx512f",     "avx512bw",
    "avx512vl", "avx512dq", "avx512vbmi", "avx512_vnni", "avx512_bf16",
    "amx_int8", "amx_bf16", "asimd",      "sve",         "sve2"};

static bool has_word(const char *words, const char *w)
{
    size_t n = strlen(w);

    for (const char *p = words; (p = strstr(p, w)); p += n)
        if ((p == words || p[-1] == ' ') && (p[n] == ' ' || p[n] == '\n' || !p[n]))
            return true;
    return false;
}

/* The value of the first line that begins with key, without the newline. */
static bool line_value(const char *line, const char *key, char *out, size_t cap)
{
    const char *colon = strchr(line, ':');

    if (strncmp(line, key, strlen(key)) || !colon)
        return false;
    snprintf(out, cap, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
    return true;
}

static void read_cpuinfo(char *model, size_t model_cap, struct buf *isa)
{
    FILE *f = fopen("/proc/cpuinfo", "r");
    char *line = NULL, flags[8192] = "";
    bool named = false, flagged = false;
    size_t cap = 0;

    snprintf(model, model_cap, "unknown CPU");
    while (f && !(named && flagged) && getline(&line, &cap, f) > 0) {
        named = named || line_value(line, "model name", model, model_cap);
        flagged = flagged || line_value(line, "flags", flags, sizeof(flags)) ||
                  line_value(line, "Features", flags, sizeof(flags));
    }
    for (size_t i = 0; i < sizeof(isa_flags) / sizeof(isa_flags[0]); i++)
        if (has_word(flags, isa_flags[i]))
            buf_printf(isa, "%s%s", isa->len ? " " : "", isa_flags[i]);
    free(line);
    if (f)
        fclose(f);
}

int system_cpus(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof(set), &set) < 0)
        return 1;
    return CPU_COUNT(&set);
}

void system_json(struct buf *out)
{
    char model[128];
    struct buf isa;
    struct jw w;

    buf_init(&isa, 0);
    read_cpuinfo(model, sizeof(model), &isa);
    jw_init(&w, out);
    jw_obj(&w);
    jw_kbool(&w, "emulated", false);
    jw_key(&w, "devices");
    jw_arr(&w);
    jw_obj(&w);
    jw_kstr(&w, "id", "cpu0");
    jw_kstr(&w, "kind", "cpu");
    jw_kstr(&w, "model", model);
    jw_kint(&w, "cores", system_cpus());
    jw_kint(&w, "memory_bytes", (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE));
    jw_kstr(&w, "isa", isa.p ? isa.p : "");
    jw_obj_end(&w);
    jw_arr_end(&w);
    jw_obj_end(&w);
    buf_done(&isa);
}

long system_descriptors(long want, struct err *e)
{
    struct rlimit r;

    if (getrlimit(RLIMIT_NOFILE, &r) < 0)
        return err_errno(e, ERR_IO, "limit of descriptors");
    if (r.rlim_cur < (rlim_t)want && r.rlim_cur < r.rlim_max) {
        r.rlim_cur = r.rlim_max < (rlim_t)want ? r.rlim_max : (rlim_t)want;
        if (setrlimit(RLIMIT_NOFILE, &r) < 0)
            return err_errno(e, ERR_IO, "limit of descriptors");
    }
    return r.rlim_cur > (rlim_t)want ? want : (long)r.rlim_cur;
}
