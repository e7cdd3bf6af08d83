/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* A run's own copy of its egress policy, which nobody edits: what is on disk may change, what a run may reach does not. */

#include "policy/policy.h"

/* Copies egress/NAME.json, the operator's or else the vendor's, from below `root` to DIR/frozen/RUN. */
int frozen_policy_make(const char *dir, const char *root, const char *run, const char *name);

/* Loads the copy. -ESTALE if it is not what the digest says. The policy is borrowed from the set, which is the caller's. */
int frozen_policy_load(const char *dir, const char *run, const char *name, const char *digest, Policy **ret_set, const EgressPolicy **ret);

/* Removes it, and the folders made for it. `name` may be NULL: there was none. */
void frozen_policy_remove(const char *dir, const char *run, const char *name);
