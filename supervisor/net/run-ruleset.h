/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The nftables of a run's namespace, without the nft program. */

#include <stddef.h>
#include <stdint.h>

#include "net/run-net.h"

/* Writes the whole ruleset as one netlink batch. The number of bytes, with the number of
 * acknowledgements to wait for; -ENOBUFS if size is too small, -ENOMEM. */
int run_ruleset_build(void *buffer, size_t size, unsigned *ret_n_acks);

#define RUN_RULESET_SIZE (32 * 1024)

/* Into the calling thread's namespace. */
int run_ruleset_load(void);

/* What the rules rejected so far. */
int run_ruleset_read_denials(RunNetDenial ret[static RUN_NET_MAX_DENIED], size_t *ret_n);
