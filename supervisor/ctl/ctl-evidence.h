/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* An item's evidence and who asked for it, as a person reads them. */

#include <jansson.h>

#include "ctl/ctl.h"

/* "operator (uid 37)" for "uid 37" if this host has a name for it, else what it was; the caller's, NULL: no memory. */
char *ctl_actor(const char *actor);

/* Nothing for NULL or null. */
void ctl_show_evidence(Ctl *ctl, const json_t *evidence);
