# SPDX-License-Identifier: LGPL-2.1-or-later
LIB_SRCS += $(addprefix supervisor/egress/,address.c address-judge.c agreement.c denials.c dns-cache.c dns-reply.c egress-closes.c egress-grants.c egress-names.c egress-state.c egressd.c egressd-closes.c egressd-connect.c egressd-denials.c egressd-explain.c egressd-host.c egressd-judge.c egressd-live.c egressd-methods.c egressd-question.c egressd-record.c egressd-register.c egressd-request.c egressd-turns.c egressd-watch.c fair-queue.c frozen-policy.c grant-ends.c \
            held-grants.c host-addresses.c nat64.c resolver.c resolver-lookup.c untold.c)
PROGRAMS += anchor-egressd
UNIT_TESTS += test-address test-agreement test-denials test-dns-cache test-dns-reply test-egress-state test-egressd test-egressd-budget test-egressd-closes test-egressd-denials test-egressd-live test-egressd-watch test-fair-queue test-grant-ends test-held-grants test-host-addresses test-nat64 test-resolver test-untold
FUZZERS += fuzz-dns-reply
