/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Bytes between two connected sockets, both ways, with half-close, counts, bounded memory, and optionally somebody who
 * decides which bytes of the guest may go on. */

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "util/cleanup.h"

enum {
        RELAY_BUFFER = 32 * 1024, /* each way */
        RELAY_IDLE_SEC = 3600,
        RELAY_HALF_CLOSED_SEC = 300,
        RELAY_REFUSED_SEC = 5, /* for the guest to read the refusal */
        RELAY_GONE_SEC = 30,   /* for the guest to read what an origin has said that is gone */
        RELAY_QUIET_SEC = 1,   /* before a refusal: how long an origin that was told the end may be silent */
};

typedef struct Relay Relay;

/* Of the guest's bytes that were not let on yet, how many may go now? Called when there are more of them, and by
 * relay_resume(). *ret_undecided: about the rest somebody was asked, so that it must be kept even if the guest ends.
 * Negative errno ends the relay; it must not call back into the relay, but for relay_watch(). `data` always begins with the first byte that was not let on. */
typedef ssize_t (*RelayFilter)(const uint8_t *data, size_t size, bool *ret_undecided, void *userdata);

/* Sees the origin's bytes as they come, before the filter is asked about the guest's. Must not call back into the relay, but for relay_watch(). */
typedef void (*RelayObserver)(const uint8_t *data, size_t size, void *userdata);

/* Called once, as the relay's last act: r is 0 when both ways ended in order. It may free the relay. */
typedef void (*RelayDone)(int r, void *userdata);

/* The descriptors are borrowed and must be non-blocking; nobody else watches them. filter may be NULL: everything goes. */
int relay_new(Relay **ret, sd_event *event, int guest_fd, int origin_fd, RelayFilter filter, RelayDone done, void *userdata);
Relay *relay_free(Relay *r);
DEFINE_CLEANUP(Relay *, relay_free)

/* Puts bytes before everything that the guest sends from now on. They are let on. Before the loop runs. */
int relay_prepend(Relay *r, const void *data, size_t size);

/* Another filter (NULL: everything goes) and observer (NULL: none), from the next bytes on. */
void relay_watch(Relay *r, RelayFilter filter, RelayObserver observer);

/* The filter may have another answer now. */
void relay_resume(Relay *r);

/* Nothing more from the guest goes to the origin, which is told so. What it still answers to what went before reaches the guest, until it
 * ends or is silent for a moment; then `data`, which is copied, is the guest's last word. */
int relay_refuse(Relay *r, const void *data, size_t size);

/* The same in the middle of something that the origin is not to take for whole: it is told nothing, and its connection is reset when it is closed. `data` is
 * said at once. */
int relay_break_off(Relay *r, const void *data, size_t size);

uint64_t relay_bytes_out(const Relay *r); /* sent to the origin */
uint64_t relay_bytes_in(const Relay *r);  /* sent to the guest */
