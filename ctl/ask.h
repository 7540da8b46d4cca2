/* ctl/ask.h - paths and bodies of requests from a verb's row and the arguments. Pure, but
 * that ask_plan reads the files it is given. */
#ifndef CTL_ASK_H
#define CTL_ASK_H

struct args;
struct buf;
struct err;

/* "instances/{NAME}/stop?n={COUNT}" with the values, percent-encoded; a query member
 * without a value is left out (n=1 stays). malloc'd, with the /api/v1/ in front. */
char *ask_path(const char *template, const struct args *a);
/* "reason=TEXT n=COUNT:int on=:true" -> {"reason":"..","n":3,"on":true}. Kinds: str (the
 * default), int, flag (true when given), list (by commas). "/x" = what a word without a
 * value means, "?x" = what its absence means. NULL and a sentence when a value is no
 * UTF-8; malloc'd. */
char *ask_body(const char *template, const struct args *a, struct err *e);
/* "Stop {NAME}?" with the values; {N|the last} when N is not given. Unknown names stay.
 */
void ask_words(const char *template, const struct args *a, struct buf *out);

/* "collective p=8" -> {"args":["collective","p=8"]}, malloc'd. */
char *ask_explain(const char *text, struct err *e);
/* A model and "--rack R --cp .." -> {"model":"MODEL","rack":"R","cp":true}, malloc'd. A
 * model or a --rack that is a file here is sent as its text (config, rack_file). */
char *ask_plan(const char *model, const char *options, struct err *e);

#endif
