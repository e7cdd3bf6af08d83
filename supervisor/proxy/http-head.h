/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Follows the requests of one HTTP/1 connection: where each head and each body ends, and what each head asks for. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/cleanup.h"

enum {
        HTTP_HEAD_MAX = 16 * 1024,
        HTTP_HOST_MAX = 259, /* a name, a colon and a port */
};

typedef struct HttpFollower HttpFollower;

typedef enum HttpOutcome {
        HTTP_NEED_MORE,    /* everything was taken in; the message goes on */
        HTTP_HEAD_END,    /* a head ended: http_follower_request() tells about it */
        HTTP_MESSAGE_END,     /* a message ended; what follows is another one */
        HTTP_REFUSED,  /* not HTTP/1.0 or 1.1, or something that two readers could read differently */
} HttpOutcome;

typedef struct HttpRequest {
        const char *method;  /* "GET" */
        const char *target;  /* as in the request line */
        const char *host;    /* the Host header; NULL if there is none */
        bool second_path;    /* a field names one more (egress/agreement-api.h) */
        bool upgrade;        /* asks to go on in another protocol, or is a CONNECT */
        uint8_t minor;       /* of HTTP/1.x */
} HttpRequest;

/* Content of a body, without what frames it, as it comes. */
typedef void (*HttpContent)(const void *data, size_t size, void *userdata);

int http_follower_new(HttpFollower **ret);
HttpFollower *http_follower_free(HttpFollower *f);
DEFINE_CLEANUP(HttpFollower *, http_follower_free)

/* Takes in what follows the bytes given before; *ret_taken is how many of them. After HTTP_REFUSED nothing is taken any more. */
HttpOutcome http_follower_feed(HttpFollower *f, const char *data, size_t size, size_t *ret_taken);

/* The last head; borrowed until the next one begins. */
const HttpRequest *http_follower_request(const HttpFollower *f);

/* Is it for the server that the connection leads to, and for the host that its Host header names? Not a CONNECT or an upgrade, and not
 * the absolute form: an origin has to prefer that one's authority to the Host header (RFC 9112, 3.2.2). */
bool http_request_is_plain(const HttpRequest *request);

/* Is the next byte part of a head (or between messages)? Else it is part of a body. */
bool http_follower_in_head(const HttpFollower *f);

/* Who hears of content from now on. */
void http_follower_watch(HttpFollower *f, HttpContent handler, void *userdata);
/* Does the message's body come in chunks, with more than content in it? */
bool http_follower_is_chunked(const HttpFollower *f);

typedef enum HttpLook { HTTP_LOOK_NO, HTTP_LOOK_MAYBE, HTTP_LOOK_YES } HttpLook;

/* Do these first bytes of a connection look like a request line? */
HttpLook http_looks_like(const uint8_t *data, size_t size);

/* "host" and "host:port"; brackets are not taken off. False if it is neither, or without a port and default_port is 0. */
bool http_split_authority(const char *authority, uint16_t default_port, char ret_host[static HTTP_HOST_MAX + 1], uint16_t *ret_port);

/* "http://host[:port]/path": authority and path. False for anything else. */
bool http_split_absolute(const char *target, char ret_authority[static HTTP_HOST_MAX + 1], const char **ret_path);

/* The head of an absolute-form request as the origin should get it: origin-form, nothing that was meant for a proxy or that its
 * Connection header names (RFC 9110, 7.6.1), and "Connection: close". `head` is a complete head that a follower accepted. The caller's; NULL when out of memory. */
char *http_rewrite_head(const char *head, size_t size, const HttpRequest *request, const char *path, size_t *ret_size);
