/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Answers PID 1's LoadCredential= over a Unix socket (systemd.exec(5)): a connection, its peer's
 * abstract address "\0<random>/unit/<unit>/<credential id>", one blob, end of file.
 *
 * That address is chosen by whoever connects. So a request counts only if the peer is uid 0 and the
 * kernel puts its pidfd into the very unit that the address names, below the runs slice.
 */

#include <systemd/sd-event.h>

#include "ipc/peer.h"
#include "util/cleanup.h"

typedef struct CredentialServer CredentialServer;

/* A checked request: the peer, its unit's run, and which credential. Returns the blob (the server
 * zeroes and frees it after sending) or negative errno: the connection is closed without a byte. `denied` calls report a
 * request that failed the check (reason is a static string). */
typedef int (*CredentialHandler)(const Peer *peer, const char *id, char **ret_blob, size_t *ret_size, void *userdata);
typedef void (*CredentialDenied)(const Peer *peer, const char *claimed, const char *reason, void *userdata);

/* Takes listen_fd over on success. */
int credential_server_new(CredentialServer **ret, sd_event *event, int listen_fd,
                          CredentialHandler handler, CredentialDenied denied, void *userdata);
CredentialServer *credential_server_free(CredentialServer *s);
DEFINE_CLEANUP(CredentialServer *, credential_server_free)
