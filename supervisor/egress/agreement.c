/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "egress/agreement-api.h"
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

/* "10.0.0.1", "10.0.0.1:80", "[fd00::1]", "[fd00::1]:80" */
static bool literal_matches(const char *host, const char *address, uint16_t port) {
        const char *before = strchr(address, ':') ? "[" : "", *after = *before ? "]" : "";
        char bare[64], with_port[64 + 6];

        (void) snprintf(bare, sizeof(bare), "%s%s%s", before, address, after);
        (void) snprintf(with_port, sizeof(with_port), "%s:%u", bare, port);
        return strcasecmp(host, bare) == 0 || strcasecmp(host, with_port) == 0;
}

bool agreement_host_matches(const char *host, const char *name, uint16_t port) {
        char copy[254 + 6], normal[254], digits[6];
        char *colon;

        if (egress_normalise_name(name, normal) < 0)
                return literal_matches(host, name, port);
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
        /* a literal address is never a server's name (RFC 6066, 3) */
        if (egress_normalise_name(name, normal) < 0)
                return seen->sni ? "fronting" : NULL;
        if (!seen->sni)
                return "no-sni";
        if (egress_normalise_name(seen->sni, normal) < 0 || strcmp(normal, name) != 0)
                return "fronting";
        return NULL;
}

bool agreement_same_field(const char *a, const char *b) {
        for (;; a++, b++) {
                char x = *a == '_' ? '-' : *a, y = *b == '_' ? '-' : *b;

                if (strncasecmp(&x, &y, 1) != 0)
                        return false;
                if (x == '\0')
                        return true;
        }
}

static bool is_one_of(const char *name, const char *const *list, size_t n) {
        for (size_t i = 0; i < n; i++)
                if (agreement_same_field(name, list[i]))
                        return true;
        return false;
}

bool agreement_field_overrides(const char *name) {
        static const char *const overrides[] = {
                /* the method: frameworks, and what asks an authenticator (nginx, Traefik) */
                "x-http-method", "x-http-method-override", "x-method-override", "x-forwarded-method", "x-original-method", "x-envoy-original-method",
                /* the path: IIS, Symfony, nginx's ingress, Traefik, Spring, Envoy */
                "x-original-url", "x-rewrite-url", "x-original-uri", "x-original-path", "x-forwarded-uri", "x-forwarded-path", "x-forwarded-prefix",
                "x-replaced-path", "x-envoy-original-path",
                /* the host: RFC 7239, and what there was before and beside it */
                "forwarded", "x-forwarded-host", "x-forwarded-server", "x-host", "x-original-host", "x-http-host-override", "x-envoy-original-host",
        };

        return is_one_of(name, overrides, ELEMENTSOF(overrides));
}

bool agreement_field_names_path(const char *name) {
        static const char *const paths[] = {
                "destination", /* RFC 4918, 10.3; OpenStack's object store as well */
                /* Amazon S3 and what speaks it, and its kin */
                "x-amz-copy-source", "x-amz-rename-source", "x-goog-copy-source", "x-oss-copy-source", "x-cos-copy-source", "x-obs-copy-source", "x-bce-copy-source",
                "x-tos-copy-source",
                "x-ms-copy-source", "x-ms-rename-source", "x-ms-file-rename-source", /* Azure */
                "x-copy-from", "x-symlink-target", "x-object-manifest",              /* OpenStack */
        };

        return is_one_of(name, paths, ELEMENTSOF(paths));
}
