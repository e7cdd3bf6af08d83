# SPDX-License-Identifier: LGPL-2.1-or-later
# The driver of one run: the pure parts (spec, plan, command, text) and the I/O around them.
LIB_SRCS += supervisor/run/agent-view.c supervisor/run/run-boot.c supervisor/run/run-calls.c supervisor/run/run-command.c supervisor/run/run-guest.c \
            supervisor/run/run-output.c supervisor/run/run-plan.c supervisor/run/run-record.c supervisor/run/run-spec.c supervisor/run/run-text.c \
            supervisor/run/run.c
PROGRAMS += anchor-run
UNIT_TESTS += test-agent-view test-run test-run-limits test-run-plan
FUZZERS += fuzz-agent-view
