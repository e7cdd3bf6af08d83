/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Does the policy of the site still hold, after the host went to another deployment of its operating system? ledger-site.c says why that
 * is a question. This looks whenever policy is read (at the start, for a submission, for a lease), and once more at the end, so that what an operator
 * changed last is known when the host comes back as something else.
 */

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "api/operator-internal.h"
#include "util/cgroup.h"
#include "util/io.h"
#include "util/log.h"

enum { MOUNTINFO_MAX = 1024 * 1024 };

/* A deployment's /etc is a folder of its own, so the folder that is mounted there names the deployment. "" where nothing is mounted. */
static int find_deployment(char **ret) {
        _cleanup_free_ char *mountinfo = NULL;
        int r;

        r = io_read_file(AT_FDCWD, "/proc/self/mountinfo", MOUNTINFO_MAX, &mountinfo, NULL);
        if (r < 0)
                return r;
        *ret = mountinfo_find_root(mountinfo, "/etc") ?: strdup("");
        return *ret ? 0 : -ENOMEM;
}

int site_policy_look(Manager *m) {
        char digest[HEX_SHA256_SIZE];
        int r;

        r = policy_site_digest(POLICY_OPERATOR_DIR, digest);
        return r < 0 ? log_error_errno(r, "cannot tell what the policy in " POLICY_OPERATOR_DIR " is") : site_policy_see(m, digest);
}

int site_policy_see(Manager *m, const char *digest) {
        _cleanup_free_ char *deployment = NULL;
        bool waits;
        int r;

        r = find_deployment(&deployment);
        if (r < 0)
                return log_error_errno(r, "cannot tell which deployment this is");
        r = ledger_site_see(m->ledger, deployment, digest, &waits);
        if (r < 0)
                return manager_fatal(m, r, "record the site's policy");

        if (waits && !m->site_waits)
                log_warning("this host runs another deployment, and the policy in " POLICY_OPERATOR_DIR " is another: nothing is leased until"
                            " somebody accepts it (anchorctl policy accept)");
        m->site_waits = waits;
        return 0;
}

int site_policy_on_accept(IpcCall *call, json_t *params, void *userdata) {
        Manager *m = userdata;
        const char *digest = operator_get(params, "digest");
        char actor[64];
        int r;

        if (!digest || strlen(digest) != HEX_SHA256_SIZE - 1)
                return operator_bad_input(call, "/digest", "not a digest");
        r = site_policy_look(m);
        if (r < 0)
                return r;

        r = ledger_site_accept(m->ledger, digest, peer_name(ipc_call_peer(call), actor));
        if (r < 0)
                return manager_fatal(m, r, "accept the site's policy");
        if (r == LEDGER_E_NO_WORK)
                return ipc_call_refuse(call, "Conflict", "no policy waits to be accepted");
        if (r == LEDGER_E_CONFLICT)
                return ipc_call_refuse(call, "Conflict", "the policy in " POLICY_OPERATOR_DIR " is another one by now; look at it again");

        m->site_waits = false;
        log_notice("the site's policy was accepted by %s", peer_name(ipc_call_peer(call), actor));
        outbox_kick(m);
        scheduler_kick(m);
        return ipc_call_reply(call, NULL);
}

json_t *site_policy_status(Manager *m) {
        LedgerSite site;

        if (ledger_site_get(m->ledger, &site) < 0)
                return json_null();
        return json_pack("{s:s, s:b, s:s?}", "digest", site.digest, "waits", site.waits, "previous", site.waits ? site.previous : NULL);
}
