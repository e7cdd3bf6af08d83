# SPDX-License-Identifier: LGPL-2.1-or-later
LIB_SRCS += supervisor/secret/bundle.c supervisor/secret/credential-store.c supervisor/secret/run-ca.c \
            supervisor/secret/run-secrets.c supervisor/secret/seal.c supervisor/secret/secret.c \
            supervisor/secret/sentinel.c
UNIT_TESTS += test-secret
FUZZERS += fuzz-bundle
