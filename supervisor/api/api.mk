# SPDX-License-Identifier: LGPL-2.1-or-later
LIB_SRCS += supervisor/api/spec.c
UNIT_TESTS += test-spec
