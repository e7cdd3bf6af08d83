/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Names that no run may reach. The agreement check asks every policy for each of them, and a run whose policy says yes is ended; so a policy that
 * allows one is refused where it is written: in a file, when it is read; live, before it holds.
 *
 * What stands behind a cloud's name is refused by its address as well (egress/address-judge.c has the providers' pages). The
 * names are from Google's "About VM metadata", AWS's "Retrieve instance metadata" (the alias within EC2), Tencent's "Querying instance metadata", and
 * Equinix's "Metadata". ".invalid" is nobody's (RFC 6761, 6.4).
 */

#include <string.h>

#include "policy/policy.h"

static const EgressNever never[] = {
        { "metadata.google.internal",   EGRESS_NEVER_METADATA },
        { "metadata.goog",              EGRESS_NEVER_METADATA },
        { "instance-data.ec2.internal", EGRESS_NEVER_METADATA },
        { "metadata.tencentyun.com",    EGRESS_NEVER_METADATA },
        { "metadata.platformequinix.com", EGRESS_NEVER_METADATA },
        { "localhost",                  EGRESS_NEVER_LOOPBACK },
        { "anchor-check.invalid",       EGRESS_NEVER_UNLISTED },
};

const EgressNever *egress_never(size_t *ret_n) {
        *ret_n = ELEMENTSOF(never);
        return never;
}

bool egress_never_covers(const EgressNever *n, const char *pattern) {
        size_t m = strlen(n->name), k = strlen(pattern);

        if (strncmp(pattern, "*.", 2) != 0)
                return strcmp(pattern, n->name) == 0;
        return m > k - 1 && strcmp(n->name + m - (k - 1), pattern + 1) == 0;
}

const EgressNever *egress_never_find(const char *pattern) {
        for (size_t i = 0; i < ELEMENTSOF(never); i++)
                if (egress_never_covers(&never[i], pattern))
                        return &never[i];
        return NULL;
}

const EgressNever *egress_policy_allows_never(const EgressPolicy *p) {
        for (size_t i = 0; i < ELEMENTSOF(never); i++)
                if (egress_policy_knows(p, never[i].name, NULL))
                        return &never[i];
        return NULL;
}

const char *egress_never_reason(const EgressNever *n) {
        switch (n->kind) {
        case EGRESS_NEVER_METADATA:
                return "is a cloud's metadata service, which no run may reach: the agreement check would end each run at once";
        case EGRESS_NEVER_LOOPBACK:
                return "is the host itself, which no run may reach: the agreement check would end each run at once";
        case EGRESS_NEVER_UNLISTED:
                break;
        }
        return "is the name that the agreement check takes for one that nobody allows: it would end each run at once";
}
