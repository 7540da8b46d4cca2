/* daemon/ctrl/conf_round.h - as what layout the engines of an instance round.
 *
 * Sums are cut where ranks are, so engines of other tp or cp differ in the last bits; an
 * engine can make them in the pieces of a wider layout (forward.h, as_tp and as_cp). The
 * pools of a split instance do so of their own accord where they can, so that its answers
 * are to the bit the same whichever pool computes what. Pure. Any thread. */
#ifndef CTRL_CONF_ROUND_H
#define CTRL_CONF_ROUND_H

struct conf_instance;

/* Both pools' words that are 0 in the configuration (prefill and decode as merged with
 * their instance): the widest of the two, where the other can round so; else they stay.
 */
void conf_round_pools(struct conf_instance *prefill, struct conf_instance *decode);

#endif
