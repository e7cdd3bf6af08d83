/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Everything secret about one run: its CA, its sentinels, and what they stand for. */

#include <jansson.h>
#include <stdint.h>

#include "util/cleanup.h"
#include "util/secret.h"
#include "util/text.h"

typedef struct RunCredential {
        char *name;       /* owned */
        char *sentinel;   /* owned */
        Secret *secret;   /* owned; NULL: not known (in sealed state), or revoked */
        json_t *rule;     /* ref; the credential's file as it was at registration */
        json_t *provider; /* ref; the provider's file, NULL if the credential names none */
        bool minted;      /* its values are made when they are needed, and `secret` is the present one, if there is one; not sealed with the rest */
        uint64_t expires_usec; /* of that one; CLOCK_REALTIME */
} RunCredential;

typedef struct RunSecrets {
        char run[ID_LENGTH + 1];
        char *item, *workflow, *stage; /* owned */
        char *repository;              /* owned; OWNER/NAME of the item, NULL if it has none */
        uint64_t expires_usec;         /* CLOCK_REALTIME */
        char *ca_pem;                  /* owned; NULL if no name is inspected */
        Secret *ca_key;                /* owned; DER of the private key, NULL without CA */
        RunCredential *credentials;    /* owned */
        size_t n_credentials;
        bool recorded;                 /* this process knows that the audit log has its registration; not sealed with the rest */
} RunSecrets;

enum { RUN_CREDENTIALS_MAX = 16 };

int run_secrets_new(RunSecrets **ret, const char *run, const char *item, const char *workflow, const char *stage,
                    uint64_t expires_usec, size_t n_credentials);
RunSecrets *run_secrets_free(RunSecrets *s);
DEFINE_CLEANUP(RunSecrets *, run_secrets_free)

/* "": none. */
int run_secrets_set_repository(RunSecrets *s, const char *repository);

/* Fills place i; copies the strings, takes references of the documents. provider may be NULL. */
int run_secrets_set_credential(RunSecrets *s, size_t i, const char *name, const char *sentinel,
                               const json_t *rule, const json_t *provider);

/* {NAME: SENTINEL}, the caller's. NULL: out of memory. */
json_t *run_secrets_sentinels(const RunSecrets *s);

/* What the guest may know: {"ca_pem", "sentinels"}; ca_pem is the run's CA, if it has one, and behind it
 * upstream_pem (may be NULL): a connection that is passed through is verified by the guest itself. The text is the caller's. */
char *run_secrets_format_guest(const RunSecrets *s, const char *upstream_pem);
