# SPDX-License-Identifier: LGPL-2.1-or-later
LIB_SRCS += supervisor/ledger/ledger-schema.c supervisor/ledger/ledger.c supervisor/ledger/ledger-run.c \
            supervisor/ledger/ledger-drain.c supervisor/ledger/ledger-site.c supervisor/ledger/ledger-space.c supervisor/ledger/ledger-query.c supervisor/ledger/ledger-budget.c supervisor/ledger/ledger-cost.c supervisor/ledger/ledger-recover.c
UNIT_TESTS += test-ledger test-ledger-budget test-ledger-crash test-ledger-images
