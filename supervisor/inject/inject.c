/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * WARNING: this process reads bytes from the guest and holds what the guest must never have. It is the one
 * exception to the rule that those two do not meet (DESIGN.md, principle 6). So it is small, is alone in its unit
 * and cgroup, may connect only where egressd granted it, has no file system to speak of, and everything
 * that parses is a pure function with a fuzz target. Think twice before adding to it.
 *
 * Each time it begins to watch secretd it first asks for the values anew, so that what was rotated or removed on the
 * host, which comes with a restart of secretd, holds for the next request.
 *
 * One process a run. It starts when the proxy hands over the first connection, gets its run's CA key
 * and credentials from PID 1, and keeps nothing on disk. If it dies, its connections are lost; systemd
 * starts it for the next one, with the same bundle.
 *
 * Started for a run that is over (its bundle's stage is "revoke") it has no credential and no CA, brings the run's tokens back (revoker.c), and ends.
 *
 * The proxy is believed which name a connection was opened for: a proxy that lies gets a certificate for
 * another inspected name, and egressd judges that name again, for this process.
 */

#include "inject/inject.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>

#include "inject/exchange.h"
#include "inject/revoker.h"
#include "ipc/ipc.h"
#include "policy/policy.h"
#include "secret/bundle-api.h"
#include "util/json.h"
#include "util/log.h"
#include "util/text.h"

#define AGAIN_USEC (500ULL * 1000)
#define VALUES_USEC (10ULL * 1000 * 1000)

struct Inject {
        sd_event *event;        /* ref */
        RunSecrets *secrets;    /* owned */
        InjectCredential credentials[RUN_CREDENTIALS_MAX];
        ExchangeContext context;
        LeafMaker *leaves;      /* owned; NULL: nothing is inspected */
        TlsSetup *tls;          /* owned */
        EgressLink *egress;     /* owned */
        AuditClient *audit;     /* owned */
        Notes *notes;           /* owned */
        Tally *tally;           /* owned */
        UsageReport *usage;     /* owned */
        Budget *budget;         /* owned */
        Minter *minter;         /* owned */
        Revoker *revoker;       /* owned; NULL unless the run is over */
        IpcServer *server;      /* owned */
        IpcClient *secretd;     /* owned */
        sd_event_source *again; /* owned; watches secretd anew */
        bool behind;            /* the last answer of secretd's could not be taken */
};

/* ---- Take ---- */

static int check_connection(int fd) {
        socklen_t size = sizeof(int);
        int type, listening;

        if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) < 0)
                return -errno;
        size = sizeof(int);
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) < 0)
                return -errno;
        return type == SOCK_STREAM && !listening ? 0 : -EINVAL;
}

static int inject_on_take(IpcCall *call, json_t *params, void *userdata) {
        static const char *const known[] = { "name", "port", "client", "rule", NULL };
        _cleanup_(json_reader_done) JsonReader reader = {};
        const char *name = "", *client = "", *rule = NULL;
        _cleanup_free_ char *safe = NULL;
        _cleanup_fd_ int fd = -1;
        Inject *i = userdata;
        char normal[254];
        uint64_t port = 0;
        int r;

        if (strcmp(ipc_call_peer(call)->run, i->secrets->run) != 0)
                return ipc_call_refuse(call, "Denied", "a proxy of another run");

        json_check_keys(&reader, params, "", known);
        json_read_string(&reader, params, "", "name", JSON_F_REQUIRED, &name);
        json_read_uint(&reader, params, "", "port", JSON_F_REQUIRED, 1, 65535, &port);
        json_read_string(&reader, params, "", "client", JSON_F_REQUIRED, &client);
        json_read_string(&reader, params, "", "rule", JSON_F_NULLABLE, &rule);
        if (reader.failed)
                return ipc_call_refuse(call, "BadInput", "%s: %s", reader.pointer, reader.reason);
        if (egress_normalise_name(name, normal) < 0)
                return ipc_call_refuse(call, "BadInput", "/name: not a host's name");

        fd = ipc_call_take_fd(call, 0);
        if (fd < 0 || check_connection(fd) < 0)
                return ipc_call_refuse(call, "BadInput", "descriptor 0 is no connection");

        safe = text_escape(client, strnlen(client, 63), false);
        r = exchange_start(&i->context, fd, normal, (uint16_t) port, safe ? safe : "", rule ?: "default");
        if (r == -EACCES)
                return ipc_call_refuse(call, "Denied", "%s is not inspected in this run", normal);
        if (r == -EBUSY)
                return ipc_call_refuse(call, "Unavailable", "%d connections are open already", EXCHANGES_MAX);
        if (r < 0)
                return log_error_errno(r, "cannot take a connection to %s", normal);

        TAKE_FD(fd);
        return ipc_call_reply(call, NULL);
}

/* ---- what others tell ---- */

static void inject_on_egress_lost(void *userdata) {
        Inject *i = userdata;

        exchange_close_all(&i->context);
}

static void inject_on_grant_revoked(int64_t grant, int64_t stream, void *userdata) {
        Inject *i = userdata;

        if (stream > 0)
                exchange_cut_stream(&i->context, grant, (int32_t) stream);
        else
                exchange_close_grant(&i->context, grant);
}

/* A fault of the host's, or anchord lies: no guest can bring it about. */
static void inject_on_disagreement(const char *name, uint16_t port, const char *workflow, const char *stage, void *userdata) {
        _cleanup_free_ char *detail = NULL, *key = text_format("disagreement %s %u", name, port);
        Inject *i = userdata;

        detail = text_format("egressd: %s, %s; secretd: %s, %s", workflow, stage, i->secrets->workflow, i->secrets->stage);
        if (!key || !detail)
                return (void) log_oom();
        log_error("egressd and secretd were told different things about this run: %s", detail);
        notes_add(i->notes, "conn.deny", key,
                  json_pack("{s:s, s:i, s:s, s:s, s:s}", "name", name, "port", (int) port, "reason", "disagreement", "rule", "default", "detail", detail));
}

/* Of one whose values are minted: that there is none yet is no revocation. */
static void update_minted(RunCredential *known, InjectCredential *c, RunCredential *fresh) {
        known->minted = fresh->minted;
        if (!fresh->minted)
                return;
        if (c->revoked)
                log_notice("credential %s is there again", known->name);
        c->revoked = false;
        if (fresh->secret && (!known->secret || fresh->expires_usec > known->expires_usec))
                known->expires_usec = fresh->expires_usec;
}

/* The value of that credential now, NULL for none; takes what it keeps. */
static void update_credential(Inject *i, const char *name, Secret **value) {
        for (size_t k = 0; k < i->secrets->n_credentials; k++) {
                InjectCredential *c = &i->credentials[k];
                CredentialChange change;

                if (strcmp(c->source->name, name) != 0)
                        continue;
                change = inject_credential_update(c, &i->secrets->credentials[k], value);
                if (change == CREDENTIAL_SAME)
                        continue;
                log_notice("credential %s was %s", name, change == CREDENTIAL_GONE ? "revoked" : "changed");
                exchange_credential_changed(&i->context, c);
        }
}

static void watch_again(Inject *i, uint64_t usec) {
        (void) sd_event_source_set_time_relative(i->again, usec);
        (void) sd_event_source_set_enabled(i->again, SD_EVENT_ONESHOT);
}

static void inject_on_watch(IpcClient *client, const char *error, json_t *params, bool more, void *userdata) {
        Inject *i = userdata;
        const json_t *revoked = error ? NULL : json_object_get(params, "revoked");

        for (size_t k = 0; k < json_array_size(revoked); k++) {
                const char *name = json_string_value(json_array_get(revoked, k));

                if (name)
                        update_credential(i, name, &(Secret *) { NULL });
        }
        /* secretd may be restarting: its socket is still there, so that the next question waits for it */
        if (error || !more)
                watch_again(i, error && strcmp(error, "io.anchorhold.Disconnected") == 0 ? 0 : AGAIN_USEC);
}

/* The same form as what PID 1 gave at the start. */
static int take_values(Inject *i, int fd) {
        _cleanup_(run_secrets_freep) RunSecrets *fresh = NULL;
        _cleanup_(secret_freep) Secret *bundle = NULL;
        SecretView v;
        int r;

        r = secret_read_fd(&bundle, fd);
        if (r < 0)
                return r;
        v = secret_view(bundle);
        r = bundle_parse(&fresh, v.bytes, v.size);
        if (r < 0)
                return r;
        if (strcmp(fresh->run, i->secrets->run) != 0)
                return -EBADMSG;

        for (size_t k = 0; k < fresh->n_credentials; k++) {
                RunCredential *f = &fresh->credentials[k];

                for (size_t n = 0; n < i->secrets->n_credentials; n++)
                        if (strcmp(i->secrets->credentials[n].name, f->name) == 0)
                                update_minted(&i->secrets->credentials[n], &i->credentials[n], f);
                if (!f->minted || f->secret)
                        update_credential(i, f->name, &f->secret);
        }
        minter_look(i->minter);
        return 0;
}

static void inject_on_values(IpcClient *client, const char *error, json_t *params, bool more, void *userdata) {
        _cleanup_fd_ int fd = -1;
        Inject *i = userdata;
        int r = 0;

        if (!error) {
                fd = ipc_client_take_fd(client, 0);
                r = fd < 0 ? fd : take_values(i, fd);
                if (r < 0 && !i->behind)
                        log_error_errno(r, "cannot take the credentials' values: they stay as they were until they can be");
                i->behind = r < 0;
        }
        /* Watching says that these values are in use: whoever rotated one waits for that. An unregistered run has none, and Watch says so as well. */
        if (r < 0 || (error && strcmp(error, "io.anchorhold.Secret.NoSuchRun") != 0)) {
                watch_again(i, AGAIN_USEC);
                return;
        }
        r = ipc_client_call_async(i->secretd, "io.anchorhold.Secret.Watch", json_object(), NULL, 0, true, 0, inject_on_watch, i);
        if (r < 0)
                watch_again(i, AGAIN_USEC);
}

static int inject_on_again(sd_event_source *s, uint64_t usec, void *userdata) {
        Inject *i = userdata;
        int r;

        r = ipc_client_call_async(i->secretd, "io.anchorhold.Secret.Values", json_object(), NULL, 0, false, VALUES_USEC, inject_on_values, i);
        return r < 0 ? sd_event_exit(i->event, log_error_errno(r, "cannot ask secretd")) : 0;
}

/* ---- start and end ---- */

static int read_bundle(Inject *i, const char *run, const char *path) {
        _cleanup_(secret_freep) Secret *bundle = NULL;
        SecretView v;
        int r;

        r = secret_read_file(&bundle, AT_FDCWD, path);
        if (r < 0)
                return log_error_errno(r, "cannot read the run's secrets");
        v = secret_view(bundle);
        r = bundle_parse(&i->secrets, v.bytes, v.size);
        if (r < 0)
                return log_error_errno(r, "the run's secrets are malformed");
        if (strcmp(i->secrets->run, run) != 0)
                return log_error_errno(-EBADMSG, "these are the secrets of run %s", i->secrets->run);

        for (size_t k = 0; k < i->secrets->n_credentials; k++) {
                r = inject_credential_init(&i->credentials[k], &i->secrets->credentials[k]);
                if (r < 0)
                        return log_error_errno(r, "credential %s: its rule is malformed", i->secrets->credentials[k].name);
        }
        return 0;
}

static int connect_others(Inject *i, const InjectPaths *paths) {
        bool over;
        int r;

        if ((r = audit_client_new(&i->audit, i->event)) < 0 ||
            (r = egress_link_new(&i->egress, i->event, paths->egress, inject_on_egress_lost, inject_on_grant_revoked, i)) < 0 ||
            (r = notes_new(&i->notes, i->event, i->audit, i->secrets->run, paths->run_api)) < 0 ||
            (r = tally_new(&i->tally, i->event, i->audit, i->secrets->run)) < 0 ||
            (r = usage_report_new(&i->usage, i->event, i->audit, i->secrets->run, paths->run_api)) < 0 ||
            (r = budget_new(&i->budget, i->event, paths->run_api)) < 0 ||
            (r = ipc_client_new(&i->secretd, i->event, paths->secret_api)) < 0)
                return r;
        over = strcmp(i->secrets->stage, "revoke") == 0;
        egress_link_expect(i->egress, i->secrets->workflow, over ? "work" : i->secrets->stage, inject_on_disagreement); /* so anchord registers it anew for that */
        if (over)
                return revoker_new(&i->revoker, i->event, i->secrets->run, i->egress, i->tls, i->audit, i->secretd);
        r = minter_new(&i->minter, &(MinterSetup) { i->event, i->secrets, i->credentials, i->egress, i->tls, i->audit, i->secretd, &i->context.generation });
        if (r < 0)
                return r;
        return sd_event_add_time_relative(i->event, &i->again, CLOCK_BOOTTIME, 0, 0, inject_on_again, i);
}

static int listen_to_proxy(Inject *i) {
        static const IpcMethod methods[] = {
                { "io.anchorhold.Inject.Take", PEER_PROXY, inject_on_take },
                {},
        };
        int r;

        r = ipc_server_new(&i->server, i->event, methods, i);
        if (r < 0)
                return r;
        r = ipc_server_listen_systemd(i->server, "inject");
        return r < 0 ? log_error_errno(r, "no socket inject from systemd") : 0;
}

int inject_new(Inject **ret, sd_event *event, const char *run, const InjectPaths *paths) {
        _cleanup_(inject_freep) Inject *i = calloc(1, sizeof(*i));
        int r;

        if (!i)
                return -ENOMEM;
        i->event = sd_event_ref(event);

        r = read_bundle(i, run, paths->bundle);
        if (r < 0)
                return r;
        if (i->secrets->ca_pem) {
                r = leaf_maker_new(&i->leaves, i->secrets->ca_pem, i->secrets->ca_key);
                if (r < 0)
                        return log_error_errno(r, "the run's CA is unusable");
        }
        r = tls_setup_new(&i->tls, paths->upstream_ca_dir);
        if (r < 0)
                return log_error_errno(r, "cannot set up TLS");
        r = connect_others(i, paths);
        if (r < 0)
                return r;

        i->context = (ExchangeContext) {
                .event = event,
                .run = i->secrets->run,
                .credentials = i->credentials,
                .n_credentials = i->secrets->n_credentials,
                .leaves = i->leaves,
                .tls = i->tls,
                .egress = i->egress,
                .audit = i->audit,
                .notes = i->notes,
                .tally = i->tally,
                .usage = i->usage,
                .budget = i->budget,
                .minter = i->minter,
        };
        r = listen_to_proxy(i);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(i);
        return 0;
}

/* egressd first, which answers at once: what the log is slow with should not cost what the others are told. */
static void say_last_words(Inject *i) {
        uint64_t now = time_monotonic();

        egress_link_tell_last(i->egress, now + LAST_WORDS_USEC / 4);
        usage_report_tell_last(i->usage, now + LAST_WORDS_USEC * 3ULL / 4);
        notes_tell_last(i->notes, now + LAST_WORDS_USEC);
        tally_tell_last(i->tally, now + LAST_WORDS_USEC);
}

Inject *inject_free(Inject *i) {
        if (!i)
                return NULL;

        i->server = ipc_server_free(i->server);
        exchange_close_all(&i->context);
        i->again = sd_event_source_disable_unref(i->again);
        i->secretd = ipc_client_free(i->secretd);
        i->minter = minter_free(i->minter);
        i->revoker = revoker_free(i->revoker);
        say_last_words(i); /* the calls of those two have grants as well */
        budget_free(i->budget);
        usage_report_free(i->usage);
        tally_free(i->tally);
        egress_link_free(i->egress);
        audit_client_free(i->audit);
        notes_free(i->notes);
        tls_setup_free(i->tls);
        leaf_maker_free(i->leaves);
        for (size_t k = 0; k < RUN_CREDENTIALS_MAX; k++)
                inject_credential_done(&i->credentials[k]);
        run_secrets_free(i->secrets);
        sd_event_unref(i->event);
        free(i);
        return NULL;
}
