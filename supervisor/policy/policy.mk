# SPDX-License-Identifier: LGPL-2.1-or-later
LIB_SRCS += supervisor/policy/policy-load.c \
            supervisor/policy/policy-set.c \
            supervisor/policy/policy-budget.c \
            supervisor/policy/policy-node.c \
            supervisor/policy/policy-units.c \
            supervisor/policy/policy-egress.c \
            supervisor/policy/policy-egress-decide.c \
            supervisor/policy/policy-git.c \
            supervisor/policy/policy-git-rule.c \
            supervisor/policy/policy-live.c \
            supervisor/policy/policy-name.c \
            supervisor/policy/policy-network.c \
            supervisor/policy/policy-never.c \
            supervisor/policy/policy-overruled.c \
            supervisor/policy/policy-path.c \
            supervisor/policy/policy-reach.c \
            supervisor/policy/policy-rules.c \
            supervisor/policy/policy-rules-text.c \
            supervisor/policy/policy-app.c \
            supervisor/policy/policy-credential.c \
            supervisor/policy/policy-provider.c \
            supervisor/policy/policy-harness.c \
            supervisor/policy/policy-workflow.c \
            supervisor/policy/policy-site.c \
            supervisor/policy/policy-space.c \
            supervisor/policy/policy-host.c
UNIT_TESTS += test-policy-site test-policy-app test-policy-egress test-policy-git test-policy-live test-policy-load test-policy-schema
FUZZERS += fuzz-policy fuzz-policy-path
BENCHES += bench-policy bench-load bench-relay
