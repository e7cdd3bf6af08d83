/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <jansson.h>
#include <stdbool.h>
#include <string.h>

#include "proxy/refusal.h"
#include "util/json.h"
#include "util/text.h"

typedef struct Status {
        const char *reason;
        int code;
        const char *text;
} Status;

static const Status statuses[] = {
        { "fronting",       421, "Misdirected Request" },
        { "malformed",      400, "Bad Request" },
        { "timeout",        408, "Request Timeout" },
        { "too-large",      400, "Bad Request" },
        { "resolve-failed", 502, "Bad Gateway" },
        { "unreachable",    502, "Bad Gateway" },
        { "unavailable",    503, "Service Unavailable" },
};

static Status find_status(const char *reason) {
        for (size_t i = 0; i < ELEMENTSOF(statuses); i++)
                if (strcmp(statuses[i].reason, reason) == 0)
                        return statuses[i];
        return (Status) { reason, 403, "Forbidden" };
}

void refusal_alert(const char *reason, uint8_t ret[static REFUSAL_ALERT_SIZE]) {
        bool decided = find_status(reason).code < 500;
        const uint8_t alert[] = { 21, 3, 3, 0, 2, 2, decided ? 49 : 80 };

        memcpy(ret, alert, sizeof(alert));
}

char *refusal_http(const Refusal *r, size_t *ret_size) {
        _cleanup_json_ json_t *body = NULL;
        _cleanup_free_ char *text = NULL;
        Status status = find_status(r->reason);
        char *out;

        body = json_pack("{s:s, s:s, s:s, s:s, s:i}", "error", "refused by Anchorhold", "reason", r->reason, "rule", r->rule,
                         "name", r->name, "port", r->port);
        text = body ? json_dumps(body, JSON_ENSURE_ASCII) : NULL;
        if (!text)
                return NULL;

        out = text_format("HTTP/1.1 %d %s\r\n"
                          "Content-Type: application/json\r\n"
                          "Content-Length: %zu\r\n"
                          "Anchorhold-Reason: %s\r\n"
                          "Anchorhold-Rule: %s\r\n"
                          "Connection: close\r\n"
                          "\r\n"
                          "%s\n",
                          status.code, status.text, strlen(text) + 1, r->reason, r->rule, text);
        if (out)
                *ret_size = strlen(out);
        return out;
}
