/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What anchor-import asks and tells anchord, which may be restarting, or storing what it was given. */

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ImportPatience {
        const char *socket;
        uint64_t call_usec;  /* for one answer */
        uint64_t total_usec; /* how long anchord may be away */
} ImportPatience;

/* anchord's socket, half a minute, a minute. */
extern const ImportPatience import_patience;

/* Calls until it is answered: again while nobody is there, and for as long as anchord says that it is storing. As ipc_client_call(), but that params and
 * fds stay the caller's; failures are logged. */
int import_call(const ImportPatience *patience, const char *method, json_t *params, const int *fds, size_t n_fds, json_t **ret, int *ret_fds, size_t max_fds);
