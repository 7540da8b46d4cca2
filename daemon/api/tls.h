/* daemon/api/tls.h - the certificate of the TCP listener, replaced while it serves.
 *
 * Each connection is given the credentials that are current when it begins and keeps them
 * to its end: old streams live on, new connections see the new certificate. TLS 1.2 and
 * 1.3. Any thread; tls_load on the control thread. */
#ifndef API_TLS_H
#define API_TLS_H

struct err;
struct tls;
struct tls_cred;

extern const char tls_priorities[]; /* for the HTTP library */

/* Reads both PEM files: the certificate with its chain, and its key. */
int tls_new(const char *cert, const char *key, struct tls **ret, struct err *e);
void tls_free(struct tls *t); /* credentials in use live on; NULL allowed */
/* The files again. On a fault, that e names, the old certificate stays. */
int tls_load(struct tls *t, struct err *e);

/* For the HTTP library, which wants a source of certificates at its start: there is none
 * (a gnutls_certificate_retrieve_function2). */
int tls_no_cert(void *session, const void *req, int n_req, const void *algos, int n_algos,
                void **ret_cert, unsigned *ret_n, void **ret_key);
/* Give the current credentials to a session (gnutls_session_t) that has not begun. NULL
 * and a sentence. */
struct tls_cred *tls_attach(struct tls *t, void *session, struct err *e);
void tls_cred_unref(struct tls_cred *c); /* the session has ended; NULL allowed */

#endif
