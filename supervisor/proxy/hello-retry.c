/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A TLS 1.3 server may answer a ClientHello with HelloRetryRequest (RFC 8446, 4.1.4): the client then sends a second hello, in the clear
 * as well, and it is the second one's server_name by which common servers choose what they serve. A client that wants to be taken for
 * somebody else's need only offer a key share that the server does not take. So the second hello is compared like the first.
 *
 * Whether there is one to come only the server's answer says, a ServerHello with a fixed random value. A client may send ahead
 * of it: early data and change_cipher_spec pass, a handshake record is kept until the answer is known. A server whose first
 * record is too short to tell counts as one that asked. With any other answer it is over, and nothing is looked at any more.
 */

#include <string.h>

#include "proxy/hello-retry.h"

enum {
        RECORD_HEADER = 5,
        TYPE_CHANGE_CIPHER_SPEC = 20,
        TYPE_HANDSHAKE = 22,
        RECORD_MAX = RECORD_HEADER + (1 << 14) + 256, /* encrypted ones are a little longer */
        CLIENT_HELLO = 1,
        SERVER_HELLO = 2,
};

/* SHA-256 of "HelloRetryRequest" (RFC 8446, 4.1.3). */
static const uint8_t retry_random[32] = {
        0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
        0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
};

static size_t record_size(const uint8_t *record) {
        return RECORD_HEADER + ((size_t) record[3] << 8 | record[4]);
}

static HelloRetryState judge_answer(const uint8_t *answer, size_t n) {
        if (answer[0] != TYPE_HANDSHAKE)
                return HELLO_RETRY_OVER; /* an alert, or no TLS at all */
        if (n < RECORD_HEADER)
                return HELLO_RETRY_UNKNOWN;
        if (record_size(answer) < HELLO_RETRY_ANSWER)
                return HELLO_RETRY_ASKED;
        if (n < HELLO_RETRY_ANSWER)
                return HELLO_RETRY_UNKNOWN;
        return answer[RECORD_HEADER] == SERVER_HELLO && memcmp(answer + HELLO_RETRY_ANSWER - 32, retry_random, 32) == 0
                       ? HELLO_RETRY_ASKED
                       : HELLO_RETRY_OVER;
}

void hello_retry_feed_server(HelloRetry *h, const uint8_t *data, size_t size) {
        size_t n = sizeof(h->answer) - h->n_answer;

        if (h->state != HELLO_RETRY_UNKNOWN || size == 0)
                return;
        if (n > size)
                n = size;
        memcpy(h->answer + h->n_answer, data, n);
        h->n_answer += n;
        h->state = judge_answer(h->answer, h->n_answer);
}

/* A whole hello that was decided about already, in as many records as it came in. */
static size_t first_hello_size(const uint8_t *data, size_t size) {
        size_t at = 0, wanted = 0, n_message = 0;
        uint8_t head[4] = {};

        do {
                size_t length;

                if (size - at < RECORD_HEADER || size - at < record_size(data + at))
                        return 0;
                length = record_size(data + at) - RECORD_HEADER;
                for (size_t i = 0; i < length && n_message + i < sizeof(head); i++)
                        head[n_message + i] = data[at + RECORD_HEADER + i];
                n_message += length;
                at += record_size(data + at);
                if (n_message >= sizeof(head))
                        wanted = sizeof(head) + ((size_t) head[1] << 16 | (size_t) head[2] << 8 | head[3]);
        } while (n_message < sizeof(head) || n_message < wanted);
        return at;
}

static HelloRetryOutcome check_handshake(HelloRetry *h, const uint8_t *data, size_t size, size_t *pass, ClientHello *ret_hello) {
        if (h->state == HELLO_RETRY_UNKNOWN)
                return HELLO_RETRY_WAIT;

        /* Whoever is asked for a hello and sends another message has no connection any more. */
        if (size <= RECORD_HEADER && record_size(data) > RECORD_HEADER)
                return HELLO_RETRY_PASS;
        switch (client_hello_parse(data, size, ret_hello)) {
        case CLIENT_HELLO_COMPLETE:
                return HELLO_RETRY_SECOND;
        case CLIENT_HELLO_MORE:
                return HELLO_RETRY_PASS;
        case CLIENT_HELLO_NOT_TLS:
                if (record_size(data) > RECORD_HEADER && data[RECORD_HEADER] != CLIENT_HELLO) {
                        h->state = HELLO_RETRY_OVER;
                        *pass += size;
                        return HELLO_RETRY_PASS;
                }
                return HELLO_RETRY_BROKEN;
        case CLIENT_HELLO_BROKEN:
                break;
        }
        return HELLO_RETRY_BROKEN;
}

HelloRetryOutcome hello_retry_check_client(HelloRetry *h, const uint8_t *data, size_t size, size_t *ret_pass, ClientHello *ret_hello) {
        size_t at = 0;

        *ret_pass = 0;
        if (h->state == HELLO_RETRY_OVER) {
                *ret_pass = size;
                return HELLO_RETRY_PASS;
        }

        if (!h->seen_first) {
                at = first_hello_size(data, size);
                if (at == 0)
                        return HELLO_RETRY_PASS;
                h->seen_first = true;
        }

        for (*ret_pass = at; size - at >= RECORD_HEADER; *ret_pass = at) {
                if (data[at] == TYPE_HANDSHAKE)
                        return check_handshake(h, data + at, size - at, ret_pass, ret_hello);
                if (record_size(data + at) > RECORD_MAX)
                        return HELLO_RETRY_BROKEN; /* would be waited for until the buffer is full */
                if (size - at < record_size(data + at))
                        break;
                at += record_size(data + at);
        }
        return HELLO_RETRY_PASS;
}

void hello_retry_accept(HelloRetry *h) {
        h->state = HELLO_RETRY_OVER;
}
