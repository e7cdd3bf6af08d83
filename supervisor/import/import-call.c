/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "import/import-call.h"

#include <errno.h>
#include <unistd.h>

#include "ipc/ipc.h"
#include "util/json.h"
#include "util/log.h"
#include "util/text.h"

enum { AGAIN_USEC = 250 * 1000 };

const ImportPatience import_patience = {
        .socket = "/run/anchorhold/run-api.sock",
        .call_usec = 30 * 1000 * 1000,
        .total_usec = 60 * 1000 * 1000,
};

/* On a connection of its own: the one before may have broken. */
static int call_once(const ImportPatience *patience, const char *method, json_t *params, const int *fds, size_t n_fds, json_t **ret, char **ret_error,
                     int *ret_fds, size_t max_fds) {
        _cleanup_(ipc_client_freep) IpcClient *client = NULL;
        int r;

        r = ipc_client_new(&client, NULL, patience->socket);
        if (r < 0)
                return r;
        return ipc_client_call(client, method, json_incref(params), fds, n_fds, patience->call_usec, ret, ret_error, ret_fds, max_fds);
}

int import_call(const ImportPatience *patience, const char *method, json_t *params, const int *fds, size_t n_fds, json_t **ret, int *ret_fds, size_t max_fds) {
        uint64_t until = time_monotonic() + patience->total_usec;

        for (;;) {
                _cleanup_free_ char *error = NULL;
                _cleanup_json_ json_t *answer = NULL;
                int r;

                r = call_once(patience, method, params, fds, n_fds, &answer, &error, ret_fds, max_fds);
                if (r >= 0) {
                        if (ret)
                                *ret = TAKE_PTR(answer);
                        return r;
                }
                if (r == -EREMOTEIO && ipc_error_is(error, "Storing"))
                        until = time_monotonic() + patience->total_usec;
                else if (r == -EREMOTEIO && !ipc_error_is_passing(error)) {
                        log_error("%s refused: %s", method, error ?: "?");
                        return r;
                } else if (time_monotonic() > until)
                        return log_error_errno(r, "%s does not answer%s%s", method, error ? ": " : "", error ?: "");

                log_debug("%s: trying again", method);
                (void) usleep(AGAIN_USEC);
        }
}
