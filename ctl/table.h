/* ctl/table.h - aligned columns that fit the terminal, and the colours of words.
 *
 * Cells are UTF-8 without control characters; a column of cells counts code points. When
 * a table is too wide, a wrapping column is folded first, then texts are cut (the end
 * becomes '~'), numbers never; what then does not fit is left out from the right and
 * named below. Pure. One owner thread. */
#ifndef CTL_TABLE_H
#define CTL_TABLE_H

#include <stdbool.h>

struct buf;

struct show_style {
    int width; /* columns; 0 = any */
    bool colour;
};

enum hue { HUE_PLAIN, HUE_GOOD, HUE_BAD, HUE_WARN, HUE_DIM, HUE_BOLD };
/* The escape that begins a hue, "" without colour; hue_end ends any. */
const char *hue_begin(const struct show_style *st, enum hue h);
const char *hue_end(const struct show_style *st);
/* The hue of a state's word: ready is good, failed is bad, draining a warning. */
enum hue hue_of_state(const char *word);

/* Columns that s takes on the terminal. */
int text_columns(const char *s);
/* s cut to n columns, the last of them '~' when something was cut off; malloc'd. */
char *text_cut(const char *s, int n);

enum table_flag {
    TABLE_RIGHT = 1, /* a number: to the right, never cut */
    TABLE_STATE = 2, /* coloured by its word */
    TABLE_WRAP = 4,  /* folded into the room that is left; the last column only */
    TABLE_WHOLE = 8  /* never cut */
};

struct table;
struct table *table_new(int columns);
void table_free(struct table *t);
void table_column(struct table *t, int c, const char *title, unsigned flags);
/* The cells of a new row, one by one from the left; NULL or "" = none. */
void table_cell(struct table *t, const char *text);
void table_print(const struct table *t, const struct show_style *st, struct buf *out);

#endif
