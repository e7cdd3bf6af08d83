# SPDX-License-Identifier: LGPL-2.1-or-later
LIB_SRCS += supervisor/inject/buffer.c supervisor/inject/credential.c supervisor/inject/http-message.c \
            supervisor/inject/mask.c supervisor/inject/substitute.c supervisor/inject/usage.c
UNIT_TESTS += test-http-message test-mask test-substitute test-usage
FUZZERS += fuzz-http-message fuzz-mask fuzz-usage
