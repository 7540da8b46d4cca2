/* ctl/line.c - readline with its callback interface in one poll loop.
 *
 * Signals are caught by our own handler, which only sets a flag and lets ppoll return:
 * Ctrl-C then clears the line, a changed window size is passed on, and a signal to end is
 * the end of input, so that terminal and history are left in order. readline's own
 * handlers stay off, so it never fights over them. The state is file-local, as readline's
 * is. */
#include "ctl/line.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <readline/history.h>
#include <readline/readline.h>

#include "base/mem.h"

enum { HISTORY_MAX = 1000 };

static volatile int interrupted, resized, ended;
static bool terminal, done;
static char *got, *history_file;
static line_complete_fn complete_fn;
static line_help_fn help_fn;

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

static char *generate(const char *part, int state)
{
    static int i;
    char before[1024], word[128];
    int at = rl_point - (int)strlen(part);

    if (state == 0)
        i = 0;
    snprintf(before, sizeof(before), "%.*s", at > 0 ? at : 0, rl_line_buffer);
    if (!complete_fn(before, part, i++, word, sizeof(word)))
        return NULL;
    return strdup(word); /* readline frees it */
}

static char **attempt(const char *text, int start, int end)
{
    (void)start, (void)end;
    rl_attempted_completion_over = 1; /* never file names */
    return rl_completion_matches(text, generate);
}

/* `?` lists what fits, without becoming part of the line (unless it follows text that
 * takes an argument: then it is an ordinary character). */
static int on_question(int count, int key)
{
    char *text = help_fn(rl_line_buffer);

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

void line_open(const char *history_path, line_complete_fn complete, line_help_fn help)
{
    struct sigaction sa = {.sa_handler = on_signal};

    terminal = isatty(STDIN_FILENO);
    complete_fn = complete;
    help_fn = help;
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
    rl_initialize();
    if (help)
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
}

static void on_line(char *line)
{
    got = line;
    done = true;
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

char *line_read(const char *prompt, bool keep)
{
    struct pollfd pfd = {.fd = STDIN_FILENO, .events = POLLIN};
    sigset_t ours, outside;

    if (!terminal)
        return read_plain();
    sigemptyset(&ours);
    sigaddset(&ours, SIGINT);
    sigaddset(&ours, SIGWINCH);
    sigaddset(&ours, SIGTERM);
    sigaddset(&ours, SIGHUP);
    sigprocmask(SIG_BLOCK, &ours, &outside); /* one that comes now ends the next ppoll */
    got = NULL;
    done = false;
    interrupted = 0;
    rl_callback_handler_install(prompt, on_line);
    while (!done && !ended) {
        int n = ppoll(&pfd, 1, NULL, &outside);

        if (interrupted && !ended) {
            interrupted = 0;
            clear_line();
        }
        if (resized) {
            resized = 0;
            rl_resize_terminal();
        }
        if (n > 0)
            rl_callback_read_char();
        else if (n < 0 && errno != EINTR)
            break;
    }
    if (!done)
        rl_callback_handler_remove();
    sigprocmask(SIG_SETMASK, &outside, NULL);
    if (!got)
        putchar('\n');
    else if (keep && *got)
        add_history(got);
    return got;
}

bool line_is_terminal(void) { return terminal; }

int line_width(void)
{
    struct winsize ws;

    if (!isatty(STDOUT_FILENO) || ioctl(STDOUT_FILENO, TIOCGWINSZ, &ws) != 0)
        return 0;
    return ws.ws_col;
}

volatile int *line_stop_flag(void) { return &interrupted; }
