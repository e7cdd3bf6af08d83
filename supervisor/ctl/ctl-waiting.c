/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Why no run starts on this host: one list, for whoever says that runs start, or do not. */

#include "ctl/ctl-waiting.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "ctl/ctl-evidence.h"
#include "util/json.h"

static void why(json_t *list, const char *format, ...) _printf_(2, 3);

static void why(json_t *list, const char *format, ...) {
        _cleanup_free_ char *text = NULL, *named = NULL;
        va_list ap;
        int n;

        va_start(ap, format);
        n = vasprintf(&text, format, ap);
        va_end(ap);
        if (n < 0)
                text = NULL;
        named = text ? ctl_name_users(text) : NULL;
        (void) json_array_append_new(list, json_string(named ?: "out of memory"));
}

/* That runs are many is none of these reasons: they end. A verification that waits may do so for an hour, and somebody can mend that. */
static void why_full(json_t *list, const json_t *status) {
        int64_t waiting = json_integer_value(json_object_get(status, "verify_waiting")), most = json_integer_value(json_object_get(status, "max_runs"));
        size_t n = json_array_size(json_object_get(status, "runs"));

        if (waiting > 0 && most > 0 && n >= (size_t) most)
                why(list, "%" PRIi64 " of the %zu runs that this host has, as many as it may, %s; their items' notes say for what", waiting, n,
                    waiting == 1 ? "is a verification that cannot begin yet" : "are verifications that cannot begin yet");
}

json_t *waiting_reasons(const json_t *status) {
        const json_t *space = json_object_get(status, "space");
        const char *name, *reason;
        json_t *list = json_array(), *value;

        if (!list)
                return NULL;

        if (json_is_false(json_object_get(status, "ready")))
                why(list, "anchord still settles what was before its start");
        json_object_foreach(json_object_get(status, "enforcers"), name, value) {
                const char *text = json_string_value(value) ?: "?";

                if (strcmp(text, "ok") != 0)
                        why(list, "%s: %s", name, text);
        }
        reason = ctl_string(status, "host_problem");
        if (reason)
                why(list, "host.json cannot be used: %s", reason);
        reason = ctl_string(space, "reason");
        if (reason)
                why(list, "%s%s", reason, json_is_true(json_object_get(space, "low")) ? "; \"anchorctl prune --dry-run\" shows what could go" : "");
        if (json_is_object(json_object_get(status, "drain")))
                why(list, "this host is drained; \"anchorctl host undrain\" ends that");
        if (json_is_true(json_object_get(json_object_get(status, "site_policy"), "waits")))
                why(list, "the policy in /etc/anchorhold is another one since the host went back to another deployment; \"anchorctl policy accept\" ends that");
        reason = ctl_string(status, "hold_reason");
        if (json_is_true(json_object_get(status, "hold")))
                why(list, "on hold%s%s; \"anchorctl release\" ends that", reason ? ": " : "", reason ?: "");
        why_full(list, status);
        return list;
}

void waiting_note(Ctl *ctl, const json_t *reasons) {
        const json_t *reason;
        size_t i;

        json_array_foreach(reasons, i, reason) {
                ctl_note(ctl, "No run starts: %s.", json_string_value(reason));
        }
}

void waiting_ended(Ctl *ctl, const char *what, const char *otherwise) {
        _cleanup_json_ json_t *status = NULL, *reasons = NULL;

        if (ctl->o.quiet)
                return;
        if (ctl_call(ctl, "ask for the status", "Status", json_object(), NULL, 0, &status, NULL, 0) == CTL_OK)
                reasons = waiting_reasons(status);

        if (reasons && json_array_size(reasons) == 0) {
                ctl_note(ctl, "%s", otherwise);
                return;
        }
        if (what)
                ctl_note(ctl, "%s", what);
        waiting_note(ctl, reasons);
}
