/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What the fence's programs decided, counted by run. For root. */

#include <stdint.h>

#include "fence-api.bpf.h"
#include "util/json.h"

/* The counts of the run whose slice has that cgroup id (st_ino of its folder). Those of a run that did nothing are 0. */
int fence_counts_read(uint64_t cgroup_id, uint64_t ret[static FENCE_N_VERDICTS]);

/* Forgets them: the run is over. */
int fence_counts_drop(uint64_t cgroup_id);

/* Those that are not 0, by name: {"connect_no_grant": 3, …}. NULL without memory. */
json_t *fence_counts_to_json(const uint64_t counts[static FENCE_N_VERDICTS]);
