/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Shared by run-api.c and run-endings.c. */

#include "api/manager-internal.h"

/* So much of a reason that a run gave is kept. */
enum { RUN_API_REASON_MAX = 4096 };

static inline const char *run_api_get(json_t *params, const char *key) {
        return json_string_value(json_object_get(params, key));
}

static inline int run_api_bad_input(IpcCall *call, const char *pointer, const char *reason) {
        return ipc_call_error(call, "BadInput", json_pack("{s:s, s:s}", "pointer", pointer, "reason", reason));
}

/* The flow of the run whose unit calls; NULL: none is under way. */
Flow *run_api_flow(Manager *m, IpcCall *call);
int run_api_no_run(IpcCall *call);
/* A text of bounded length, cut if need be; the caller's. */
char *run_api_bounded(const char *s, size_t max);
/* The size of facts as canonical JSON in *ret_size, or -EFBIG: more than is kept. */
int run_api_measure(const json_t *facts, size_t *ret_size);

/* ---- run-endings.c ---- */

int run_api_on_finish(IpcCall *call, json_t *params, void *userdata);
int run_api_on_imported(IpcCall *call, json_t *params, void *userdata);
int run_api_on_mismatch(IpcCall *call, json_t *params, void *userdata);
