/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * What this host has learned about images, whichever of them it runs: /var/lib/anchorhold/host/state.json
 *
 *   { "image": NAME,                      what the last upgrade was from
 *     "healthy": [DIGEST, …],             passed the gate here at least once
 *     "starts": { DIGEST: N },              started so often since it was last judged
 *     "left": { DIGEST: RFC3339, … },     an operator went back from it, then
 *     "rejected": { DIGEST: { "reason": TEXT, "time": RFC3339, "told": BOOL } } }
 *
 * A rejected image is not staged again; one that was left is, once somebody names or accepts it. `told`: the audit log has the story, written by the system that survived. Only images that never
 * passed are counted.
 */

#include "host/host-os.h"

enum { HOST_STATE_WAIT_USEC = 10 * 1000 * 1000 };

#define HOST_STATE "/var/lib/anchorhold/host/state.json"

/* Everybody who changes it holds this from load to save, and does nothing in between that takes long; -1, with the reason logged, if it cannot be had in
 * HOST_STATE_WAIT_USEC: the caller goes on all the same, since a verdict that waits for ever is none. Closing it lets go; so does the caller's end. */
int host_state_lock(const char *path);
/* The caller's; {} if there is none yet, or it cannot be read (logged). */
json_t *host_state_load(const char *path);
int host_state_save(const char *path, const json_t *state);

bool host_state_is_healthy(const json_t *state, const char *digest);
int host_state_set_healthy(json_t *state, const char *digest);
/* The entry of a rejected image, or NULL. Borrowed. */
const json_t *host_state_rejected(const json_t *state, const char *digest);
int host_state_reject(json_t *state, const char *digest, const char *reason);
/* When an operator went back from that image, or NULL. Borrowed. */
const char *host_state_left(const json_t *state, const char *digest);
/* From each of these deployments that is booted or staged an operator went back to the one that is for that, which is therefore not left any more. */
int host_state_go_back(json_t *state, const HostDeployments *d);
/* Somebody wants it after all. */
void host_state_wanted(json_t *state, const char *digest);
/* It is neither rejected nor left any more, and counts as one that was never tried here. */
void host_state_accept(const char *path, json_t *state, const char *digest);

/* One start more of an image that has not been judged since; how many there were with it. Negative errno: nothing is counted. The caller saves.
 * An empty file beside the state says that this start has no verdict yet: PATH.started.DIGEST. */
int host_state_count_start(const char *path, json_t *state, const char *digest);
/* Its health check came to an end, whatever that was. That holds also if the state cannot be saved then, for want of space: removing the file takes none, and
 * starts that are counted without one have been judged. */
void host_state_judged(const char *path, json_t *state, const char *digest);

/* After a boot that failed its gate: is this host to go back? Not from an image that has worked here, since then the fault is
 * likely in what both share, and not to one that was rejected as well: somewhere it must end. Otherwise *ret_why says why not. */
bool host_state_goes_back(const json_t *state, const HostDeployments *d, const char **ret_why);
