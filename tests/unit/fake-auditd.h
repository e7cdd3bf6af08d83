/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* auditd, played by the test in its own loop, at the place where everybody looks for it; see own-world.h. It keeps what it is sent,
 * and refuses what the real one refuses for its size. */

#include "audit/audit-api.h"
#include "ipc/ipc.h"
#include "own-world.h"
#include "util/json.h"

typedef struct FakeAuditd {
        IpcServer *server;   /* owned */
        const char *refuses; /* this event; "": every one */
        bool waits;          /* keeps the record and gives no answer */
        bool frozen;         /* gives no answer to a ping */
        IpcCall *waiting;    /* ref; the last record without */
        IpcCall *pinging;    /* ref; the ping without */
        char *records;       /* owned; the parameters of each Append, one a line; NULL: there was none */
        void (*on_append)(const char *event, void *userdata); /* may be NULL; hears of it first */
        void *userdata;
} FakeAuditd;

static inline int fake_auditd_on_append(IpcCall *call, json_t *params, void *userdata) {
        const char *event = json_string_value(json_object_get(params, "event"));
        _cleanup_free_ char *text = json_canonical(params), *data = json_canonical(json_object_get(params, "data"));
        FakeAuditd *a = userdata;
        char *more;

        assert_true(event && text && data);
        if (a->on_append)
                a->on_append(event, a->userdata);
        if (a->refuses && (*a->refuses == '\0' || strcmp(event, a->refuses) == 0))
                return ipc_call_refuse(call, "Unavailable", "full");
        if (strlen(data) > AUDIT_DATA_MAX)
                return ipc_call_refuse(call, "BadInput", "too large");

        more = text_format("%s%s\n", a->records ?: "", text);
        assert_non_null(more);
        free(a->records);
        a->records = more;
        if (a->waits) {
                a->waiting = ipc_call_ref(call);
                return 0;
        }
        return ipc_call_reply(call, json_pack("{s:i, s:s}", "seq", 1, "hash", "00"));
}

static inline int fake_auditd_on_ping(IpcCall *call, json_t *params, void *userdata) {
        FakeAuditd *a = userdata;

        if (a->frozen) {
                (void) ipc_call_unref(a->pinging);
                a->pinging = ipc_call_ref(call);
                return 0;
        }
        return ipc_call_reply(call, NULL);
}

static inline void fake_auditd_start(FakeAuditd *a, sd_event *event) {
        static const IpcMethod methods[] = {
                { AUDIT_INTERFACE ".Append", PEER_ROOT, fake_auditd_on_append },
                { AUDIT_INTERFACE ".Ping", PEER_ROOT, fake_auditd_on_ping },
                {},
        };

        assert_int_equal(ipc_server_new(&a->server, event, methods, a), 0);
        assert_true(ipc_server_listen_fd(a->server, own_world_listen(AUDIT_SOCKET)) >= 0);
}

static inline void fake_auditd_stop(FakeAuditd *a) {
        (void) ipc_call_unref(a->waiting);
        (void) ipc_call_unref(a->pinging);
        a->server = ipc_server_free(a->server);
        free(a->records);
        *a = (FakeAuditd) {};
}
