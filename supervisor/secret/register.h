/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Makes what a run gets, from policy and the credentials that this host has. */

#include "policy/policy.h"
#include "secret/credential-store.h"
#include "secret/run-secrets-api.h"

typedef struct RegisterRequest {
        const char *run, *item, *workflow, *stage; /* borrowed; stage is "work" or "verify" */
        const char *repository;                    /* of the item, OWNER/NAME; NULL: none is named */
        uint64_t expires_usec;                     /* CLOCK_REALTIME */
} RegisterRequest;

/*
 * 0 with *ret. Otherwise negative errno and, for what an operator can mend, *ret_reason (the caller's):
 * -EINVAL (the request), -ENOENT (no such workflow, or its policy does not load), -ENOKEY (a credential that
 * the workflow names is not on this host), -EFBIG (a unit could not be given all of it).
 */
int register_run(RunSecrets **ret, const Policy *policy, const CredentialStore *store,
                 const RegisterRequest *request, uint64_t now_usec, char **ret_reason);
