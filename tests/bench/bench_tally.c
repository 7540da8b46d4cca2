/* tests/bench/bench_tally.c - some steps of a mixture of experts as the engine runs them,
 * counts and all, for tally_cost.py to count instructions of.
 *
 *   bench_tally MODEL LAYOUT STEPS */
#include "tests/test.h"
#include "tests/unit/expert_rig.h"

enum { MOST = 256 };

int main(int argc, char **argv)
{
    static struct step_token out[SEQS];
    int steps = argc == 4 ? atoi(argv[3]) : 0;
    struct rig r;

    if (steps < 1 || steps > MOST) {
        fprintf(stderr, "usage: bench_tally MODEL LAYOUT STEPS (1 to %d)\n", MOST);
        return 2;
    }
    rig_model = argv[1];
    rig_comm_us = rig_step_us = 3600000000; /* under valgrind all takes its time */
    open_rig(&r, "qwen3_moe", argv[2], 0, SPREAD_STATIC);
    for (int i = 0; i < steps; i++)
        step(&r, out);
    if (r.g)
        idle(&r);
    close_rig(&r);
    return 0;
}
