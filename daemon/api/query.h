/* daemon/api/query.h - what stands behind the question mark, from the rows of query.def.
 *
 * Read with the headers on the HTTP thread; afterwards it is plain data. Under /api/v1
 * what a route does not name is refused, elsewhere it is ignored (probes add their own).
 * Given twice is refused. */
#ifndef API_QUERY_H
#define API_QUERY_H

#include <stdbool.h>
#include <stdint.h>

struct MHD_Connection;
struct conn;
struct err;
struct route;

enum query_id {
#define QUERY(id, name, kind, min, max, help) QUERY_##id,
#include "daemon/api/query.def"
#undef QUERY
    QUERY_COUNT
};
enum query_kind { QUERY_NUM, QUERY_TEXT, QUERY_HEADER };

struct query_row {
    const char *id, *name, *help;
    enum query_kind kind;
    int64_t min, max;
};
const struct query_row *query_row(int id); /* NULL past the last */
/* Does the row of route.def name it? */
bool query_allowed(const struct route *r, int id);

enum { QUERY_GIVEN = 4 };
struct query {
    int n;
    struct {
        enum query_id id;
        int64_t num;
        char *text; /* malloc'd; NULL for a number */
    } given[QUERY_GIVEN];
};

/* INVALID or RANGE with the name of the parameter. */
int query_read(struct MHD_Connection *mhd, const struct route *r, struct query *ret,
               struct err *e);
void query_done(struct query *q);
int64_t query_num(const struct query *q, enum query_id id, int64_t missing);
const char *query_text(const struct query *q, enum query_id id, const char *missing);

#endif
