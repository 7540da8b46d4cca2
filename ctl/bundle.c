/* ctl/bundle.c - `support-bundle`: what a supporter needs to see, in one .tar.gz.
 *
 * A living daemon gives it (GET /api/v1/support: configuration with its secrets struck
 * out, journal, topology, metrics, log). When none answers, what can be had without it is
 * packed: the system journal's lines of the service, the plain files of the state folder,
 * and the machine; and what `llmrackd --support` reads from the state database, which
 * llmctl does not open itself. MANIFEST says what is there, and what is missing and why.
 * Every text goes through redact(). */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/redact.h"
#include "ctl/args.h"
#include "ctl/line.h"
#include "ctl/run.h"
#include "ctl/tar.h"
#include "ctl/verb.h"

enum { FILE_MAX = 16 << 20, FILES_MAX = 64, JOURNAL_S = 20 };

struct bundle {
    struct tar *tar;
    struct buf manifest;
    int64_t now_s;
    int n;
};

static void add(struct bundle *b, const char *name, const char *text, size_t n)
{
    char *path = xasprintf("support/%s", name);
    struct buf clean;

    buf_init(&clean, 0);
    redact(text, n, &clean);
    tar_add(b->tar, path, clean.p ? clean.p : "", clean.len, b->now_s);
    buf_printf(&b->manifest, "%10zu  %s\n", clean.len, name);
    b->n++;
    buf_done(&clean);
    free(path);
}

static void missing(struct bundle *b, const char *name, const char *why)
{
    buf_printf(&b->manifest, "   missing  %s: %s\n", name, why);
}

/* ---- from the daemon ---- */

/* One member: a text as it is, anything else as JSON that can be read. */
static void add_member(struct bundle *b, const char *key, const json_t *v)
{
    const char *text = json_string_value(v);
    char *json = text ? NULL : json_dumps(v, JSON_INDENT(1));
    char *name = xasprintf("%.60s%s", key,
                           !text                    ? ".json"
                           : !strcmp(key, "config") ? ".yaml"
                                                    : ".txt");

    if (text || json)
        add(b, name, text ? text : json, strlen(text ? text : json));
    free(name);
    free(json);
}

static const char *text_of(const json_t *o, const char *key)
{
    const char *v = json_string_value(json_object_get(o, key));

    return v ? v : "";
}

/* Lines that people can read: [{at_ms, level, text}] or ["line"]. */
static void add_log(struct bundle *b, const json_t *lines)
{
    struct buf text;
    size_t i;
    json_t *l;

    buf_init(&text, 0);
    json_array_foreach((json_t *)lines, i, l)
    {
        if (json_is_string(l))
            buf_printf(&text, "%s\n", json_string_value(l));
        else
            buf_printf(&text, "%lld %s %s\n",
                       (long long)json_integer_value(json_object_get(l, "at_ms")),
                       text_of(l, "level"), text_of(l, "text"));
    }
    add(b, "log.txt", text.p ? text.p : "", text.len);
    buf_done(&text);
}

static void add_support(struct bundle *b, const json_t *root)
{
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)root, key, v)
    {
        if (json_is_null(v))
            missing(b, key, "there is none");
        else if (!strcmp(key, "log") && json_is_array(v))
            add_log(b, v);
        else if (!strcmp(key, "config") && json_is_object(v))
            add_member(b, key, json_object_get(v, "text"));
        else
            add_member(b, key, v);
    }
}

/* ---- without it ---- */

/* The output of a program, at most FILE_MAX bytes and JOURNAL_S seconds. */
static int capture(char *const argv[], struct buf *out, struct err *e)
{
    int64_t end = clock_now_us(clock_real()) + JOURNAL_S * INT64_C(1000000);
    int p[2], status;
    pid_t pid;

    buf_init(out, FILE_MAX);
    if (pipe2(p, O_CLOEXEC) < 0)
        return err_errno(e, ERR_IO, "pipe");
    pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR);

        dup2(p[1], STDOUT_FILENO);
        dup2(null, STDERR_FILENO);
        dup2(null, STDIN_FILENO);
        execvp(argv[0], argv);
        _exit(127);
    }
    close(p[1]);
    for (;;) {
        struct pollfd pfd = {.fd = p[0], .events = POLLIN};
        int64_t left = end - clock_now_us(clock_real());
        char chunk[65536];
        ssize_t n;

        if (left <= 0 || *line_stop_flag() || out->over)
            break;
        if (poll(&pfd, 1, (int)(left / 1000) + 1) <= 0)
            continue;
        n = read(p[0], chunk, sizeof(chunk));
        if (n <= 0)
            break;
        buf_add(out, chunk, (size_t)n);
    }
    close(p[0]);
    if (pid < 0)
        return err_errno(e, ERR_IO, "fork");
    kill(pid, SIGKILL); /* it has ended, or its time is over */
    waitpid(pid, &status, 0);
    return out->len ? 0 : err_set(e, ERR_NOTFOUND, "%s gave nothing", argv[0]);
}

static void add_journal(struct bundle *b)
{
    char *argv[] = {"journalctl", "--no-pager", "-q", "-o",   "short-iso",
                    "-u",         "llmrackd",   "-n", "5000", NULL};
    struct buf out;
    struct err e;

    if (capture(argv, &out, &e) == 0)
        add(b, "system-journal.txt", out.p, out.len);
    else
        missing(b, "system-journal.txt", e.msg);
    buf_done(&out);
}

static bool ends(const char *name, const char *with)
{
    size_t n = strlen(name), k = strlen(with);

    return n >= k && !strcmp(name + n - k, with);
}

/* Logs and recorded racks; not databases, sockets, keys. */
static bool is_wanted(const char *name, const struct stat *st)
{
    static const char *const endings[] = {".log", ".json", ".yaml", ".txt", "log"};

    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++)
        if (S_ISREG(st->st_mode) && ends(name, endings[i]))
            return true;
    return false;
}

static void add_state_file(struct bundle *b, int dir, const char *name)
{
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    char *path = xasprintf("state/%.80s", name), chunk[65536];
    struct buf text;
    ssize_t n;

    buf_init(&text, FILE_MAX);
    while (fd >= 0 && (n = read(fd, chunk, sizeof(chunk))) > 0 && !text.over)
        buf_add(&text, chunk, (size_t)n);
    if (fd < 0)
        missing(b, path, "it cannot be read");
    else
        add(b, path, text.p ? text.p : "", text.len);
    if (text.over)
        missing(b, path, "the rest of it, over 16 MiB");
    if (fd >= 0)
        close(fd);
    buf_done(&text);
    free(path);
}

static void add_state(struct bundle *b, const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *entry;
    struct buf list;
    int n = 0;

    if (!d) {
        missing(b, "state/", "the state folder cannot be read; name it with --state-dir");
        return;
    }
    buf_init(&list, 1 << 20);
    while ((entry = readdir(d)) && !list.over) {
        struct stat st;

        if (entry->d_name[0] == '.' ||
            fstatat(dirfd(d), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        buf_printf(&list, "%06o %12lld %lld %s\n", (unsigned)st.st_mode,
                   (long long)st.st_size, (long long)st.st_mtime, entry->d_name);
        if (is_wanted(entry->d_name, &st) && n++ < FILES_MAX)
            add_state_file(b, dirfd(d), entry->d_name);
    }
    closedir(d);
    add(b, "state-folder.txt", list.p ? list.p : "", list.len);
    buf_done(&list);
}

/* Configuration, journal and SLO minutes, by the daemon's program: the one beside us,
 * else the one of PATH. */
static void add_stored(struct bundle *b, const char *dir)
{
    char self[PATH_MAX], *slash, *beside, *state = xasprintf("--state-dir=%s", dir);
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    static const struct js_limits lim = {FILE_MAX, 32};
    json_t *root = NULL;
    struct buf out;
    struct err e = {0};

    self[n > 0 ? n : 0] = '\0';
    slash = strrchr(self, '/');
    beside = xasprintf("%.*s/llmrackd", slash ? (int)(slash - self) : 0, self);
    {
        char *argv[] = {access(beside, X_OK) == 0 ? beside : (char *)"llmrackd",
                        (char *)"--support", state, NULL};

        if (capture(argv, &out, &e) == 0 &&
            js_parse(out.p, out.len, &lim, &root, &e) == 0)
            add_support(b, root);
        else
            missing(b, "what the state database holds", e.msg);
    }
    json_decref(root);
    buf_done(&out);
    free(beside);
    free(state);
}

static void put_file(struct buf *out, const char *path)
{
    char chunk[8192];
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(chunk, 1, sizeof(chunk), f) : 0;

    if (n)
        buf_printf(out, "\n# %s\n%.*s", path, (int)n, chunk);
    if (f)
        fclose(f);
}

static void add_machine(struct bundle *b, const char *dir)
{
    struct statvfs fs;
    struct utsname u;
    struct buf text;

    buf_init(&text, 1 << 20);
    buf_printf(&text, "llmctl %s\n", LLMRACK_VERSION);
    if (uname(&u) == 0)
        buf_printf(&text, "%s %s %s\n", u.sysname, u.release, u.machine);
    if (statvfs(dir, &fs) == 0)
        buf_printf(&text, "%s: %llu of %llu bytes free\n", dir,
                   (unsigned long long)fs.f_bavail * fs.f_frsize,
                   (unsigned long long)fs.f_blocks * fs.f_frsize);
    put_file(&text, "/proc/loadavg");
    put_file(&text, "/proc/meminfo");
    put_file(&text, "/proc/cpuinfo");
    put_file(&text, "/proc/driver/nvidia/version");
    add(b, "machine.txt", text.p, text.len);
    buf_done(&text);
}

/* Where the state is: as named, or where the socket is, or the system's. */
static char *state_dir(const struct session *s, const struct args *a)
{
    const char *named = args_get(a, "--state-dir");
    char *copy, *dir, *db;

    if (named)
        return xstrdup(named);
    copy = xstrdup(s->at);
    dir = xstrdup(dirname(copy));
    free(copy);
    db = xasprintf("%s/state.db", dir);
    if (access(db, F_OK) < 0 && errno == ENOENT) {
        free(dir);
        dir = xstrdup("/var/lib/llmrack");
    }
    free(db);
    return dir;
}

static void add_manifest(struct bundle *b, bool alive, const char *why)
{
    struct buf text;

    buf_init(&text, 0);
    buf_printf(&text, "llmctl %s made this; Unix time %lld\n", LLMRACK_VERSION,
               (long long)b->now_s);
    if (alive)
        buf_puts(&text, "The daemon answered.\n");
    else
        buf_printf(&text, "The daemon did not answer: %s\n", why);
    buf_printf(&text, "Secrets are struck out; prompts and answers are not in it.\n\n%s",
               b->manifest.p ? b->manifest.p : "");
    tar_add(b->tar, "support/MANIFEST", text.p, text.len, b->now_s);
    buf_done(&text);
}

int run_bundle(struct session *s, const struct verb *v, const struct args *a,
               struct err *e)
{
    struct bundle b = {.now_s = clock_wall_ms() / 1000};
    const char *file = args_get(a, "FILE");
    struct answer ans;
    struct err why = {0};
    char *dir;
    bool alive;

    (void)v;
    if (tar_open(file, &b.tar, e) < 0)
        return -1;
    s->slow = true;
    alive = run_get(s, "support", &ans, &why) == 0 && ans.root;
    s->slow = false;
    if (!alive && why.code != ERR_UNAVAIL && why.code != ERR_TIMEOUT &&
        why.code != ERR_INTERNAL) { /* it lives and says no */
        answer_done(&ans);
        tar_abort(b.tar);
        *e = why;
        return -1;
    }
    buf_init(&b.manifest, 0);
    dir = state_dir(s, a);
    if (alive) {
        add_support(&b, ans.root);
    } else {
        add_journal(&b);
        add_state(&b, dir);
        add_stored(&b, dir);
    }
    add_machine(&b, dir);
    add_manifest(&b, alive, why.msg);
    free(dir);
    buf_done(&b.manifest);
    answer_done(&ans);
    if (tar_close(b.tar, e) < 0)
        return -1;
    fprintf(s->out, "%d files in %s%s\n", b.n + 1, file,
            alive ? "" : "; the daemon does not answer, MANIFEST says what is missing");
    return 0;
}
