/* topo/sysfs.c - see sysfs.h. */
#include "topo/sysfs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "topo/graph.h"

static bool path_of(char *ret, size_t n, const char *root, const char *fmt, va_list ap)
{
    int k = snprintf(ret, n, "%s/", root);

    if (k < 0 || (size_t)k >= n)
        return false;
    int m = vsnprintf(ret + k, n - (size_t)k, fmt, ap);
    return m >= 0 && (size_t)m < n - (size_t)k;
}

static bool read_line(const char *path, char *ret, size_t n)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    char text[512];
    ssize_t got;

    if (fd < 0)
        return false;
    while ((got = read(fd, text, sizeof(text) - 1)) < 0 && errno == EINTR)
        continue;
    close(fd);
    if (got < 0)
        return false;
    text[got] = '\0';
    text[strcspn(text, "\n")] = '\0';
    snprintf(ret, n, "%.*s", (int)n - 1, text);
    return true;
}

bool sysfs_line(const char *root, char *ret, size_t n, const char *fmt, ...)
{
    char path[PATH_MAX];
    va_list ap;

    va_start(ap, fmt);
    bool ok = path_of(path, sizeof(path), root, fmt, ap);
    va_end(ap);
    return ok && read_line(path, ret, n);
}

bool sysfs_long(const char *root, long *ret, const char *fmt, ...)
{
    char path[PATH_MAX], text[64], *end;
    va_list ap;

    va_start(ap, fmt);
    bool ok = path_of(path, sizeof(path), root, fmt, ap);
    va_end(ap);
    if (!ok || !read_line(path, text, sizeof(text)) || !text[0])
        return false;
    long v = strtol(text, &end, 0);
    if (*end)
        return false;
    *ret = v;
    return true;
}

bool sysfs_pci_name(const char *s, char *ret, size_t n)
{
    uint64_t v;

    if (!pci_parse(s, &v))
        return false;
    snprintf(ret, n, "%04x:%02x:%02x.%x", (unsigned)(v >> 20), (unsigned)(v >> 12) & 0xff,
             (unsigned)(v >> 4) & 0xff, (unsigned)v & 0xf);
    return true;
}

/* Extended capabilities are a list from 0x100 on: id in the low 16 bits, next in the high
 * 12. Without privilege the file ends after 64 bytes. */
int sysfs_pci_redirects(const char *root, const char *addr)
{
    enum { EXTENDED = 0x100, SPACE = 4096, ACS = 0x0d, REDIRECTS = 0x04 | 0x08 | 0x10 };
    uint8_t c[SPACE + 8] = {0};
    char path[PATH_MAX];
    size_t n = 0, steps = 0;
    ssize_t got;

    snprintf(path, sizeof(path), "%.4000s/bus/pci/devices/%.32s/config", root, addr);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    while (n < SPACE && (got = read(fd, c + n, SPACE - n)) > 0)
        n += (size_t)got;
    close(fd);
    if (n < EXTENDED)
        return -1;
    for (size_t at = EXTENDED; at >= EXTENDED && at + 4 <= n && steps < SPACE / 4;
         steps++) {
        uint32_t h = c[at] | c[at + 1] << 8 | c[at + 2] << 16 | (uint32_t)c[at + 3] << 24;
        if ((h & 0xffff) == ACS) /* control register at 6 */
            return at + 8 <= n ? (c[at + 6] & REDIRECTS) != 0 : -1;
        at = h >> 20;
    }
    return 0;
}

bool sysfs_pci(const char *root, char *ret, size_t n, const char *fmt, ...)
{
    char path[PATH_MAX], real[PATH_MAX], *slash;
    va_list ap;

    va_start(ap, fmt);
    bool ok = path_of(path, sizeof(path), root, fmt, ap);
    va_end(ap);
    if (!ok || !realpath(path, real))
        return false;
    while ((slash = strrchr(real, '/'))) {
        if (sysfs_pci_name(slash + 1, ret, n))
            return true;
        *slash = '\0';
    }
    return false;
}

bool sysfs_pci_link(const char *root, const char *addr, double *ret_gt, int *ret_width)
{
    char speed[64], *end;
    long width;

    if (!sysfs_line(root, speed, sizeof(speed), "bus/pci/devices/%s/max_link_speed",
                    addr) ||
        !sysfs_long(root, &width, "bus/pci/devices/%s/max_link_width", addr))
        return false;
    double gt = strtod(speed, &end);
    if (end == speed || !(gt > 0 && gt < 1000) || width <= 0 || width >= 255)
        return false;
    *ret_gt = gt;
    *ret_width = (int)width;
    return true;
}
