/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Everything that knows of the partition that UEFI boots from (its ESP), if systemd-boot was started from one: the entries there follow those that ostree
 * writes, and the loader's counters say which image never got to a verdict. On a host without, each of these does nothing and returns 0. Only root may.
 */

#include <jansson.h>

#include "host/host-os.h"

/* As health.c counts starts: two, and the third goes back. */
enum { HOST_ESP_TRIES = 2 };

/* Makes the entries there those of ostree's, after it has changed them. A power cut in the middle leaves some that boot. */
int host_esp_follow(void);
/* The boot that runs has come to a verdict and its image stays: its boots are not counted any more. */
int host_esp_bless(void);
/* Early in a boot: what the loader gave up is rejected, and the entries follow. */
int host_esp_begin(void);

/* ---- the same, told where everything is ---- */

typedef struct HostEsp {
        int boot_fd; /* borrowed: /boot, where ostree writes entries and kernels */
        int root_fd; /* borrowed: what links to deployments are relative to */
        int esp_fd;  /* borrowed: the root of the partition */
} HostEsp;

/* What is known of images decides which of the new entries are counted. */
int host_esp_follow_at(const HostEsp *esp, const HostDeployments *d, const json_t *state);
int host_esp_bless_at(int esp_fd, const HostDeployments *d);
/* Rejects in `state` what the loader gave up and this host does not run; how many these are. */
int host_esp_reject_given_up(int esp_fd, const HostDeployments *d, json_t *state);
