/* daemon/api/rules.h - what the HTTP threads need of the configuration, as one copy.
 *
 * Immutable and reference counted: a request keeps the rules that it began with, a new
 * configuration puts others in their place. Any thread. */
#ifndef API_RULES_H
#define API_RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct conf;

struct rules {
    size_t max_body;
    int max_connections;
    int64_t header_us, body_us, idle_us;
    char **hosts, **cors; /* further names in Host; origins of pages that may ask */
    int n_hosts, n_cors;
    bool log_content;
};

struct rules *rules_new(const struct conf *c); /* copies; one reference */
struct rules *rules_ref(struct rules *r);
void rules_unref(struct rules *r); /* NULL allowed */
/* Whether prefixes of the model served under that name are kept apart by key (an enum
 * conf_isolate); by key where the configuration does not tell. */
int rules_isolate(const struct rules *r, const char *served_as);

#endif
