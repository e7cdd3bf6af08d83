/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* status, version: this host. */

#include <errno.h>
#include <string.h>

#include "ctl/ctl-table.h"
#include "ctl/ctl.h"
#include "util/json.h"
#include "util/text.h"
#include "util/version.h"

CtlExit ctl_verb_version(Ctl *ctl) {
        if (ctl->o.json != CTL_JSON_OFF) {
                _cleanup_json_ json_t *j = json_pack("{s:s}", "version", ANCHORHOLD_VERSION);

                return ctl_print_json(ctl, j);
        }

        (void) fprintf(ctl->out, "anchorhold %s\n", ANCHORHOLD_VERSION);
        return CTL_OK;
}

/* ---- status ---- */

char *ctl_value_text(const json_t *value) {
        _cleanup_free_ char *raw = NULL;

        if (json_is_string(value))
                return text_escape(json_string_value(value), json_string_length(value), false);
        if (json_is_boolean(value))
                return strdup(json_is_true(value) ? "yes" : "no");
        if (json_is_null(value))
                return strdup("-");

        raw = json_dumps(value, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_ENCODE_ANY);
        return raw ? text_escape(raw, strlen(raw), false) : NULL;
}

static void status_line(Ctl *ctl, const char *key, const json_t *value) {
        _cleanup_free_ char *text = ctl_value_text(value), *safe = text_escape(key, strlen(key), false);

        (void) fprintf(ctl->out, "%16s: %s\n", safe ?: "?", text ?: "?");
}

CtlExit ctl_verb_status(Ctl *ctl) {
        _cleanup_json_ json_t *reply = NULL;
        const json_t *status;
        const char *key;
        json_t *value;
        CtlExit r;

        r = ctl_call(ctl, "show the status", "Status", json_object(), NULL, 0, &reply, NULL, 0);
        if (r != CTL_OK)
                return r;

        status = json_object_get(reply, "status") ?: reply;
        if (ctl->o.json != CTL_JSON_OFF)
                return ctl_print_json(ctl, status);

        json_object_foreach((json_t *) status, key, value) {
                const char *inner;
                json_t *v;

                if (!json_is_object(value) || json_object_size(value) == 0) {
                        status_line(ctl, key, value);
                        continue;
                }
                json_object_foreach(value, inner, v) {
                        _cleanup_free_ char *both = text_format("%s %s", key, inner);

                        status_line(ctl, both ?: inner, v);
                }
        }
        return CTL_OK;
}
