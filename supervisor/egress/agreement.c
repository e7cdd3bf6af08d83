/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "egress/agreement.h"
#include "util/cleanup.h"

static const char *const protocols[] = {
        [EGRESS_TLS] = "tls",
        [EGRESS_HTTP] = "http",
        [EGRESS_RAW] = "raw",
};

int protocol_from_text(const char *s, EgressProtocol *ret) {
        for (size_t i = 0; i < ELEMENTSOF(protocols); i++)
                if (strcmp(s, protocols[i]) == 0) {
                        *ret = (EgressProtocol) i;
                        return 0;
                }
        return -EINVAL;
}

const char *protocol_to_text(EgressProtocol p) {
        return protocols[p];
}

bool agreement_host_matches(const char *host, const char *name, uint16_t port) {
        char copy[254 + 6], normal[254], digits[6];
        char *colon;

        if (strlen(host) >= sizeof(copy))
                return false;
        strcpy(copy, host);

        colon = strchr(copy, ':');
        if (colon) {
                (void) snprintf(digits, sizeof(digits), "%u", port);
                if (strcmp(colon + 1, digits) != 0)
                        return false;
                *colon = '\0';
        }

        return egress_normalise_name(copy, normal) >= 0 && strcmp(normal, name) == 0;
}

const char *agreement_check(const char *name, uint16_t port, EgressProtocol expected, const Observed *seen) {
        char normal[254];

        if (expected == EGRESS_RAW)
                return NULL;
        if (seen->protocol != expected)
                return "protocol";

        if (expected == EGRESS_HTTP)
                return seen->host && agreement_host_matches(seen->host, name, port) ? NULL : "fronting";

        if (seen->ech)
                return "ech"; /* the name that counts would be the hidden one */
        if (!seen->sni)
                return "no-sni";
        if (egress_normalise_name(seen->sni, normal) < 0 || strcmp(normal, name) != 0)
                return "fronting";
        return NULL;
}
