/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Decides what happens to the sentinels in a request's head, and writes the head that leaves. Pure. */

#include "inject/buffer.h"
#include "inject/credential.h"
#include "inject/http-message.h"

typedef enum SubstituteVerdict {
        SUBSTITUTE_PLAIN,     /* no sentinel: goes as it is, without any credential */
        SUBSTITUTE_REPLACE,   /* each sentinel is in its place and is replaced */
        SUBSTITUTE_MISUSE,    /* a sentinel where it has no business: blocked, and worth an alarm */
        SUBSTITUTE_FOREIGN,   /* another credential, for a host where this run has one of its own: refused */
        SUBSTITUTE_NOT_HERE,  /* in its place, but not for this method and path: refused */
        SUBSTITUTE_REVOKED,   /* in its place, but revoked: refused */
} SubstituteVerdict;

enum { SUBSTITUTE_MAX = 4 };

typedef struct Substitution {
        size_t field;  /* in the head */
        size_t offset; /* where the sentinel starts in the value; it goes to the value's end */
        const InjectCredential *credential;
} Substitution;

typedef struct SubstitutePlan {
        SubstituteVerdict verdict;
        const InjectCredential *credential; /* whose sentinel it is about; NULL with PLAIN and FOREIGN */
        const char *where;                  /* "target" or a header's name, borrowed from the head; NULL with PLAIN */
        Substitution items[SUBSTITUTE_MAX];
        size_t n_items;
} SubstitutePlan;

void substitute_plan(const InjectCredential *credentials, size_t n_credentials, const char *host, uint16_t port,
                     const HttpHead *head, SubstitutePlan *ret);

/*
 * The request's head for the origin: as it was read, but Host set to `host` (with the port unless it is 443),
 * without fields about one connection, asking for an unencoded body and, beside a secret, for a whole one, framed as
 * `head` says, and with the values in the plan's places. Trusts the verdict to be PLAIN or REPLACE.
 */
int substitute_write(const HttpHead *head, const SubstitutePlan *plan, const char *host, uint16_t port, Buffer *out);
