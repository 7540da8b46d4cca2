/* daemon/ctrl/system.c - this machine as a rack of one CPU device, and the descriptor
 * limit. */
#include "daemon/ctrl/system.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/err.h"
#include "topo/graph.h"

/* The value of the first line that begins with key, without the newline. */
static bool line_value(const char *line, const char *key, char *out, size_t cap)
{
    const char *colon = strchr(line, ':');

    if (strncmp(line, key, strlen(key)) || !colon)
        return false;
    snprintf(out, cap, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
    return true;
}

static void read_cpu_model(char *model, size_t cap)
{
    FILE *f = fopen("/proc/cpuinfo", "re");
    char *line = NULL;
    size_t n = 0;

    snprintf(model, cap, "unknown CPU");
    while (f && getline(&line, &n, f) > 0 && !line_value(line, "model name", model, cap))
        continue;
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

/* "0-1,4" of the CPUs that this process may run on. */
static void cpu_list(char *out, size_t cap)
{
    cpu_set_t set;
    size_t n = 0;

    out[0] = '\0';
    if (sched_getaffinity(0, sizeof(set), &set) < 0)
        return;
    for (int i = 0; i < CPU_SETSIZE && n < cap; i++) {
        int last = i;

        if (!CPU_ISSET(i, &set))
            continue;
        while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, &set))
            last++;
        n += (size_t)snprintf(out + n, cap - n, last > i ? "%s%d-%d" : "%s%d",
                              n ? "," : "", i, last);
        i = last;
    }
}

static int add_cpu_device(struct graph_builder *b, struct err *e)
{
    const double ram = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    struct node host = {.kind = NODE_HOST, .parent = -1, .numa = -1, .index = -1};
    struct node numa = {.kind = NODE_NUMA, .numa = 0, .index = 0, .name = "numa0"};
    struct node cpu = {.kind = NODE_DEVICE, .numa = 0, .index = 0, .name = "cpu0"};
    struct link bus = {.kind = LINK_MEMORY, .width = 1, .health = HEALTH_OK};

    if (gethostname(host.name, sizeof(host.name) - 1) < 0 || !host.name[0])
        snprintf(host.name, sizeof(host.name), "localhost");
    read_cpu_model(cpu.model, sizeof(cpu.model));
    cpu_list(cpu.cpus, sizeof(cpu.cpus));
    snprintf(numa.cpus, sizeof(numa.cpus), "%s", cpu.cpus);
    cpu.is_cpu = true;
    cpu.health = HEALTH_OK;
    cpu.clique = numa.clique = host.clique = -1;
    cpu.memory_bytes = (struct fact){ram, FROM_SYSFS, CONF_MEASURED};
    host.health = numa.health = HEALTH_OK;

    numa.parent = numa.host = graph_add_node(b, &host, e);
    if (numa.host < 0)
        return -1;
    cpu.host = numa.host;
    cpu.parent = graph_add_node(b, &numa, e);
    if (cpu.parent < 0)
        return -1;
    bus.a = cpu.parent;
    bus.b = graph_add_node(b, &cpu, e);
    return bus.b < 0 || graph_add_link(b, &bus, e) < 0 ? -1 : 0;
}

int system_graph(struct graph **ret, struct err *e)
{
    struct graph_builder *b = graph_builder_new();

    if (add_cpu_device(b, e) < 0) {
        graph_builder_free(b);
        return err_wrap(e, "this machine's CPU device");
    }
    return graph_build(b, "live", false, ret, e);
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
