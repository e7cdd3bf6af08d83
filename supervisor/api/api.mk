# SPDX-License-Identifier: LGPL-2.1-or-later
LIB_SRCS += supervisor/api/spec.c supervisor/api/store.c supervisor/api/event-log.c supervisor/api/units.c
UNIT_TESTS += test-spec
