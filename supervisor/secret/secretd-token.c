/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Tokens of a GitHub App (credentials of the kind "github-app"). This process has the app's private key and no network, a run's inject has a way to
 * the API and never sees the key. So it goes to and fro:
 *
 *   inject   Mint         what to ask the API for, and a proof (a JWT, two minutes) that goes with the question
 *   inject   Minted       the token and when it expires: on the list, on disk, on record; only then the answer, and only then it is used, by whomever.
 *                         Also one that is not to be used, so that it is revoked; so is one whose key was removed meanwhile, and the answer says that
 *   anchord  Outstanding  which runs that are over have tokens on the list: it has an inject started for each
 *   inject   Revoke       of such a run: the next token, and where to bring it back
 *   inject   Revoked      on record, then off the list: at a crash in between it is revoked once more
 *
 * Each run has a share of the list, for each of its credentials: nobody fills it for others. What would be beyond is not asked for in the first place, since
 * a token that is on no list is not revoked; and what is told of all the same is not taken.
 *
 * A run's tokens are due once it is not registered: it was released, or the host was rebooted. What has expired leaves the list by itself.
 */

#include "secret/secretd-private.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "policy/policy.h"
#include "secret/app-key.h"
#include "secret/bundle-api.h"
#include "util/io.h"
#include "util/json.h"
#include "util/log.h"

#define HOUR_USEC (3600ULL * 1000 * 1000)
#define LIFE_MAX_USEC (24 * HOUR_USEC) /* GitHub's last an hour */

/* Takes nothing over. */
static int push_secret(IpcCall *call, const Secret *s) {
        SecretView v = secret_view(s);
        _cleanup_fd_ int fd = io_memfd("secret", (const void *) v.bytes, v.size);
        int r;

        if (fd < 0)
                return fd;
        r = ipc_call_push_fd(call, fd);
        if (r < 0)
                return r;
        TAKE_FD(fd);
        return 0;
}

/* The credential of the caller's run, and what its file says of the app. 0: the call was answered. */
static int find_app(Secretd *d, IpcCall *call, const char *name, RunSecrets **ret_run, PolicyApp *ret) {
        RunSecrets *s = secretd_find_run(d, ipc_call_peer(call)->run);
        const RunCredential *c = NULL;
        int r;

        if (!s) {
                r = ipc_call_refuse(call, "NoSuchRun", "this run is not registered");
                return r < 0 ? r : 0;
        }
        for (size_t i = 0; name && i < s->n_credentials; i++)
                if (strcmp(s->credentials[i].name, name) == 0)
                        c = &s->credentials[i];
        if (!c || !s->repository || policy_app_read(c->rule, ret) < 0) {
                r = ipc_call_refuse(call, "BadInput", "/credential: none of this run's that mints tokens");
                return r < 0 ? r : 0;
        }
        *ret_run = s;
        return 1;
}

/* Has that run all the tokens of that credential that it may have, and so many more? */
static bool has_used_share(const Secretd *d, const RunSecrets *s, const char *name, size_t more) {
        return token_list_count(d->tokens, s->run, name, time_realtime()) >= TOKENS_SHARE_MAX + more;
}

static int refuse_share(IpcCall *call, const RunSecrets *s, const char *name) {
        log_warning("run %s: it has %d tokens of credential %s that have not expired, and gets no more", s->run, TOKENS_SHARE_MAX, name);
        return ipc_call_refuse(call, "Denied", "this run has %d tokens of credential %s that have not expired: there are no more", TOKENS_SHARE_MAX, name);
}

/* ---- Mint ---- */

/* The question to the API, as inject is to ask it. */
static json_t *describe_lookup(const RunSecrets *s, const PolicyApp *app) {
        _cleanup_free_ char *target = text_format("%s/repos/%s/installation", app->base, s->repository);

        return target ? json_pack("{s:s, s:s, s:i, s:s, s:s}", "step", "lookup", "host", app->host, "port", (int) app->port, "method", "GET", "target", target)
                      : NULL;
}

/* One repository, and the permissions of the file: what is not named is not granted. */
static json_t *describe_request(const RunSecrets *s, const PolicyApp *app, uint64_t installation) {
        _cleanup_free_ char *target = text_format("%s/app/installations/%" PRIu64 "/access_tokens", app->base, installation), *body = NULL;
        _cleanup_free_ char *revoke = text_format("%s/installation/token", app->base);
        _cleanup_json_ json_t *content = NULL;

        content = json_pack("{s:[s], s:O}", "repositories", strchr(s->repository, '/') + 1, "permissions", app->permissions);
        body = content ? json_canonical(content) : NULL;
        return target && body && revoke ? json_pack("{s:s, s:s, s:i, s:s, s:s, s:s, s:s}", "step", "token", "host", app->host, "port", (int) app->port, "method", "POST",
                                                    "target", target, "body", body, "revoke", revoke)
                                        : NULL;
}

int secretd_on_mint(IpcCall *call, json_t *params, void *userdata) {
        static const char *const known[] = { "credential", "installation", NULL };
        _cleanup_(json_reader_done) JsonReader reader = {};
        _cleanup_(secret_freep) Secret *proof = NULL;
        const char *name = NULL;
        const Secret *key;
        Secretd *d = userdata;
        uint64_t installation = 0;
        RunSecrets *s;
        json_t *reply;
        PolicyApp app;
        int r;

        json_check_keys(&reader, params, "", known);
        json_read_string(&reader, params, "", "credential", JSON_F_REQUIRED, &name);
        json_read_uint(&reader, params, "", "installation", JSON_F_NULLABLE, 1, INT64_MAX, &installation);
        if (reader.failed)
                return ipc_call_refuse(call, "BadInput", "%s: %s", reader.pointer, reader.reason);
        r = find_app(d, call, name, &s, &app);
        if (r <= 0)
                return r;
        if (has_used_share(d, s, name, 0))
                return refuse_share(call, s, name);
        key = credential_store_find(d->credentials, name);
        if (!key)
                return ipc_call_refuse(call, "Revoked", "the key of credential %s was removed from this host", name);

        r = app_key_sign(key, app.id, time_realtime(), &proof);
        if (r < 0)
                return log_error_errno(r, "credential %s: its key cannot sign", name);
        if (app.installation > 0)
                installation = app.installation;
        reply = installation > 0 ? describe_request(s, &app, installation) : describe_lookup(s, &app);
        r = reply ? push_secret(call, proof) : -ENOMEM;
        if (r < 0) {
                json_unref(reply);
                return r;
        }
        return ipc_call_reply(call, reply);
}

/* ---- Minted, Revoked: the record, what follows from it in the list, the answer ---- */

typedef struct TokenCall {
        Secretd *secretd; /* borrowed; its audit client, which calls back, goes before it */
        IpcCall *call;    /* ref */
        int (*then)(TokenList *l, const char *id); /* with the list, once it is on record */
        char token[ID_LENGTH + 1];
        json_t *answer;   /* owned */
} TokenCall;

static void token_call_free(TokenCall *t) {
        ipc_call_unref(t->call);
        json_decref(t->answer);
        free(t);
}

static void on_recorded(int r, void *userdata) {
        TokenCall *t = userdata;

        if (r < 0)
                (void) ipc_call_refuse(t->call, "Unavailable", "the audit log did not take the record: %s", strerror(-r));
        else if ((r = t->then(t->secretd->tokens, t->token)) < 0) {
                log_error_errno(r, "token %s is on record, but the list cannot be changed", t->token);
                (void) ipc_call_refuse(t->call, "Unavailable", "the list of tokens cannot be changed: %s", strerror(-r));
        } else
                (void) ipc_call_reply(t->call, TAKE_PTR(t->answer));
        token_call_free(t);
}

/* Takes data and answer over. */
static int record_and_answer(Secretd *d, IpcCall *call, const char *event, const char *run, const char *item, const char *id, json_t *data,
                             int (*then)(TokenList *l, const char *id), json_t *answer) {
        TokenCall *t = malloc(sizeof(*t));
        int r;

        if (!t || !data || !answer) {
                free(t);
                json_unref(data);
                json_unref(answer);
                return -ENOMEM;
        }
        *t = (TokenCall) { .secretd = d, .call = ipc_call_ref(call), .then = then, .answer = answer };
        (void) snprintf(t->token, sizeof(t->token), "%s", id);
        r = audit_append(d->audit, event, run, item, NULL, data, on_recorded, t);
        if (r < 0)
                token_call_free(t);
        return r;
}

/* Whoever sends it holds nothing up: a descriptor that has not all of it yet is refused. */
static const char *read_token(IpcCall *call, Secret **ret) {
        _cleanup_fd_ int fd = ipc_call_take_fd(call, 0);
        const char *wrong = NULL;

        if (fd < 0 || io_set_nonblock(fd, 1) < 0 || secret_read_fd(ret, fd) < 0 || credential_value_take(ret, &wrong) < 0)
                return "descriptor 0 cannot be read";
        return wrong ?: app_key_is_pem(*ret) ? "a private key" : NULL;
}

static const Token *find_same(const Secretd *d, const char *run, const Secret *secret) {
        SecretView v = secret_view(secret);

        for (size_t i = 0; i < token_list_size(d->tokens); i++) {
                const Token *t = token_list_get(d->tokens, i);

                if (strcmp(t->run, run) == 0 && secret_equals(t->secret, v.bytes, v.size))
                        return t;
        }
        return NULL;
}

/* The key may have gone, or become another kind of credential, while the API was asked. */
static bool has_key(const Secretd *d, const char *name) {
        const Secret *key = credential_store_find(d->credentials, name);

        return key && app_key_is_pem(key);
}

int secretd_on_minted(IpcCall *call, json_t *params, void *userdata) {
        static const char *const known[] = { "credential", "expires_usec", "unusable", NULL };
        _cleanup_(json_reader_done) JsonReader reader = {};
        bool unusable = false;
        uint64_t expires = 0, now = time_realtime();
        _cleanup_(secret_freep) Secret *secret = NULL;
        _cleanup_(token_freep) Token *t = NULL;
        _cleanup_free_ char *target = NULL;
        char until[TIME_TEXT_SIZE], id[ID_LENGTH + 1];
        const char *name = NULL, *wrong;
        const Token *same;
        Secretd *d = userdata;
        PolicyApp app;
        RunSecrets *s;
        json_t *data;
        int r;

        json_check_keys(&reader, params, "", known);
        json_read_string(&reader, params, "", "credential", JSON_F_REQUIRED, &name);
        json_read_uint(&reader, params, "", "expires_usec", JSON_F_REQUIRED, now, now + LIFE_MAX_USEC, &expires);
        json_read_bool(&reader, params, "", "unusable", JSON_F_NULLABLE, &unusable);
        if (reader.failed)
                return ipc_call_refuse(call, "BadInput", "%s: %s", reader.pointer, reader.reason);
        r = find_app(d, call, name, &s, &app);
        if (r <= 0)
                return r;
        wrong = read_token(call, &secret);
        if (wrong)
                return ipc_call_refuse(call, "BadInput", "the token: %s", wrong);

        target = text_format("%s/installation/token", app.base);
        r = target ? token_new(&t, s->run, s->item, s->workflow, name, app.host, app.port, target, expires) : -ENOMEM;
        if (r < 0)
                return r;
        same = find_same(d, s->run, secret);
        if (!same && has_used_share(d, s, name, TOKENS_SHARE_ASKED))
                return refuse_share(call, s, name);
        if (same) /* told again, by an inject that did not get the answer */
                memcpy(t->id, same->id, sizeof(t->id));
        t->secret = TAKE_PTR(secret);
        t->unusable = unusable = unusable || (same && same->unusable) || !has_key(d, name);
        text_time(expires, until);
        data = json_pack("{s:s, s:s, s:s, s:O, s:s}", "credential", name, "token", t->id, "repository", s->repository, "permissions", app.permissions,
                         "expires", until);

        memcpy(id, t->id, sizeof(id));
        r = same ? 0 : token_list_add(d->tokens, t);
        if (r < 0) {
                json_unref(data);
                return log_error_errno(r, "run %s: a token of credential %s cannot be kept, and is not used", s->run, name);
        }
        if (!same)
                TAKE_PTR(t);
        return record_and_answer(d, call, "token.minted", s->run, s->item, id, data, token_list_set_recorded,
                                 json_pack("{s:s, s:b}", "token", id, "usable", (int) !unusable));
}

/* ---- after the run ---- */

bool secretd_token_is_due(const Secretd *d, const Token *t) {
        return !run_store_find(d->runs, t->run) && t->expires_usec > time_realtime();
}

static bool has_run(const json_t *list, const char *run) {
        for (size_t i = 0; i < json_array_size(list); i++)
                if (strcmp(json_string_value(json_object_get(json_array_get(list, i), "run")), run) == 0)
                        return true;
        return false;
}

int secretd_on_outstanding(IpcCall *call, json_t *params, void *userdata) {
        json_t *list = json_array();
        Secretd *d = userdata;

        for (size_t i = 0; i < token_list_size(d->tokens); i++) {
                const Token *t = token_list_get(d->tokens, i);

                if (secretd_token_is_due(d, t) && !has_run(list, t->run))
                        json_array_append_new(list, json_pack("{s:s, s:s, s:s}", "run", t->run, "item", t->item, "workflow", t->workflow));
        }
        return ipc_call_reply(call, json_pack("{s:o}", "runs", list));
}

/* The first in the order of their ids behind `after`. */
static const Token *next_due(const Secretd *d, const char *run, const char *after) {
        const Token *next = NULL;

        for (size_t i = 0; i < token_list_size(d->tokens); i++) {
                const Token *t = token_list_get(d->tokens, i);

                if (strcmp(t->run, run) == 0 && strcmp(t->id, after) > 0 && (!next || strcmp(t->id, next->id) < 0) && secretd_token_is_due(d, t))
                        next = t;
        }
        return next;
}

int secretd_give_revoker(const Secretd *d, const char *run, char **ret, size_t *ret_size) {
        _cleanup_(run_secrets_freep) RunSecrets *s = NULL;
        const Token *t = next_due(d, run, "");
        int r;

        if (!t)
                return -ENOENT;
        r = run_secrets_new(&s, run, t->item, t->workflow, "revoke", t->expires_usec, 0);
        return r < 0 ? r : bundle_format(s, 0, ret, ret_size);
}

int secretd_on_revoke(IpcCall *call, json_t *params, void *userdata) {
        const char *after = json_string_value(json_object_get(params, "after"));
        Secretd *d = userdata;
        const Token *t;
        json_t *reply;
        int r;

        t = next_due(d, ipc_call_peer(call)->run, after ?: "");
        if (!t)
                return ipc_call_reply(call, NULL);
        reply = json_pack("{s:s, s:s, s:s, s:i, s:s}", "token", t->id, "credential", t->credential, "host", t->host, "port", (int) t->port, "target", t->target);
        r = reply ? push_secret(call, t->secret) : -ENOMEM;
        if (r < 0) {
                json_unref(reply);
                return r;
        }
        return ipc_call_reply(call, reply);
}

int secretd_on_revoked(IpcCall *call, json_t *params, void *userdata) {
        const char *id = json_string_value(json_object_get(params, "token"));
        const json_t *status = json_object_get(params, "status");
        char run[ID_LENGTH + 1], item[ID_LENGTH + 1];
        Secretd *d = userdata;
        const Token *t;
        json_t *data;

        if (!text_is_id('t', id) || !json_is_integer(status))
                return ipc_call_refuse(call, "BadInput", "/token, /status: which one, and what the API said");
        t = token_list_find(d->tokens, id);
        if (!t)
                return ipc_call_reply(call, json_pack("{s:s}", "token", id)); /* said before */
        if (strcmp(t->run, ipc_call_peer(call)->run) != 0)
                return ipc_call_refuse(call, "Denied", "a token of another run");

        memcpy(run, t->run, sizeof(run));
        memcpy(item, t->item, sizeof(item));
        data = json_pack("{s:s, s:s, s:O}", "credential", t->credential, "token", t->id, "status", status);
        return record_and_answer(d, call, "token.revoked", run, item, t->id, data, token_list_remove, json_pack("{s:s}", "token", id));
}

/* ---- what is over ---- */

void secretd_tokens_sweep(Secretd *d) {
        uint64_t now = time_realtime();

        for (size_t i = 0; i < token_list_size(d->tokens);) {
                const Token *t = token_list_get(d->tokens, i);
                bool live = run_store_find(d->runs, t->run);

                if (t->expires_usec > now) {
                        i++;
                        continue;
                }
                /* that a live run's expires is the way of things */
                if (!live && audit_append(d->audit, "token.unrevoked", t->run, t->item, NULL,
                                          json_pack("{s:s, s:s, s:s}", "credential", t->credential, "token", t->id, "reason", "it expired first"), NULL, NULL) < 0)
                        return; /* the next sweep */
                if (token_list_remove(d->tokens, t->id) < 0)
                        return;
        }
}

int secretd_tokens_load(Secretd *d, const char *state_dir, const char *key_dir) {
        size_t lost;
        int r;

        r = token_list_new(&d->tokens, state_dir, key_dir, d->credentials, &lost);
        if (r < 0)
                return r;
        if (lost > 0)
                (void) audit_append(d->audit, "token.unrevoked", NULL, NULL, NULL,
                                    json_pack("{s:s, s:I}", "reason", "the list cannot be read any more", "count", (json_int_t) lost), NULL, NULL);
        if (token_list_size(d->tokens) > 0)
                log_info("%zu tokens are not revoked yet", token_list_size(d->tokens));
        return 0;
}
