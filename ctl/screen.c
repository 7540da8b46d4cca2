/* ctl/screen.c - frames and keys. */
#include "ctl/screen.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "ctl/line.h"

static struct termios before;

static void put(const char *p, size_t n)
{
    while (n) {
        ssize_t k = write(STDOUT_FILENO, p, n);

        if (k < 0 && errno != EINTR)
            return;
        p += k > 0 ? k : 0;
        n -= (size_t)(k > 0 ? k : 0);
    }
}

static void puts_all(const char *s) { put(s, strlen(s)); }

int screen_open(struct err *e)
{
    struct termios raw;

    if (!line_is_terminal() || !line_width() || tcgetattr(STDIN_FILENO, &before) < 0)
        return err_set(e, ERR_DENIED, "it needs a terminal");
    raw = before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
    puts_all("\x1b[?1049h\x1b[?25l\x1b[2J");
    return 0;
}

void screen_close(void)
{
    puts_all("\x1b[?25h\x1b[?1049l");
    tcsetattr(STDIN_FILENO, TCSADRAIN, &before);
}

void screen_frame(const struct buf *text)
{
    int rows = line_height();
    struct buf out;

    buf_init(&out, 0);
    buf_puts(&out, "\x1b[?2026h\x1b[H"); /* shown at once, where that is known */
    for (const char *p = text->p ? text->p : ""; *p && rows > 0; rows--) {
        size_t n = strcspn(p, "\n");

        buf_add(&out, p, n);
        buf_puts(&out, rows > 1 && p[n] && p[n + 1] ? "\x1b[K\r\n" : "\x1b[K");
        p += n + (p[n] == '\n');
    }
    buf_puts(&out, "\x1b[J\x1b[?2026l");
    put(out.p, out.len);
    buf_done(&out);
}

int screen_key(int64_t at_us)
{
    for (;;) {
        struct pollfd pfd = {.fd = STDIN_FILENO, .events = POLLIN};
        int64_t left = at_us - clock_now_us(clock_real());
        unsigned char key;

        if (*line_stop_flag())
            return SCREEN_STOP;
        if (line_resized())
            return SCREEN_RESIZED;
        if (left <= 0)
            return SCREEN_TIMEOUT;
        if (poll(&pfd, 1, (int)((left + 999) / 1000)) <= 0)
            continue;
        return read(STDIN_FILENO, &key, 1) == 1 ? key : SCREEN_STOP;
    }
}
