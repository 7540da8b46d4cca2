/* daemon/api/params_read.h - readers that the OWN rows of params.def name. For params.c
 * only: each gets its member, present and not null. */
#ifndef API_PARAMS_READ_H
#define API_PARAMS_READ_H

#include <stdbool.h>

#include "base/json.h"

struct err;
struct params;

/* Neither null, false nor an empty string, list or object. */
bool params_filled(const json_t *v);

int params_read_model(struct params *p, const json_t *v, struct err *e);
int params_read_messages(struct params *p, const json_t *v, struct err *e);
int params_read_prompt(struct params *p, const json_t *v, struct err *e);
int params_read_top_k(struct params *p, const json_t *v, struct err *e);
int params_read_slo_class(struct params *p, const json_t *v, struct err *e);
int params_read_seed(struct params *p, const json_t *v, struct err *e);
int params_read_stop(struct params *p, const json_t *v, struct err *e);
int params_read_stop_ids(struct params *p, const json_t *v, struct err *e);
int params_read_bias(struct params *p, const json_t *v, struct err *e);
int params_read_stream_options(struct params *p, const json_t *v, struct err *e);
int params_read_text_logprobs(struct params *p, const json_t *v, struct err *e);
int params_read_best_of(struct params *p, const json_t *v, struct err *e);
int params_read_response_format(struct params *p, const json_t *v, struct err *e);
int params_read_effort(struct params *p, const json_t *v, struct err *e);
int params_read_modalities(struct params *p, const json_t *v, struct err *e);

#endif
