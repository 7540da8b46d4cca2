/* daemon/print.c - the tables of options and directives as help, man page and sample. */
#include "daemon/print.h"

#include <stdio.h>

#include "base/buf.h"
#include "daemon/ctrl/conf.h"
#include "daemon/options.h"

bool print_asked(const struct daemon_opts *o)
{
    struct buf b;
    bool asked;

    buf_init(&b, 0);
    if (o->help) {
        buf_puts(&b, "usage: llmrackd [options]\n\n");
        opt_help(daemon_opt_defs, n_daemon_opt_defs, &b);
    }
    if (o->version)
        buf_printf(&b, "llmrackd %s\n", LLMRACK_VERSION);
    if (o->man)
        opt_man(daemon_opt_defs, n_daemon_opt_defs, &b);
    if (o->man_config)
        conf_man(&b);
    if (o->sample_config)
        conf_sample(&b);
    asked = b.len > 0;
    fputs(asked ? b.p : "", stdout);
    buf_done(&b);
    return asked;
}
