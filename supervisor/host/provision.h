/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What a host is told from outside by systemd's credentials: checked as a whole, then written to where an operator would have written it. */

#include <stddef.h>

/* Why provisioning failed, for the health check: such a boot is not complete, and another image would not help. */
#define PROVISION_FAILED "/run/anchorhold/provision"

/* Takes every credential in `folder` that provision.c knows to where it belongs below `etc` (both absolute). All are checked before the first is
 * written; a file that is as it shall be is not touched. 0, or -EINVAL and which credential is wrong and why in `reason`; other negative
 * errno with a reason as well. */
int provision_apply(const char *folder, const char *etc, char *reason, size_t size);
