/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* An item's evidence and who asked for it, as a person reads them. */

#include <jansson.h>

#include "ctl/ctl.h"

/* The text with "operator (uid 37)" for each "uid 37" that this host has a name for; the caller's, NULL: no memory. */
char *ctl_name_users(const char *text);

/* Nothing for NULL or null. */
void ctl_show_evidence(Ctl *ctl, const json_t *evidence);
