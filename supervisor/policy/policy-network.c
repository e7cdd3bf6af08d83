/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Networks of rules, and those that no rule may allow.
 *
 * A literal address goes to the policy as it is (policy-egress-decide.c), and so do the addresses that the agreement check asks every policy for: a run whose
 * policy says yes to one is ended. Others would be allowed to no avail: they are synthetic, so that a connection is one to the name behind it, or are refused as addresses whatever a
 * rule says (egress/address-judge.c). So a rule for either is refused where it is written, with the range.
 *
 * The run's own link is in private space, which a wider network may well be about: what the proxy connects to at these addresses is the host's network, and no run's link. Only
 * a rule about nothing else is a mistake.
 */

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "policy/policy-egress.h"

static const EgressNeverNetwork never[] = {
        { "127.0.0.0/8", "which is the host itself, and no run may reach: the agreement check would end each run at once" },
        { "169.254.0.0/16", "where clouds have their metadata services, which no run may reach: the agreement check would end each run at once" },
        { EGRESS_ASKED_HOST "/32", "which the agreement check takes for a host that nobody allows: it would end each run at once" },
        { "198.18.0.0/15", "where the names of a run have their addresses: a connection there is one to a name" },
        { "10.255.255.0/30", "which is each run's own link to its proxy", .inside = true },
};

bool egress_network_parse(const char *text, EgressNetwork *ret) {
        char copy[INET6_ADDRSTRLEN + 4], *slash;
        EgressNetwork n = {};

        /* the host's own check of its networks is the stricter one */
        if (check_network(text) || strlen(text) >= sizeof(copy))
                return false;
        strcpy(copy, text);
        slash = strchr(copy, '/');
        *slash = '\0';
        n.family = strchr(copy, ':') ? AF_INET6 : AF_INET;
        n.length = (unsigned) atoi(slash + 1);
        if (inet_pton(n.family, copy, n.bytes) != 1)
                return false;
        *ret = n;
        return true;
}

bool egress_network_within(const EgressNetwork *inner, const EgressNetwork *outer) {
        if (inner->family != outer->family || inner->length < outer->length)
                return false;
        for (unsigned i = 0; i < outer->length; i++)
                if ((inner->bytes[i / 8] ^ outer->bytes[i / 8]) & (0x80 >> (i % 8)))
                        return false;
        return true;
}

/* Does a denial take this part of the permission's network out, whatever the port? One that is wider than the permission loses to it. */
static bool takes_out(const EgressRule *deny, const EgressNetwork *part, const EgressNetwork *allowed) {
        EgressNetwork n;

        return deny->subject == EGRESS_NETWORK && deny->n_ports == 0 && deny->methods == EGRESS_ANY_METHOD && deny->n_paths == 0 &&
               egress_network_parse(deny->pattern, &n) && egress_network_within(part, &n) && egress_network_within(&n, allowed);
}

static bool is_taken_out(const EgressRules *s, const EgressNetwork *part, const EgressNetwork *allowed) {
        for (size_t i = s->n_allow; i < s->n_rules; i++)
                if (takes_out(&s->rules[i], part, allowed))
                        return true;
        return false;
}

const EgressNeverNetwork *egress_never_network(const EgressRules *s, const EgressRule *r) {
        EgressNetwork allowed, range;

        if (r->subject != EGRESS_NETWORK || !egress_network_parse(r->pattern, &allowed))
                return NULL;

        for (size_t i = 0; i < ELEMENTSOF(never); i++) {
                bool inside, covers;

                if (!egress_network_parse(never[i].network, &range))
                        continue;
                inside = egress_network_within(&allowed, &range);
                covers = egress_network_within(&range, &allowed) && !never[i].inside;
                if ((inside || covers) && !is_taken_out(s, inside ? &allowed : &range, &allowed))
                        return &never[i];
        }
        return NULL;
}
