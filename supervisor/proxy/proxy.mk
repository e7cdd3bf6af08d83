# SPDX-License-Identifier: LGPL-2.1-or-later
LIB_SRCS += supervisor/proxy/client-hello.c supervisor/proxy/dns-answer.c
UNIT_TESTS += test-client-hello test-dns-answer
FUZZERS += fuzz-client-hello fuzz-dns-answer
