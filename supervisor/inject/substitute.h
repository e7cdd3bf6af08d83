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
        SUBSTITUTE_CANNOT,    /* what is signed would change: refused */
} SubstituteVerdict;

enum { SUBSTITUTE_MAX = 8 };

typedef struct Substitution {
        const CredentialPlace *place; /* borrowed */
        size_t field;      /* in the head; unless it is in the target or the body, or nowhere yet (PLACE_GIT) */
        size_t begin, end; /* in the field's value, or in the target; not of PLACE_BASIC and in a body */
        bool user, password; /* PLACE_BASIC: which half is replaced */
        const InjectCredential *credential;
} Substitution;

/* A place in the body, which is judged once it is there (body-place.h). */
typedef struct BodyPlace {
        const CredentialPlace *place; /* borrowed */
        const InjectCredential *credential;
} BodyPlace;

typedef struct SubstitutePlan {
        SubstituteVerdict verdict;
        const InjectCredential *credential; /* whose sentinel it is about; NULL with PLAIN and FOREIGN */
        const char *where;                  /* "target" or a header's name, borrowed from the head; NULL with PLAIN */
        Substitution items[SUBSTITUTE_MAX];
        size_t n_items;
        BodyPlace body[SUBSTITUTE_MAX];
        bool answered; /* whoever holds the body has told the client to send it */
        size_t n_body; /* not 0: nothing of this request may leave before its body was judged */
} SubstitutePlan;

/* Whose sentinel is in this field, wherever in it; NULL: nobody's. */
const InjectCredential *substitute_find_sentinel(const InjectCredential *credentials, size_t n_credentials, const HttpField *field);
/* Is this a field that carries a credential, of one of these or of any? */
bool substitute_is_auth_field(const InjectCredential *credentials, size_t n_credentials, const char *name);

void substitute_plan(const InjectCredential *credentials, size_t n_credentials, const char *host, uint16_t port,
                     const HttpHead *head, SubstitutePlan *ret);

/* Is every credential in the plan's places one that may be used for this request? If not, so the verdict says. */
void substitute_check(SubstitutePlan *plan, const HttpHead *head);

/* The target for the origin, with the values in its places. */
int substitute_target(const HttpHead *head, const SubstitutePlan *plan, Buffer *out);

/* One field of the head that leaves, with `secret` if a real value is in it. value is borrowed. Negative errno ends it. */
typedef int (*SubstituteSink)(const char *name, const void *value, size_t size, bool secret, void *userdata);

/*
 * The fields of a request's head for the origin, with the values in the plan's places: as they were read, but without Host and what is about
 * one connection or about framing, asking for an unencoded body and, beside a secret, for a whole one. Trusts the verdict
 * to be PLAIN or REPLACE.
 */
int substitute_fields(const HttpHead *head, const SubstitutePlan *plan, SubstituteSink sink, void *userdata);

/* The whole head in HTTP/1.1: Host is set to `host` (with the port unless it is 443), framed as `head` says. */
int substitute_write(const HttpHead *head, const SubstitutePlan *plan, const char *host, uint16_t port, Buffer *out);

enum { SUBSTITUTE_AUTHORITY_SIZE = 280 };

/* The host as it stands in Host and :authority; ret has SUBSTITUTE_AUTHORITY_SIZE bytes. */
void substitute_authority(const char *host, uint16_t port, char *ret);
