/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Who may say what: the table of audit-event.c says which roles write an event; here, that a unit of a run writes for
 * its own run only (and need not name it), and that only daemons write in the name of somebody else, whom they have
 * identified. The record keeps both: ACTOR is what the source says, SOURCE what the kernel says.
 *
 * A source that loses an answer may send the same again: it gives each event that it would a key, and the second is no second record. The key is weighed
 * together with everything else that the request says, so that a key which is used twice for different things hides nothing. Of a run's units only
 * anchor-run, inject, netlog and net give one. What is remembered has a bound for each source, so that nobody makes auditd forget what another said.
 */
#include "audit/audit-request.h"

#include <errno.h>
#include <string.h>

#include "util/json.h"
#include "util/text.h"

static int request_refuse(AuditRequest *q, AuditRequestVerdict verdict, const char *reason) {
        q->verdict = verdict;
        q->reason = strdup(reason);
        return q->reason ? 0 : -ENOMEM;
}

static bool is_plain(const char *s, size_t max) {
        size_t n = strlen(s);

        if (n == 0 || n > max)
                return false;
        for (size_t i = 0; i < n; i++)
                if (s[i] < 0x20 || s[i] > 0x7e)
                        return false;

        return true;
}

/* What the parameters are, whoever sends them. */
static int request_parse(AuditRequest *q, const json_t *params) {
        static const char *const known[] = { "event", "run", "item", "actor", "key", "data", NULL };
        _cleanup_(json_reader_done) JsonReader r = {};
        const char *name = NULL;
        json_t *data = NULL;

        (void) json_read_string(&r, params, "", "event", JSON_F_REQUIRED, &name);
        if (json_read_string(&r, params, "", "run", JSON_F_NULLABLE, &q->run) && !text_is_id('r', q->run))
                json_reader_fail(&r, "", "run", "is no run id");
        if (json_read_string(&r, params, "", "item", JSON_F_NULLABLE, &q->item) && !text_is_id('i', q->item))
                json_reader_fail(&r, "", "item", "is no item id");
        if (json_read_string(&r, params, "", "actor", JSON_F_NULLABLE, &q->actor) && !is_plain(q->actor, AUDIT_ACTOR_MAX))
                json_reader_fail(&r, "", "actor", "must be 1 to %d printable ASCII characters", AUDIT_ACTOR_MAX);
        if (json_read_string(&r, params, "", "key", JSON_F_NULLABLE, &q->key) && !is_plain(q->key, AUDIT_KEY_MAX))
                json_reader_fail(&r, "", "key", "must be 1 to %d printable ASCII characters", AUDIT_KEY_MAX);
        (void) json_read_object(&r, params, "", "data", JSON_F_REQUIRED, &data);
        json_check_keys(&r, params, "", known);

        q->data = data;
        q->event = audit_event_find(name);
        if (!r.failed && !q->event)
                json_reader_fail(&r, "", "event", "is no event's name");
        if (!r.failed)
                return 0;

        q->verdict = AUDIT_REQUEST_BAD_INPUT;
        q->pointer = TAKE_PTR(r.pointer);
        q->reason = TAKE_PTR(r.reason);
        return 0;
}

/* Why this peer may not say it; NULL if it may. */
static const char *request_denied(AuditRequest *q, const Peer *peer, const char *source) {
        if (!(q->event->writers & peer->roles))
                return "This event is not written by this peer.";

        if ((peer->roles & AUDIT_RUN_ROLES) && peer->run[0] == 'r') {
                if (q->run && strcmp(q->run, peer->run) != 0)
                        return "A unit of a run writes for its own run only.";
                /* whose run that is, it cannot say: a reader takes the runs of an item from such records */
                if (q->item)
                        return "A unit of a run names no item.";
                if (q->key && !(peer->roles & (PEER_RUN | PEER_NET | PEER_NETLOG | PEER_INJECT)))
                        return "This unit of a run gives no key.";
                q->run = peer->run;
        }

        if (q->actor && !(peer->roles & AUDIT_DAEMON_ROLES) && strcmp(q->actor, source) != 0)
                return "This peer writes in its own name only.";
        if (!q->actor)
                q->actor = source;
        return NULL;
}

int audit_request_read(AuditRequest *ret, const json_t *params, const Peer *peer, const char *source) {
        const char *denied;
        int r;

        *ret = (AuditRequest) {};
        r = request_parse(ret, params);
        if (r < 0 || ret->verdict != AUDIT_REQUEST_GOOD)
                return r;

        denied = request_denied(ret, peer, source);
        if (denied)
                return request_refuse(ret, AUDIT_REQUEST_DENIED, denied);
        if ((ret->event->needs & AUDIT_NEEDS_RUN) && !ret->run)
                return request_refuse(ret, AUDIT_REQUEST_BAD_INPUT, "This event needs a run.");
        if ((ret->event->needs & AUDIT_NEEDS_ITEM) && !ret->item)
                return request_refuse(ret, AUDIT_REQUEST_BAD_INPUT, "This event needs an item.");

        ret->canonical = json_canonical(ret->data);
        if (!ret->canonical)
                return -ENOMEM;
        if (strlen(ret->canonical) > AUDIT_DATA_MAX)
                return request_refuse(ret, AUDIT_REQUEST_BAD_INPUT, "The data is too large.");
        return 0;
}

int audit_request_fill(const AuditRequest *q, const char *boot, const char *source, AuditRecord *ret) {
        _cleanup_free_ char *message = audit_event_render(q->event, q->run, q->item, q->actor, q->data);
        char now[TIME_TEXT_SIZE], priority[4];
        const struct {
                AuditField field;
                const char *text;
        } fields[] = {
                { AUDIT_TIME, now },           { AUDIT_BOOT, boot },
                { AUDIT_EVENT, q->event->name }, { AUDIT_RUN, q->run },
                { AUDIT_ITEM, q->item },       { AUDIT_ACTOR, q->actor },
                { AUDIT_SOURCE, source },      { AUDIT_DATA, q->canonical },
                { AUDIT_MESSAGE, message },    { AUDIT_MESSAGE_ID, q->event->message_id },
                { AUDIT_PRIORITY, priority },
        };
        int r;

        if (!message)
                return -ENOMEM;
        text_time(time_realtime(), now);
        (void) snprintf(priority, sizeof(priority), "%d", q->event->priority);

        for (size_t i = 0; i < ELEMENTSOF(fields); i++) {
                r = audit_record_set(ret, fields[i].field, fields[i].text);
                if (r < 0)
                        return r;
        }

        return 0;
}

int audit_request_identity(const AuditRequest *q, const char *source, char ret[static HEX_SHA256_SIZE]) {
        _cleanup_json_ json_t *all = json_pack("[s, s, s, s?, s?, s, O]", source, q->key, q->event->name, q->run, q->item, q->actor, q->data);

        return all ? json_digest(all, ret) : -ENOMEM;
}

void audit_request_done(AuditRequest *q) {
        free(q->pointer);
        free(q->reason);
        free(q->canonical);
        *q = (AuditRequest) {};
}
