/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What comes behind a request's head: held if it must be known first, searched for sentinels in any case, before anything of it leaves. */

#include <errno.h>
#include <stdlib.h>
#include <strings.h>

#include "egress/agreement-api.h"
#include "inject/request-git.h"

static int deny(Request *q, unsigned status, const char *reason, const char *where, const char *message, Refusal *ret) {
        request_deny(q, q->head, status, reason, where, message, ret);
        return REQUEST_E_REFUSED;
}

/* ---- a body with a place ---- */

bool request_holds_body(const Request *q) {
        return q->plan.n_body > 0 || q->gathers || request_git_holds(q);
}

bool request_holds_beginning(const Request *q) {
        return q->plan.n_body == 0 && !q->gathers && request_git_holds(q) && q->git->service == GIT_PUSH;
}

bool request_expects_continue(const Request *q) {
        const char *value = "";

        return http_head_find(q->head, "expect", &value) > 0 && strcasecmp(value, "100-continue") == 0;
}

/* How long it is as it leaves. Only one with a value in it must be made for that, and those are small. */
static int measure_held(Request *q, size_t *ret) {
        Buffer body = {};
        int r = 0;

        if (q->rewrite.n_spans > 0) {
                r = request_write_held(q, &body);
                *ret = buffer_size(&body);
                buffer_done(&body);
        } else
                *ret = buffer_size(buffer_size(&q->held_encoded) > 0 ? &q->held_encoded : &q->held);
        return r;
}

/* The head says what the body will be, now that it is known. */
int request_settle_length(Request *q) {
        size_t size;
        int r;

        r = measure_held(q, &size);
        if (r >= 0) {
                q->held_head = malloc(sizeof(*q->held_head));
                r = q->held_head ? 0 : -ENOMEM;
        }
        if (r >= 0) {
                *q->held_head = *q->head;
                q->held_head->has_length = true;
                q->held_head->length = size;
                q->held_head->framing = size > 0 ? HTTP_FRAMING_LENGTH : HTTP_FRAMING_NONE;
                q->head = q->held_head;
        }
        return r;
}

static int judge_held(Request *q, Refusal *ret) {
        int r;

        if (q->plan.n_body == 0)
                return request_settle_length(q);
        r = request_open_held(q, ret);
        if (r != 0)
                return r;
        r = body_place_judge(q->context->credentials, q->context->n_credentials, q->head, &q->plan, buffer_data(&q->held), buffer_size(&q->held), &q->rewrite);
        switch (r) {
        case BODY_E_REFUSED:
                return request_refuse_plan(q, ret);
        case BODY_E_ENCODED:
                return deny(q, 415, "body-type", "body", "The body has a place for a credential, and a type or an encoding in which none can be put there.", ret);
        case BODY_E_MALFORMED:
                return deny(q, 422, "cannot-substitute", "body", "The body has a place for a credential, but is not what its type says.", ret);
        default:
                return r < 0 ? r : request_settle_length(q);
        }
}

int request_hold_body(Request *q, const void *data, size_t size, bool last, Refusal *ret) {
        Buffer out = {};
        int r;

        if (q->plan.n_body == 0 && !q->gathers)
                return request_git_hold(q, data, size, last, ret);
        if (q->plan.n_body > 0 && size > BODY_HELD_MAX - buffer_size(&q->held))
                return deny(q, 413, "body-too-large", "body", "A body with a place for a credential may have 256 KiB.", ret);
        if (q->gathers && !request_may_gather(q, size))
                return deny(q, 413, "body-too-large", "body", "This run has a budget: the body of a model call is too large to be looked at.", ret);
        r = q->plan.n_body > 0 ? request_count_held(q, size, ret) : 0;
        if (r == 0 && q->gathers)
                r = request_gather(q, size, ret);
        if (r == 0)
                r = buffer_append(&q->held, data, size);
        if (r == 0) /* other hosts' sentinels, as in any body */
                r = request_feed_body(q, data, size, last, &out, ret);
        buffer_done(&out);
        return r != 0 || !last ? r : judge_held(q, ret);
}

/* ---- the request's body ---- */

/* The one whose sentinel a trip wire found: they have those of other hosts, in the order of the credentials. */
static const InjectCredential *nth_foreign_credential(const Request *q, size_t n) {
        for (size_t i = 0; i < q->context->n_credentials; i++)
                if (!inject_credential_covers_host(&q->context->credentials[i], q->name, q->port) && n-- == 0)
                        return &q->context->credentials[i];
        return NULL;
}

/* What stands compressed in the body, as much of it as can be known by now. */
static int search_opened(Request *q, const void *data, size_t size, bool last, Refusal *ret) {
        const char *sentinels[RUN_CREDENTIALS_MAX] = {};
        size_t n = 0, number = 0;
        int r;

        /* only its first piece asks for them */
        for (size_t i = 0; i < q->context->n_credentials && !q->opened.begun; i++)
                if (!inject_credential_covers_host(&q->context->credentials[i], q->name, q->port))
                        sentinels[n++] = q->context->credentials[i].source->sentinel;
        r = tripwire_gzip_feed(&q->opened, sentinels, n, data, size, last, &number);
        return r <= 0 ? r : request_misuse(q, nth_foreign_credential(q, number), "body", ret);
}

/* Nothing leaves before it was searched for sentinels of other hosts. */
static int feed_piece(Request *q, const void *data, size_t size, bool last, Buffer *out, Refusal *ret) {
        Buffer scratch = {};
        int r = 0;

        q->prompt_bytes += size;
        if (q->git && q->git->passing)
                r = request_git_pass(q, data, size, last, ret);
        if (r != 0)
                return r;
        if (size > 0)
                r = masker_feed(q->tripwire, data, size, &scratch);
        if (r >= 0 && last)
                r = masker_finish(q->tripwire, &scratch);
        if (r >= 0) {
                if (masker_hits(q->tripwire) > 0)
                        r = request_misuse(q, nth_foreign_credential(q, masker_last(q->tripwire)), "body", ret);
                else
                        r = search_opened(q, data, size, last, ret);
        }
        if (r == 0)
                r = buffer_append(out, buffer_data(&scratch), buffer_size(&scratch));
        buffer_done(&scratch);
        return r;
}

/* What was held back of it goes on with the message that it is the end of: the other side may be waiting for that. */
static int release_body(Request *q, Buffer *out, Refusal *ret) {
        Buffer scratch = {};
        int r;

        r = masker_release(q->tripwire, NULL, &scratch);
        if (r >= 0)
                r = masker_hits(q->tripwire) > 0 ? request_misuse(q, nth_foreign_credential(q, masker_last(q->tripwire)), "body", ret)
                                                 : buffer_append(out, buffer_data(&scratch), buffer_size(&scratch));
        buffer_done(&scratch);
        return r;
}

int request_judge_trailer(Request *q, const HttpField *field, Refusal *ret) {
        const InjectCredential *c = substitute_find_sentinel(q->context->credentials, q->context->n_credentials, field);

        if (c)
                return request_misuse(q, c, "trailer", ret);
        if (agreement_field_overrides(field->name) || agreement_field_names_path(field->name) || substitute_is_auth_field(q->context->credentials, q->context->n_credentials, field->name))
                return deny(q, 400, "bad-request", "trailer", "A trailer has a field that may stand in a head only.", ret);
        return 0;
}

int request_feed_websocket(Request *q, Websocket *s, const void *data, size_t size, Buffer *out, Refusal *ret) {
        int r;

        r = websocket_feed(s, data, size, out);
        if (r == -EBADMSG)
                return deny(q, 400, "bad-request", "frame", websocket_error(s), ret);
        if (r == 0 && websocket_hits(s) > 0)
                return request_misuse(q, nth_foreign_credential(q, websocket_last_hit(s)), "frame", ret);
        return r;
}

int request_feed_body(Request *q, const void *data, size_t size, bool last, Buffer *out, Refusal *ret) {
        const uint8_t *p = data;
        int r = 0;

        while (q->sends_messages && size > 0 && r == 0) {
                bool whole;
                size_t n = grpc_next(&q->sent_messages, p, size, &whole);

                r = feed_piece(q, p, n, false, out, ret);
                if (r == 0 && whole)
                        r = release_body(q, out, ret);
                p += n;
                size -= n;
        }
        return r != 0 || (size == 0 && !last) ? r : feed_piece(q, p, size, last, out, ret);
}
