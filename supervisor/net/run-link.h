/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

#include <stdio.h>

/* Devices, address and route inside a run's namespace: all in the calling thread's one. */

/* sysctls, loopback, tap0 with its group, the gateway's address, the route that makes every address local. *ret_step as in run_net_up(). */
int run_link_up(const char **ret_step);

/* Removes tap0, which persists without a process. -ENODEV if there is none. */
int run_link_remove_tap(void);

/* Settings, devices, addresses, routes and routing rules as text without what changes by itself. The first alone: the settings. */
int run_link_describe_sysctls(FILE *f);
int run_link_describe(FILE *f);
