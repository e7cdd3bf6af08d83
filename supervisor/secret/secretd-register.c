/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Which runs there are, and what each of them gets.
 *
 *   making     in a thread, since reading and compiling a large policy takes a second, in which other runs' processes are to get their secrets
 *   keeping    sealed on disk
 *   recording  in the audit log; until then it is nobody's
 *   answering
 *
 * A failure in between takes the run back, so that an answer means all of it. At a crash in between, anchord asks again with the same run; it is
 * recorded then, possibly for the second time, and gets the same answer. A release in between is heard, and the registration comes to nothing.
 */

#include <errno.h>
#include <string.h>

#include "secret/secretd-private.h"
#include "util/json.h"
#include "util/log.h"

/* A run's secrets on their way into being. */
struct Making {
        Secretd *secretd; /* borrowed */
        Making *next;
        IpcWaiters calls;
        json_t *params;   /* ref; of the first who asked */
        RegisterRequest request; /* borrowed from it */
        bool released;    /* meanwhile */
        int result;       /* of the thread, as are the next two */
        RunSecrets *secrets; /* owned */
        char *reason;     /* owned */
};

/* ---- what is under way ---- */

Pending *secretd_pending_free(Pending *p) {
        if (!p)
                return NULL;
        for (Pending **i = &p->secretd->pending; *i; i = &(*i)->next)
                if (*i == p) {
                        *i = p->next;
                        break;
                }
        ipc_waiters_done(&p->calls);
        free(p);
        return NULL;
}

Pending *secretd_pending_new(Secretd *d, IpcCall *call, const char *run, bool registration) {
        Pending *p = calloc(1, sizeof(*p));

        if (!p)
                return NULL;
        *p = (Pending) { .next = d->pending, .secretd = d, .registration = registration };
        if (call)
                (void) ipc_waiters_add(&p->calls, call); /* there is room for one */
        memcpy(p->run, run, ID_LENGTH + 1);
        d->pending = p;
        return p;
}

Pending *secretd_find_registration(const Secretd *d, const char *run) {
        for (Pending *p = d->pending; p; p = p->next)
                if (p->registration && strcmp(p->run, run) == 0)
                        return p;
        return NULL;
}

/* ---- recording ---- */

static json_t *registered_reply(const RunSecrets *s) {
        json_t *names = json_array();

        for (size_t i = 0; i < s->n_credentials; i++)
                json_array_append_new(names, json_string(s->credentials[i].name));
        return json_pack("{s:o, s:b}", "credentials", names, "ca", s->ca_pem != NULL);
}

static void secretd_on_registered(int r, void *userdata) {
        _cleanup_(secretd_pending_freep) Pending *p = userdata;
        RunSecrets *s = *p->run ? run_store_find(p->secretd->runs, p->run) : NULL;

        if (!s) {
                ipc_waiters_refuse(&p->calls, "Conflict", "the run was released meanwhile");
                return;
        }
        if (r < 0) {
                log_error_errno(r, "run %s: its registration could not be recorded, taken back", p->run);
                (void) run_store_remove(p->secretd->runs, p->run);
                ipc_waiters_refuse(&p->calls, "Unavailable", "the audit log did not take the record: %s", strerror(-r));
                return;
        }

        s->recorded = true;
        ipc_waiters_reply(&p->calls, registered_reply(s));
}

/* The run is sealed: now its record, and then the answer. Takes the calls over on success. */
static int record_registration(Secretd *d, IpcWaiters *calls, const RunSecrets *s) {
        _cleanup_(secretd_pending_freep) Pending *p = NULL;
        json_t *data;
        int r;

        p = secretd_pending_new(d, NULL, s->run, true);
        data = registered_reply(s);
        if (!p || !data) {
                json_unref(data);
                return -ENOMEM;
        }
        (void) json_object_set_new(data, "workflow", json_string(s->workflow));
        (void) json_object_set_new(data, "stage", json_string(s->stage));

        r = audit_append(d->audit, "secret.registered", s->run, s->item, NULL, data, secretd_on_registered, p);
        if (r < 0)
                return log_error_errno(r, "run %s: its registration cannot be recorded", s->run);

        p->calls = *calls;
        *calls = (IpcWaiters) {};
        TAKE_PTR(p);
        return 0;
}

/* ---- making ---- */

static Making *making_free(Making *m) {
        if (!m)
                return NULL;

        (void) background_cancel(m->secretd->background, m);
        for (Making **i = &m->secretd->makings; *i; i = &(*i)->next)
                if (*i == m) {
                        *i = m->next;
                        break;
                }
        (void) run_secrets_free(m->secrets);
        ipc_waiters_done(&m->calls);
        (void) json_unref(m->params);
        free(m->reason);
        free(m);
        return NULL;
}
DEFINE_CLEANUP(Making *, making_free)

void secretd_makings_done(Secretd *d) {
        while (d->makings)
                (void) making_free(d->makings);
}

void secretd_cancel_making(Secretd *d, const char *run) {
        for (Making *m = d->makings; m; m = m->next)
                if (strcmp(m->request.run, run) == 0)
                        m->released = true;
}

/* In a thread. Of secretd it reads what does not change as long as it lives. */
static void make(void *userdata) {
        _cleanup_(policy_freep) Policy *policy = NULL;
        Making *m = userdata;

        m->result = policy_load(&policy, m->secretd->policy_root, NULL, NULL);
        if (m->result >= 0)
                m->result = register_run(&m->secrets, policy, m->secretd->credentials, &m->request, time_realtime(), &m->reason);
}

/* Takes the secrets over, and the calls on success. */
static int keep(Secretd *d, IpcWaiters *calls, RunSecrets *secrets) {
        _cleanup_(run_secrets_freep) RunSecrets *s = secrets;
        char run[ID_LENGTH + 1];
        int r;

        memcpy(run, s->run, sizeof(run));
        r = run_store_add(d->runs, s);
        if (r < 0)
                return log_error_errno(r, "run %s: cannot keep its secrets", run);

        r = record_registration(d, calls, TAKE_PTR(s));
        if (r < 0)
                (void) run_store_remove(d->runs, run);
        return r;
}

static void on_made(int r, void *userdata) {
        _cleanup_(making_freep) Making *m = userdata;
        const char *run = m->request.run;

        if (r >= 0)
                r = m->result;
        if (m->released)
                ipc_waiters_refuse(&m->calls, "Conflict", "the run was released meanwhile");
        else if (r < 0 && m->reason) {
                log_warning("run %s is not registered: %s", run, m->reason);
                ipc_waiters_refuse(&m->calls, r == -EINVAL ? "BadInput" : "Unavailable", "%s", m->reason);
        } else {
                if (r < 0)
                        log_error_errno(r, "run %s: cannot make its secrets", run);
                else
                        r = keep(m->secretd, &m->calls, TAKE_PTR(m->secrets));
                if (r < 0)
                        ipc_waiters_refuse(&m->calls, "Unavailable", "%s", strerror(-r));
        }
}

static Making *find_making(const Secretd *d, const char *run) {
        for (Making *m = d->makings; m; m = m->next)
                if (!m->released && strcmp(m->request.run, run) == 0)
                        return m;
        return NULL;
}

static int register_new(Secretd *d, IpcCall *call, json_t *params, const RegisterRequest *q) {
        _cleanup_(making_freep) Making *m = NULL;
        int r;

        m = calloc(1, sizeof(*m));
        if (!m)
                return -ENOMEM;
        /* what the request points to are the parameters */
        *m = (Making) { .secretd = d, .next = d->makings, .params = json_incref(params), .request = *q };
        d->makings = m;
        r = ipc_waiters_add(&m->calls, call);
        if (r >= 0)
                r = background_start(d->background, make, on_made, m);
        if (r >= 0)
                (void) TAKE_PTR(m);
        return r;
}

/* ---- asked ---- */

int secretd_on_register(IpcCall *call, json_t *params, void *userdata) {
        static const char *const known[] = { "run", "workflow", "item", "expires_usec", "stage", "repository", NULL };
        _cleanup_(json_reader_done) JsonReader reader = {};
        RegisterRequest q = { .stage = "work" };
        Secretd *d = userdata;
        IpcWaiters calls = {};
        Pending *under_way;
        Making *making;
        RunSecrets *s;
        int r;

        json_check_keys(&reader, params, "", known);
        json_read_string(&reader, params, "", "run", JSON_F_REQUIRED, &q.run);
        json_read_string(&reader, params, "", "workflow", JSON_F_REQUIRED, &q.workflow);
        json_read_string(&reader, params, "", "item", JSON_F_REQUIRED, &q.item);
        json_read_string(&reader, params, "", "stage", JSON_F_NULLABLE, &q.stage);
        json_read_string(&reader, params, "", "repository", JSON_F_NULLABLE, &q.repository);
        json_read_uint(&reader, params, "", "expires_usec", JSON_F_REQUIRED, 0, INT64_MAX, &q.expires_usec);
        if (reader.failed)
                return ipc_call_refuse(call, "BadInput", "%s: %s", reader.pointer, reader.reason);

        making = find_making(d, q.run);
        if (making)
                return json_equal(making->params, params) ? ipc_waiters_add(&making->calls, call)
                                                          : ipc_call_refuse(call, "Conflict", "run %s is being registered otherwise", q.run);
        s = run_store_find(d->runs, q.run);
        if (!s)
                return register_new(d, call, params, &q);
        if (strcmp(s->workflow, q.workflow) != 0 || strcmp(s->stage, q.stage) != 0 || strcmp(s->item, q.item) != 0 ||
            strcmp(s->repository ?: "", strcmp(s->stage, "work") == 0 && q.repository ? q.repository : "") != 0)
                return ipc_call_refuse(call, "Conflict", "run %s is registered for item %s, workflow %s, stage %s",
                                       s->run, s->item, s->workflow, s->stage);

        under_way = secretd_find_registration(d, q.run);
        if (under_way)
                return ipc_waiters_add(&under_way->calls, call);
        if (s->recorded)
                return ipc_call_reply(call, registered_reply(s));
        /* of an earlier life of this process, which may have ended before the record was made: two say the same */
        r = ipc_waiters_add(&calls, call);
        if (r >= 0)
                r = record_registration(d, &calls, s);
        ipc_waiters_done(&calls);
        return r;
}
