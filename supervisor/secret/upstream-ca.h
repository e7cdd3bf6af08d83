/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The certificates that an operator trusts beside the system's own. */

/* All files *.pem of dir in the order of their names, as one text (the caller's). A folder that is not
 * there is an empty text. -EFBIG beyond 512 KiB in all: PID 1 takes no larger credential. */
int upstream_ca_read(const char *dir, char **ret_pem);
