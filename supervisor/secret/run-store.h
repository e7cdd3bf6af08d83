/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The registered runs, in memory and sealed on disk, so that a restart of secretd loses no run that lives. */

#include "secret/run-secrets-api.h"
#include "util/cleanup.h"

typedef struct RunStore RunStore;

/* Reads back what an earlier life left in state_dir. The key lies in key_dir, which does not survive a reboot: neither
 * do runs. Files that this key does not open are removed; if one cannot be read for another reason, that is the error, and nothing of it is lost. */
int run_store_new(RunStore **ret, const char *state_dir, const char *key_dir);
RunStore *run_store_free(RunStore *s);
DEFINE_CLEANUP(RunStore *, run_store_free)

/* On disk before it returns; takes `secrets` over on success. -EEXIST, -ENOBUFS (too many). */
int run_store_add(RunStore *s, RunSecrets *secrets);

/* Borrowed, or NULL. */
RunSecrets *run_store_find(const RunStore *s, const char *run);

/* 0 also if there is no such run. */
int run_store_remove(RunStore *s, const char *run);

/* Any run that ended before now_usec, borrowed, or NULL. */
RunSecrets *run_store_find_expired(const RunStore *s, uint64_t now_usec);
size_t run_store_size(const RunStore *s);
/* Number i of them, in no order; borrowed. */
const RunSecrets *run_store_get(const RunStore *s, size_t i);
