/* topo/sysfs.h - short text files under a root that the caller names ("/sys").
 *
 * The root is a parameter so that a recorded tree serves as well. A file that is absent
 * is an answer (false), not an error: containers and old kernels lack many. Any thread.
 */
#ifndef TOPO_SYSFS_H
#define TOPO_SYSFS_H

#include <stdbool.h>
#include <stddef.h>

/* First line of root/fmt..., without the newline. */
bool sysfs_line(const char *root, char *ret, size_t n, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* A number in the usual notations (0x.. or decimal). */
bool sysfs_long(const char *root, long *ret, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The PCI address of the function that root/fmt... (a link to a device) hangs on:
 * "0000:1b:00.0", also through a virtio device. */
bool sysfs_pci(const char *root, char *ret, size_t n, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* What a PCI link can do at best: signalling rate in GT/s and lanes; false when one of
 * the two is missing, "Unknown", 0 or 255. */
bool sysfs_pci_link(const char *root, const char *addr, double *ret_gt, int *ret_width);
/* Does this port send peer traffic up to the host (access control services: request or
 * completion redirect, upstream forwarding)? 1, 0, -1 = its config space cannot be read.
 */
int sysfs_pci_redirects(const char *root, const char *addr);
/* The common way to write an address: "0000:1b:00.0", 8 digits of domain only where it
 * needs them. False when s is none. */
bool sysfs_pci_name(const char *s, char *ret, size_t n);

#endif
