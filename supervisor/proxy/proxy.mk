# SPDX-License-Identifier: LGPL-2.1-or-later
LIB_SRCS += supervisor/proxy/client-hello.c
UNIT_TESTS += test-client-hello
FUZZERS += fuzz-client-hello
