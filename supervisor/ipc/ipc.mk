# SPDX-License-Identifier: LGPL-2.1-or-later
LIB_SRCS += supervisor/ipc/credential-server.c supervisor/ipc/daemon.c supervisor/ipc/ipc-client.c \
            supervisor/ipc/ipc-client-sync.c supervisor/ipc/ipc-intake.c supervisor/ipc/ipc-link.c supervisor/ipc/ipc-server.c supervisor/ipc/ipc-waiters.c \
            supervisor/ipc/json-convert.c supervisor/ipc/peer.c
UNIT_TESTS += test-credential-server test-ipc test-ipc-intake test-json-convert test-peer
