/* topo/formula.h - the arithmetic that planning rests on: volumes, bounds, shares.
 *
 * Pure functions of their arguments, in bytes, seconds and counts. `explain` prints them
 * and the cost model adds them up, so that both give the same figure. Volumes are what
 * one rank sends (a ring receives as much). Any thread. */
#ifndef TOPO_FORMULA_H
#define TOPO_FORMULA_H

#include <stdint.h>

/* Fewest whole units of `unit` that hold `amount`; 0 for nothing. */
int64_t formula_units(double amount, double unit);

/* Ring collectives over p ranks of a message of s bytes. */
double formula_all_reduce(int p, double s); /* 2 (p-1)/p s */
double formula_all_gather(int p, double s); /* (p-1)/p s; reduce-scatter the same */
/* One Megatron layer: two all-reduces forward; the same total as SP's gather + scatter.
 */
double formula_tp_forward(int p, double s);  /* 4 (p-1)/p s */
double formula_tp_train(int p, double s);    /* 8 (p-1)/p s, forward and backward */
double formula_tp_sp_train(int p, double s); /* 10: backward rebuilds its inputs */
double formula_tp_time(double t1, int n, double collective); /* t1/n + collective */

/* Expert parallelism: t tokens in all, k choices, h wide, b bytes an element, p ranks. */
double formula_ep_logical(double t, int k, double h, double b);
double formula_ep_remote(double logical, int p); /* (p-1)/p of it */
double formula_ep_pair(double logical, int p);   /* logical / p^2 */
/* fixed + max over ranks of the slower of sending and receiving. A bandwidth list of
 * one value serves all ranks. */
double formula_dispatch(double fixed, const double *send, const double *recv, int n,
                        const double *send_bps, int n_send_bps, const double *recv_bps,
                        int n_recv_bps);

/* Transfer of s bytes: fixed + s / bps. */
double formula_transfer(double fixed, double s, double bps);

/* Experts: worst over mean; 0 for an empty or all-zero list. */
double formula_imbalance(const double *load, int n);
/* ceil(c t k / e): slots of one expert. */
int64_t formula_capacity(double c, double t, double k, double e);
/* dispatch + max (queue + compute) + combine. */
double formula_moe_time(double dispatch, const double *queue, const double *compute,
                        int n, double combine);

/* Speculation: mean advance of a round of k drafts, each accepted with probability a. */
double formula_spec_advance(double a, int k);
double formula_spec_accept(double p, double q); /* min(1, p/q) */
/* max(p-q, 0) normalised into r[n]; all zero where p never exceeds q. */
void formula_spec_residual(const double *p, const double *q, int n, double *r);

#endif
