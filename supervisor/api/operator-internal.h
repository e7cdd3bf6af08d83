/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Shared by the files that answer operators. */

#include "api/manager-internal.h"

static inline const char *operator_get(json_t *params, const char *key) {
        return json_string_value(json_object_get(params, key));
}

static inline int operator_bad_input(IpcCall *call, const char *pointer, const char *reason) {
        return ipc_call_error(call, "BadInput", json_pack("{s:s, s:s}", "pointer", pointer, "reason", reason));
}

/* So much of a reason that somebody gave is kept. */
enum { OPERATOR_REASON_MAX = 1024 };

/* ---- operator-wait.c ---- */

/* The call is handled once anchord has settled, or refused if that takes too long. */
int operator_wait(Manager *m, IpcCall *call, json_t *params, IpcHandler handler);

/* ---- operator-submit.c ---- */

int operator_on_submit(IpcCall *call, json_t *params, void *userdata);
