/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Devices, address and route inside a run's namespace: all in the calling thread's one. */

/* sysctls, loopback, tap0 with its group, the gateway's address, the route that makes every address local. *ret_step as in run_net_up(). */
int run_link_up(const char **ret_step);

/* Removes tap0, which persists without a process. -ENODEV if there is none. */
int run_link_remove_tap(void);
