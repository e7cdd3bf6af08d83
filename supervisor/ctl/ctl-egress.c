/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Asking egressd itself: what a run may reach is its answer, not anchord's. And the targets of such questions. */

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "ctl/ctl-egress.h"
#include "egress/egress-api.h"
#include "policy/policy.h"
#include "util/json.h"
#include "util/text.h"

enum { CALL_TIMEOUT_USEC = 30 * 1000 * 1000 };

static CtlExit report(Ctl *ctl, const char *what, int r, const char *error, const json_t *params) {
        if (error)
                return ctl_report(ctl, what, r, error, params);

        switch (r) {
        case -ENOENT:
        case -ECONNREFUSED:
                ctl_error(ctl, "Cannot %s: anchor-egressd-api.socket is not running.\n"
                               "Start it with \"systemctl start anchor-egressd-api.socket\".", what);
                return CTL_FAILED;
        case -EACCES:
        case -EPERM:
                return ctl_report(ctl, what, r, NULL, NULL);
        case -ETIMEDOUT:
        case -ETIME:
                ctl_error(ctl, "Cannot %s: anchor-egressd does not answer. \"systemctl status anchor-egressd.service\" says more.", what);
                return CTL_FAILED;
        default:
                ctl_error(ctl, "Cannot %s: %s. \"systemctl status anchor-egressd.service\" says more.", what, strerror(-r));
                return CTL_FAILED;
        }
}

CtlExit ctl_call_egress(Ctl *ctl, const char *what, const char *method, json_t *params, json_t **ret) {
        _cleanup_free_ char *full = text_format("%s.%s", EGRESS_INTERFACE, method), *error = NULL;
        _cleanup_(ipc_client_freep) IpcClient *client = NULL;
        _cleanup_json_ json_t *reply = NULL, *owned = params;
        int r;

        r = full && params ? ipc_client_new(&client, NULL, ctl->egress_path ?: EGRESS_OPERATOR_SOCKET) : -ENOMEM;
        if (r >= 0)
                r = ipc_client_call(client, full, TAKE_PTR(owned), NULL, 0, CALL_TIMEOUT_USEC, &reply, &error, NULL, 0);
        if (r < 0)
                return report(ctl, what, r, error, reply);

        if (ret)
                *ret = TAKE_PTR(reply);
        return CTL_OK;
}

/* ---- targets ---- */

static const struct {
        const char *scheme;
        uint16_t port;
        bool http;
} schemes[] = {
        { "https",      443,  true },
        { "http",       80,   true },
        { "wss",        443,  true },
        { "ws",         80,   true },
        { "ssh",        22,   false },
        { "git",        9418, false },
        { "postgres",   5432, false },
        { "postgresql", 5432, false },
        { "mysql",      3306, false },
        { "redis",      6379, false },
};

/* A host, or an address as inet_ntop() writes it. */
static const char *parse_host(const char *text, char ret[static 254]) {
        char bare[INET6_ADDRSTRLEN] = "";
        uint8_t address[16];
        size_t n = strlen(text);

        if (n >= 2 && text[0] == '[' && text[n - 1] == ']' && n - 2 < sizeof(bare)) {
                memcpy(bare, text + 1, n - 2);
                if (inet_pton(AF_INET6, bare, address) == 1 && inet_ntop(AF_INET6, address, ret, INET6_ADDRSTRLEN))
                        return NULL;
        }
        if (inet_pton(AF_INET, text, address) == 1 && inet_ntop(AF_INET, address, ret, INET_ADDRSTRLEN))
                return NULL;

        return egress_written_name(text, ret) ? "is no host name" : NULL;
}

static const char *parse_authority(const char *text, CtlTarget *t) {
        const char *colon = strrchr(text, ':'), *bracket = strrchr(text, ']');
        _cleanup_free_ char *host = NULL;
        unsigned long port = t->port;
        char *end;

        if (colon && bracket && colon < bracket)
                colon = NULL;
        if (colon) {
                port = colon[1] >= '0' && colon[1] <= '9' ? strtoul(colon + 1, &end, 10) : 0;
                if (port < 1 || port > 65535 || *end != '\0')
                        return "has no port between 1 and 65535";
        }
        if (port == 0)
                return "is not HOST:PORT";
        t->port = (uint16_t) port;

        host = colon ? strndup(text, (size_t) (colon - text)) : strdup(text);
        return host ? parse_host(host, t->name) : "needs more memory";
}

const char *ctl_target_parse(const char *text, CtlTarget *ret) {
        const char *separator = strstr(text, "://"), *rest, *at;
        _cleanup_free_ char *authority = NULL;
        CtlTarget t = {};
        size_t n;

        if (!separator) {
                const char *wrong = parse_authority(text, &t);

                if (!wrong)
                        *ret = t;
                return wrong;
        }

        for (size_t i = 0; i < ELEMENTSOF(schemes) && t.port == 0; i++)
                if (strlen(schemes[i].scheme) == (size_t) (separator - text) && strncasecmp(schemes[i].scheme, text, (size_t) (separator - text)) == 0) {
                        t.port = schemes[i].port;
                        t.http = schemes[i].http;
                }
        rest = separator + strlen("://");
        n = strcspn(rest, "/?#");
        at = memrchr(rest, '@', n);
        if (memchr(rest, '\\', strcspn(rest, "?#")))
                return "has a backslash, which browsers read as \"/\" and others do not";
        if (at && (t.http || memchr(rest, '@', (size_t) (at - rest))))
                return "has a user before the host: leave that out";
        authority = at ? strndup(at + 1, n - (size_t) (at + 1 - rest)) : strndup(rest, n);
        if (!authority)
                return "needs more memory";
        if (t.http) {
                const char *fragment = strchr(rest + n, '#');
                size_t m = fragment ? (size_t) (fragment - rest) - n : strlen(rest + n);

                if ((size_t) snprintf(t.path, sizeof(t.path), "%s%.*s", rest[n] == '/' ? "" : "/", (int) m, rest + n) >= sizeof(t.path))
                        return "is too long";
        }

        text = parse_authority(authority, &t);
        if (text)
                return t.port == 0 ? "has a scheme without a port of its own: name one" : text;
        *ret = t;
        return NULL;
}
