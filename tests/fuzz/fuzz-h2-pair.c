/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * What bytes of a guest and of an origin reach through HTTP/2. The input is a list of pieces, each with a byte before it: its highest bit says
 * whose it is, the others its length. The guest's preface stands before the first one. egressd says yes, a piece later. Whatever comes, the
 * origin never gets another host's sentinel, nor any in a body with a place, of which nothing leaves before all of it was judged; the guest never gets a
 * secret; and what waits is bounded, and forgotten at the end.
 */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "inject/h2-private.h"
#include "inject/mask-needles.h"
#include "inject/mask.h"
#include "secret/run-secrets-api.h"
#include "util/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define NAME "h"
#define SENTINEL "sentinel"
#define OTHER "sentinel-two"   /* of another host */
#define SECRET "se-cret-one"   /* longer than what a ping carries back */

/* ---- in place of egressd and the audit log ---- */

struct EgressQuestion {
        struct EgressQuestion *next;
        EgressDone done;
        void *userdata;
};

static EgressQuestion *questions;

int egress_link_ask(EgressLink *l, const char *name, uint16_t port, const char *method, const char *path, bool second_path, const EgressWithin *within,
                    EgressDone done, void *userdata, EgressQuestion **ret) {
        EgressQuestion *q = calloc(1, sizeof(*q));

        if (!q)
                return -ENOMEM;
        *q = (EgressQuestion) { questions, done, userdata };
        *ret = questions = q;
        return 0;
}

EgressQuestion *egress_question_free(EgressQuestion *q) {
        if (q)
                q->done = NULL;
        return NULL;
}

void egress_link_done(EgressLink *l, int64_t grant, uint64_t bytes_in, uint64_t bytes_out, uint64_t duration_usec) {
}

void egress_link_hold(EgressLink *l, EgressHolder *h, int64_t grant, void (*revoked)(void *userdata), void *userdata) {
}

void egress_link_release(EgressHolder *h) {
}

void notes_add(Notes *n, const char *event, const char *key, json_t *data) {
        json_decref(data);
}

static void answer_questions(void) {
        static const EgressAnswer yes = { .pass = true, .reason = "allowed", .rule = "fuzz", .grant = 1 };
        EgressQuestion *list = questions;

        questions = NULL;
        while (list) {
                EgressQuestion *q = list;

                list = q->next;
                if (q->done)
                        q->done(&yes, q->userdata);
                free(q);
        }
}

/* ---- the pair ---- */

static void on_wake(void *userdata) {
}

static void make_credential(RunSecrets *secrets, size_t i, const char *sentinel, const char *host, InjectCredential *ret) {
        json_t *rule = json_pack("{s:[s], s:[i], s:[{s:s}, {s:s}, {s:s, s:s, s:s}, {s:s, s:s, s:s}, {s:s, s:s, s:s}]}", "hosts", host, "ports", 443, "places",
                                 "header", "a", "basic", "either", "query", "k", "method", "GET", "path", "/q", "json", "/k", "method", "POST", "path", "/b",
                                 "form", "k", "method", "POST", "path", "/b");

        if (run_secrets_set_credential(secrets, i, i == 0 ? "one" : "two", sentinel, rule, NULL) < 0 ||
            secret_new(&secrets->credentials[i].secret, SECRET, strlen(SECRET)) < 0 || inject_credential_init(ret, &secrets->credentials[i]) < 0)
                __builtin_trap();
        json_decref(rule);
}

static InjectCredential *make_credentials(void) {
        static InjectCredential list[2];
        static RunSecrets *secrets;

        if (secrets)
                return list;
        if (run_secrets_new(&secrets, "r0123456789ab", "i0123456789ab", "w", "work", 1, 2) < 0)
                __builtin_trap();
        make_credential(secrets, 0, SENTINEL, NAME, &list[0]);
        make_credential(secrets, 1, OTHER, "o", &list[1]);
        return list;
}

static void check_held(const H2Pair *p) {
        for (const H2Stream *s = p->streams; s; s = s->next) {
                if (s->holds && !s->cleared && (s->origin_id != 0 || buffer_size(&s->up.data) > 0))
                        __builtin_trap();
                if (s->request.plan.n_body > 0 && memmem(buffer_data(&s->up.data), buffer_size(&s->up.data), SENTINEL, strlen(SENTINEL)))
                        __builtin_trap();
        }
}

/* Header blocks are compressed: what is looked for is in bodies, or in literals without Huffman's code. */
static void drain(H2Pair *p) {
        Buffer up = {}, down = {};

        check_held(p);
        if (h2_pair_give_guest(p, &down, 65536) < 0 || h2_pair_give_origin(p, &up, 65536) < 0)
                __builtin_trap();
        if (memmem(buffer_data(&down), buffer_size(&down), SECRET, strlen(SECRET)) || memmem(buffer_data(&up), buffer_size(&up), OTHER, strlen(OTHER)))
                __builtin_trap();
        buffer_done(&up);
        buffer_done(&down);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        static const uint8_t preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", settings[] = { 0, 0, 0, 4, 0, 0, 0, 0, 0 };
        ExchangeContext context = { .run = "r0123456789ab", .credentials = make_credentials(), .n_credentials = 2, .used = { true, true } };
        const H2Origin origin = { .name = NAME, .port = 443, .grant = 1 };
        H2Pair *p;

        if (h2_pair_new(&p, &context, &origin, on_wake, NULL) < 0)
                return 0;
        (void) h2_pair_take_guest(p, preface, sizeof(preface) - 1);
        (void) h2_pair_take_origin(p, settings, sizeof(settings));
        drain(p);

        while (size > 0 && !h2_pair_is_over(p)) {
                size_t n = data[0] & 0x7f;
                bool guest = !(data[0] & 0x80);

                data++;
                size--;
                n = n < size ? n : size;
                if ((guest ? h2_pair_take_guest(p, data, n) : h2_pair_take_origin(p, data, n)) < 0)
                        break;
                data += n;
                size -= n;
                answer_questions();
                drain(p);
                if (p->n_streams > H2_STREAMS_MAX + 1 || context.h2_backlog > 2 * (H2_BACKLOG_MAX + H2_WINDOW))
                        __builtin_trap();
        }

        h2_pair_free(p);
        answer_questions();
        mask_needles_unref(context.answers);
        mask_needles_unref(context.strays);
        masker_free(context.beginnings);
        if (context.h2_backlog != 0 || context.held != 0 || context.gathered != 0)
                __builtin_trap();
        return 0;
}
