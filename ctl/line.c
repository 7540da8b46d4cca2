/* ctl/line.c - readline with its callback interface in one poll loop.
 *
 * Signals are caught by our own handler, which only sets a flag and lets ppoll return:
 * Ctrl-C then clears the line, a changed window size is passed on, and a signal to end is
 * the end of input, so that terminal and history are left in order. readline's own
 * handlers stay off, so it never fights over them. Only this thread prints. The state is
 * file-local, as readline's is. */
#include "ctl/line.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include <readline/history.h>
#include <readline/readline.h>

#include "base/mem.h"

enum { HISTORY_MAX = 1000, FDS_MAX = 8, NEWS_MAX = 64 };

static volatile int interrupted, resized, ended;
static bool terminal, done, reading, hooked;
static char *got, *history_file;
static struct line_hooks hooks;
static char *news[NEWS_MAX]; /* that wait */
static int n_news;

static void on_signal(int signo)
{
    if (signo == SIGWINCH) {
        resized = 1;
        return;
    }
    interrupted = 1; /* of whatever runs */
    if (signo != SIGINT)
        ended = 1;
}

/* ---- completion and help ---- */

void line_words_add(struct line_words *l, const char *word)
{
    if (l->n == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 32;
        l->w = xrealloc(l->w, (size_t)l->cap * sizeof(*l->w));
    }
    l->w[l->n++] = xstrdup(word);
}

void line_words_done(struct line_words *l)
{
    for (int i = 0; i < l->n; i++)
        free(l->w[i]);
    free(l->w);
    memset(l, 0, sizeof(*l));
}

static struct line_words offered;

static char *generate(const char *part, int state)
{
    static int i;

    (void)part;
    i = state ? i + 1 : 0;
    return i < offered.n ? strdup(offered.w[i]) : NULL; /* readline frees it */
}

static char **attempt(const char *text, int start, int end)
{
    char *before = xstrndup(rl_line_buffer, (size_t)start);

    (void)end;
    line_words_done(&offered);
    if (hooked)
        hooks.complete(before, text, &offered);
    free(before);
    rl_attempted_completion_over = !offered.files;
    return offered.files ? NULL : rl_completion_matches(text, generate);
}

/* `?` lists what fits, without becoming part of the line (unless it follows text that
 * takes an argument: then it is an ordinary character). */
static int on_question(int count, int key)
{
    char *text = hooked && hooks.help ? hooks.help(rl_line_buffer) : NULL;

    (void)count;
    if (!text || !*text) {
        free(text);
        return rl_insert(1, key);
    }
    printf("\n%s", text);
    free(text);
    rl_on_new_line();
    rl_redisplay();
    return 0;
}

void line_open(const char *history_path, const struct line_hooks *h)
{
    struct sigaction sa = {.sa_handler = on_signal};

    terminal = isatty(STDIN_FILENO);
    hooks = *h;
    sigaction(SIGINT, &sa, NULL);
    if (!terminal)
        return;
    sigaction(SIGWINCH, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    sigaction(SIGHUP, &sa, NULL);
    rl_catch_signals = 0;
    rl_catch_sigwinch = 0;
    rl_readline_name = "llmctl";
    rl_attempted_completion_function = attempt;
    rl_completer_word_break_characters = " \t\n\"'";
    rl_completer_quote_characters = "\"'";
    rl_initialize();
    if (hooks.help)
        rl_bind_key('?', on_question);
    if (history_path) {
        history_file = xstrdup(history_path);
        stifle_history(HISTORY_MAX);
        read_history(history_file);
    }
}

void line_close(void)
{
    if (history_file && write_history(history_file) != 0)
        fprintf(stderr, "llmctl: history not saved in %s: %s\n", history_file,
                strerror(errno));
    free(history_file);
    history_file = NULL;
    line_words_done(&offered);
    while (n_news)
        free(news[--n_news]);
}

/* ---- news and the prompt ---- */

/* readline shows something of its own in place of the line. */
static bool busy(void)
{
    return RL_ISSTATE(RL_STATE_ISEARCH | RL_STATE_NSEARCH | RL_STATE_SEARCH |
                      RL_STATE_COMPLETING | RL_STATE_MOREINPUT | RL_STATE_MULTIKEY |
                      RL_STATE_METANEXT | RL_STATE_NUMERICARG) != 0;
}

static void flush_news(void)
{
    if (!n_news || (reading && busy()))
        return;
    if (reading)
        rl_clear_visible_line();
    for (int i = 0; i < n_news; i++) {
        printf("%s\n", news[i]);
        free(news[i]);
    }
    n_news = 0;
    fflush(stdout);
    if (reading) {
        rl_on_new_line();
        rl_redisplay();
    }
}

void line_news(const char *text)
{
    if (n_news == NEWS_MAX) { /* the oldest goes */
        free(news[0]);
        memmove(news, news + 1, sizeof(news) - sizeof(news[0]));
        n_news--;
    }
    news[n_news++] = xstrdup(text);
    flush_news();
}

static void refresh_prompt(void)
{
    const char *p = hooks.prompt();

    if (busy() || !strcmp(p, rl_prompt ? rl_prompt : ""))
        return;
    rl_set_prompt(p);
    rl_redisplay();
}

/* ---- lines ---- */

static void on_line(char *line)
{
    got = line;
    done = true;
    reading = false;
    rl_callback_handler_remove(); /* restores the terminal at once */
}

static char *read_plain(void)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n = getline(&line, &cap, stdin);

    if (n < 0) {
        free(line);
        return NULL;
    }
    if (n > 0 && line[n - 1] == '\n')
        line[n - 1] = '\0';
    return line;
}

static void clear_line(void)
{
    rl_free_line_state();
    rl_callback_sigcleanup();
    rl_replace_line("", 0);
    rl_crlf();
    rl_on_new_line();
    rl_redisplay();
}

static void block_signals(sigset_t *ret_outside)
{
    sigset_t ours;

    sigemptyset(&ours);
    sigaddset(&ours, SIGINT);
    sigaddset(&ours, SIGWINCH);
    sigaddset(&ours, SIGTERM);
    sigaddset(&ours, SIGHUP);
    sigprocmask(SIG_BLOCK, &ours,
                ret_outside); /* one that comes now ends the next ppoll */
}

/* One wait: keys, signals, and what the hooks wait for. false: the terminal is gone. */
static bool turn(const sigset_t *outside)
{
    struct pollfd pfd[1 + FDS_MAX] = {{.fd = STDIN_FILENO, .events = POLLIN}};
    const struct timespec second = {.tv_sec = 1};
    int others = hooked && hooks.fds ? hooks.fds(pfd + 1, FDS_MAX) : 0;
    int n = ppoll(pfd, (nfds_t)(1 + others), hooked ? &second : NULL, outside);

    if (n < 0 && errno != EINTR)
        return false;
    if (interrupted && !ended) {
        interrupted = 0;
        clear_line();
    }
    if (resized) {
        resized = 0;
        rl_resize_terminal();
    }
    if (n > 0 && pfd[0].revents)
        rl_callback_read_char();
    if (hooked && !done) {
        if (hooks.work)
            hooks.work();
        if (!done)
            refresh_prompt();
        flush_news();
    }
    return true;
}

char *line_read(const char *prompt, bool keep)
{
    sigset_t outside;

    if (!terminal)
        return read_plain();
    block_signals(&outside);
    got = NULL;
    done = false;
    interrupted = 0;
    hooked = !prompt;
    flush_news();
    rl_callback_handler_install(prompt ? prompt : hooks.prompt(), on_line);
    reading = true;
    while (!done && !ended && turn(&outside))
        ;
    if (!done)
        rl_callback_handler_remove();
    reading = false;
    sigprocmask(SIG_SETMASK, &outside, NULL);
    if (!got)
        putchar('\n');
    else if (keep && *got)
        add_history(got);
    return got;
}

bool line_ask(const char *question)
{
    char *prompt = xasprintf("%s [y/N] ", question), *answer = line_read(prompt, false);
    bool yes = answer && (answer[0] == 'y' || answer[0] == 'Y');

    free(prompt);
    free(answer);
    return yes;
}

bool line_is_terminal(void) { return terminal; }
bool line_ended(void) { return ended || !terminal; }

static struct winsize window(void)
{
    struct winsize ws = {0};

    if (!isatty(STDOUT_FILENO) || ioctl(STDOUT_FILENO, TIOCGWINSZ, &ws) != 0)
        memset(&ws, 0, sizeof(ws));
    return ws;
}

int line_width(void) { return window().ws_col; }
int line_height(void) { return window().ws_row; }

volatile int *line_stop_flag(void) { return &interrupted; }

bool line_resized(void)
{
    bool was = resized;

    resized = 0;
    return was;
}
