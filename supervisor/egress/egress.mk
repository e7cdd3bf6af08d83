# SPDX-License-Identifier: LGPL-2.1-or-later
LIB_SRCS += $(addprefix supervisor/egress/,address.c agreement.c denials.c dns-reply.c egress-state.c host-addresses.c resolver.c)
UNIT_TESTS += test-address test-denials test-dns-reply
FUZZERS += fuzz-dns-reply
