/* daemon/ctrl/pulse.c - when to ask an engine, and when it is silent. See pulse.h. */
#include "daemon/ctrl/pulse.h"

void pulse_start(struct pulse *p, int64_t now_us)
{
    *p = (struct pulse){.looked_us = now_us};
}

enum pulse_do pulse_look(struct pulse *p, int64_t now_us, int64_t limit_us)
{
    int64_t step = limit_us / PULSE_LOOKS, passed = now_us - p->looked_us;

    p->looked_us = now_us;
    if (!limit_us)
        return PULSE_NOTHING;
    p->quiet_us += passed < 2 * step ? passed : step;
    if (!p->asked && p->quiet_us >= limit_us / 2) {
        p->asked = true;
        return PULSE_ASK;
    }
    if (p->silent || !p->asked || p->quiet_us < limit_us)
        return PULSE_NOTHING;
    p->silent = true;
    return PULSE_SILENT;
}

bool pulse_heard(struct pulse *p)
{
    bool was = p->silent;

    p->quiet_us = 0;
    p->asked = p->silent = false;
    return was;
}
