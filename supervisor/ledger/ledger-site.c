/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Which policy of the site's own (/etc/anchorhold) this host was last seen with, and under which deployment of its operating system.
 *
 * Each deployment has an /etc of its own, so going back to an earlier one brings back what the site's policy was then: perhaps wider
 * than what holds now, and nobody decided that. So when the deployment is another one and the policy is as well, nothing is leased until an operator has
 * accepted it. An operator who changes files on a running host is followed without a question; an upgrade changes nothing, since it merges /etc.
 *
 * One row (level 3 of the schema). Whatever is decided is in it, with its audit event, in one transaction.
 */

#include <errno.h>
#include <string.h>

#include "ledger/ledger-private.h"
#include "util/json.h"

static int read_row(Ledger *l, LedgerSite *ret, char **ret_deployment) {
        _cleanup_(db_stmt_donep) DbStmt *s = NULL;
        LedgerSite site = {};
        int r;

        r = db_query_row(l->db, &s, "SELECT digest, previous, waits, deployment FROM site WHERE id = 1", NULL);
        if (r < 0)
                return r;

        text_fit(db_column_text(s, 0) ?: "", site.digest, sizeof(site.digest));
        text_fit(db_column_text(s, 1) ?: "", site.previous, sizeof(site.previous));
        site.waits = db_column_int(s, 2) != 0;
        if (ret_deployment) {
                r = db_column_dup(s, 3, ret_deployment);
                if (r < 0)
                        return r;
        }
        *ret = site;
        return 0;
}

static int add_event(Ledger *l, const char *event, const char *actor, const LedgerSite *site) {
        _cleanup_json_ json_t *data = json_pack("{s:s, s:s}", "digest", site->digest, "previous", site->previous);
        _cleanup_free_ char *text = data ? json_canonical(data) : NULL;

        return text ? ledger_outbox_add(l, event, NULL, NULL, actor, text) : -ENOMEM;
}

int ledger_site_see(Ledger *l, const char *deployment, const char *digest, bool *ret_waits) {
        _cleanup_rollback_ DbGuard guard = {};
        _cleanup_free_ char *before = NULL;
        LedgerSite site = {};
        bool begins = false;
        int r;

        r = db_begin(l->db, &guard);
        if (r < 0)
                return r;

        r = read_row(l, &site, &before);
        if (r < 0 && r != -ENOENT)
                return r;
        if (r == 0 && strcmp(site.digest, digest) == 0 && strcmp(before ?: "", deployment) == 0) {
                *ret_waits = site.waits;
                return 0;
        }

        if (r == 0 && strcmp(before ?: "", deployment) != 0 && strcmp(site.digest, digest) != 0) {
                begins = !site.waits;
                if (begins)
                        memcpy(site.previous, site.digest, sizeof(site.previous));
                site.waits = true;
        }
        text_fit(digest, site.digest, sizeof(site.digest));
        r = db_run(l->db, "INSERT OR REPLACE INTO site (id, deployment, digest, previous, waits, time_usec) VALUES (1, ?, ?, ?, ?, ?)",
                   DB_ARGS(DB_TEXT(deployment), DB_TEXT(site.digest), DB_TEXT(site.previous), DB_INT(site.waits), DB_INT(time_realtime())));
        if (r >= 0 && begins)
                r = add_event(l, "policy.waits", "anchord", &site);
        if (r < 0)
                return r;

        r = db_commit(&guard);
        if (r >= 0)
                *ret_waits = site.waits;
        return r;
}

int ledger_site_accept(Ledger *l, const char *digest, const char *actor) {
        _cleanup_rollback_ DbGuard guard = {};
        LedgerSite site = {};
        int r;

        r = db_begin(l->db, &guard);
        if (r < 0)
                return r;

        r = read_row(l, &site, NULL);
        if (r == -ENOENT || (r == 0 && !site.waits))
                return LEDGER_E_NO_WORK;
        if (r < 0)
                return r;
        if (strcmp(site.digest, digest) != 0)
                return LEDGER_E_CONFLICT;

        r = db_run(l->db, "UPDATE site SET waits = 0, time_usec = ? WHERE id = 1", DB_ARGS(DB_INT(time_realtime())));
        if (r >= 0)
                r = add_event(l, "policy.accepted", actor, &site);
        return r < 0 ? r : db_commit(&guard);
}

int ledger_site_get(Ledger *l, LedgerSite *ret) {
        int r;

        *ret = (LedgerSite) {};
        r = read_row(l, ret, NULL);
        return r == -ENOENT ? 0 : r;
}
