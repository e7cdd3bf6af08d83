# SPDX-License-Identifier: LGPL-2.1-or-later
# Everything that makes a run's network: the fence on the host, the namespace of the guest.

LIB_SRCS += \
	supervisor/net/bpf-load.c \
	supervisor/net/check-cgroup.c \
	supervisor/net/check-guest.c \
	supervisor/net/check-run.c \
	supervisor/net/check.c \
	supervisor/net/fence-counts.c \
	supervisor/net/fence-inspect.c \
	supervisor/net/fence.c \
	supervisor/net/host-units.c \
	supervisor/net/netlink.c \
	supervisor/net/netlog-recorded.c \
	supervisor/net/netlog-tally.c \
	supervisor/net/netlog.c \
	supervisor/net/nft-batch.c \
	supervisor/net/nft-rule.c \
	supervisor/net/probe.c \
	supervisor/net/run-link-describe.c \
	supervisor/net/run-link.c \
	supervisor/net/run-net.c \
	supervisor/net/run-ruleset-load.c \
	supervisor/net/run-ruleset-read.c \
	supervisor/net/run-ruleset.c \
	supervisor/net/strict.c \
	supervisor/net/uplink.c \
	supervisor/net/warden.c

PROGRAMS += anchor-bpf anchor-check anchor-fence anchor-net anchor-netlog anchor-probe anchor-warden

UNIT_TESTS += test-check test-fence-address test-fence-connect test-fence-layers test-fence-sockets test-fence-uplink test-grant-map test-host-units test-netlog test-run-net
FUZZERS += fuzz-netlog
