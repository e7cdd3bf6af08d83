/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Header fields of HTTP/2 (RFC 9113, 8), as nghttp2 decodes them one by one, made into the HttpHead that is judged. Pure. nghttp2 has
 * checked order, number and characters of the pseudo-header fields already; what it leaves to others is checked here.
 */

#include "inject/http-message.h"

typedef struct H2Head {
        HttpHead head;     /* valid once one of the functions below has built it */
        bool connect;      /* extended CONNECT (RFC 8441): judged as the GET that it stands for */
        const char *error; /* static; why it was not built */

        Buffer text;       /* names and values, each with a zero byte; offset 0 is an empty text */
        size_t names[HTTP_FIELDS_MAX], values[HTTP_FIELDS_MAX], n_fields;
        size_t method, path, authority, scheme, protocol, status; /* offsets; 0: not there */
        bool too_large, malformed; /* malformed: set by whoever saw a field that is not to be added */
} H2Head;

void h2_head_done(H2Head *h);
/* Empties it for another block of fields. */
void h2_head_reset(H2Head *h);
/* Neither text needs a zero byte at its end. Only -ENOMEM: what is too large is found when the head is built. */
int h2_head_add(H2Head *h, const void *name, size_t name_size, const void *value, size_t value_size);

/* ended: no body follows. -EBADMSG, -EMSGSIZE (error says why). :authority becomes the field "host", unless there is the same already. */
int h2_head_build_request(H2Head *h, bool ended);
int h2_head_build_answer(H2Head *h, bool ended);
int h2_head_build_trailers(H2Head *h);
