/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Within ipc/: a varlink connection to one of our sockets, and calls on it that wait for their answer. */

#include <systemd/sd-varlink.h>

#include "ipc/ipc.h"

/*
 * A connected link. Sockets of ours are made by PID 1 or, in tests, by ourselves; whoever else could
 * put one at that path is not whom we mean to talk to.
 */
int ipc_link_connect(const char *path, sd_varlink **ret);

/* An idle link on which anything happened can only have been closed by the server. */
bool ipc_link_is_stale(sd_varlink *link);

int ipc_link_push_fds(sd_varlink *link, const int *fds, size_t n_fds);

/* What ipc_client_call(), _observe() and _next() are made of; the same contract, but `params` is borrowed. */
typedef struct IpcSync IpcSync;

int ipc_sync_new(IpcSync **ret, const char *path);
IpcSync *ipc_sync_free(IpcSync *s);
void ipc_sync_set_waiting(IpcSync *s, uint64_t every_usec, IpcWaiting handler, void *userdata);
int ipc_sync_call(IpcSync *s, const char *method, const json_t *params, const int *fds, size_t n_fds, uint64_t timeout_usec,
                  json_t **ret_params, char **ret_error, int *ret_fds, size_t max_fds);
int ipc_sync_observe(IpcSync *s, const char *method, const json_t *params, const int *fds, size_t n_fds);
int ipc_sync_next(IpcSync *s, uint64_t timeout_usec, json_t **ret_params, char **ret_error);
