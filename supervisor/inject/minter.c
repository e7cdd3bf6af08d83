/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * One job a credential:
 *
 *   ASKING    secretd: what to ask, and the proof that goes with it
 *   CALLING   the API; if it was asked for the installation, ASKING follows once more
 *   KEEPING   secretd has put the token on the list of what is to be revoked: nobody uses one before
 *
 * A credential may be removed at any of these steps. The token goes on the list all the same, and is not used: what secretd said of the credential (inject.c) and what
 * it says of the token both count, since either may be heard first.
 *
 * A token that secretd could not put on its list is known to nobody else, and nobody would revoke it: so that is done here, at once.
 *
 * and whoever needs the token waits. It is renewed when a quarter of its life is left, five minutes at most; the one before stays good for requests that are under way. After a failure
 * nobody asks for two seconds, so that a guest that tries again and again is not heard by the API each time; each failure is a record. secretd may
 * start anew at any moment: what it did not answer is asked again, a token is kept under one id however often it is told.
 */

#include "inject/minter.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "inject/origin-call.h"
#include "inject/token-answer.h"
#include "util/io.h"
#include "util/json.h"
#include "util/log.h"
#include "util/text.h"

#define SECOND_USEC (1000ULL * 1000)
#define SPARE_USEC (5 * SECOND_USEC)          /* a token that expires sooner is no use to a request */
#define MARGIN_MAX_USEC (300 * SECOND_USEC)
#define PAUSE_USEC (2 * SECOND_USEC)
#define RETRY_USEC (10 * SECOND_USEC)         /* of a renewal */
#define SECRETD_USEC (5 * SECOND_USEC)
#define AGAIN_USEC (200 * 1000)

enum { REASON_SIZE = 512, AGAIN_MAX = 50 };

typedef struct Mint Mint;

struct MintWait {
        MintWait *next, **prev;
        MintDone done;
        void *userdata;
};

struct Mint {
        Minter *minter;           /* borrowed */
        RunCredential *source;    /* borrowed */
        InjectCredential *credential; /* borrowed */
        bool under_way;
        OriginCall *call;         /* owned */
        char *host, *revoke;      /* owned; where the token comes from, and the target that ends it there */
        uint16_t port;
        Secret *proof;            /* owned; what the API is asked with */
        bool looked_up, is_lookup; /* the question under way */
        uint64_t installation;
        Secret *token;            /* owned; not kept yet */
        int unusable;             /* TOKEN_ANSWER_E_…: it is put on the list to be revoked, and must not be used; 0: it may be */
        char why_unusable[TOKEN_ANSWER_REASON_SIZE];
        bool removed;             /* the credential was when secretd was told of the token: its list has that as unusable */
        uint64_t expires_usec;
        unsigned n_again;
        sd_event_source *again, *renew; /* owned */
        uint64_t failed_usec;     /* CLOCK_BOOTTIME; 0: not lately */
        char reason[REASON_SIZE];
        MintWait *waits;          /* owned by who waits */
};

struct Minter {
        MinterSetup s;
        Mint mints[RUN_CREDENTIALS_MAX];
};

static void ask(Mint *m);
static void keep(Mint *m);

bool minter_lacks(const InjectCredential *c) {
        return c->source->minted && !c->revoked && (!c->source->secret || c->source->expires_usec < time_realtime() + SPARE_USEC);
}

/* ---- the end of an attempt ---- */

static void renew_in(Mint *m, uint64_t usec) {
        (void) sd_event_source_set_time_relative(m->renew, usec);
        (void) sd_event_source_set_enabled(m->renew, SD_EVENT_ONESHOT);
}

static void renew_in_time(Mint *m) {
        uint64_t now = time_realtime(), left = m->source->expires_usec > now ? m->source->expires_usec - now : 0;
        uint64_t margin = left / 4 < MARGIN_MAX_USEC ? left / 4 : MARGIN_MAX_USEC;

        if (m->source->secret && left > 0)
                renew_in(m, left - margin);
}

/* Those that wait now: one that begins to wait meanwhile is for the next time. */
static void tell(Mint *m, const char *reason) {
        MintWait *list = m->waits;

        m->waits = NULL;
        if (list)
                list->prev = &list;
        while (list) {
                MintWait *w = list;
                MintDone done = w->done;
                void *userdata = w->userdata;

                (void) mint_wait_free(w);
                done(reason, userdata);
        }
}

static void end(Mint *m) {
        m->under_way = false;
        m->call = origin_call_free(m->call);
        m->proof = secret_free(m->proof);
        m->token = secret_free(m->token);
        free(m->host);
        free(m->revoke);
        m->host = m->revoke = NULL;
        m->looked_up = false;
        m->unusable = 0;
        m->removed = false;
        m->installation = 0;
        m->n_again = 0;
}

static void fail(Mint *m, const char *kind, unsigned status, const char *reason, const char *detail) {
        const char *name = m->source->name;
        json_t *data;

        (void) snprintf(m->reason, sizeof(m->reason), "%s%s%s", reason, detail && *detail ? ": " : "", detail ?: "");
        log_warning("credential %s: no token: %s", name, m->reason);
        data = json_pack("{s:s, s:s, s:s, s:s*}", "credential", name, "what", "minting a token", "reason", kind, "detail", m->reason);
        if (data && status > 0)
                (void) json_object_set_new(data, "status", json_integer((json_int_t) status));
        (void) audit_append(m->minter->s.audit, "token.failed", m->minter->s.secrets->run, NULL, NULL, data, NULL, NULL);

        m->failed_usec = time_boottime();
        end(m);
        if (m->source->secret && m->source->expires_usec > time_realtime())
                renew_in(m, RETRY_USEC);
        tell(m, m->reason);
}

/* secretd does not answer: its socket is systemd's, so it will. */
static bool ask_again(Mint *m, const char *error) {
        if (!error || strcmp(error, "io.anchorhold.Disconnected") != 0 || ++m->n_again > AGAIN_MAX)
                return false;
        (void) sd_event_source_set_time_relative(m->again, AGAIN_USEC);
        return sd_event_source_set_enabled(m->again, SD_EVENT_ONESHOT) >= 0;
}

static int mint_on_again(sd_event_source *s, uint64_t usec, void *userdata) {
        Mint *m = userdata;

        if (m->token)
                keep(m);
        else
                ask(m);
        return 0;
}

static const char *reason_of(const char *error, const json_t *params) {
        return json_string_value(json_object_get(params, "reason")) ?: error;
}

/* ---- what is on no list ---- */

/* what: became of it. */
static void not_kept(Mint *m, unsigned status, const char *why, const char *what) {
        _cleanup_free_ char *text = text_format("the token could not be put on the list of what is to be revoked, and %s", what);

        fail(m, "not-kept", status, text ?: "", why);
}

static void mint_on_given_back(int r, const char *reason, unsigned status, Buffer *body, void *userdata) {
        _cleanup_(origin_call_freep) OriginCall *call = NULL;
        _cleanup_free_ char *why = NULL, *what = NULL;
        Mint *m = userdata;

        call = m->call;
        m->call = NULL;
        why = strdup(m->reason);
        if (r >= 0 && (status == 204 || status == 401)) {
                not_kept(m, 0, why, "was revoked at once");
                return;
        }
        what = r < 0 ? text_format("is good until it expires (%s)", reason) : text_format("is good until it expires (the API answered %u when it was to be revoked)", status);
        not_kept(m, r < 0 ? 0 : status, why, what ?: "is good until it expires");
}

static void give_back(Mint *m, const char *why) {
        const Minter *minter = m->minter;
        int r = -ENODATA;

        (void) snprintf(m->reason, sizeof(m->reason), "%s", why);
        if (m->revoke)
                r = origin_call_new(&m->call, minter->s.event, minter->s.egress, minter->s.tls,
                                    &(OriginRequest) { .host = m->host, .port = m->port, .method = "DELETE", .target = m->revoke, .bearer = m->token },
                                    mint_on_given_back, m);
        if (r < 0)
                not_kept(m, 0, why, "is good until it expires");
}

/* ---- KEEPING ---- */

static bool is_removed(const Mint *m) {
        return m->credential->revoked || !m->source->minted;
}

static void mint_on_kept(IpcClient *client, const char *error, json_t *params, bool more, void *userdata) {
        Mint *m = userdata;

        if (error && ask_again(m, error))
                return;
        if (error) {
                give_back(m, reason_of(error, params));
                return;
        }
        if (m->unusable == TOKEN_ANSWER_E_WIDER) {
                fail(m, "wider", 201, "the token is for more than was asked", m->why_unusable);
                return;
        }
        if (m->unusable) {
                fail(m, "malformed", 201, m->why_unusable, NULL);
                return;
        }
        if (m->removed || is_removed(m) || json_is_false(json_object_get(params, "usable"))) {
                fail(m, "removed", 0, "the credential was removed from this host meanwhile", NULL);
                return;
        }
        m->source->expires_usec = m->expires_usec;
        (void) inject_credential_update(m->credential, m->source, &m->token);
        (*m->minter->s.generation)++;
        log_info("credential %s: a token for the next %llu s", m->source->name, (unsigned long long) (m->expires_usec - time_realtime()) / SECOND_USEC);
        m->failed_usec = 0;
        end(m);
        renew_in_time(m);
        tell(m, NULL);
}

static void keep(Mint *m) {
        _cleanup_fd_ int from = -1, to = -1;
        SecretView v = secret_view(m->token);
        int fds[2], r;

        m->removed = m->removed || is_removed(m);
        /* a pipe holds any token, and no other kind of file is made here */
        r = pipe2(fds, O_CLOEXEC) < 0 ? -errno : 0;
        if (r >= 0) {
                from = fds[0];
                to = fds[1];
                r = io_write_full(to, v.bytes, v.size);
                to = fd_close(to);
        }
        if (r >= 0)
                r = ipc_client_call_async(m->minter->s.secretd, "io.anchorhold.Secret.Minted",
                                          json_pack("{s:s, s:I, s:b}", "credential", m->source->name, "expires_usec", (json_int_t) m->expires_usec,
                                                    "unusable", (int) (m->unusable > 0 || m->removed)),
                                          &from, 1, false, SECRETD_USEC, mint_on_kept, m);
        if (r < 0)
                give_back(m, strerror(-r));
}

/* ---- CALLING ---- */

static void take_answer(Mint *m, unsigned status, Buffer *body) {
        char *data = (char *) buffer_data(body), why[TOKEN_ANSWER_REASON_SIZE], what[64];
        size_t size = buffer_size(body);
        int r;

        if (status != (m->is_lookup ? 200U : 201U)) {
                token_answer_read_message(data, size, m->proof, why);
                (void) snprintf(what, sizeof(what), "the API answered %u%s", status, m->is_lookup ? " (which installation?)" : "");
                fail(m, "refused", status, what, why);
                return;
        }
        if (m->is_lookup) {
                m->installation = token_answer_read_installation(data, size);
                m->looked_up = true;
                if (m->installation == 0)
                        fail(m, "malformed", status, "the API's answer names no installation", NULL);
                else
                        ask(m);
                return;
        }
        r = token_answer_read(data, size, m->proof, json_object_get(json_object_get(m->source->rule, "app"), "permissions"), m->minter->s.secrets->repository ?: "",
                              time_realtime(), &m->token, &m->expires_usec, why);
        if (r < 0) {
                fail(m, "malformed", status, r == -EBADMSG ? why : strerror(-r), NULL);
                return;
        }
        m->unusable = r;
        if (m->unusable) /* on the list all the same: so it is revoked */
                (void) snprintf(m->why_unusable, sizeof(m->why_unusable), "%s", why);
        keep(m);
}

static void mint_on_call(int r, const char *reason, unsigned status, Buffer *body, void *userdata) {
        _cleanup_(origin_call_freep) OriginCall *call = NULL;
        Mint *m = userdata;

        call = m->call; /* goes at the end: reason and body are its own */
        m->call = NULL;
        if (r < 0)
                fail(m, r == -EACCES ? "not-allowed" : "unreachable", 0, reason, NULL);
        else
                take_answer(m, status, body);
}

/* ---- ASKING ---- */

static int call_api(Mint *m, const json_t *q) {
        Minter *minter = m->minter;
        const char *host = json_string_value(json_object_get(q, "host")), *method = json_string_value(json_object_get(q, "method")),
                   *target = json_string_value(json_object_get(q, "target")), *step = json_string_value(json_object_get(q, "step"));

        if (!host || !method || !target || !step)
                return -EBADMSG;
        m->is_lookup = strcmp(step, "lookup") == 0;
        if (m->is_lookup && m->looked_up)
                return -EBADMSG;
        if (!m->is_lookup) {
                const char *revoke = json_string_value(json_object_get(q, "revoke"));

                m->host = strdup(host);
                m->port = (uint16_t) json_integer_value(json_object_get(q, "port"));
                m->revoke = revoke ? strdup(revoke) : NULL;
                if (!m->host || !m->revoke)
                        return revoke ? -ENOMEM : -EBADMSG;
        }
        return origin_call_new(&m->call, minter->s.event, minter->s.egress, minter->s.tls,
                               &(OriginRequest) {
                                       .host = host,
                                       .port = (uint16_t) json_integer_value(json_object_get(q, "port")),
                                       .method = method,
                                       .target = target,
                                       .body = json_string_value(json_object_get(q, "body")),
                                       .bearer = m->proof,
                               },
                               mint_on_call, m);
}

static void mint_on_question(IpcClient *client, const char *error, json_t *params, bool more, void *userdata) {
        _cleanup_(secret_freep) Secret *proof = NULL;
        _cleanup_fd_ int fd = -1;
        Mint *m = userdata;
        int r;

        if (error && ask_again(m, error))
                return;
        if (error) {
                fail(m, "unavailable", 0, "there is no proof for the API", reason_of(error, params));
                return;
        }
        fd = ipc_client_take_fd(client, 0);
        r = fd < 0 ? fd : secret_read_fd(&proof, fd);
        if (r >= 0) {
                (void) secret_free(m->proof);
                m->proof = TAKE_PTR(proof);
                r = call_api(m, params);
        }
        if (r < 0)
                fail(m, "unavailable", 0, "the API cannot be asked", r == -ENOTCONN ? "the host decides nothing at the moment" : strerror(-r));
}

static void ask(Mint *m) {
        json_t *params = json_pack("{s:s}", "credential", m->source->name);
        int r;

        m->under_way = true;
        if (params && m->installation > 0)
                (void) json_object_set_new(params, "installation", json_integer((json_int_t) m->installation));
        r = ipc_client_call_async(m->minter->s.secretd, "io.anchorhold.Secret.Mint", params, NULL, 0, false, SECRETD_USEC, mint_on_question, m);
        if (r < 0)
                fail(m, "unavailable", 0, "there is no proof for the API", strerror(-r));
}

/* ---- who waits ---- */

MintWait *mint_wait_free(MintWait *w) {
        if (!w)
                return NULL;
        *w->prev = w->next;
        if (w->next)
                w->next->prev = w->prev;
        free(w);
        return NULL;
}

static int mint_on_renew(sd_event_source *s, uint64_t usec, void *userdata) {
        Mint *m = userdata;

        if (!m->under_way && m->source->minted && !m->credential->revoked)
                ask(m);
        return 0;
}

int minter_wait(Minter *minter, const InjectCredential *c, MintDone done, void *userdata, MintWait **ret) {
        Mint *m = &minter->mints[c - minter->s.credentials];
        MintWait *w = malloc(sizeof(*w));

        if (!w)
                return -ENOMEM;
        *w = (MintWait) { .next = m->waits, .prev = &m->waits, .done = done, .userdata = userdata };
        if (w->next)
                w->next->prev = &w->next;
        m->waits = w;
        *ret = w;

        /* also what failed just now is told from the loop */
        if (!m->under_way) {
                bool pause = m->failed_usec > 0 && time_boottime() - m->failed_usec < PAUSE_USEC;

                m->under_way = true;
                (void) sd_event_source_set_time_relative(m->again, pause ? PAUSE_USEC : 0);
                (void) sd_event_source_set_enabled(m->again, SD_EVENT_ONESHOT);
        }
        return 0;
}

void minter_look(Minter *minter) {
        for (size_t i = 0; i < minter->s.secrets->n_credentials; i++)
                if (minter->mints[i].source->minted && !minter->mints[i].under_way)
                        renew_in_time(&minter->mints[i]);
}

/* ---- start and end ---- */

int minter_new(Minter **ret, const MinterSetup *setup) {
        _cleanup_(minter_freep) Minter *minter = calloc(1, sizeof(*minter));
        int r;

        if (!minter)
                return -ENOMEM;
        minter->s = *setup;
        for (size_t i = 0; i < setup->secrets->n_credentials; i++) {
                Mint *m = &minter->mints[i];

                *m = (Mint) { .minter = minter, .source = &setup->secrets->credentials[i], .credential = &setup->credentials[i] };
                if ((r = sd_event_add_time_relative(setup->event, &m->again, CLOCK_BOOTTIME, 0, 0, mint_on_again, m)) < 0 ||
                    (r = sd_event_source_set_enabled(m->again, SD_EVENT_OFF)) < 0 ||
                    (r = sd_event_add_time_relative(setup->event, &m->renew, CLOCK_BOOTTIME, 0, 0, mint_on_renew, m)) < 0 ||
                    (r = sd_event_source_set_enabled(m->renew, SD_EVENT_OFF)) < 0)
                        return r;
        }
        minter_look(minter);
        *ret = TAKE_PTR(minter);
        return 0;
}

Minter *minter_free(Minter *minter) {
        if (!minter)
                return NULL;
        for (size_t i = 0; i < RUN_CREDENTIALS_MAX; i++) {
                Mint *m = &minter->mints[i];

                end(m);
                m->again = sd_event_source_disable_unref(m->again);
                m->renew = sd_event_source_disable_unref(m->renew);
        }
        free(minter);
        return NULL;
}
