/* daemon/place.h - where things are: beside the program, or installed. Floor 5, for
 * app.c. All malloc'd. */
#ifndef DAEMON_PLACE_H
#define DAEMON_PLACE_H

struct err;

/* A path relative to the folder of our own program. */
char *place_beside(const char *rest);
/* Published shapes: installed, or in the source tree. */
char *place_models_dir(void);
/* The text of a configuration file; NULL and a sentence. */
char *place_read_conf(const char *path, struct err *e);

#endif
