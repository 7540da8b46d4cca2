/* state/racknotes.h - what is remembered about the rack beside its graph: cordoned
 * devices, measured links, plans that were made. Control thread. */
#ifndef STATE_RACKNOTES_H
#define STATE_RACKNOTES_H

#include <stdint.h>

struct err;
struct store;

struct cordon_row {
    char device[64], reason[256], actor[64];
    int64_t at_ms;
};
int cordon_put(struct store *s, const struct cordon_row *c, struct err *e);
/* 1 = was cordoned, 0 = was not, -1. */
int cordon_remove(struct store *s, const char *device, struct err *e);
int cordon_list(struct store *s, struct cordon_row *ret, int max, struct err *e);

struct measurement_row {
    char a[64], b[64];
    int64_t at_ms;
    double bytes_per_s, spread, latency_s; /* median; (max - min) / median */
};
/* All in one transaction; replaces those of the same pairs. */
int measurement_put(struct store *s, const char *rack, const struct measurement_row *m,
                    int n, struct err *e);
int measurement_list(struct store *s, const char *rack, struct measurement_row *ret,
                     int max, struct err *e);

struct plan_row {
    int64_t id, at_ms;
    char model[128], rack[128];
    char *request, *result; /* JSON, malloc'd; NULL in lists */
};
int plan_put(struct store *s, struct plan_row *p, struct err *e); /* fills id */
int plan_get(struct store *s, int64_t id, struct plan_row *ret, struct err *e);
int plan_list(struct store *s, struct plan_row *ret, int max, struct err *e);
void plan_row_done(struct plan_row *p);

#endif
