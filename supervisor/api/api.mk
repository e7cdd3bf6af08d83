# SPDX-License-Identifier: LGPL-2.1-or-later
LIB_SRCS += supervisor/api/authority.c supervisor/api/drain.c supervisor/api/site-policy.c supervisor/api/enforcers.c supervisor/api/event-log.c supervisor/api/flow-begin.c supervisor/api/flow-budget.c supervisor/api/flow-cleanup.c supervisor/api/flow-plan.c supervisor/api/flow-setup.c supervisor/api/flow-slice.c supervisor/api/flow-units.c \
            supervisor/api/flow.c supervisor/api/followers.c supervisor/api/manager.c supervisor/api/manager-policy.c supervisor/api/operator-api.c \
            supervisor/api/operator-submit.c supervisor/api/operator-wait.c supervisor/api/outbox.c supervisor/api/revocations.c supervisor/api/prune.c supervisor/api/run-api.c supervisor/api/run-endings.c supervisor/api/scheduler.c supervisor/api/space.c supervisor/api/spec.c \
            supervisor/api/store.c supervisor/api/template.c supervisor/api/unit-trail.c supervisor/api/units.c supervisor/api/units-signals.c
PROGRAMS += anchord
UNIT_TESTS += test-authority test-space test-event-log test-flow test-flow-budget test-flow-frozen test-flow-resume test-manager test-revocations test-run-api test-run-endings test-settling test-spec test-store test-unit-trail test-units
