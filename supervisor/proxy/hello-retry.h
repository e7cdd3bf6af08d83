/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Finds the second ClientHello of a connection, if its server asked for one. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proxy/client-hello.h"

enum { HELLO_RETRY_ANSWER = 5 + 4 + 2 + 32 }; /* of the server's first bytes, what it takes to tell */

typedef enum HelloRetryState {
        HELLO_RETRY_UNKNOWN,  /* the server has not answered the first hello */
        HELLO_RETRY_ASKED,    /* it wants another one */
        HELLO_RETRY_OVER,     /* there is none any more, or it was seen */
} HelloRetryState;

/* A plain value; all zeros to begin with. */
typedef struct HelloRetry {
        HelloRetryState state;
        bool seen_first;      /* the hello that was decided about has passed */
        uint8_t answer[HELLO_RETRY_ANSWER];
        size_t n_answer;
} HelloRetry;

typedef enum HelloRetryOutcome {
        HELLO_RETRY_PASS,     /* *ret_pass bytes may go; the rest is not complete, or nothing is left to look for */
        HELLO_RETRY_WAIT,     /* *ret_pass bytes may go; the rest when the server has answered */
        HELLO_RETRY_SECOND,   /* behind *ret_pass bytes there is a second hello: *ret_hello */
        HELLO_RETRY_BROKEN,   /* behind *ret_pass bytes there is something that two readers could read differently */
} HelloRetryOutcome;

/* Bytes of the server, in order. */
void hello_retry_feed_server(HelloRetry *h, const uint8_t *data, size_t size);

/* Bytes of the client that have not passed yet, from the first one on. After HELLO_RETRY_SECOND the caller decides; with hello_retry_accept() it
 * passes as well. */
HelloRetryOutcome hello_retry_check_client(HelloRetry *h, const uint8_t *data, size_t size, size_t *ret_pass, ClientHello *ret_hello);
void hello_retry_accept(HelloRetry *h);
