/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * The files of work items: /var/lib/anchorhold/items/ITEM/{seed.bundle, result.bundle, checked.bundle, diff, events.jsonl}.
 *
 * A bundle comes in as a descriptor of a regular file from somebody less trusted. It is copied beside the event loop,
 * bounded, into a temporary name, and put in place only after fsync of file and folder: a file that has its name is
 * complete.
 */

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "util/cleanup.h"

#define STORE_SEED "seed.bundle"
#define STORE_RESULT "result.bundle"
#define STORE_CHECKED "checked.bundle"
#define STORE_DIFF "diff"
#define STORE_EVENTS "events.jsonl"

enum { STORE_DIFF_MAX = 16 * 1024 * 1024 };

typedef struct Store Store;

int store_new(Store **ret, sd_event *event, const char *root);
/* Copies that are under way end; their `done` is not called. */
Store *store_free(Store *s);
DEFINE_CLEANUP(Store *, store_free)

/* The item's folder as O_PATH-like directory descriptor, made if wanted. The caller's. */
int store_open_item(Store *s, const char *item, bool make);
/* Opens one file for reading; -ENOENT if it is not there. The descriptor is the caller's. */
int store_open_file(Store *s, const char *item, const char *name);
/* Removes one file, or the item's whole folder with name NULL. */
int store_remove(Store *s, const char *item, const char *name);
/* What an item has on disk: its log, and everything else (bundles, and what a copy that was cut off left). */
typedef struct StoreUsage {
        uint64_t log, rest; /* bytes, as the file system counts them */
        bool has_log, has_rest;
} StoreUsage;
int store_usage(Store *s, const char *item, StoreUsage *ret);
/* Removes the log, or everything else, and the folder with the last of it. Nothing there is no failure. */
int store_prune(Store *s, const char *item, bool log);
/* Removes what a crash left of copies into the item's folder. None may be under way. */
int store_remove_partial(Store *s, const char *item);
/* Calls back with the name of each folder. */
int store_list(Store *s, int (*handler)(const char *item, void *userdata), void *userdata);

/* Copies fd (taken over, also on failure) to the item's file. `done` is called once, from the loop, with 0 or negative errno:
 * -EFBIG beyond max bytes. Of several copies to one file the last one stays. Returns -EMEDIUMTYPE if it is no regular file, -EBUSY if too many copies are under way. */
typedef void (*StoreDone)(int r, void *userdata);
int store_copy(Store *s, const char *item, const char *name, int fd, uint64_t max, StoreDone done, void *userdata);
