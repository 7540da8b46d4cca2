/* daemon/api/serve.h - the callbacks that both listeners give to libmicrohttpd. cls is
 * their struct listener. Polling threads only. */
#ifndef API_SERVE_H
#define API_SERVE_H

#include <microhttpd.h>
#include <stddef.h>

enum MHD_Result serve_request(void *cls, struct MHD_Connection *mhd, const char *url,
                              const char *method, const char *version, const char *data,
                              size_t *data_n, void **con_cls);
void serve_completed(void *cls, struct MHD_Connection *mhd, void **con_cls,
                     enum MHD_RequestTerminationCode why);

#endif
