/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * OpenSSL on non-blocking sockets. A stream never calls its owner from within one of the owner's calls: only
 * the event loop does, when the socket is ready for what the owner or OpenSSL waits for.
 *
 * OpenSSL may want to read in order to write and the other way round (key updates); `crossed` remembers that
 * until the next call. What it has decrypted already does not make the socket readable: so an owner reads
 * until -EAGAIN, or comes back by itself. Once it has read until there, nothing more is asked of the socket until the loop says that
 * there is something (`drained`): most calls would find nothing, and each is a system call.
 *
 * Truncation is told apart from an end: a body that ends with its connection counts only if the origin said
 * close_notify.
 */

#include "inject/tls.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "inject/tls-sessions.h"
#include "util/log.h"
#include "util/text.h"

struct TlsSetup {
        SSL_CTX *server, *client; /* owned */
        TlsSessions *sessions;    /* owned; with origins */
};

struct TlsStream {
        SSL *ssl; /* owned */
        int fd;   /* owned */
        char *name; /* owned */
        TlsSessions *sessions;   /* borrowed; of a connection to an origin */
        char *session_key;       /* owned */
        bool postponed;          /* under which key sessions are to be kept is not known yet: */
        SSL_SESSION *waiting[2]; /* owned; the last ones, older one first */
        EVP_PKEY *offered;       /* ref; during the handshake with an origin: the first key that it was offered */
        sd_event_source *source; /* owned */
        TlsReady ready;
        void *userdata;
        bool server, up, broken;
        bool deaf;               /* the peer takes nothing any more; what it said before can still be read */
        bool held;               /* the client's first message was read, and the owner is to choose */
        unsigned offer, chosen;  /* of a client: TLS_HTTP1, TLS_HTTP2 */
        bool want_read, want_write;
        bool drained;     /* neither OpenSSL nor the socket had more */
        uint32_t crossed; /* EPOLLIN or EPOLLOUT that OpenSSL waits for */
        char *error;      /* owned; NULL: none */
};

static const unsigned char http1[] = { 8, 'h', 't', 't', 'p', '/', '1', '.', '1' }, http2[] = { 2, 'h', '2' };

/* The versions in a list of protocol names, each behind its length (RFC 7301, 3.1). */
static unsigned read_versions(const unsigned char *p, size_t size) {
        unsigned versions = 0;

        while (size > 0 && p[0] < size) {
                size_t n = 1U + p[0];

                if (n == sizeof(http1) && memcmp(p, http1, n) == 0)
                        versions |= TLS_HTTP1;
                if (n == sizeof(http2) && memcmp(p, http2, n) == 0)
                        versions |= TLS_HTTP2;
                p += n;
                size -= n;
        }
        return versions;
}

/* Whoever may speak HTTP/2 waits here until it is known what the origin speaks. Called again after each pause, and for a second ClientHello. */
static int read_hello(SSL *ssl, int *alert, void *userdata) {
        TlsStream *s = SSL_get_app_data(ssl);
        const unsigned char *p;
        size_t size;

        if (!s || s->chosen)
                return SSL_CLIENT_HELLO_SUCCESS;
        if (SSL_client_hello_get0_ext(ssl, TLSEXT_TYPE_application_layer_protocol_negotiation, &p, &size) == 1 && size >= 2)
                s->offer = read_versions(p + 2, size - 2);
        if (!(s->offer & TLS_HTTP2)) {
                s->chosen = TLS_HTTP1;
                return SSL_CLIENT_HELLO_SUCCESS;
        }
        s->held = true;
        return SSL_CLIENT_HELLO_RETRY;
}

static int choose_protocol(SSL *ssl, const unsigned char **ret, unsigned char *ret_size,
                           const unsigned char *offered, unsigned int size, void *userdata) {
        const TlsStream *s = SSL_get_app_data(ssl);
        const unsigned char *name = s && s->chosen == TLS_HTTP2 ? http2 : http1;
        unsigned char *chosen;

        if (SSL_select_next_proto(&chosen, ret_size, name, name[0] + 1U, offered, size) != OPENSSL_NPN_NEGOTIATED)
                return SSL_TLSEXT_ERR_ALERT_FATAL;
        *ret = chosen;
        return SSL_TLSEXT_ERR_OK;
}

/* Called also when the client names nobody. */
static int check_name(SSL *ssl, int *alert, void *userdata) {
        const char *asked = SSL_get_servername(ssl, TLSEXT_NAMETYPE_host_name);
        const TlsStream *s = SSL_get_app_data(ssl);

        if (asked && s && strcasecmp(asked, s->name) == 0)
                return SSL_TLSEXT_ERR_OK;
        *alert = SSL_AD_UNRECOGNIZED_NAME;
        return SSL_TLSEXT_ERR_ALERT_FATAL;
}

/* The origin gave something to come back with. A copy is kept: OpenSSL calls the session of a connection that breaks off a bad one. */
static int keep_session(SSL *ssl, SSL_SESSION *session) {
        TlsStream *s = SSL_get_app_data(ssl);
        SSL_SESSION *copy;

        if (!s || !s->session_key || SSL_get_verify_result(ssl) != X509_V_OK || !SSL_SESSION_is_resumable(session))
                return 0;
        copy = SSL_SESSION_dup(session);
        if (copy && s->postponed) {
                SSL_SESSION_free(s->waiting[0]);
                s->waiting[0] = s->waiting[1];
                s->waiting[1] = copy;
        } else if (copy)
                tls_sessions_put(s->sessions, s->session_key, copy);
        return 0; /* nothing was taken over */
}

static void keep_waiting(TlsStream *s) {
        for (size_t i = 0; i < ELEMENTSOF(s->waiting); i++) {
                if (s->waiting[i])
                        tls_sessions_put(s->sessions, s->session_key, s->waiting[i]);
                s->waiting[i] = NULL;
        }
        s->postponed = false;
}

void tls_stream_postpone_sessions(TlsStream *s) {
        s->postponed = s->session_key != NULL;
}

int tls_stream_settle_sessions(TlsStream *s, const char *key) {
        char *copy = strdup(key);

        if (!copy)
                return -ENOMEM;
        free(s->session_key);
        s->session_key = copy;
        keep_waiting(s);
        return 0;
}

static SSL_CTX *make_context(const SSL_METHOD *method) {
        SSL_CTX *c = SSL_CTX_new(method);

        if (!c)
                return NULL;
        if (SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION) != 1) {
                SSL_CTX_free(c);
                return NULL;
        }
        SSL_CTX_set_options(c, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
        SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
        SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
        return c;
}

static void load_extra(SSL_CTX *c, const char *folder) {
        _cleanup_dir_ DIR *dir = opendir(folder);
        struct dirent *e;

        while (dir && (e = readdir(dir))) {
                _cleanup_free_ char *path = NULL;
                size_t n = strlen(e->d_name);

                if (n < 5 || e->d_name[0] == '.' || strcmp(e->d_name + n - 4, ".pem") != 0)
                        continue;
                path = text_format("%s/%s", folder, e->d_name);
                if (!path || SSL_CTX_load_verify_file(c, path) != 1) {
                        /* fewer trusted: origins below it fail to verify, and that says why */
                        log_warning("%s: holds no certificate that can be used, ignored", e->d_name);
                        ERR_clear_error();
                }
        }
}

/* Has update-ca-certificates, or openssl rehash, been there? */
static bool is_hashed(const char *folder) {
        _cleanup_dir_ DIR *dir = opendir(folder);
        struct dirent *e;

        while (dir && (e = readdir(dir)))
                if (strspn(e->d_name, "0123456789abcdef") == 8 && e->d_name[8] == '.')
                        return true;
        return false;
}

/*
 * The host's own CAs. From a folder of files that are named by hashes each is read when a chain asks for it, and their one
 * file is not read at all: all at once they are more than a mebibyte and some twenty milliseconds of each run, which meets
 * two or three of them.
 */
static int trust_host(SSL_CTX *c) {
        const char *folder = getenv(X509_get_default_cert_dir_env()) ?: X509_get_default_cert_dir();

        return (is_hashed(folder) ? SSL_CTX_set_default_verify_dir(c) : SSL_CTX_set_default_verify_paths(c)) == 1 ? 0 : -ENOMEM;
}

int tls_setup_new(TlsSetup **ret, const char *extra_dir) {
        _cleanup_(tls_setup_freep) TlsSetup *t = calloc(1, sizeof(*t));

        if (!t)
                return -ENOMEM;
        t->server = make_context(TLS_server_method());
        t->client = make_context(TLS_client_method());
        if (!t->server || !t->client)
                return -ENOMEM;

        SSL_CTX_set_options(t->server, SSL_OP_NO_TICKET);
        /* a leaf and nothing else is sent: there is no chain to be looked for at each handshake */
        SSL_CTX_set_mode(t->server, SSL_MODE_NO_AUTO_CHAIN);
        if (SSL_CTX_set_num_tickets(t->server, 0) != 1 || tls_sessions_new(&t->sessions) < 0)
                return -ENOMEM;
        /* an answer may have the value in it, and memory that is given back for each record keeps what was there */
        SSL_CTX_set_options(t->client, SSL_OP_CLEANSE_PLAINTEXT);
        SSL_CTX_set_session_cache_mode(t->client, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
        SSL_CTX_sess_set_new_cb(t->client, keep_session);
        /* The guest is on this machine, and nobody can record what it sends to open it in years: so the cheap ones come
         * first. Of those before the slash its own favourite is taken, of those behind it one only if it can do none before.
         * (SSL_OP_CIPHER_SERVER_PREFERENCE, which would make an order of a list without slashes, takes the choice of a
         * cipher from guests as well. Toward origins OpenSSL's own list holds, which begins with ML-KEM.) */
        if (SSL_CTX_set1_groups_list(t->server, "X25519:P-256:X448:P-384:P-521/?X25519MLKEM768") != 1)
                return -ENOMEM;
        SSL_CTX_set_alpn_select_cb(t->server, choose_protocol, NULL);
        SSL_CTX_set_tlsext_servername_callback(t->server, check_name);
        SSL_CTX_set_client_hello_cb(t->server, read_hello, NULL);

        SSL_CTX_set_verify(t->client, SSL_VERIFY_PEER, NULL);
        if (trust_host(t->client) < 0)
                return -ENOMEM;
        if (extra_dir)
                load_extra(t->client, extra_dir);

        *ret = TAKE_PTR(t);
        return 0;
}

TlsSetup *tls_setup_free(TlsSetup *t) {
        if (!t)
                return NULL;
        SSL_CTX_free(t->server);
        SSL_CTX_free(t->client);
        tls_sessions_free(t->sessions);
        free(t);
        return NULL;
}

/* ---- streams ---- */

static int stream_update(TlsStream *s) {
        uint32_t mask = s->crossed;
        int r;

        if (s->up && s->want_read)
                mask |= EPOLLIN;
        if (s->up && s->want_write && !s->deaf)
                mask |= EPOLLOUT;

        /* with no interest at all a closed connection would still wake us, again and again */
        if (mask == 0 || s->broken)
                return sd_event_source_set_enabled(s->source, SD_EVENT_OFF);
        r = sd_event_source_set_io_events(s->source, mask);
        return r < 0 ? r : sd_event_source_set_enabled(s->source, SD_EVENT_ON);
}

static int stream_on_io(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        TlsStream *s = userdata;

        s->drained = false;
        s->ready(s, s->userdata);
        return 0;
}

static int stream_new(TlsStream **ret, sd_event *event, SSL_CTX *ctx, int fd, const char *name, TlsReady ready, void *userdata) {
        _cleanup_(tls_stream_freep) TlsStream *s = NULL;
        const int on = 1;
        int r;

        s = malloc(sizeof(*s));
        if (!s)
                return -ENOMEM;
        *s = (TlsStream) { .fd = -1, .ready = ready, .userdata = userdata };

        s->name = strdup(name);
        s->ssl = SSL_new(ctx);
        if (!s->name || !s->ssl || SSL_set_fd(s->ssl, fd) != 1)
                return -ENOMEM;
        SSL_set_app_data(s->ssl, s);
        /* fails on a Unix socket, as in tests */
        (void) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));

        r = sd_event_add_io(event, &s->source, fd, EPOLLIN | EPOLLOUT, stream_on_io, s);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(s);
        return 0;
}

int tls_stream_accept(TlsStream **ret, sd_event *event, TlsSetup *t, int fd, const char *name,
                      X509 *cert, EVP_PKEY *key, TlsReady ready, void *userdata) {
        _cleanup_(tls_stream_freep) TlsStream *s = NULL;
        int r;

        r = stream_new(&s, event, t->server, fd, name, ready, userdata);
        if (r < 0)
                return r;
        s->server = true;
        if (SSL_use_cert_and_key(s->ssl, cert, key, NULL, 1) != 1)
                return -ENOMEM;
        SSL_set_accept_state(s->ssl);

        s->fd = fd;
        *ret = TAKE_PTR(s);
        return 0;
}

/* The newer one first, if both. */
static int offer_versions(SSL *ssl, unsigned versions) {
        unsigned char list[sizeof(http1) + sizeof(http2)];
        unsigned n = 0;

        if (versions & TLS_HTTP2) {
                memcpy(list, http2, sizeof(http2));
                n += sizeof(http2);
        }
        if (versions & TLS_HTTP1) {
                memcpy(list + n, http1, sizeof(http1));
                n += sizeof(http1);
        }
        return SSL_set_alpn_protos(ssl, list, n) == 0 ? 0 : -ENOMEM;
}

/* With the session of the last time, if there is one. */
static int use_session(TlsStream *s, TlsSetup *t, const char *key) {
        SSL_SESSION *session = tls_sessions_take(t->sessions, key);

        s->sessions = t->sessions;
        s->session_key = strdup(key);
        if (session)
                (void) SSL_set_session(s->ssl, session); /* else it is a whole handshake */
        SSL_SESSION_free(session);
        return s->session_key ? 0 : -ENOMEM;
}

int tls_stream_connect(TlsStream **ret, sd_event *event, TlsSetup *t, int fd, const char *name, const char *key, unsigned versions,
                       TlsReady ready, void *userdata) {
        _cleanup_(tls_stream_freep) TlsStream *s = NULL;
        int r;

        r = stream_new(&s, event, t->client, fd, name, ready, userdata);
        if (r >= 0 && key)
                r = use_session(s, t, key);
        if (r < 0)
                return r;
        /* a common name is no name of a host's (RFC 9525, 2): no public CA checks that it is its owner's */
        SSL_set_hostflags(s->ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
        if (SSL_set1_host(s->ssl, name) != 1 || SSL_set_tlsext_host_name(s->ssl, name) != 1 || offer_versions(s->ssl, versions) < 0)
                return -ENOMEM;
        SSL_set_connect_state(s->ssl);

        s->fd = fd;
        *ret = TAKE_PTR(s);
        return 0;
}

TlsStream *tls_stream_free(TlsStream *s) {
        if (!s)
                return NULL;
        keep_waiting(s);
        s->source = sd_event_source_disable_unref(s->source);
        EVP_PKEY_free(s->offered);
        SSL_free(s->ssl);
        fd_close(s->fd);
        free(s->name);
        free(s->error);
        free(s->session_key);
        free(s);
        return NULL;
}

/*
 * A write that found the peer gone: what it said before that lies in the socket still, and its last word may say why (413, a
 * Close frame). OpenSSL's manual forbids any use of a connection after SSL_ERROR_SYSCALL (SSL_get_error(3)). It is read from
 * all the same, since a record that could not leave is no part of what OpenSSL reads with; that this holds for the OpenSSL
 * that is here, test-exchange-gone shows. Nothing more is written, and no close_notify sent. Whatever else a write fails of
 * says nothing about what can be read: then the connection is over.
 */
static bool is_deafness(int ssl_error, int error) {
        return ssl_error == SSL_ERROR_SYSCALL && (error == EPIPE || error == ECONNRESET);
}

/* What a call that did not succeed means: -EAGAIN, with `crossed` set to what is missing, or the end. */
static int stream_result(TlsStream *s, int rc, uint32_t natural) {
        const int error = errno; /* of the system call, if it was one */
        int e = SSL_get_error(s->ssl, rc), r;

        if (e == SSL_ERROR_WANT_READ || e == SSL_ERROR_WANT_WRITE) {
                uint32_t missing = e == SSL_ERROR_WANT_READ ? EPOLLIN : EPOLLOUT;

                s->crossed = missing == natural ? 0 : missing;
                r = stream_update(s);
                return r < 0 ? r : -EAGAIN;
        }
        if (e == SSL_ERROR_WANT_CLIENT_HELLO_CB) { /* nothing to wait for but the owner */
                s->crossed = 0;
                r = stream_update(s);
                return r < 0 ? r : -EAGAIN;
        }
        if (e == SSL_ERROR_ZERO_RETURN)
                return 0;

        r = e == SSL_ERROR_SYSCALL || ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING ? -ECONNRESET : -EPROTO;
        if (s->up && natural == EPOLLOUT && is_deafness(e, error))
                s->deaf = true;
        else
                s->broken = true;
        if (!s->up) {
                long verdict = s->server ? X509_V_OK : SSL_get_verify_result(s->ssl);
                const char *why = ERR_reason_error_string(ERR_peek_error());

                if (verdict != X509_V_OK) {
                        why = X509_verify_cert_error_string(verdict);
                        r = -EKEYREJECTED;
                }
                free(s->error);
                s->error = strdup(why ? why : "the connection broke off");
        }
        ERR_clear_error();
        (void) stream_update(s);
        return r;
}

/* What it holds is wiped and given back; it stays, empty, for whoever has it as well. Takes the reference. */
static void key_empty(EVP_PKEY *key) {
        (void) EVP_PKEY_set_type(key, EVP_PKEY_X25519);
        EVP_PKEY_free(key);
}

/*
 * The keys that were agreed with serve no purpose once that is done. OpenSSL keeps them as long as the connection, which with
 * ML-KEM are 8 KiB of a client's and 6 of a server's: most of what is not the ciphers' state, in a process that has hundreds
 * of connections that wait.
 */
static void drop_key_shares(TlsStream *s) {
        EVP_PKEY *key;

        if (SSL_get_tmp_key(s->ssl, &key) == 1)
                key_empty(key);
        if (SSL_get_peer_tmp_key(s->ssl, &key) == 1)
                key_empty(key);
        if (s->offered)
                key_empty(s->offered);
        s->offered = NULL;
        ERR_clear_error();
}

int tls_stream_handshake(TlsStream *s) {
        int rc, r;

        if (s->up)
                return TLS_E_DONE;
        if (s->broken)
                return -ECONNRESET;
        if (s->held)
                return TLS_E_OFFER;

        s->crossed = 0;
        ERR_clear_error();
        rc = SSL_do_handshake(s->ssl);
        if (rc != 1) {
                r = stream_result(s, rc, 0);
                /* the origin may choose another, and then nothing leads to the first any more */
                if (r == -EAGAIN && !s->server && !s->offered)
                        (void) SSL_get_tmp_key(s->ssl, &s->offered);
                if (r == -EAGAIN)
                        return s->held ? TLS_E_OFFER : 0;
                return r == 0 ? -ECONNRESET : r;
        }

        s->up = true;
        drop_key_shares(s);
        r = stream_update(s);
        return r < 0 ? r : TLS_E_DONE;
}

unsigned tls_stream_offer(const TlsStream *s) {
        return s->offer;
}

void tls_stream_choose(TlsStream *s, unsigned version) {
        s->chosen = version;
        s->held = false;
}

unsigned tls_stream_version(const TlsStream *s) {
        const unsigned char *name;
        unsigned size;

        SSL_get0_alpn_selected(s->ssl, &name, &size);
        return size == 2 && memcmp(name, http2 + 1, 2) == 0 ? TLS_HTTP2 : TLS_HTTP1;
}

ssize_t tls_stream_read(TlsStream *s, void *data, size_t size) {
        size_t n;
        int r;

        if (s->broken)
                return -ECONNRESET;
        if (s->drained)
                return -EAGAIN;
        ERR_clear_error();
        if (SSL_read_ex(s->ssl, data, size, &n) == 1)
                return (ssize_t) n;
        r = stream_result(s, 0, EPOLLIN);
        s->drained = r == -EAGAIN && s->crossed == 0;
        return r;
}

void tls_stream_look(TlsStream *s) {
        s->drained = false;
}

ssize_t tls_stream_write(TlsStream *s, const void *data, size_t size) {
        size_t n;
        int r;

        if (s->broken || s->deaf)
                return -ECONNRESET;
        ERR_clear_error();
        if (SSL_write_ex(s->ssl, data, size, &n) == 1)
                return (ssize_t) n;
        r = stream_result(s, 0, EPOLLOUT);
        return r == 0 ? -ECONNRESET : r;
}

void tls_stream_end(TlsStream *s) {
        if (s->up && !s->broken && !s->deaf) {
                ERR_clear_error();
                (void) SSL_shutdown(s->ssl);
                ERR_clear_error();
        }
        (void) shutdown(s->fd, SHUT_WR);
}

int tls_stream_want(TlsStream *s, bool readable, bool writable) {
        s->want_read = readable;
        s->want_write = writable;
        return stream_update(s);
}

const char *tls_stream_error(const TlsStream *s) {
        return s->error ?: "";
}
