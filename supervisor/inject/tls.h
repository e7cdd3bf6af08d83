/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Everything that speaks TLS: non-blocking streams over connected sockets, on either side. */

#include <openssl/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <systemd/sd-event.h>

#include "util/cleanup.h"

/* What all streams of a process share. */
typedef struct TlsSetup TlsSetup;

/* Origins are verified against the system's store and every *.pem of extra_dir (NULL or missing: none). */
int tls_setup_new(TlsSetup **ret, const char *extra_dir);
TlsSetup *tls_setup_free(TlsSetup *t);
DEFINE_CLEANUP(TlsSetup *, tls_setup_free)

typedef struct TlsStream TlsStream;

/* Something may have become possible: try whatever there is to do. May free the stream. */
typedef void (*TlsReady)(TlsStream *s, void *userdata);

/* Versions of HTTP, as a set: what is offered, or one that was chosen. */
enum {
        TLS_HTTP1 = 1 << 0,
        TLS_HTTP2 = 1 << 1,
};

/* Both take fd (connected, non-blocking) over on success; name is copied. The first one serves: TLS 1.2 or 1.3, no tickets; a client that
 * asks for another name, or for none, gets an alert. The second one verifies the origin's chain and name, and offers
 * the given versions. key: with whom and as whom; an earlier session under the same key is resumed, within five minutes (tls-sessions.h);
 * NULL: each handshake is a whole one. */
int tls_stream_accept(TlsStream **ret, sd_event *event, TlsSetup *t, int fd, const char *name,
                      X509 *cert, EVP_PKEY *key, TlsReady ready, void *userdata);
int tls_stream_connect(TlsStream **ret, sd_event *event, TlsSetup *t, int fd, const char *name, const char *key, unsigned versions,
                       TlsReady ready, void *userdata);
/* As whom it goes on is not known yet: what it gives to come back with is kept under the key that is settled later, else under that of the beginning when it ends. */
void tls_stream_postpone_sessions(TlsStream *s);
int tls_stream_settle_sessions(TlsStream *s, const char *key);
TlsStream *tls_stream_free(TlsStream *s);
DEFINE_CLEANUP(TlsStream *, tls_stream_free)

enum {
        _TLS_E_SUCCESS,
        TLS_E_DONE,  /* the handshake is over */
        TLS_E_OFFER, /* the client offers HTTP/2: tls_stream_choose() says what it gets, and only then the handshake goes on */
};

/* One of the above, 0 while it is under way, negative errno: -EPROTO, -ECONNRESET, or -EKEYREJECTED if the origin is not who it should be. A
 * client that does not offer HTTP/2 gets HTTP/1.1 without being asked about. */
int tls_stream_handshake(TlsStream *s);
/* What the client offers; 0 before its first message is there, or if it negotiates nothing. */
unsigned tls_stream_offer(const TlsStream *s);
/* version must be in the offer. Call tls_stream_handshake() then. */
void tls_stream_choose(TlsStream *s, unsigned version);
/* The version that was negotiated; HTTP/1.1 if none was. */
unsigned tls_stream_version(const TlsStream *s);

/* Bytes, 0 at a proper end, -EAGAIN, -ECONNRESET if the connection just broke off, -EPROTO. */
ssize_t tls_stream_read(TlsStream *s, void *data, size_t size);
/* Asks the socket itself the next time, also if there was nothing when it was asked last and the loop has not said otherwise yet. */
void tls_stream_look(TlsStream *s);
/* Bytes (maybe fewer), -EAGAIN, -ECONNRESET, -EPROTO. After -ECONNRESET, what was said by a peer that went can still be
 * read. */
ssize_t tls_stream_write(TlsStream *s, const void *data, size_t size);
/* Says that nothing follows, and closes that direction. Never waits. */
void tls_stream_end(TlsStream *s);

/* What the owner waits for; the handshake looks after itself. */
int tls_stream_want(TlsStream *s, bool readable, bool writable);

/* Why the handshake failed; "" before that. */
const char *tls_stream_error(const TlsStream *s);
