/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* policy allow, policy deny, policy reload: what one run may reach is changed while it goes on. egressd does it, and writes down who asked. */

#include <string.h>

#include "ctl/ctl-egress.h"
#include "util/json.h"

CtlExit ctl_find_live_run(Ctl *ctl, const char *what, const char *subject, char ret[static ID_LENGTH + 1]) {
        _cleanup_json_ json_t *reply = NULL;
        const char *run;
        CtlExit r;

        if (text_is_id('r', subject)) {
                memcpy(ret, subject, ID_LENGTH + 1);
                return CTL_OK;
        }
        if (!text_is_id('i', subject))
                return ctl_usage(ctl, "\"%s\" is no run and no item: those are \"r\" or \"i\" and twelve letters and digits.", subject);

        r = ctl_call(ctl, what, "Show", json_pack("{s:s}", "item", subject), NULL, 0, &reply, NULL, 0);
        if (r != CTL_OK)
                return r;

        run = ctl_string(json_object_get(json_object_get(reply, "item"), "now"), "run");
        if (!run || !text_is_id('r', run)) {
                ctl_error(ctl, "Cannot %s: no run of %s is under way.", what, subject);
                return CTL_NOT_FOUND;
        }
        memcpy(ret, run, ID_LENGTH + 1);
        return CTL_OK;
}

/* What was allowed, and is denied all the same. */
static CtlExit print_overruled(Ctl *ctl, const char *run, const json_t *list) {
        for (size_t i = 0; i < json_array_size(list); i++) {
                const json_t *o = json_array_get(list, i);
                const char *name = ctl_string(o, "name") ?: "?", *rule = ctl_string(o, "rule") ?: "?", *file = ctl_string(o, "file"), *who = ctl_string(o, "who");
                int port = (int) json_integer_value(json_object_get(o, "port")), line = (int) json_integer_value(json_object_get(o, "line"));

                if (strncmp(rule, "live/", 5) == 0)
                        ctl_error(ctl, "%s:%d stays denied for %s: %s, added by %s, denies it. \"anchorctl policy allow %s %s\" takes that denial back.", name, port, run,
                                  rule, who ?: "?", run, rule);
                else
                        ctl_error(ctl, "%s:%d stays denied for %s: %s (%s:%d) denies it, and no live rule beats a denial of the file. Change it there, then "
                                  "\"anchorctl policy reload %s\".", name, port, run, rule, file ?: "?", line, run);
        }
        return CTL_REFUSED;
}

static CtlExit print(Ctl *ctl, const char *run, json_t *reply) {
        json_int_t n_cut = json_integer_value(json_object_get(reply, "cut"));
        const char *digest = ctl_string(reply, "digest");
        const json_t *overruled = json_object_get(reply, "overruled");

        if (ctl->o.json != CTL_JSON_OFF) {
                CtlExit r = ctl_print_json(ctl, reply);

                return r == CTL_OK && json_array_size(overruled) > 0 ? CTL_REFUSED : r;
        }
        if (json_array_size(overruled) > 0)
                return print_overruled(ctl, run, overruled);

        if (!json_is_true(json_object_get(reply, "changed")))
                ctl_note(ctl, "Nothing changes: that is what holds for %s already.", run);
        else if (n_cut > 0)
                ctl_note(ctl, "Holds for %s from now on, and has cut %d connection%s. Policy %.16s.", run, (int) n_cut, n_cut == 1 ? "" : "s", digest ?: "?");
        else
                ctl_note(ctl, "Holds for %s from now on. Policy %.16s.", run, digest ?: "?");
        return CTL_OK;
}

static CtlExit change(Ctl *ctl, const char *what, const char *method, bool amend, bool allow) {
        _cleanup_json_ json_t *reply = NULL;
        char run[ID_LENGTH + 1];
        CtlExit r;

        r = ctl_find_live_run(ctl, what, ctl->o.args[1], run);
        if (r == CTL_OK)
                r = ctl_call_egress(ctl, what, method,
                                    amend ? json_pack("{s:s, s:b, s:s}", "run", run, "allow", allow, "rule", ctl->o.args[2]) : json_pack("{s:s}", "run", run),
                                    &reply);
        return r == CTL_OK ? print(ctl, run, reply) : r;
}

CtlExit ctl_verb_policy_allow(Ctl *ctl) {
        return change(ctl, "allow that", "Amend", true, true);
}

CtlExit ctl_verb_policy_deny(Ctl *ctl) {
        return change(ctl, "deny that", "Amend", true, false);
}

CtlExit ctl_verb_policy_reload(Ctl *ctl) {
        return change(ctl, "read the policy anew", "Reload", false, false);
}
