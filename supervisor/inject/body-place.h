/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Places in a request's body: the string at a pointer of a JSON text, the value of a field of a form. Pure.
 *
 * A body with a place is held until it is whole, and judged as one piece: so it leaves with its right length, or not at all, and no
 * origin ever sees the first half of what is refused. Everything but the value itself stays byte for byte as it was.
 */

#include "inject/substitute.h"

enum {
        BODY_HELD_MAX = 256 * 1024, /* what is sent to a place is a login, not an upload */
};

typedef struct BodyRewrite {
        struct {
                size_t begin, end; /* of the value as it is written: within the quotes of JSON, behind the "=" of a form */
                CredentialPlaceKind kind;
                const InjectCredential *credential; /* borrowed */
        } spans[SUBSTITUTE_MAX]; /* in the order of the text */
        size_t n_spans;
} BodyRewrite;

enum {
        _BODY_E_SUCCESS,
        BODY_E_REFUSED,  /* the plan's verdict says why */
        BODY_E_ENCODED,  /* it has another Content-Encoding than gzip, or is of another type than the place: nobody can tell what is in it */
        BODY_E_MALFORMED, /* it is not what its type says */
};

/* A Content-Encoding that can be read: then what is judged, and written, is the decoded body. */
bool body_place_is_gzip(const char *coding);

/* Judges the whole body of a request whose plan has places in it: adds to the plan's items, or makes its verdict a refusal. ret borrows from
 * the plan's places alone. */
int body_place_judge(const InjectCredential *credentials, size_t n_credentials, const HttpHead *head, SubstitutePlan *plan,
                     const void *data, size_t size, BodyRewrite *ret);

/* The body for the origin. */
int body_place_write(const BodyRewrite *b, const void *data, size_t size, Buffer *out);
