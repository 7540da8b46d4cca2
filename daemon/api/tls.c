/* daemon/api/tls.c - the certificate of the TCP listener, replaced while it serves. */
#include "daemon/api/tls.h"

#include <gnutls/gnutls.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"

const char tls_priorities[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2";

struct tls_cred {
    gnutls_certificate_credentials_t c;
    atomic_int refs;
};

struct tls {
    char *cert, *key;
    pthread_mutex_t lock;
    struct tls_cred *now; /* one reference is ours */
};

void tls_cred_unref(struct tls_cred *c)
{
    if (!c || atomic_fetch_sub(&c->refs, 1) != 1)
        return;
    gnutls_certificate_free_credentials(c->c);
    free(c);
}

int tls_load(struct tls *t, struct err *e)
{
    struct tls_cred *c = xcalloc(1, sizeof(*c)), *old;
    int rc = gnutls_certificate_allocate_credentials(&c->c);

    if (rc < 0) {
        free(c);
        return err_set(e, ERR_NOMEM, "TLS: %s", gnutls_strerror(rc));
    }
    atomic_init(&c->refs, 1);
    /* also checks that the two belong together */
    rc = gnutls_certificate_set_x509_key_file(c->c, t->cert, t->key, GNUTLS_X509_FMT_PEM);
    if (rc < 0) {
        tls_cred_unref(c);
        return err_set(e, ERR_INVALID, "TLS certificate '%s' with key '%s': %s", t->cert,
                       t->key, gnutls_strerror(rc));
    }
    pthread_mutex_lock(&t->lock);
    old = t->now;
    t->now = c;
    pthread_mutex_unlock(&t->lock);
    tls_cred_unref(old);
    return 0;
}

int tls_new(const char *cert, const char *key, struct tls **ret, struct err *e)
{
    struct tls *t = xcalloc(1, sizeof(*t));

    t->cert = xstrdup(cert);
    t->key = xstrdup(key);
    pthread_mutex_init(&t->lock, NULL);
    if (tls_load(t, e) < 0) {
        tls_free(t);
        return -1;
    }
    *ret = t;
    return 0;
}

void tls_free(struct tls *t)
{
    if (!t)
        return;
    tls_cred_unref(t->now);
    pthread_mutex_destroy(&t->lock);
    free(t->cert);
    free(t->key);
    free(t);
}

int tls_no_cert(void *session, const void *req, int n_req, const void *algos, int n_algos,
                void **ret_cert, unsigned *ret_n, void **ret_key)
{
    (void)session, (void)req, (void)n_req, (void)algos, (void)n_algos;
    (void)ret_cert, (void)ret_n, (void)ret_key;
    return -1;
}

struct tls_cred *tls_attach(struct tls *t, void *session, struct err *e)
{
    struct tls_cred *c;
    int rc;

    pthread_mutex_lock(&t->lock);
    c = t->now;
    atomic_fetch_add(&c->refs, 1);
    pthread_mutex_unlock(&t->lock);
    rc = gnutls_credentials_set(session, GNUTLS_CRD_CERTIFICATE, c->c);
    if (rc == 0)
        return c;
    tls_cred_unref(c);
    err_set(e, ERR_INTERNAL, "TLS: %s", gnutls_strerror(rc));
    return NULL;
}
