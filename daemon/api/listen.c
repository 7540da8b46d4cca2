/* daemon/api/listen.c - the two listening sockets. */
#include "daemon/api/listen.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/err.h"

enum { BACKLOG = 1024 };

static int split(const char *where, char *host, size_t cap, const char **port,
                 struct err *e)
{
    const char *colon = strrchr(where, ':'), *start = where, *end = colon;

    if (colon && *where == '[') {
        start = where + 1;
        end = colon > where && colon[-1] == ']' ? colon - 1 : NULL;
    }
    if (!colon || !end || end == start || (size_t)(end - start) >= cap || !colon[1] ||
        (*where != '[' && memchr(where, ':', (size_t)(colon - where))))
        return err_set(e, ERR_INVALID, "listen address '%s' is not host:port", where);
    if (strspn(colon + 1, "0123456789") != strlen(colon + 1) || strlen(colon + 1) > 5 ||
        atoi(colon + 1) > 65535) /* getaddrinfo would take it modulo 65536 */
        return err_set(e, ERR_INVALID, "listen address '%s': a port is 0 to 65535",
                       where);
    memcpy(host, start, (size_t)(end - start));
    host[end - start] = '\0';
    *port = colon + 1;
    return 0;
}

static int bound_port(int fd)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof(a);
    char port[16];

    if (getsockname(fd, (struct sockaddr *)&a, &n) < 0 ||
        getnameinfo((struct sockaddr *)&a, n, NULL, 0, port, sizeof(port),
                    NI_NUMERICSERV) != 0)
        return 0;
    return atoi(port);
}

/* Anything but loopback. */
static bool is_remote(const struct sockaddr *a)
{
    const struct in6_addr *six = &((const struct sockaddr_in6 *)a)->sin6_addr;
    const uint8_t *four = (const uint8_t *)&((const struct sockaddr_in *)a)->sin_addr;

    if (a->sa_family == AF_INET)
        return four[0] != 127;
    return a->sa_family != AF_INET6 ||
           !(IN6_IS_ADDR_LOOPBACK(six) ||
             (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127));
}

/* To the address, which the caller frees. */
static int resolve(const char *where, bool may_be_remote, char *host, size_t host_cap,
                   struct addrinfo **ret, bool *ret_remote, struct err *e)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    const char *port = NULL;
    int rc;

    if (split(where, host, host_cap, &port, e) < 0)
        return -1;
    rc = getaddrinfo(host, port, &hints, &found);
    if (rc != 0)
        return err_set(e, ERR_INVALID, "listen address '%s': %s", where,
                       gai_strerror(rc));
    *ret_remote = is_remote(found->ai_addr);
    if (*ret_remote && !may_be_remote) {
        freeaddrinfo(found);
        return err_set(e, ERR_DENIED,
                       "'%s' can be reached from other machines, which needs an API key "
                       "(llmctl key create) and TLS (listen.tls_cert, listen.tls_key); "
                       "access.insecure: true does without both",
                       where);
    }
    *ret = found;
    return 0;
}

int listen_check(const char *where, bool may_be_remote, struct err *e)
{
    struct addrinfo *found;
    char host[256];
    bool remote;

    if (resolve(where, may_be_remote, host, sizeof(host), &found, &remote, e) < 0)
        return -1;
    freeaddrinfo(found);
    return 0;
}

int listen_tcp(const char *where, bool may_be_remote, char *host, size_t host_cap,
               int *ret_fd, int *ret_port, bool *ret_remote, struct err *e)
{
    struct addrinfo *found;
    int fd, one = 1;

    if (resolve(where, may_be_remote, host, host_cap, &found, ret_remote, e) < 0)
        return -1;
    fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
        bind(fd, found->ai_addr, found->ai_addrlen) < 0 || listen(fd, BACKLOG) < 0) {
        err_errno(e, errno == EADDRINUSE ? ERR_CONFLICT : ERR_IO, "listen on '%s'",
                  where);
        if (fd >= 0)
            close(fd);
        freeaddrinfo(found);
        return -1;
    }
    freeaddrinfo(found);
    *ret_fd = fd;
    *ret_port = bound_port(fd);
    return 0;
}

static bool answered(const struct sockaddr_un *a)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool yes;

    if (fd < 0)
        return true;
    yes = connect(fd, (const struct sockaddr *)a, sizeof(*a)) == 0 ||
          (errno != ECONNREFUSED && errno != ENOENT);
    close(fd);
    return yes;
}

int listen_unix(const char *path, mode_t mode, int *ret_fd, struct err *e)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct stat st;
    int fd;

    if (strlen(path) >= sizeof(a.sun_path))
        return err_set(e, ERR_INVALID, "socket path '%s' is longer than %zu bytes", path,
                       sizeof(a.sun_path) - 1);
    strcpy(a.sun_path, path);
    if (lstat(path, &st) == 0) {
        if (!S_ISSOCK(st.st_mode) || answered(&a))
            return err_set(e, ERR_CONFLICT, "'%s' is in use", path);
        unlink(path);
    }
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    /* the mode of the descriptor becomes that of the file: no moment of a wider one */
    if (fd < 0 || fchmod(fd, mode) < 0 ||
        bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 ||
        (mode != 0600 && chmod(path, mode) < 0) || /* the umask took some of it */
        listen(fd, BACKLOG) < 0) {
        err_errno(e, ERR_IO, "listen on '%s'", path);
        if (fd >= 0)
            close(fd);
        return -1;
    }
    *ret_fd = fd;
    return 0;
}

void listen_addr(int fd, bool peer, char *to, size_t cap)
{
    static const char mapped[] = "::ffff:";
    struct sockaddr_storage a;
    socklen_t n = sizeof(a);
    int rc = peer ? getpeername(fd, (struct sockaddr *)&a, &n)
                  : getsockname(fd, (struct sockaddr *)&a, &n);

    if (rc < 0 || a.ss_family == AF_UNIX ||
        getnameinfo((struct sockaddr *)&a, n, to, (socklen_t)cap, NULL, 0,
                    NI_NUMERICHOST) != 0)
        to[0] = '\0';
    if (!strncmp(to, mapped, sizeof(mapped) - 1) && strchr(to, '.'))
        memmove(to, to + sizeof(mapped) - 1, strlen(to) - sizeof(mapped) + 2);
}
