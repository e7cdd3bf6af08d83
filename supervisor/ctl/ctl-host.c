/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* status, version: this host. */

#include <errno.h>
#include <string.h>

#include "ctl/ctl-evidence.h"
#include "ctl/ctl-format.h"
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

/* One of a list: what a run is in one line, anything else as it is. */
static char *entry_text(const json_t *value) {
        const char *run = ctl_string(value, "run"), *item = ctl_string(value, "item"), *stage = ctl_string(value, "stage"), *phase = ctl_string(value, "phase");
        _cleanup_free_ char *raw = NULL;

        if (!run || !item || !stage || !phase)
                return ctl_value_text(value);
        raw = text_format("%s of %s, %s: %s", run, item, stage, phase);
        return raw ? text_escape(raw, strlen(raw), false) : NULL;
}

static char *status_text(const json_t *value) {
        _cleanup_free_ char *all = NULL;

        if ((json_is_object(value) && json_object_size(value) == 0) || (json_is_array(value) && json_array_size(value) == 0))
                return strdup("none");
        if (!json_is_array(value))
                return ctl_value_text(value);

        for (size_t i = 0; i < json_array_size(value); i++) {
                _cleanup_free_ char *one = entry_text(json_array_get(value, i));
                char *longer = text_format("%s%s%s", all ?: "", all ? "; " : "", one ?: "?");

                free(all);
                all = longer;
                if (!all)
                        return NULL;
        }
        return TAKE_PTR(all);
}

static void status_line(Ctl *ctl, const char *key, const json_t *value) {
        _cleanup_free_ char *text = status_text(value), *named = text ? ctl_name_users(text) : NULL, *safe = text_escape(key, strlen(key), false);

        (void) fprintf(ctl->out, "%16s: %s\n", safe ?: "?", named ?: "?");
}

/* What is in "space" is bytes. */
static void status_member(Ctl *ctl, const char *key, const char *inner, const json_t *value) {
        _cleanup_free_ char *both = text_format("%s %s", key, inner);
        _cleanup_json_ json_t *size = NULL;
        char text[CTL_TEXT_SIZE];

        if (strcmp(key, "space") == 0 && json_is_integer(value) && json_integer_value(value) >= 0)
                size = json_string(format_size((uint64_t) json_integer_value(value), text));
        status_line(ctl, both ?: inner, size ?: value);
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
                        status_member(ctl, key, inner, v);
                }
        }
        return CTL_OK;
}
