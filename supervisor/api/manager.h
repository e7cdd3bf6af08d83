/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* anchord itself: the context that owns the event loop's objects, from the ledger to the sockets. */

#include <systemd/sd-event.h>

#include "util/cleanup.h"

typedef struct Manager Manager;

int manager_new(Manager **ret, sd_event *event);
Manager *manager_free(Manager *m);
DEFINE_CLEANUP(Manager *, manager_free)

/* Opens everything, starts to settle what an earlier life left, and says READY=1 when that is done. */
int manager_start(Manager *m);
