/* base/contract.h - what two load runs must have in common to be compared.
 *
 * A contract is a JSON object of five parts: served (the daemon's words: model, rack,
 * mode ..), work (arrivals, lengths, seed), sampling, slo, quality. Every leaf of it must
 * be equal in both, but for those that are what one compares: the instance, its mode,
 * layout, replicas, devices and threads, the build, the revision and the engine's
 * generation. Those are shown beside each other. Pure. */
#ifndef BASE_CONTRACT_H
#define BASE_CONTRACT_H

#include "base/json.h"

struct err;

/* CONFLICT names the first leaf that differs and must not, with both values. Else
 * *ret_shown is a list of {field, a, b} of what differs and may; the caller
 * json_decref()s it. */
int contract_compare(const json_t *a, const json_t *b, json_t **ret_shown, struct err *e);

#endif
