# SPDX-License-Identifier: LGPL-2.1-or-later
LIB_SRCS += supervisor/inject/buffer.c supervisor/inject/credential.c supervisor/inject/egress-link.c \
            supervisor/inject/exchange-origin.c supervisor/inject/exchange-relay.c supervisor/inject/exchange.c \
            supervisor/inject/http-message.c supervisor/inject/inject.c supervisor/inject/leaf.c \
            supervisor/inject/mask.c supervisor/inject/notes.c supervisor/inject/request-answer.c supervisor/inject/request.c \
            supervisor/inject/substitute.c supervisor/inject/tls.c supervisor/inject/usage-report.c \
            supervisor/inject/usage.c
PROGRAMS += anchor-inject
UNIT_TESTS += test-exchange test-http-message test-inject-parts test-mask test-substitute test-usage
FUZZERS += fuzz-http-message fuzz-mask fuzz-usage
