/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* A run's own policy on disk, which nobody edits: what the policy's files say may change, what a run may reach does not. */

#include "policy/policy.h"

/* Writes the policy to DIR/frozen/RUN-DIGEST.json. One that is there under another digest stays until it is removed, so that
 * whoever remembers the digest may do so in between. */
int frozen_policy_write(const char *dir, const char *run, const EgressPolicy *p);

/* Reads the one with that digest, the caller's. -ENOENT: there is none; -ESTALE: it is not what its name says. */
int frozen_policy_read(const char *dir, const char *run, const char *digest, EgressPolicy **ret);

/* Removes every policy of the run but the one with that digest (NULL: every one). */
void frozen_policy_remove(const char *dir, const char *run, const char *keep);
