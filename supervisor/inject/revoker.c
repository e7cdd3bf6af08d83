/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Revoke gives a token and where it belongs; a DELETE there with the token itself is its end (204), and so is 401: the API does not know it any
 * more. Then Revoked takes it off the list. Whatever else the API says is a record, and the next token is due; anchord starts this
 * program again for those that are left. At a crash after the DELETE the token is still on the list, and the next DELETE gets the 401.
 */

#include "inject/revoker.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "inject/origin-call.h"
#include "inject/token-answer.h"
#include "util/json.h"
#include "util/log.h"
#include "util/text.h"

#define SECRETD_USEC (5ULL * 1000 * 1000)
#define ALL_USEC (25ULL * 1000 * 1000) /* anchord waits for thirty seconds */
#define AGAIN_USEC (200 * 1000)

struct Revoker {
        sd_event *event;        /* ref */
        const char *run;        /* borrowed, as are the next */
        EgressLink *egress;
        TlsSetup *tls;
        AuditClient *audit;
        IpcClient *secretd;
        sd_event_source *again, *deadline; /* owned */
        OriginCall *call;       /* owned */
        Secret *secret;         /* owned; the token that is being revoked */
        char token[ID_LENGTH + 1], credential[64]; /* the one under way, or the last one */
        unsigned status;        /* of that one, if it is off: to be told */
        unsigned recording;     /* records that are not acknowledged */
        bool finished;
};

static int ask(Revoker *r);

static void finish(Revoker *r) {
        r->finished = true;
        if (r->recording == 0)
                (void) sd_event_exit(r->event, 0);
}

static int revoker_on_deadline(sd_event_source *s, uint64_t usec, void *userdata) {
        Revoker *r = userdata;

        log_warning("not every token could be revoked in time");
        return sd_event_exit(r->event, 0);
}

static int revoker_on_again(sd_event_source *s, uint64_t usec, void *userdata) {
        Revoker *r = userdata;

        if (ask(r) < 0)
                finish(r);
        return 0;
}

static void go_on(Revoker *r, uint64_t usec) {
        if (sd_event_source_set_time_relative(r->again, usec) < 0 || sd_event_source_set_enabled(r->again, SD_EVENT_ONESHOT) < 0)
                finish(r);
}

static void revoker_on_recorded(int result, void *userdata) {
        Revoker *r = userdata;

        r->recording--;
        if (r->finished)
                finish(r);
}

static void note_failure(Revoker *r, unsigned status, const char *reason) {
        json_t *data = json_pack("{s:s, s:s, s:s, s:s}", "credential", r->credential, "what", "revoking a token", "token", r->token, "reason", reason);

        log_warning("token %s is not revoked: %s", r->token, reason);
        if (data && status > 0)
                (void) json_object_set_new(data, "status", json_integer((json_int_t) status));
        if (audit_append(r->audit, "token.failed", r->run, NULL, NULL, data, revoker_on_recorded, r) >= 0)
                r->recording++;
}

static void revoker_on_call(int result, const char *reason, unsigned status, Buffer *body, void *userdata) {
        _cleanup_(origin_call_freep) OriginCall *call = NULL;
        _cleanup_(secret_freep) Secret *secret = NULL;
        char why[TOKEN_ANSWER_REASON_SIZE], text[TOKEN_ANSWER_REASON_SIZE + 64];
        Revoker *r = userdata;

        call = r->call;
        r->call = NULL;
        secret = r->secret;
        r->secret = NULL;
        if (result < 0)
                note_failure(r, 0, reason);
        else if (status == 204 || status == 401)
                r->status = status;
        else {
                token_answer_read_message((const char *) buffer_data(body), buffer_size(body), secret, why);
                (void) snprintf(text, sizeof(text), "the API answered %u%s%s", status, *why ? ": " : "", why);
                note_failure(r, status, text);
        }
        go_on(r, 0);
}

static void revoker_on_told(IpcClient *client, const char *error, json_t *params, bool more, void *userdata) {
        Revoker *r = userdata;

        if (error && strcmp(error, "io.anchorhold.Disconnected") == 0) {
                go_on(r, AGAIN_USEC); /* tells it again */
                return;
        }
        r->status = 0;
        go_on(r, 0);
}

static void revoker_on_next(IpcClient *client, const char *error, json_t *params, bool more, void *userdata) {
        const char *token = error ? NULL : json_string_value(json_object_get(params, "token")), *host, *target;
        _cleanup_(secret_freep) Secret *secret = NULL;
        _cleanup_fd_ int fd = -1;
        Revoker *r = userdata;
        int q;

        if (error && strcmp(error, "io.anchorhold.Disconnected") == 0) {
                go_on(r, AGAIN_USEC);
                return;
        }
        host = json_string_value(json_object_get(params, "host"));
        target = json_string_value(json_object_get(params, "target"));
        if (!token || !text_is_id('t', token) || !host || !target) {
                finish(r); /* nothing is left, or nothing can be had */
                return;
        }
        memcpy(r->token, token, sizeof(r->token));
        (void) snprintf(r->credential, sizeof(r->credential), "%s", json_string_value(json_object_get(params, "credential")) ?: "?");
        fd = ipc_client_take_fd(client, 0);
        q = fd < 0 ? fd : secret_read_fd(&secret, fd);
        if (q >= 0)
                q = origin_call_new(&r->call, r->event, r->egress, r->tls,
                                    &(OriginRequest) {
                                            .host = host,
                                            .port = (uint16_t) json_integer_value(json_object_get(params, "port")),
                                            .method = "DELETE",
                                            .target = target,
                                            .bearer = secret,
                                    },
                                    revoker_on_call, r);
        if (q >= 0)
                r->secret = TAKE_PTR(secret);
        if (q < 0) {
                note_failure(r, 0, strerror(-q));
                go_on(r, AGAIN_USEC);
        }
}

/* What is next: to tell that the last one is off, or another one. */
static int ask(Revoker *r) {
        if (r->status > 0)
                return ipc_client_call_async(r->secretd, "io.anchorhold.Secret.Revoked",
                                             json_pack("{s:s, s:i}", "token", r->token, "status", (int) r->status), NULL, 0, false, SECRETD_USEC,
                                             revoker_on_told, r);
        return ipc_client_call_async(r->secretd, "io.anchorhold.Secret.Revoke", json_pack("{s:s}", "after", r->token), NULL, 0, false, SECRETD_USEC,
                                     revoker_on_next, r);
}

int revoker_new(Revoker **ret, sd_event *event, const char *run, EgressLink *egress, TlsSetup *tls, AuditClient *audit, IpcClient *secretd) {
        _cleanup_(revoker_freep) Revoker *r = malloc(sizeof(*r));
        int q;

        if (!r)
                return -ENOMEM;
        *r = (Revoker) { .event = sd_event_ref(event), .run = run, .egress = egress, .tls = tls, .audit = audit, .secretd = secretd };
        if ((q = sd_event_add_time_relative(event, &r->again, CLOCK_BOOTTIME, 0, 0, revoker_on_again, r)) < 0 ||
            (q = sd_event_add_time_relative(event, &r->deadline, CLOCK_BOOTTIME, ALL_USEC, 0, revoker_on_deadline, r)) < 0)
                return q;
        *ret = TAKE_PTR(r);
        return 0;
}

Revoker *revoker_free(Revoker *r) {
        if (!r)
                return NULL;
        r->call = origin_call_free(r->call);
        r->secret = secret_free(r->secret);
        r->again = sd_event_source_disable_unref(r->again);
        r->deadline = sd_event_source_disable_unref(r->deadline);
        sd_event_unref(r->event);
        free(r);
        return NULL;
}
