/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The gate of a boot: does this host do what it is for? And what becomes of it if not. */

#include <stddef.h>

#define HEALTH_REASON "/run/anchorhold/health"
/* The checks of this boot have begun: host-deadline.timer and its service look whether it is there. */
#define HEALTH_BEGUN "/run/anchorhold/health-begun"

/* How long the checks wait until it is known whether microVMs run under KVM: anchor-accel.service twice, since one that takes too long is tried anew. */
enum { HEALTH_ACCELERATOR_SEC = 360 };

/* Early in each boot: counts it, if its image has never passed, and goes back from one that was started STARTS_ALLOWED times and never judged. */
int health_begin(void);
/* Makes every check, in order, and stops at the first that fails: 0, or -EPROTO with why in reason. */
int health_check(char *reason, size_t size);
/* The booted image has passed: remembered, recorded, and with it the story of what was rejected before. */
int health_passed(void);
/* It has not: back to the other deployment and reboot, or (host_state_goes_back()) stay, on hold. reason is from the check. */
int health_failed(const char *reason);
