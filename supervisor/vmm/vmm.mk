# SPDX-License-Identifier: LGPL-2.1-or-later
# Everything that speaks to a microVM from the host's side: guest channel, QMP, the launcher.
LIB_SRCS += supervisor/vmm/channel.c supervisor/vmm/vm-command.c supervisor/vmm/vm-parts.c supervisor/vmm/vm-spec.c
PROGRAMS += anchor-vm
UNIT_TESTS += test-channel
FUZZERS += fuzz-channel
