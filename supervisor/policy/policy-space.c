/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * "space" of host.json: what of the disk below /var/lib/anchorhold is for what.
 *
 *   { "reserve": AMOUNT,                      stays free: below it nothing is leased
 *     "bundles": AMOUNT and "age": "90d",     seeds, results and diffs of items that have ended; what is older or more is pruned
 *     "logs":    AMOUNT and "age": "365d",    the same for what their runs printed and did
 *     "scratch": AMOUNT }                     of the disks of all microVMs at once: one more waits
 *
 * An AMOUNT is { "size": "8G", "percent": 40 }, per cent of the file system. Of a reserve the larger holds, of a maximum the smaller. A
 * member that is left out is as the vendor has it; one that is there says all about its kind.
 */

#include "policy/policy-internal.h"

enum { PERCENT_MAX = 100, AGE_MAX_S = 100 * 365 * 86400U };

static const uint64_t size_max = UINT64_C(1) << 50;

void policy_space_init(PolicySpace *ret) {
        *ret = (PolicySpace) {
                .reserve = { .bytes = UINT64_C(1) << 30, .percent = 5 },
                .bundles = { .max = { .percent = 40 }, .age_s = 90 * 86400 },
                .logs = { .max = { .percent = 10 }, .age_s = 365 * 86400 },
        };
}

static uint64_t share(uint64_t total, uint64_t percent) {
        return total / 100 * percent + total % 100 * percent / 100;
}

uint64_t policy_amount_largest(const PolicyAmount *a, uint64_t total) {
        uint64_t s = share(total, a->percent);

        return s > a->bytes ? s : a->bytes;
}

uint64_t policy_amount_smallest(const PolicyAmount *a, uint64_t total) {
        uint64_t bytes = a->bytes > 0 ? a->bytes : UINT64_MAX, s = a->percent > 0 ? share(total, a->percent) : UINT64_MAX;

        return s < bytes ? s : bytes;
}

static bool read_amount(const Node *space, const char *key, const char *const *known, uint64_t min, PolicyAmount *ret, Node *ret_node) {
        PolicyAmount a = {};
        Node n;

        if (!node_object(space, key, 0, &n) || !node_check_object(&n, known))
                return false;
        (void) node_size(&n, "size", 0, min, size_max, &a.bytes);
        (void) node_uint(&n, "percent", 0, min, PERCENT_MAX, &a.percent);
        *ret = a;
        *ret_node = n;
        return true;
}

static void read_limit(const Node *space, const char *key, struct PolicySpaceLimit *ret) {
        static const char *const known[] = { "size", "percent", "age", NULL };
        struct PolicySpaceLimit limit = {};
        Node n;

        if (!read_amount(space, key, known, 1, &limit.max, &n))
                return;
        (void) node_duration(&n, "age", 0, 1, AGE_MAX_S, &limit.age_s);
        *ret = limit;
}

void policy_read_space(const Node *top, PolicySpace *ret) {
        static const char *const known[] = { "reserve", "bundles", "logs", "scratch", NULL };
        static const char *const known_amount[] = { "size", "percent", NULL };
        Node n, part;

        if (!node_object(top, "space", 0, &n) || !node_check_object(&n, known))
                return;
        if (read_amount(&n, "reserve", known_amount, 0, &ret->reserve, &part) && json_object_size(part.value) == 0)
                node_fail(&part, "must have \"size\" or \"percent\"; { \"percent\": 0 } is no reserve");
        read_limit(&n, "bundles", &ret->bundles);
        read_limit(&n, "logs", &ret->logs);
        (void) read_amount(&n, "scratch", known_amount, 1, &ret->scratch, &part);
}
