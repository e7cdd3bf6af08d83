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
 * Registrations: secretd-register.c.
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

#include "util/json.h"
#include "util/log.h"

#define INTERFACE "io.anchorhold.Secret."
#define MESSAGE_MAX (512U * 1024) /* tokens come as descriptors */
#define SWEEP_USEC (60ULL * 1000 * 1000)
/* A run's end is anchord's to say. One that it forgot is released this long after its certificate ended. */
#define EXPIRED_USEC (3600ULL * 1000 * 1000)

RunSecrets *secretd_find_run(const Secretd *d, const char *run) {
        RunSecrets *s = run_store_find(d->runs, run);

        return s && !secretd_find_registration(d, run) ? s : NULL;
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

/* ---- Release ---- */

static void secretd_on_released(int r, void *userdata) {
        _cleanup_(secretd_pending_freep) Pending *p = userdata;

        /* what is gone is gone: a record that failed keeps no secret alive */
        if (r < 0)
                log_error_errno(r, "run %s: its release could not be recorded", p->run);
        if (r < 0)
                ipc_waiters_refuse(&p->calls, "Unavailable", "released, but the audit log did not take the record: %s", strerror(-r));
        else
                ipc_waiters_reply(&p->calls, NULL);
}

static int release_run(Secretd *d, IpcCall *call, RunSecrets *s, const char *cause) {
        _cleanup_(secretd_pending_freep) Pending *p = NULL;
        _cleanup_free_ char *item = NULL;
        Pending *under_way;
        int r;

        under_way = secretd_find_registration(d, s->run);
        p = secretd_pending_new(d, call, s->run, false);
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
        secretd_cancel_making(d, run);
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
        ipc_server_set_message_max(d->api, MESSAGE_MAX);
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
        r = background_new(&d->background, event, MAKING_AT_ONCE);
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
                (void) secretd_pending_free(d->pending);
        secretd_makings_done(d);
        background_free(d->background);
        token_list_free(d->tokens);
        run_store_free(d->runs);
        credential_store_free(d->credentials);
        free(d->policy_root);
        free(d->upstream_ca);
        sd_event_unref(d->event);
        free(d);
        return NULL;
}
