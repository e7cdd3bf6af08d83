/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* authority.json: who may do what. That somebody may use the API at all is the socket's business; this narrows it. */

#include "ipc/peer.h"
#include "policy/policy.h"

/* May this peer do that ("submit")? 0; -EACCES with *ret_reason, a sentence (the caller's); -ENOMEM. Root may, as it could change the
 * file. Whoever is in one of the groups that the file lists may. No file, a file with a finding, or none of this act: nobody else. */
int authority_check(const Policy *p, const char *act, const Peer *peer, char **ret_reason);
