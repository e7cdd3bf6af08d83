/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Reads HTTP/1 messages, strictly, from bytes that may be hostile on either side. Pure: the caller feeds
 * bytes and gets one event after another. Heads are written anew from what was read, so that two
 * readers of the same bytes cannot disagree about where a message ends.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "inject/buffer.h"
#include "util/cleanup.h"

enum {
        HTTP_HEAD_MAX = 64 * 1024, /* of names, values and the first line together */
        HTTP_FIELDS_MAX = 128,
        HTTP_TRAILERS_MAX = 32,
};

typedef enum HttpKind { HTTP_KIND_REQUEST, HTTP_KIND_RESPONSE } HttpKind;

typedef enum HttpFraming {
        HTTP_FRAMING_NONE,   /* no body */
        HTTP_FRAMING_LENGTH, /* Content-Length, not 0 */
        HTTP_FRAMING_CHUNKED,
        HTTP_FRAMING_CLOSE,  /* a response that ends with its connection */
} HttpFraming;

typedef struct HttpField {
        const char *name, *value; /* borrowed from the reader; no control character but tab in them */
} HttpField;

typedef struct HttpHead {
        const char *method, *target; /* request; borrowed from the reader */
        unsigned status;             /* response */
        const char *reason;
        HttpField fields[HTTP_FIELDS_MAX];
        size_t n_fields;
        HttpFraming framing;
        uint64_t length; /* with HTTP_FRAMING_LENGTH; of the other's body with a HEAD or 304, if has_length */
        bool has_length;
        bool extended;   /* with that: on a stream of HTTP/2 (RFC 8441), which has neither key nor Upgrade */
        bool websocket;  /* a request to switch to WebSocket, or the answer that does it (RFC 6455, 4) */
        bool keep_alive; /* the sender means to go on after this message */
} HttpHead;

typedef enum HttpEvent {
        HTTP_EVENT_MORE, /* everything was used, and more is needed */
        HTTP_EVENT_HEAD, /* http_reader_head() is complete */
        HTTP_EVENT_BODY, /* a piece of the body */
        HTTP_EVENT_END,  /* the message is over; the next byte starts another */
} HttpEvent;

typedef struct HttpReader HttpReader;

int http_reader_new(HttpReader **ret, HttpKind kind);
HttpReader *http_reader_free(HttpReader *r);
DEFINE_CLEANUP(HttpReader *, http_reader_free)

/* The connection waits: of a message that is over nothing is needed any more, and its memory is given back. Nothing happens
 * in the middle of one. What http_reader_head() gave is gone; what it gives now is empty. */
void http_reader_rest(HttpReader *r);

/* For responses: the request was a HEAD, so that no body follows whatever the head says. */
void http_reader_set_head_request(HttpReader *r, bool on);

/* For responses: the request asked for a switch to WebSocket, so that the answer may be 101. What follows its head is not HTTP, and is not for
 * this reader. */
void http_reader_set_websocket(HttpReader *r, bool on);

/*
 * Uses bytes up to the next event. ret_body points into data for HTTP_EVENT_BODY. Negative errno: -EBADMSG
 * (http_reader_error() says why), -EMSGSIZE for a head that is too large, -ENOMEM; nothing more can be
 * read then.
 */
int http_reader_feed(HttpReader *r, const void *data, size_t size, size_t *ret_used,
                     HttpEvent *ret_event, const uint8_t **ret_body, size_t *ret_body_size);

/* The stream ended. HTTP_EVENT_END if that ends a body with HTTP_FRAMING_CLOSE, HTTP_EVENT_MORE if nothing was begun,
 * -EBADMSG in the middle of a message. */
int http_reader_eof(HttpReader *r, HttpEvent *ret_event);

/* Borrowed; valid from HTTP_EVENT_HEAD until the first byte of the next message is fed. */
const HttpHead *http_reader_head(const HttpReader *r);

/* The fields of the trailer (RFC 9110, 6.5) of a chunked message, as they came; valid from HTTP_EVENT_END as long as the head. */
const HttpField *http_reader_trailers(const HttpReader *r, size_t *ret_n);

/* May this field stand in a trailer? One that frames, routes, authenticates or says how to read the message may not (RFC 9110, 6.5.1). */
bool http_field_may_trail(const char *name);

/* A static text for the last failure. */
const char *http_reader_error(const HttpReader *r);

/* The number of fields of that name (any case); ret_value (may be NULL) gets the first one's. */
size_t http_head_find(const HttpHead *h, const char *name, const char **ret_value);

/* Is this field about one connection, or about framing, and so never passed on? Covers those that
 * Connection names. */
bool http_field_is_hop_by_hop(const HttpHead *h, const char *name);

/* A target in origin form ("/path?query") without a segment "." or "..", also when a server decodes it
 * first: then a rule's path prefix means what it says. */
bool http_target_is_plain(const char *target);
