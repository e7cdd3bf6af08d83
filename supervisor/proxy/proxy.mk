# SPDX-License-Identifier: LGPL-2.1-or-later
LIB_SRCS += $(addprefix supervisor/proxy/,client-hello.c connection.c connection-misuse.c connection-peek.c connection-refuse.c connection-relay.c \
            dns-answer.c dns-server.c hello-retry.c http-head.c proxy.c refusal.c refused-log.c relay.c)
PROGRAMS += anchor-proxy
UNIT_TESTS += test-client-hello test-connection test-dns-answer test-dns-server test-hello-retry test-http-head test-proxy test-refused-log test-relay
FUZZERS += fuzz-authority fuzz-client-hello fuzz-dns-answer fuzz-hello-retry fuzz-http-head
