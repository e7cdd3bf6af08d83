/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A ClientHello (RFC 8446, 4.1.2) travels as one handshake message inside one or more TLS records:
 *
 *     record:     type(1) = 22, version(2) = 3.x, length(2), then a piece of
 *     handshake:  type(1) = 1, length(3), then
 *     body:       version(2) random(32) session_id<0..32> cipher_suites<2..2^16-2> compression<1..255> extensions<0..2^16-1>
 *
 * The pieces are put together in a buffer of bounded size first, then the body is read with a cursor that
 * cannot leave it. Whatever an origin could read differently from us is refused rather than guessed: two
 * server_name extensions, two names in one, a name that is no host name, bytes behind the extensions, an
 * empty record, another message in the hello's own last record. What follows in further records (early data) is not looked at here.
 */

#include <string.h>

#include "proxy/client-hello.h"

enum {
        RECORD_HEADER_SIZE = 5,
        RECORD_MAX = 1 << 14,
        RECORD_HANDSHAKE = 22,
        HANDSHAKE_HEADER_SIZE = 4,
        HANDSHAKE_CLIENT_HELLO = 1,
        EXTENSION_SERVER_NAME = 0,

        /* encrypted_client_hello is 0xfe0d since draft-ietf-tls-esni-13, as in RFC 9849. Drafts 08 to 12 counted up to it, from 0xfe08, and 07 had
         * 0xff02. What drafts 01 to 06 have in its place is encrypted_server_name, 0xffce. Each was deployed, and hides a name from us. */
        EXTENSION_ECH_FIRST = 0xfe08,
        EXTENSION_ECH = 0xfe0d,
        EXTENSION_ECH_07 = 0xff02,
        EXTENSION_ESNI = 0xffce,

        NAME_TYPE_HOST = 0,
};

/* A range of bytes that is read from its front. Once a read goes beyond the end it stays broken. */
typedef struct Cursor {
        const uint8_t *at;
        size_t left;
        bool broken;
} Cursor;

static const uint8_t *cursor_take(Cursor *c, size_t n) {
        const uint8_t *p = c->at;

        if (c->broken || n > c->left) {
                c->broken = true;
                return NULL;
        }
        c->at += n;
        c->left -= n;
        return p;
}

static size_t cursor_take_number(Cursor *c, size_t bytes) {
        const uint8_t *p = cursor_take(c, bytes);
        size_t v = 0;

        for (size_t i = 0; p && i < bytes; i++)
                v = v << 8 | p[i];
        return v;
}

/* A vector with a length of `bytes` bytes in front. */
static Cursor cursor_take_vector(Cursor *c, size_t bytes) {
        size_t n = cursor_take_number(c, bytes);
        const uint8_t *p = cursor_take(c, n);

        return (Cursor) { .at = p, .left = p ? n : 0, .broken = !p };
}

static bool read_server_name(Cursor extension, ClientHello *ret) {
        Cursor list, name;
        size_t type;

        list = cursor_take_vector(&extension, 2);
        type = cursor_take_number(&list, 1);
        name = cursor_take_vector(&list, 2);
        if (list.broken || name.broken || list.left || extension.left || type != NAME_TYPE_HOST)
                return false;
        if (name.left == 0 || name.left > CLIENT_HELLO_NAME_MAX)
                return false;

        for (size_t i = 0; i < name.left; i++)
                if (name.at[i] <= ' ' || name.at[i] >= 0x7f)
                        return false;

        memcpy(ret->sni, name.at, name.left);
        ret->sni[name.left] = '\0';
        ret->has_sni = true;
        return true;
}

static bool hides_a_name(size_t type) {
        return (type >= EXTENSION_ECH_FIRST && type <= EXTENSION_ECH) || type == EXTENSION_ECH_07 || type == EXTENSION_ESNI;
}

static bool read_extensions(Cursor extensions, ClientHello *ret) {
        while (extensions.left > 0) {
                size_t type = cursor_take_number(&extensions, 2);
                Cursor body = cursor_take_vector(&extensions, 2);

                if (extensions.broken || body.broken)
                        return false;
                if (hides_a_name(type))
                        ret->has_ech = true;
                if (type == EXTENSION_SERVER_NAME && (ret->has_sni || !read_server_name(body, ret)))
                        return false;
        }
        return true;
}

static bool read_body(Cursor body, ClientHello *ret) {
        Cursor session, ciphers, compression, extensions;

        (void) cursor_take(&body, 2 + 32);
        session = cursor_take_vector(&body, 1);
        ciphers = cursor_take_vector(&body, 2);
        compression = cursor_take_vector(&body, 1);
        if (body.broken || session.broken || ciphers.broken || compression.broken)
                return false;
        if (session.left > 32 || ciphers.left < 2 || ciphers.left % 2 || compression.left < 1)
                return false;
        if (body.left == 0)
                return true; /* no extensions at all: TLS 1.2 allows it */

        extensions = cursor_take_vector(&body, 2);
        if (body.broken || extensions.broken || body.left)
                return false;
        return read_extensions(extensions, ret);
}

static bool looks_like_tls(const uint8_t *data, size_t size) {
        return data[0] == RECORD_HANDSHAKE && (size < 2 || data[1] == 3) && (size < 3 || data[2] <= 4) &&
               (size < RECORD_HEADER_SIZE + 1 || data[RECORD_HEADER_SIZE] == HANDSHAKE_CLIENT_HELLO);
}

ClientHelloOutcome client_hello_parse(const uint8_t *data, size_t size, ClientHello *ret) {
        uint8_t message[CLIENT_HELLO_MAX];
        size_t n_message = 0, wanted = HANDSHAKE_HEADER_SIZE;
        Cursor wire = { .at = data, .left = size };
        ClientHello hello = {};
        ClientHelloOutcome more = size >= CLIENT_HELLO_MAX ? CLIENT_HELLO_BROKEN : CLIENT_HELLO_MORE;

        if (size == 0)
                return CLIENT_HELLO_MORE;
        if (!looks_like_tls(data, size))
                return CLIENT_HELLO_NOT_TLS;

        while (n_message < wanted) {
                const uint8_t *header;
                size_t length, n;

                if (wire.left < RECORD_HEADER_SIZE)
                        return more;
                header = cursor_take(&wire, RECORD_HEADER_SIZE);
                length = (size_t) header[3] << 8 | header[4];
                if (header[0] != RECORD_HANDSHAKE || header[1] != 3 || length == 0 || length > RECORD_MAX)
                        return CLIENT_HELLO_BROKEN;

                n = length < wire.left ? length : wire.left;
                if (n > sizeof(message) - n_message)
                        return CLIENT_HELLO_BROKEN;
                memcpy(message + n_message, cursor_take(&wire, n), n);
                n_message += n;

                if (n_message >= HANDSHAKE_HEADER_SIZE) {
                        if (message[0] != HANDSHAKE_CLIENT_HELLO)
                                return CLIENT_HELLO_BROKEN;
                        wanted = HANDSHAKE_HEADER_SIZE + ((size_t) message[1] << 16 | (size_t) message[2] << 8 | message[3]);
                        if (wanted > sizeof(message))
                                return CLIENT_HELLO_BROKEN;
                }
                if (n < length && n_message < wanted)
                        return more;
                if (n_message - n + length > wanted && n_message >= HANDSHAKE_HEADER_SIZE)
                        return CLIENT_HELLO_BROKEN;
        }

        if (!read_body((Cursor) { .at = message + HANDSHAKE_HEADER_SIZE, .left = wanted - HANDSHAKE_HEADER_SIZE }, &hello))
                return CLIENT_HELLO_BROKEN;

        *ret = hello;
        return CLIENT_HELLO_COMPLETE;
}
