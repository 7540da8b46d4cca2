/* daemon/api/schema.h - the rows of schema.def and params.def as JSON schemas. Pure. */
#ifndef API_SCHEMA_H
#define API_SCHEMA_H

#include <stdbool.h>

struct buf;
struct err;
struct jw;

/* Name of the i-th schema, NULL past the last. */
const char *schema_name(int i);
bool schema_known(const char *name);
/* Writes it; -1 with the place in the row when the row is not well-formed (a test walks
 * all rows, so a running daemon has none). */
int schema_write(int i, struct jw *w, struct err *e);

#endif
