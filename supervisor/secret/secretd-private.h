/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What secretd serves, behind its two sockets: the methods of secret-api.sock, and PID 1's questions at secret.sock. */

#include "ipc/credential-server.h"
#include "ipc/ipc.h"
#include "secret/secretd.h"

extern const IpcMethod secretd_methods[]; /* userdata: the Secretd */
int secretd_on_credential(const Peer *peer, const char *id, char **ret, size_t *ret_size, void *userdata);
void secretd_on_denied(const Peer *peer, const char *claimed, const char *reason, void *userdata);
