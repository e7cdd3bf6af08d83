/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Where one credential may be used, as inject asks for each request. */

#include <stdbool.h>
#include <stdint.h>

#include "secret/run-secrets.h"

enum { CREDENTIAL_PLACES_MAX = 16 };

typedef struct CredentialPlace {
        const char *header; /* borrowed from the rule; "authorization" for a bearer */
        bool bearer;        /* "Bearer " stands before the value */
} CredentialPlace;

typedef struct InjectCredential {
        const RunCredential *source;  /* borrowed; `secret` is NULL if it was revoked before this run's inject started */
        bool revoked;                 /* the value stays known, to be masked */
        const json_t *hosts, *ports, *methods, *paths; /* borrowed from the rule; methods, paths NULL: any */
        CredentialPlace places[CREDENTIAL_PLACES_MAX];
        size_t n_places;
} InjectCredential;

/* Reads a rule that secretd's policy loader has checked. -EBADMSG if it is not like that. */
int inject_credential_init(InjectCredential *c, const RunCredential *source);

bool inject_credential_covers_host(const InjectCredential *c, const char *host, uint16_t port);
bool inject_credential_covers_request(const InjectCredential *c, const char *method, const char *target);
