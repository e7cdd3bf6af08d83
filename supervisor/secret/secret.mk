# SPDX-License-Identifier: LGPL-2.1-or-later
LIB_SRCS += supervisor/secret/app-key.c supervisor/secret/bundle.c supervisor/secret/credential-store.c supervisor/secret/register.c \
            supervisor/secret/run-ca.c supervisor/secret/run-secrets.c supervisor/secret/run-store.c \
            supervisor/secret/seal.c supervisor/secret/secretd.c supervisor/secret/secretd-give.c supervisor/secret/secretd-register.c supervisor/secret/secretd-token.c supervisor/secret/sentinel.c \
            supervisor/secret/token-list.c supervisor/secret/upstream-ca.c
PROGRAMS += anchor-secretd
UNIT_TESTS += test-app-key test-secret test-secret-run test-secret-type test-secretd test-secretd-token
FUZZERS += fuzz-bundle
