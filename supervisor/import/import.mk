# SPDX-License-Identifier: LGPL-2.1-or-later
# Everything that touches a bundle which came out of a guest.

LIB_SRCS += \
	supervisor/import/bundle-header.c \
	supervisor/import/git.c \
	supervisor/import/import.c \
	supervisor/import/import-call.c \
	supervisor/import/import-walk.c \
	supervisor/import/raw-diff.c \
	supervisor/import/tree-path.c

PROGRAMS += anchor-import

UNIT_TESTS += test-import test-import-call test-import-check test-git

FUZZERS += fuzz-bundle-header fuzz-raw-diff
