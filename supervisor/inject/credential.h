/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Where one credential may be used, as inject asks for each request. */

#include <stdbool.h>
#include <stdint.h>

#include "secret/run-secrets.h"

enum {
        CREDENTIAL_PLACES_MAX = 16,
        CREDENTIAL_FORMER_MAX = 1, /* more would have to be rotated within one run's life */
};

typedef struct CredentialPlace {
        const char *header; /* borrowed from the rule; "authorization" for a bearer */
        bool bearer;        /* "Bearer " stands before the value */
} CredentialPlace;

typedef struct InjectCredential {
        const RunCredential *source;  /* borrowed; `secret` is NULL if it was revoked before this run's inject started */
        bool revoked;                 /* the value stays known, to be masked */
        Secret *former[CREDENTIAL_FORMER_MAX]; /* owned; what the value was before it was rotated, the last first: still masked */
        const json_t *hosts, *ports, *methods, *paths; /* borrowed from the rule; methods, paths NULL: any */
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
 * was made from. After anything but SAME, connections that may carry the former value are the caller's to cut. */
CredentialChange inject_credential_update(InjectCredential *c, RunCredential *source, Secret **value);

bool inject_credential_covers_host(const InjectCredential *c, const char *host, uint16_t port);
bool inject_credential_covers_request(const InjectCredential *c, const char *method, const char *target);
