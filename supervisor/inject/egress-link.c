/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * One client for questions, several at a time, and a Watch that is made again whenever it ends. After ten
 * seconds without a heartbeat, also from the start, the link is lost; whoever asks then is denied without asking.
 * A grant belongs to whoever asked: if that one is gone when the answer comes, the grant is given back at once. That it was given back,
 * egressd is told until it knows (egress/grant-ends.c).
 */

#include "inject/egress-link.h"

#include <errno.h>
#include <jansson.h>
#include <string.h>

#include "egress/grant-ends-api.h"
#include "egress/held-grants-api.h"
#include "ipc/ipc.h"
#include "util/json.h"
#include "util/log.h"
#include "util/text.h"

#define EGRESS "io.anchorhold.Egress."
#define SILENCE_USEC (10ULL * 1000 * 1000)
#define AGAIN_USEC (500ULL * 1000)
#define ANSWER_USEC (15ULL * 1000 * 1000) /* resolving takes its time */

enum { PARALLEL = 16 };

struct EgressLink {
        IpcClient *client; /* owned */
        HeldGrants *held;  /* owned */
        GrantEnds *ends;   /* owned */
        sd_event_source *silence, *again; /* owned */
        EgressLost lost;
        EgressRevoked revoked;
        EgressDisagrees disagrees;
        void *userdata;
        const char *workflow, *stage; /* borrowed; NULL: nobody compares */
        bool heard, lost_now;
        EgressQuestion *questions; /* owned: those that were not answered */
        EgressHolder *holders; /* borrowed */
};

struct EgressQuestion {
        EgressQuestion *next, **prev;
        EgressLink *link; /* borrowed */
        uint16_t port;
        bool within;      /* it brings no grant */
        EgressDone done;  /* NULL once nobody waits */
        void *userdata;
};

static int watch(EgressLink *l);

static void question_over(EgressQuestion *q) {
        *q->prev = q->next;
        if (q->next)
                q->next->prev = q->prev;
        free(q);
}

static int link_on_silence(sd_event_source *s, uint64_t usec, void *userdata) {
        EgressLink *l = userdata;

        l->heard = false;
        l->lost_now = true;
        log_warning("egressd is silent: closing every connection");
        l->lost(l->userdata);
        return 0;
}

static void arm(sd_event_source *s, uint64_t usec) {
        (void) sd_event_source_set_time_relative(s, usec);
        (void) sd_event_source_set_enabled(s, SD_EVENT_ONESHOT);
}

static int link_on_again(sd_event_source *s, uint64_t usec, void *userdata) {
        EgressLink *l = userdata;
        int r;

        r = watch(l);
        if (r >= 0)
                return 0;
        /* too many questions are under way, say */
        log_warning_errno(r, "cannot watch egressd yet");
        arm(l->again, AGAIN_USEC);
        return 0;
}

static void tell_streams(EgressLink *l, const json_t *list) {
        for (size_t i = 0; i < json_array_size(list); i++) {
                const json_t *entry = json_array_get(list, i), *streams = json_object_get(entry, "streams");

                for (size_t k = 0; k < json_array_size(streams); k++) {
                        json_int_t number = json_integer_value(json_array_get(streams, k));

                        if (number > 0)
                                l->revoked(json_integer_value(json_object_get(entry, "grant")), number, l->userdata);
                }
        }
}

static void link_on_watch(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        EgressLink *l = userdata;

        if (!error && json_is_integer(json_object_get(params, "heartbeat"))) {
                if (!l->heard)
                        log_info("egressd is there");
                l->heard = true;
                l->lost_now = false;
                arm(l->silence, SILENCE_USEC);
        }
        if (!error) {
                held_grants_read(l->held, params);
                tell_streams(l, json_object_get(params, "streams"));
        }
        if (error || !more)
                arm(l->again, AGAIN_USEC);
}

static void link_on_revoked(uint64_t grant, void *userdata) {
        EgressLink *l = userdata;

        for (EgressHolder *h = l->holders; h; h = h->next)
                if (h->grant == (int64_t) grant) {
                        h->revoked(h->userdata);
                        return;
                }
        l->revoked((int64_t) grant, 0, l->userdata);
}

void egress_link_expect(EgressLink *l, const char *workflow, const char *stage, EgressDisagrees disagrees) {
        l->workflow = workflow;
        l->stage = stage;
        l->disagrees = disagrees;
}

void egress_link_hold(EgressLink *l, EgressHolder *h, int64_t grant, void (*revoked)(void *userdata), void *userdata) {
        *h = (EgressHolder) { .next = l->holders, .prev = &l->holders, .grant = grant, .revoked = revoked, .userdata = userdata };
        if (h->next)
                h->next->prev = &h->next;
        l->holders = h;
}

void egress_link_release(EgressHolder *h) {
        if (!h->prev)
                return;
        *h->prev = h->next;
        if (h->next)
                h->next->prev = h->prev;
        h->prev = NULL;
}

static int watch(EgressLink *l) {
        return ipc_client_call_async(l->client, EGRESS "Watch", json_object(), NULL, 0, true, 0, link_on_watch, l);
}

int egress_link_new(EgressLink **ret, sd_event *event, const char *socket_path, EgressLost lost, EgressRevoked revoked, void *userdata) {
        _cleanup_(egress_link_freep) EgressLink *l = NULL;
        int r;

        l = malloc(sizeof(*l));
        if (!l)
                return -ENOMEM;
        *l = (EgressLink) { .lost = lost, .revoked = revoked, .userdata = userdata };

        r = ipc_client_new(&l->client, event, socket_path);
        if (r < 0)
                return r;
        ipc_client_set_parallel(l->client, PARALLEL);
        r = held_grants_new(&l->held, link_on_revoked, l);
        if (r < 0)
                return r;
        r = grant_ends_new(&l->ends, event, socket_path);
        if (r < 0)
                return r;
        r = sd_event_add_time_relative(event, &l->silence, CLOCK_BOOTTIME, SILENCE_USEC, 0, link_on_silence, l);
        if (r < 0)
                return r;
        r = sd_event_add_time_relative(event, &l->again, CLOCK_BOOTTIME, AGAIN_USEC, 0, link_on_again, l);
        if (r < 0)
                return r;
        r = sd_event_source_set_enabled(l->again, SD_EVENT_OFF);
        if (r < 0)
                return r;
        r = watch(l);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(l);
        return 0;
}

EgressLink *egress_link_free(EgressLink *l) {
        if (!l)
                return NULL;
        l->client = ipc_client_free(l->client);
        l->ends = grant_ends_free(l->ends);
        l->held = held_grants_free(l->held);
        while (l->questions)
                question_over(l->questions);
        l->again = sd_event_source_disable_unref(l->again);
        l->silence = sd_event_source_disable_unref(l->silence);
        free(l);
        return NULL;
}

EgressQuestion *egress_question_free(EgressQuestion *q) {
        if (q)
                q->done = NULL; /* the answer frees it */
        return NULL;
}

static void read_addresses(const json_t *list, EgressAnswer *a) {
        for (size_t i = 0; i < json_array_size(list) && a->n_addresses < EGRESS_ADDRESSES_MAX; i++) {
                const char *s = json_string_value(json_array_get(list, i));

                if (s)
                        a->addresses[a->n_addresses++] = s;
        }
}

/* The grant that came is revoked by now. */
static bool is_revoked(EgressLink *l, const EgressQuestion *q, const EgressAnswer *a) {
        return !q->within && !held_grants_answer(l->held, a->grant > 0 ? (uint64_t) a->grant : 0);
}

/* anchord told egressd what the run is, and secretd; each works out by itself what that may, so that the credentials of one workflow must not meet the hosts
 * of another. A name that is not there is another one as well. */
static bool is_of_another(EgressLink *l, const EgressQuestion *q, const json_t *answer) {
        const char *workflow = json_string_value(json_object_get(answer, "workflow")) ?: "", *stage = json_string_value(json_object_get(answer, "stage")) ?: "";

        if (!l->workflow || (strcmp(workflow, l->workflow) == 0 && strcmp(stage, l->stage) == 0))
                return false;
        l->disagrees(json_string_value(json_object_get(answer, "name")) ?: "", q->port, workflow, stage, l->userdata);
        return true;
}

static void link_on_answer(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        EgressQuestion *q = userdata;
        EgressLink *l = q->link;
        EgressDone done = q->done;
        void *done_userdata = q->userdata;
        EgressAnswer a = { .reason = "unavailable", .rule = "default" };
        const char *verdict, *text;

        verdict = error ? NULL : json_string_value(json_object_get(params, "verdict"));
        if (verdict) {
                a.pass = strcmp(verdict, "pass") == 0;
                a.grant = json_integer_value(json_object_get(params, "grant"));
                a.covers = json_is_true(json_object_get(params, "covers"));
                read_addresses(json_object_get(params, "addresses"), &a);
                text = json_string_value(json_object_get(params, "reason"));
                a.reason = text ? text : a.pass ? "allowed" : "no-rule";
                text = json_string_value(json_object_get(params, "rule"));
                a.rule = text ? text : "default";
                a.git = json_object_get(params, "git");
        } else if (error)
                log_warning("egressd did not decide: %s", error);

        if (is_revoked(l, q, &a)) {
                egress_link_done(l, a.grant, 0, 0, 0);
                a = (EgressAnswer) { .reason = "unavailable", .rule = "default" };
        }
        if (a.pass && is_of_another(l, q, params)) {
                egress_link_done(l, a.grant, 0, 0, 0);
                a = (EgressAnswer) { .reason = "disagreement", .rule = "default" };
        }
        question_over(q);
        if (done)
                done(&a, done_userdata);
        else if (a.grant > 0)
                egress_link_done(l, a.grant, 0, 0, 0);
}

static int add_within(json_t *params, const EgressWithin *within) {
        json_t *open;

        if (json_object_set_new(params, "within", json_integer(within->grant)) < 0)
                return -ENOMEM;
        if (within->stream == 0)
                return 0;
        open = json_array();
        for (size_t i = 0; i < within->n_open; i++)
                if (json_array_append_new(open, json_integer(within->open[i])) < 0) {
                        json_unref(open);
                        return -ENOMEM;
                }
        if (json_object_set_new(params, "stream", json_integer(within->stream)) < 0) {
                json_unref(open);
                return -ENOMEM;
        }
        return json_object_set_new(params, "open", open) < 0 ? -ENOMEM : 0;
}

int egress_link_ask(EgressLink *l, const char *name, uint16_t port, const char *method, const char *path, bool second_path, const EgressWithin *within,
                    EgressDone done, void *userdata, EgressQuestion **ret) {
        _cleanup_free_ EgressQuestion *q = NULL;
        json_t *params;
        int r;

        if (l->lost_now)
                return -ENOTCONN;

        q = malloc(sizeof(*q));
        params = json_pack("{s:s, s:i, s:s, s:s, s:s, s:s*, s:s*, s:o*}", "name", name, "port", (int) port, "protocol", "tls", "sni", name,
                           "host", name, "method", method, "path", path, "second_path", second_path ? json_true() : NULL);
        if (!q || !params || (within && add_within(params, within) < 0)) {
                json_unref(params);
                return -ENOMEM;
        }
        *q = (EgressQuestion) { .link = l, .port = port, .within = within != NULL, .done = done, .userdata = userdata };

        r = ipc_client_call_async(l->client, EGRESS "Connect", params, NULL, 0, false, ANSWER_USEC, link_on_answer, q);
        if (r < 0)
                return r;
        if (!within)
                held_grants_ask(l->held);

        q->next = l->questions;
        q->prev = &l->questions;
        if (q->next)
                q->next->prev = &q->next;
        l->questions = q;
        *ret = TAKE_PTR(q);
        return 0;
}

void egress_link_done(EgressLink *l, int64_t grant, uint64_t bytes_in, uint64_t bytes_out, uint64_t duration_usec) {
        if (grant <= 0)
                return;
        held_grants_over(l->held, (uint64_t) grant);
        grant_ends_add(l->ends, grant, bytes_in, bytes_out, duration_usec);
}

void egress_link_tell_last(EgressLink *l, uint64_t until_usec) {
        if (l)
                grant_ends_tell_last(l->ends, until_usec);
}
