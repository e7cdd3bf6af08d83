# SPDX-License-Identifier: LGPL-2.1-or-later
# Everything that speaks to a microVM from the host's side: guest channel, QMP, the launcher.
LIB_SRCS += supervisor/vmm/accel.c supervisor/vmm/channel.c supervisor/vmm/guest-client.c supervisor/vmm/qmp.c supervisor/vmm/qmp-client.c \
            supervisor/vmm/signature.c supervisor/vmm/vm-command.c supervisor/vmm/vm-measured.c supervisor/vmm/vm-parts.c supervisor/vmm/vm-spec.c supervisor/vmm/vm-template.c
PROGRAMS += anchor-vm anchor-accel
UNIT_TESTS += test-accel test-channel test-guest-client test-qmp test-vm-spec test-vm-template
FUZZERS += fuzz-channel fuzz-guest-client fuzz-qmp
