/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Values of credentials on this host: encrypted files that only root changes, and the daemon that is told. */

#include "ctl/ctl.h"
#include "util/secret.h"

/* The encrypted file for a value, the caller's. It is decrypted again before this returns: what is written can be read. */
CtlExit ctl_credential_encrypt(Ctl *ctl, const char *name, const Secret *value, char **ret_data, size_t *ret_size);

/* Starts secretd anew, which is how it gets values, and waits until every run that uses the credential has what it has. *ret_runs
 * counts those runs. */
CtlExit ctl_credential_tell(Ctl *ctl, const char *name, size_t *ret_runs);
