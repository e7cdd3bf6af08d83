# SPDX-License-Identifier: LGPL-2.1-or-later
LIB_SRCS += supervisor/inject/buffer.c supervisor/inject/http-message.c supervisor/inject/mask.c
UNIT_TESTS += test-http-message test-mask
FUZZERS += fuzz-http-message fuzz-mask
