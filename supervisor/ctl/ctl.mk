# SPDX-License-Identifier: LGPL-2.1-or-later
LIB_SRCS += supervisor/ctl/ctl.c \
            supervisor/ctl/ctl-audit.c \
            supervisor/ctl/ctl-cost.c \
            supervisor/ctl/ctl-evidence.c \
            supervisor/ctl/ctl-manual.c \
            supervisor/ctl/ctl-credential.c \
            supervisor/ctl/ctl-credential-host.c \
            supervisor/ctl/ctl-deployment.c \
            supervisor/ctl/ctl-doctor.c \
            supervisor/ctl/ctl-drain.c \
            supervisor/ctl/ctl-egress.c \
            supervisor/ctl/ctl-follow.c \
            supervisor/ctl/ctl-format.c \
            supervisor/ctl/ctl-help.c \
            supervisor/ctl/ctl-host.c \
            supervisor/ctl/ctl-item.c \
            supervisor/ctl/ctl-options.c \
            supervisor/ctl/ctl-pager.c \
            supervisor/ctl/ctl-policy.c \
            supervisor/ctl/ctl-policy-accept.c supervisor/ctl/ctl-policy-explain.c \
            supervisor/ctl/ctl-policy-import.c \
            supervisor/ctl/ctl-policy-suggest.c \
            supervisor/ctl/ctl-policy-test.c \
            supervisor/ctl/ctl-policy-live.c \
            supervisor/ctl/ctl-policy-log.c \
            supervisor/ctl/ctl-policy-templates.c \
            supervisor/ctl/ctl-prune.c supervisor/ctl/ctl-progress.c \
            supervisor/ctl/ctl-record.c \
            supervisor/ctl/ctl-seed.c \
            supervisor/ctl/ctl-show.c \
            supervisor/ctl/ctl-submit.c \
            supervisor/ctl/ctl-table.c \
            supervisor/ctl/ctl-waiting.c
PROGRAMS += anchorctl
UNIT_TESTS += test-ctl test-ctl-credential test-ctl-follow test-ctl-format test-ctl-manual test-ctl-offers test-ctl-import test-ctl-policy
