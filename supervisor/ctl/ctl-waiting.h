/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Why no run starts on this host. */

#include "ctl/ctl.h"

/* Of what Status answers: a text for each reason, unescaped; empty if nothing is in the way. A new reference, NULL when out of memory. */
json_t *waiting_reasons(const json_t *status);
/* A note for each. */
void waiting_note(Ctl *ctl, const json_t *reasons);
/* One of them is gone, by this command: says `otherwise` if that was the last, else `what` (NULL: nothing) and what is left. */
void waiting_ended(Ctl *ctl, const char *what, const char *otherwise);
