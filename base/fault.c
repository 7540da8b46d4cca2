/* base/fault.c - dies where LLMRACK_CRASH_AT says, hangs where LLMRACK_FAULT_FILE says,
 * in builds for tests. */
#include "base/fault.h"

#ifdef LLMRACK_FAULTS
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { FAULT_FILE = 1024 };

void fault_point(const char *name)
{
    static long passed;
    const char *at = getenv("LLMRACK_CRASH_AT");
    size_t n = strlen(name);

    if (!at || strncmp(at, name, n) || (at[n] && at[n] != ':'))
        return;
    if (++passed == (at[n] ? atol(at + n + 1) : 1))
        raise(SIGKILL);
}

static void hold(long ms)
{
    do {
        const struct timespec t = {ms ? ms / 1000 : 3600, ms % 1000 * 1000000};
        nanosleep(&t, NULL);
    } while (!ms);
}

static const char *whose = "";

void fault_whose(const char *who) { whose = who; }

static bool is_for(const char *at, const char *name)
{
    size_t n = strlen(name);

    return !strncmp(at, name, n) &&
           (!at[n] || (at[n] == '@' && !strcmp(at + n + 1, whose)));
}

static size_t read_file(const char *path, char text[FAULT_FILE])
{
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(text, 1, FAULT_FILE - 1, f) : 0;

    if (f)
        fclose(f);
    text[n] = '\0';
    return n;
}

static void put_rest(const char *path, const char *rest)
{
    char next[512];
    FILE *f;

    snprintf(next, sizeof(next), "%s.rest", path);
    if (*rest && (f = fopen(next, "we"))) {
        fputs(rest, f);
        fclose(f);
        rename(next, path);
    } else {
        unlink(path);
    }
}

/* The line is ours alone: the file holds what follows it now. False: another was faster.
 */
static bool claim(const char *path, const char text[FAULT_FILE])
{
    char lock[512], now[FAULT_FILE];
    const char *end = strchr(text, '\n');
    int fd;
    bool got;

    snprintf(lock, sizeof(lock), "%s.lock", path);
    fd = open(lock, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0)
        return false;
    flock(fd, LOCK_EX);
    got = read_file(path, now) && !strcmp(now, text);
    if (got)
        put_rest(path, end ? end + 1 : "");
    close(fd);
    return got;
}

bool fault_hold(const char *name, int index)
{
    const char *path = getenv("LLMRACK_FAULT_FILE");
    char text[FAULT_FILE], at[48], action[16];
    int who;

    if (!path || !read_file(path, text) ||
        sscanf(text, "%47s %d %15s", at, &who, action) != 3 || who != index ||
        !is_for(at, name) || !claim(path, text))
        return false;
    if (!strcmp(action, "stop"))
        raise(SIGSTOP);
    else if (!strcmp(action, "kill"))
        raise(SIGKILL);
    else if (!strcmp(action, "fail"))
        return true;
    else
        hold(atol(action));
    return false;
}
#endif
