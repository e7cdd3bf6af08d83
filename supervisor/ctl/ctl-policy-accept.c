/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* policy accept: the site's policy that a rollback of the operating system brought back shall hold again. */

#include "ctl/ctl-waiting.h"
#include "ctl/ctl.h"
#include "util/json.h"

CtlExit ctl_verb_policy_accept(Ctl *ctl) {
        _cleanup_json_ json_t *status = NULL;
        const char *digest;
        const json_t *site;
        CtlExit r;

        r = ctl_call(ctl, "ask for the status", "Status", json_object(), NULL, 0, &status, NULL, 0);
        if (r != CTL_OK)
                return r;
        site = json_object_get(status, "site_policy");
        if (!json_is_true(json_object_get(site, "waits"))) {
                ctl_note(ctl, "No policy waits to be accepted.");
                return CTL_OK;
        }

        /* with a digest: only what somebody has looked at */
        digest = ctl->o.n_args > 1 ? ctl->o.args[1] : ctl_string(site, "digest");
        r = ctl_call(ctl, "accept the policy", "AcceptPolicy", json_pack("{s:s?}", "digest", digest), NULL, 0, NULL, NULL, 0);
        if (r != CTL_OK)
                return r;

        ctl_note(ctl, "The policy in /etc/anchorhold holds again, in place of %s.", ctl_string(site, "previous") ?: "?");
        waiting_ended(ctl, NULL, "Items are leased again.");
        return CTL_OK;
}
