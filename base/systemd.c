/* base/systemd.c - libsystemd: notices, watchdog, sockets handed over, journal. */
#define SD_JOURNAL_SUPPRESS_LOCATION
#include "base/systemd.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <systemd/sd-journal.h>
#include <time.h>

#include "base/err.h"
#include "base/mem.h"

extern char **environ;

void systemd_notify(const char *fmt, ...)
{
    va_list ap;
    char text[512];

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    sd_notify(0, text);
}

void systemd_reloading(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    systemd_notify("RELOADING=1\nMONOTONIC_USEC=%lld",
                   (long long)t.tv_sec * 1000000 + t.tv_nsec / 1000);
}

int64_t systemd_watchdog_us(void)
{
    uint64_t us;

    return sd_watchdog_enabled(0, &us) > 0 && us < INT64_MAX ? (int64_t)us : 0;
}

int systemd_listen(int *ret_fd, struct err *e)
{
    int n = sd_listen_fds(1);

    if (n < 0)
        return err_set(e, ERR_INVALID, "the sockets that the service manager passed: %s",
                       strerror(-n));
    if (n == 0)
        return 0;
    if (n > 1)
        return err_set(e, ERR_INVALID,
                       "the service manager passed %d sockets; one UNIX socket would be "
                       "right",
                       n);
    if (sd_is_socket_unix(SD_LISTEN_FDS_START, SOCK_STREAM, 1, NULL, 0) <= 0)
        return err_set(e, ERR_INVALID,
                       "what the service manager passed is no listening UNIX stream "
                       "socket");
    *ret_fd = SD_LISTEN_FDS_START;
    return 1;
}

bool systemd_is_journal(int fd)
{
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long dev, ino;
    struct stat st;

    return stream && sscanf(stream, "%llu:%llu", &dev, &ino) == 2 &&
           fstat(fd, &st) == 0 && st.st_dev == (dev_t)dev && st.st_ino == (ino_t)ino;
}

int systemd_journal(const struct iovec *fields, int n)
{
    return sd_journal_sendv(fields, n) < 0 ? -1 : 0;
}

char **systemd_child_env(void)
{
    static const char *const ours[] = {"NOTIFY_SOCKET=", "WATCHDOG_", "LISTEN_"};
    char **env;
    int n = 0;

    while (environ[n])
        n++;
    env = xcalloc((size_t)n + 1, sizeof(*env));
    n = 0;
    for (char **v = environ; *v; v++) {
        bool mine = false;

        for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++)
            mine = mine || !strncmp(*v, ours[i], strlen(ours[i]));
        if (!mine)
            env[n++] = *v;
    }
    return env;
}
