# SPDX-License-Identifier: LGPL-2.1-or-later
LIB_SRCS += supervisor/util/background.c supervisor/util/cgroup.c supervisor/util/confine.c supervisor/util/dial.c supervisor/util/io.c supervisor/util/json.c supervisor/util/json-position.c supervisor/util/log.c supervisor/util/secret.c supervisor/util/text.c
UNIT_TESTS += test-background test-cgroup test-confine test-dial test-io test-json test-log test-text
FUZZERS += fuzz-json-position
