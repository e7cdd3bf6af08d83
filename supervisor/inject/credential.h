/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Where one credential may be used, as inject asks for each request. */

#include <stdbool.h>
#include <stdint.h>

#include "secret/run-secrets-api.h"

enum {
        CREDENTIAL_PLACES_MAX = 16,
        CREDENTIAL_FORMER_MAX = 4, /* of one run's life; what was the value before these is not masked any more */
};

typedef enum CredentialPlaceKind {
        PLACE_HEADER, /* the whole value of a field */
        PLACE_BEARER, /* what follows "Bearer " */
        PLACE_BASIC,  /* a half of what is encoded behind "Basic " */
        PLACE_QUERY,  /* the value of a parameter of the target */
        PLACE_JSON,   /* the string at a pointer of the body */
        PLACE_FORM,   /* the value of a field of the body */
        PLACE_GIT,    /* nowhere: git's own requests get an authorization */
} CredentialPlaceKind;

typedef struct CredentialPlace {
        CredentialPlaceKind kind;
        const char *name;          /* field, parameter or pointer; "authorization" for the second and third, the user's name for the last; borrowed, as are the next */
        bool user, password;       /* PLACE_BASIC: which half */
        const char *method, *path; /* PLACE_QUERY to PLACE_FORM: for this request only */
} CredentialPlace;

typedef enum CredentialForeign {
        FOREIGN_REFUSE,
        FOREIGN_PASS,
        FOREIGN_REPLACE, /* where it stands in a place */
} CredentialForeign;

typedef struct InjectCredential {
        const RunCredential *source;  /* borrowed; `secret` is NULL if it was revoked before this run's inject started */
        bool revoked;                 /* the value stays known, to be masked */
        Secret *former[CREDENTIAL_FORMER_MAX]; /* owned; what the value was before it was rotated, the last first: still masked */
        const json_t *hosts, *ports, *methods, *paths; /* borrowed from the rule; methods, paths NULL: any */
        CredentialForeign on_foreign; /* another credential for one of the hosts */
        CredentialPlace places[CREDENTIAL_PLACES_MAX];
        size_t n_places;
} InjectCredential;

/* Reads a rule that secretd's policy loader has checked. -EBADMSG if it is not like that. */
int inject_credential_init(InjectCredential *c, const RunCredential *source);

void inject_credential_done(InjectCredential *c);

typedef enum CredentialChange {
        CREDENTIAL_SAME,    /* the value is what it was */
        CREDENTIAL_CHANGED, /* another one, or there is one again: used from now on */
        CREDENTIAL_GONE,    /* there is none any more, or its use is over: revoked */
} CredentialChange;

/* What secretd says of it now; value NULL: nothing. Takes *value over unless it is the same. `source` is the object that `c`
 * was made from. After anything but SAME, exchange_credential_changed(). */
CredentialChange inject_credential_update(InjectCredential *c, RunCredential *source, Secret **value);

bool inject_credential_covers_host(const InjectCredential *c, const char *host, uint16_t port);
bool inject_credential_covers_request(const InjectCredential *c, const char *method, const char *target);
/* Is this place one that a request with that method and target can have? */
bool credential_place_applies(const CredentialPlace *place, const char *method, const char *target);
