/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Watches over the fence for as long as the host runs. See warden.c. */

#include <systemd/sd-event.h>

#include "util/cleanup.h"

#define WARDEN_STATE "/run/anchorhold/fence.json"

typedef struct Warden Warden;

/* The fence is in force when this returns, or it fails: negative errno, logged. */
int warden_new(Warden **ret, sd_event *event);
Warden *warden_free(Warden *w);
DEFINE_CLEANUP(Warden *, warden_free)
