/* daemon/api/plans.h - plans that were made, kept and shown again. */
#ifndef API_PLANS_H
#define API_PLANS_H

struct conn;

/* A plan that a worker made for a request; all malloc'd. groups and dots are JSON lists
 * of texts, one a row. */
struct made_plan {
    char *model, *rack, *request; /* request: the body as it came */
    char *text, *plan, *groups, *dots;
};
void made_plan_free(struct made_plan *m);

/* Keeps the plan and answers the request with it, on the control thread. Takes m. Any
 * thread. */
void plans_keep(struct conn *c, struct made_plan *m);

#endif
