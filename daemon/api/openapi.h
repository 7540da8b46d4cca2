/* daemon/api/openapi.h - the OpenAPI 3.1 document of all routes, from the rows of
 * route.def, query.def and schema.def. Pure. */
#ifndef API_OPENAPI_H
#define API_OPENAPI_H

struct buf;
struct err;

int openapi_write(const char *version, struct buf *out, struct err *e);

#endif
