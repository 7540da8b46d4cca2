/* topo/formula.c - see formula.h. */
#include "topo/formula.h"

#include <math.h>

/* A quotient that misses a whole number by rounding alone is that whole number. */
#define ROUNDING 1e-9

int64_t formula_units(double amount, double unit)
{
    double q = amount / unit;

    return q <= 0 ? 0 : (int64_t)ceil(q * (1 - ROUNDING));
}

double formula_all_reduce(int p, double s) { return 2.0 * (p - 1) / p * s; }

double formula_all_gather(int p, double s) { return 1.0 * (p - 1) / p * s; }

double formula_tp_forward(int p, double s) { return 2 * formula_all_reduce(p, s); }

double formula_tp_train(int p, double s) { return 4 * formula_all_reduce(p, s); }

double formula_tp_sp_train(int p, double s) { return 10 * formula_all_gather(p, s); }

double formula_tp_time(double t1, int n, double collective)
{
    return t1 / n + collective;
}

double formula_ep_logical(double t, int k, double h, double b) { return t * k * h * b; }

double formula_ep_remote(double logical, int p) { return logical * (p - 1) / p; }

double formula_ep_pair(double logical, int p) { return logical / p / p; }

double formula_dispatch(double fixed, const double *send, const double *recv, int n,
                        const double *send_bps, int n_send_bps, const double *recv_bps,
                        int n_recv_bps)
{
    double worst = 0;

    for (int i = 0; i < n; i++) {
        double s = send[i] / send_bps[n_send_bps == 1 ? 0 : i];
        double r = recv[i] / recv_bps[n_recv_bps == 1 ? 0 : i];
        worst = fmax(worst, fmax(s, r));
    }
    return fixed + worst;
}

double formula_transfer(double fixed, double s, double bps) { return fixed + s / bps; }

double formula_imbalance(const double *load, int n)
{
    double sum = 0, max = 0;

    for (int i = 0; i < n; i++) {
        sum += load[i];
        max = fmax(max, load[i]);
    }
    return sum > 0 ? max * n / sum : 0;
}

int64_t formula_capacity(double c, double t, double k, double e)
{
    return formula_units(c * t * k, e);
}

double formula_moe_time(double dispatch, const double *queue, const double *compute,
                        int n, double combine)
{
    double worst = 0;

    for (int i = 0; i < n; i++)
        worst = fmax(worst, queue[i] + compute[i]);
    return dispatch + worst + combine;
}

double formula_spec_advance(double a, int k)
{
    return a >= 1 ? k + 1 : (1 - pow(a, k + 1)) / (1 - a);
}

double formula_spec_accept(double p, double q) { return p >= q ? 1 : p / q; }

void formula_spec_residual(const double *p, const double *q, int n, double *r)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += r[i] = fmax(p[i] - q[i], 0);
    for (int i = 0; i < n && sum > 0; i++)
        r[i] /= sum;
}
