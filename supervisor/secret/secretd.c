/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * secretd knows the host's credentials (from PID 1, at its start) and what each live run got: a CA and
 * sentinels. It has no network and speaks to four kinds of peers:
 *
 *   anchord      registers and releases runs by name; what a run gets is read from policy here
 *   PID 1        asks on behalf of a unit that starts: `guest` for anchor-run@, `inject` for anchor-inject@
 *   inject       watches for revocations
 *   proxy        asks for the run's sentinels, which it is not to let pass in cleartext
 *
 * Only `inject` ever leaves with a secret in it, and only to the unit of the run that was registered.
 *
 * Order: a run is sealed on disk, then recorded in the audit log, then answered. A failure in between takes
 * the run back, so that an answer means all three. At a crash in between, anchord asks again with the
 * same run; it is recorded then, possibly for the second time, and gets the same answer.
 *
 * Tokens that a GitHub App mints are made while a run goes on and outlive it until they are revoked: secretd-token.c.
 *
 * Values come from PID 1 alone, which decrypts them when this unit starts. So a value that was added, rotated or removed comes
 * with a restart, which `anchorctl credential` makes, and which loses nothing: the sockets are systemd's, and the runs are
 * sealed on disk. Each inject asks for the values anew (Values) before it watches again: a value that changed is
 * used from then on, one that is gone is revoked. That a run's inject watches thus says that it has what is here (List).
 */

#include "secret/secretd-private.h"

#include <errno.h>
#include <string.h>
#include <systemd/sd-daemon.h>

#include "ipc/ipc-waiters.h"
#include "policy/policy.h"
#include "secret/register.h"
#include "util/json.h"
#include "util/log.h"

#define INTERFACE "io.anchorhold.Secret."
#define SWEEP_USEC (60ULL * 1000 * 1000)
/* A run's end is anchord's to say. One that it forgot is released this long after its certificate ended. */
#define EXPIRED_USEC (3600ULL * 1000 * 1000)

/* A registration or release whose audit record is under way. Who asks to register the same run meanwhile waits for it as well. */
struct Pending {
        Pending *next;
        Secretd *secretd; /* borrowed */
        IpcWaiters calls; /* none if nobody waits */
        bool registration;
        char run[ID_LENGTH + 1]; /* "": a registration whose run was released meanwhile */
};

static Pending *pending_free(Pending *p) {
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
DEFINE_CLEANUP(Pending *, pending_free)

static Pending *pending_new(Secretd *d, IpcCall *call, const char *run, bool registration) {
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

/* The registration of a run that is kept, but not on record yet, if it is so: until it is recorded, it is nobody's. */
static Pending *find_registration(const Secretd *d, const char *run) {
        for (Pending *p = d->pending; p; p = p->next)
                if (p->registration && strcmp(p->run, run) == 0)
                        return p;
        return NULL;
}

RunSecrets *secretd_find_run(const Secretd *d, const char *run) {
        RunSecrets *s = run_store_find(d->runs, run);

        return s && !find_registration(d, run) ? s : NULL;
}

/* ---- what inject watches ---- */

static json_t *revoked_of(const Secretd *d, const RunSecrets *s) {
        json_t *names = json_array();

        for (size_t i = 0; s && i < s->n_credentials; i++)
                if (!credential_store_find(d->credentials, s->credentials[i].name))
                        json_array_append_new(names, json_string(s->credentials[i].name));
        return names;
}

void secretd_prune_watchers(Secretd *d) {
        for (size_t i = 0; i < d->n_watchers;) {
                if (ipc_call_is_live(d->watchers[i])) {
                        i++;
                        continue;
                }
                ipc_call_unref(d->watchers[i]);
                d->watchers[i] = d->watchers[--d->n_watchers];
        }
}

static void secretd_on_disconnect(const Peer *peer, void *userdata) {
        secretd_prune_watchers(userdata);
}

/* Tells a run's inject that nothing of it is valid any more. */
static void watchers_revoke_all(Secretd *d, const RunSecrets *s) {
        for (size_t i = 0; i < d->n_watchers; i++) {
                json_t *names;

                if (strcmp(ipc_call_peer(d->watchers[i])->run, s->run) != 0)
                        continue;
                names = json_array();
                for (size_t k = 0; k < s->n_credentials; k++)
                        json_array_append_new(names, json_string(s->credentials[k].name));
                (void) ipc_call_notify(d->watchers[i], json_pack("{s:o}", "revoked", names));
        }
}

static int secretd_on_watch(IpcCall *call, json_t *params, void *userdata) {
        Secretd *d = userdata;
        int r;

        if (!ipc_call_wants_more(call))
                return ipc_call_refuse(call, "BadInput", "Watch is a call with `more`");
        secretd_prune_watchers(d);
        if (d->n_watchers == WATCHERS_MAX)
                return ipc_call_refuse(call, "Unavailable", "too many watchers");

        r = ipc_call_notify(call, json_pack("{s:o}", "revoked", revoked_of(d, run_store_find(d->runs, ipc_call_peer(call)->run))));
        if (r < 0)
                return r;
        d->watchers[d->n_watchers++] = ipc_call_ref(call);
        return 0;
}

/* ---- Register ---- */

static json_t *registered_reply(const RunSecrets *s) {
        json_t *names = json_array();

        for (size_t i = 0; i < s->n_credentials; i++)
                json_array_append_new(names, json_string(s->credentials[i].name));
        return json_pack("{s:o, s:b}", "credentials", names, "ca", s->ca_pem != NULL);
}

static void secretd_on_registered(int r, void *userdata) {
        _cleanup_(pending_freep) Pending *p = userdata;
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

/* The run is sealed: now its record, and then the answer. */
static int record_registration(Secretd *d, IpcCall *call, const RunSecrets *s) {
        _cleanup_(pending_freep) Pending *p = NULL;
        json_t *data;
        int r;

        p = pending_new(d, call, s->run, true);
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

        TAKE_PTR(p);
        return 0;
}

static int register_new(Secretd *d, IpcCall *call, const RegisterRequest *q) {
        _cleanup_(run_secrets_freep) RunSecrets *s = NULL;
        _cleanup_(policy_freep) Policy *policy = NULL;
        _cleanup_free_ char *reason = NULL;
        int r;

        r = policy_load(&policy, d->policy_root, NULL, NULL);
        if (r < 0)
                return log_error_errno(r, "cannot load policy");

        r = register_run(&s, policy, d->credentials, q, time_realtime(), &reason);
        if (r < 0 && reason) {
                log_warning("run %s is not registered: %s", q->run, reason);
                return ipc_call_refuse(call, r == -EINVAL ? "BadInput" : "Unavailable", "%s", reason);
        }
        if (r < 0)
                return log_error_errno(r, "run %s: cannot make its secrets", q->run);

        r = run_store_add(d->runs, s);
        if (r < 0)
                return log_error_errno(r, "run %s: cannot keep its secrets", q->run);

        r = record_registration(d, call, s);
        TAKE_PTR(s);
        if (r < 0)
                (void) run_store_remove(d->runs, q->run);
        return r;
}

static int secretd_on_register(IpcCall *call, json_t *params, void *userdata) {
        static const char *const known[] = { "run", "workflow", "item", "expires_usec", "stage", "repository", NULL };
        _cleanup_(json_reader_done) JsonReader reader = {};
        RegisterRequest q = { .stage = "work" };
        Secretd *d = userdata;
        Pending *under_way;
        RunSecrets *s;

        json_check_keys(&reader, params, "", known);
        json_read_string(&reader, params, "", "run", JSON_F_REQUIRED, &q.run);
        json_read_string(&reader, params, "", "workflow", JSON_F_REQUIRED, &q.workflow);
        json_read_string(&reader, params, "", "item", JSON_F_REQUIRED, &q.item);
        json_read_string(&reader, params, "", "stage", JSON_F_NULLABLE, &q.stage);
        json_read_string(&reader, params, "", "repository", JSON_F_NULLABLE, &q.repository);
        json_read_uint(&reader, params, "", "expires_usec", JSON_F_REQUIRED, 0, INT64_MAX, &q.expires_usec);
        if (reader.failed)
                return ipc_call_refuse(call, "BadInput", "%s: %s", reader.pointer, reader.reason);

        s = run_store_find(d->runs, q.run);
        if (!s)
                return register_new(d, call, &q);
        if (strcmp(s->workflow, q.workflow) != 0 || strcmp(s->stage, q.stage) != 0 || strcmp(s->item, q.item) != 0 ||
            strcmp(s->repository ?: "", strcmp(s->stage, "work") == 0 && q.repository ? q.repository : "") != 0)
                return ipc_call_refuse(call, "Conflict", "run %s is registered for item %s, workflow %s, stage %s",
                                       s->run, s->item, s->workflow, s->stage);

        under_way = find_registration(d, q.run);
        if (under_way)
                return ipc_waiters_add(&under_way->calls, call);
        if (s->recorded)
                return ipc_call_reply(call, registered_reply(s));
        /* of an earlier life of this process, which may have ended before the record was made: two say the same */
        return record_registration(d, call, s);
}

/* ---- Release ---- */

static void secretd_on_released(int r, void *userdata) {
        _cleanup_(pending_freep) Pending *p = userdata;

        /* what is gone is gone: a record that failed keeps no secret alive */
        if (r < 0)
                log_error_errno(r, "run %s: its release could not be recorded", p->run);
        if (r < 0)
                ipc_waiters_refuse(&p->calls, "Unavailable", "released, but the audit log did not take the record: %s", strerror(-r));
        else
                ipc_waiters_reply(&p->calls, NULL);
}

static int release_run(Secretd *d, IpcCall *call, RunSecrets *s, const char *cause) {
        _cleanup_(pending_freep) Pending *p = NULL;
        _cleanup_free_ char *item = NULL;
        Pending *under_way;
        int r;

        under_way = find_registration(d, s->run);
        p = pending_new(d, call, s->run, false);
        item = strdup(s->item);
        if (!p || !item)
                return -ENOMEM;

        if (under_way)
                under_way->run[0] = 0;
        watchers_revoke_all(d, s);
        r = run_store_remove(d->runs, p->run);
        if (r < 0)
                return log_error_errno(r, "run %s: cannot remove its secrets", p->run);

        r = audit_append(d->audit, "secret.released", p->run, item, NULL, json_pack("{s:s}", "cause", cause),
                         secretd_on_released, p);
        if (r < 0)
                return log_error_errno(r, "run %s: its release cannot be recorded", p->run);
        TAKE_PTR(p);
        return 0;
}

static int secretd_on_release(IpcCall *call, json_t *params, void *userdata) {
        const char *run = json_string_value(json_object_get(params, "run"));
        Secretd *d = userdata;
        RunSecrets *s;

        if (!text_is_id('r', run))
                return ipc_call_refuse(call, "BadInput", "/run: not a run's id");
        s = run_store_find(d->runs, run);
        return s ? release_run(d, call, s, "released") : ipc_call_reply(call, NULL);
}

static int secretd_on_sweep(sd_event_source *source, uint64_t usec, void *userdata) {
        Secretd *d = userdata;
        RunSecrets *s;
        int r;

        while ((s = run_store_find_expired(d->runs, time_realtime() - EXPIRED_USEC)))
                if (release_run(d, NULL, s, "expired") < 0)
                        break;
        secretd_tokens_sweep(d);

        r = sd_event_source_set_time_relative(source, SWEEP_USEC);
        if (r >= 0)
                r = sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
        return r < 0 ? sd_event_exit(d->event, r) : 0;
}

const IpcMethod secretd_methods[] = {
        { INTERFACE "Register", PEER_ANCHORD, secretd_on_register },
        { INTERFACE "Release", PEER_ANCHORD, secretd_on_release },
        { INTERFACE "Watch", PEER_INJECT, secretd_on_watch },
        { INTERFACE "Values", PEER_INJECT, secretd_on_values },
        { INTERFACE "Sentinels", PEER_PROXY, secretd_on_sentinels },
        { INTERFACE "Mint", PEER_INJECT, secretd_on_mint },
        { INTERFACE "Minted", PEER_INJECT, secretd_on_minted },
        { INTERFACE "Outstanding", PEER_ANCHORD, secretd_on_outstanding },
        { INTERFACE "Revoke", PEER_INJECT, secretd_on_revoke },
        { INTERFACE "Revoked", PEER_INJECT, secretd_on_revoked },
        { INTERFACE "List", PEER_ANCHORD | PEER_OPERATOR | PEER_ROOT, secretd_on_list },
        { INTERFACE "Ping", PEER_ANCHORD | PEER_OPERATOR | PEER_ROOT, secretd_on_ping },
        {},
};

/* ---- start and end ---- */

static int take_fd(const char *name) {
        char **names = NULL;
        int n, fd = -ENOENT;

        n = sd_listen_fds_with_names(0, &names);
        for (int i = 0; i < n; i++) {
                if (fd < 0 && strcmp(names[i], name) == 0)
                        fd = SD_LISTEN_FDS_START + i;
                free(names[i]);
        }
        free(names);
        return n < 0 ? n : fd;
}

static int secretd_listen(Secretd *d) {
        int fd, r;

        r = ipc_server_new(&d->api, d->event, secretd_methods, d);
        if (r < 0)
                return r;
        ipc_server_set_disconnect(d->api, secretd_on_disconnect);
        r = ipc_server_listen_systemd(d->api, "secret-api");
        if (r < 0)
                return log_error_errno(r, "no socket secret-api from systemd");

        fd = take_fd("secret");
        if (fd < 0)
                return log_error_errno(fd, "no socket secret from systemd");
        return credential_server_new(&d->server, d->event, fd, secretd_on_credential, secretd_on_denied, d);
}

int secretd_new(Secretd **ret, sd_event *event, const SecretdPaths *paths) {
        _cleanup_(secretd_freep) Secretd *d = NULL;
        int r;

        d = calloc(1, sizeof(*d));
        if (!d)
                return -ENOMEM;
        d->event = sd_event_ref(event);
        d->policy_root = strdup(paths->policy_root);
        d->upstream_ca = paths->upstream_ca ? strdup(paths->upstream_ca) : NULL;
        if (!d->policy_root || (paths->upstream_ca && !d->upstream_ca))
                return -ENOMEM;

        r = credential_store_load(&d->credentials, paths->credentials);
        if (r < 0)
                return log_error_errno(r, "cannot read the credentials in %s", paths->credentials);
        r = run_store_new(&d->runs, paths->state, paths->key);
        if (r < 0)
                return log_error_errno(r, "cannot read the runs in %s", paths->state);
        r = audit_client_new(&d->audit, event);
        if (r < 0)
                return r;
        r = secretd_tokens_load(d, paths->state, paths->key);
        if (r < 0)
                return log_error_errno(r, "cannot read the list of tokens in %s", paths->state);
        r = secretd_listen(d);
        if (r < 0)
                return r;
        r = sd_event_add_time_relative(event, &d->sweep, CLOCK_BOOTTIME, SWEEP_USEC, 0, secretd_on_sweep, d);
        if (r < 0)
                return r;

        log_info("%zu credentials, %zu runs", credential_store_size(d->credentials), run_store_size(d->runs));
        *ret = TAKE_PTR(d);
        return 0;
}

Secretd *secretd_free(Secretd *d) {
        if (!d)
                return NULL;

        d->sweep = sd_event_source_disable_unref(d->sweep);
        d->server = credential_server_free(d->server);
        while (d->n_watchers > 0)
                ipc_call_unref(d->watchers[--d->n_watchers]);
        d->api = ipc_server_free(d->api);
        d->audit = audit_client_free(d->audit);
        while (d->pending)
                (void) pending_free(d->pending);
        token_list_free(d->tokens);
        run_store_free(d->runs);
        credential_store_free(d->credentials);
        free(d->policy_root);
        free(d->upstream_ca);
        sd_event_unref(d->event);
        free(d);
        return NULL;
}
