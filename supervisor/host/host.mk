# SPDX-License-Identifier: LGPL-2.1-or-later
LIB_SRCS += supervisor/host/command.c supervisor/host/health.c supervisor/host/host-bls.c supervisor/host/host-bootc.c supervisor/host/host-esp.c supervisor/host/host-os.c supervisor/host/host-ostree.c \
            supervisor/host/host-state.c supervisor/host/provision.c
PROGRAMS += host-esp host-health host-provision
UNIT_TESTS += test-host test-host-esp test-provision
