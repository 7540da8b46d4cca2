/* daemon/ctrl/pulse.h - does an engine give signs of life, also when it has nothing to
 * do?
 *
 * Pure: times in, what to do out. Its owner looks PULSE_LOOKS times within the limit (5 s
 * by default) and says when it heard of the engine, be it the answer to a question or a
 * step that ended. One that was quiet for half of the limit is asked, once; one that was
 * quiet for all of it is silent until it is heard of again. So an idle engine is woken
 * twice within the limit at most, and a busy one never.
 *
 * Only time in which the owner looked counts: a daemon that was itself stopped does not
 * blame its engines for it. One owner thread. */
#ifndef CTRL_PULSE_H
#define CTRL_PULSE_H

#include <stdbool.h>
#include <stdint.h>

enum { PULSE_LOOKS = 4 };

struct pulse {
    int64_t looked_us; /* last, monotonic */
    int64_t quiet_us;  /* without a sign of life, as far as it was looked for */
    bool asked;        /* since the last sign */
    bool silent;       /* quiet for longer than the limit */
};

enum pulse_do { PULSE_NOTHING, PULSE_ASK, PULSE_SILENT /* it is so from now on */ };

void pulse_start(struct pulse *p, int64_t now_us);
/* limit_us: 0 = it is not asked and never silent. */
enum pulse_do pulse_look(struct pulse *p, int64_t now_us, int64_t limit_us);
/* A sign of life; true: it was silent. */
bool pulse_heard(struct pulse *p);

#endif
