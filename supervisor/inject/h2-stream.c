/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * One request on a stream of the guest, and its answer from the stream of the origin that is paired with it.
 *
 *   judged → egressd and the audit log were asked → sent to the origin, and from here on both directions run at once
 *        └→ refused: the answer is ours, and what the guest still sends of the request is passed over
 *
 * A stream lives until the guest's side of it is closed. The origin's side may be closed before; if it is not, it is reset then.
 *
 * What has come and not left yet lies in `up` and `down`, searched or masked already. A side's window opens again only as
 * the other side takes the bytes: so each holds a stream's window at most, and a slow reader slows down whoever sends to it.
 */

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "inject/h2-private.h"
#include "util/log.h"
#include "util/text.h"

#define DECIDE_USEC (30 * H2_SECOND_USEC)       /* of egressd, then of the audit log */
#define RELAY_USEC (15 * 60 * H2_SECOND_USEC)   /* models think for minutes before the first byte comes */
#define REFUSED_USEC (10 * H2_SECOND_USEC)

/* ---- life ---- */

int h2_stream_new(H2Stream **ret, H2Pair *p, int32_t guest_id) {
        H2Stream *s = calloc(1, sizeof(*s));
        int r;

        if (!s)
                return -ENOMEM;
        s->pair = p;
        s->guest_id = guest_id;
        s->deadline_usec = time_boottime() + DECIDE_USEC;
        r = request_init(&s->request, p->context, p->name, p->port, p->rule);
        if (r < 0) {
                request_done(&s->request);
                free(s);
                return r;
        }

        s->next = p->streams;
        s->prev = &p->streams;
        if (s->next)
                s->next->prev = &s->next;
        p->streams = s;
        p->n_streams++;
        *ret = s;
        return 0;
}

static H2Fields *fields_free(H2Fields *f) {
        if (f)
                h2_fields_done(f);
        free(f);
        return NULL;
}

static void count(H2Stream *s, H2Flow *flow) {
        H2Pair *p = s->pair;
        size_t now = buffer_size(&flow->data);
        size_t *backlog = flow == &s->up ? &p->up_backlog : &p->down_backlog;

        *backlog += now - flow->counted;
        p->context->h2_backlog += now - flow->counted;
        flow->counted = now;
}

/* Opens the sender's window by what has left, or never will. */
void h2_stream_settle(H2Stream *s, H2Flow *flow) {
        nghttp2_session *session = flow == &s->up ? s->pair->guest : s->pair->origin;
        int32_t id = flow == &s->up ? s->guest_id : s->origin_id;
        size_t in_hand = buffer_size(&flow->data);

        count(s, flow);
        if (flow->unreturned > in_hand) {
                /* these fail only for want of memory; then the window stays as small as it is */
                if (session && id > 0)
                        (void) nghttp2_session_consume_stream(session, id, flow->unreturned - in_hand);
                flow->unreturned = in_hand;
        }
        h2_pair_settle(s->pair);
}

static void flow_clear(H2Stream *s, H2Flow *flow) {
        buffer_clear(&flow->data);
        flow->trailers = fields_free(flow->trailers);
        h2_stream_settle(s, flow);
}

H2Stream *h2_stream_free(H2Stream *s) {
        if (!s)
                return NULL;

        request_done(&s->request);
        flow_clear(s, &s->up);
        flow_clear(s, &s->down);
        buffer_done(&s->up.data);
        buffer_done(&s->down.data);
        websocket_free(s->up.frames);
        websocket_free(s->down.frames);
        s->late = fields_free(s->late);
        h2_head_done(&s->head);
        *s->prev = s->next;
        if (s->next)
                s->next->prev = s->prev;
        if (--s->pair->n_streams == 0)
                s->pair->idle_usec = time_boottime();
        free(s);
        return NULL;
}

void h2_stream_touch(H2Stream *s) {
        if (s->cleared && !s->refused)
                s->deadline_usec = time_boottime() + RELAY_USEC;
}

/* ---- ends ---- */

void h2_stream_drop_origin(H2Stream *s, uint32_t code) {
        if (s->origin_id > 0)
                (void) nghttp2_submit_rst_stream(s->pair->origin, NGHTTP2_FLAG_NONE, s->origin_id, code);
        s->origin_id = 0;
        flow_clear(s, &s->up);
}

void h2_stream_reset(H2Stream *s, uint32_t code) {
        h2_stream_drop_origin(s, NGHTTP2_CANCEL);
        flow_clear(s, &s->down);
        s->refused = true; /* nothing more of it is looked at */
        (void) nghttp2_submit_rst_stream(s->pair->guest, NGHTTP2_FLAG_NONE, s->guest_id, code);
}

static nghttp2_ssize give_answer(nghttp2_session *session, int32_t id, uint8_t *buffer, size_t size, uint32_t *ret_flags,
                                 nghttp2_data_source *source, void *userdata) {
        H2Stream *s = h2_pair_find_guest(userdata, id);

        return s ? h2_stream_give(s, false, buffer, size, ret_flags) : NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
}

static nghttp2_ssize give_body(nghttp2_session *session, int32_t id, uint8_t *buffer, size_t size, uint32_t *ret_flags,
                               nghttp2_data_source *source, void *userdata) {
        H2Stream *s = h2_pair_find_origin(userdata, id);

        return s ? h2_stream_give(s, true, buffer, size, ret_flags) : NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
}

int h2_errno(int code) {
        return code == NGHTTP2_ERR_NOMEM ? -ENOMEM : -EPROTO;
}

/* The final head; a body follows unless it has ended. */
int h2_stream_submit_answer(H2Stream *s, const H2Fields *fields, bool ended) {
        const nghttp2_data_provider2 body = { .read_callback = give_answer };
        nghttp2_nv list[H2_FIELDS_MAX];
        int r;

        h2_fields_list(fields, list);
        r = nghttp2_submit_response2(s->pair->guest, s->guest_id, list, fields->n, ended ? NULL : &body);
        if (r < 0)
                return h2_errno(r);
        s->answered = true;
        return 0;
}

static int make_answer(H2Stream *s, const Refusal *refusal, const RefusalAnswer *a, H2Fields *fields) {
        char status[16], length[24];
        int r;

        (void) snprintf(status, sizeof(status), "%u", a->status);
        (void) snprintf(length, sizeof(length), "%zu", buffer_size(&a->body));
        if ((r = h2_fields_add_text(fields, ":status", status)) < 0 || (r = h2_fields_add_text(fields, "content-type", a->type)) < 0 ||
            (r = h2_fields_add_text(fields, "content-length", length)) < 0 ||
            (r = h2_fields_add_text(fields, "anchorhold-reason", refusal->reason)) < 0 ||
            (r = h2_fields_add_text(fields, "anchorhold-rule", refusal->rule)) < 0 ||
            (refusal->final && (r = h2_fields_add_text(fields, "x-should-retry", "false")) < 0))
                return r;
        return 0;
}

static bool is_bodiless(const H2Stream *s) {
        return s->head.head.method && strcmp(s->head.head.method, "HEAD") == 0;
}

static int begin_refusal(H2Stream *s, const Refusal *refusal, const RefusalAnswer *a) {
        _cleanup_free_ H2Fields *fields = NULL;
        int r;

        s->refused = true;
        s->deadline_usec = time_boottime() + REFUSED_USEC;
        fields = calloc(1, sizeof(*fields));
        if (!fields)
                return -ENOMEM;
        r = make_answer(s, refusal, a, fields);
        if (r >= 0 && !is_bodiless(s))
                r = buffer_append(&s->down.data, buffer_data(&a->body), buffer_size(&a->body));
        if (r >= 0) {
                s->down.over = true;
                count(s, &s->down);
                if (a->late && !s->up.over) {
                        s->late = TAKE_PTR(fields);
                        return 0;
                }
                r = h2_stream_submit_answer(s, fields, is_bodiless(s));
        }
        h2_fields_done(fields);
        return r;
}

int h2_stream_refuse(H2Stream *s, const Refusal *refusal) {
        RefusalAnswer answer;
        int r;

        r = request_answer_refusal(&s->request, refusal, &answer);
        request_finish(&s->request, false);
        h2_stream_drop_origin(s, NGHTTP2_CANCEL);
        if (s->answered) /* too late for an answer: the guest sees it truncated */
                h2_stream_reset(s, NGHTTP2_INTERNAL_ERROR);
        else if (r >= 0)
                r = begin_refusal(s, refusal, &answer);
        buffer_done(&answer.body);
        return s->answered ? 0 : r;
}

int h2_stream_deny(H2Stream *s, unsigned status, const char *reason, const char *where, const char *message) {
        Refusal refusal;

        request_deny(&s->request, s->request.head ?: &s->head.head, status, reason, where, message, &refusal);
        return h2_stream_refuse(s, &refusal);
}

/* ---- the request's head ---- */

static int add_field(const char *name, const void *value, size_t size, bool secret, void *userdata) {
        return h2_fields_add(userdata, name, value, size, secret);
}

/* The client's "te: trailers" is the one field about its connection that an origin may insist on. */
static bool accepts_trailers(const HttpHead *h) {
        const char *value;

        return http_head_find(h, "te", &value) == 1 && strcasecmp(value, "trailers") == 0;
}

static int add_path(const H2Stream *s, H2Fields *fields) {
        Buffer path = {};
        int r;

        r = substitute_target(s->request.head, &s->request.plan, &path);
        if (r >= 0)
                r = h2_fields_add(fields, ":path", buffer_data(&path), buffer_size(&path), s->request.plan.n_items > 0);
        buffer_done(&path);
        return r;
}

static int make_head(H2Stream *s, H2Fields *fields) {
        const HttpHead *h = s->request.head;
        char authority[SUBSTITUTE_AUTHORITY_SIZE], length[24];
        int r;

        substitute_authority(s->pair->name, s->pair->port, authority);
        (void) snprintf(length, sizeof(length), "%llu", (unsigned long long) h->length);
        if ((r = h2_fields_add_text(fields, ":method", s->head.connect ? "CONNECT" : h->method)) < 0 ||
            (r = h2_fields_add_text(fields, ":scheme", "https")) < 0 || (r = h2_fields_add_text(fields, ":authority", authority)) < 0 ||
            (r = add_path(s, fields)) < 0 ||
            (s->head.connect && (r = h2_fields_add_text(fields, ":protocol", "websocket")) < 0) ||
            (r = substitute_fields(h, &s->request.plan, add_field, fields)) < 0 ||
            (h->has_length && (r = h2_fields_add_text(fields, "content-length", length)) < 0) ||
            (accepts_trailers(h) && (r = h2_fields_add_text(fields, "te", "trailers")) < 0))
                return r;
        return 0;
}

static int send_request(H2Stream *s) {
        const nghttp2_data_provider2 body = { .read_callback = give_body };
        bool bodiless = s->request.head->framing == HTTP_FRAMING_NONE;
        nghttp2_nv list[H2_FIELDS_MAX];
        H2Fields fields = {};
        int32_t id = 0;
        int r;

        if (s->pair->origin_ended)
                return h2_stream_deny(s, 502, "origin-closed", NULL, "The origin closed the connection.");
        if (!nghttp2_session_check_request_allowed(s->pair->origin)) {
                h2_stream_reset(s, NGHTTP2_REFUSED_STREAM); /* it was told to leave: on another connection it may be tried again */
                return 0;
        }

        /* not before: until now it could be made another one */
        r = s->holds ? request_write_held(&s->request, &s->up.data) : 0;
        count(s, &s->up);
        if (r >= 0)
                r = make_head(s, &fields);
        if (r >= 0) {
                h2_fields_list(&fields, list);
                id = nghttp2_submit_request2(s->pair->origin, NULL, list, fields.n, bodiless ? NULL : &body, NULL);
                r = id < 0 ? h2_errno(id) : 0;
        }
        h2_fields_done(&fields);
        if (r < 0)
                return r;

        s->origin_id = id;
        s->cleared = true;
        request_set_sent(&s->request);
        h2_stream_touch(s);
        return 0;
}

static int stream_on_granted(const EgressAnswer *a, void *userdata) {
        H2Stream *s = userdata;

        /* the question was about the connection at hand */
        if (a->grant > 0 && a->grant != s->pair->grant)
                egress_link_done(s->pair->context->egress, a->grant, 0, 0, 0);
        return 0;
}

static void stream_on_cleared(int r, const Refusal *refusal, void *userdata) {
        H2Stream *s = userdata;
        H2Pair *p = s->pair;

        if (r == REQUEST_E_REFUSED)
                r = h2_stream_refuse(s, refusal);
        else if (r == 0)
                r = send_request(s);
        if (r < 0) {
                log_warning_errno(r, "a request for %s could not be passed on", p->name);
                h2_stream_reset(s, NGHTTP2_INTERNAL_ERROR);
        }
        p->wake(p->userdata);
}

/* May it go on the connection of this pair? What a connection carried once, it is for. */
static bool claim_origin(H2Stream *s) {
        uint64_t carries = request_carried(&s->request);
        H2Pair *p = s->pair;

        if (carries != 0 && p->carried == 0)
                p->carried = carries;
        return carries == 0 || carries == p->carried;
}

static int clear_request(H2Stream *s, Refusal *ret) {
        EgressWithin within = { .grant = s->pair->grant, .stream = s->guest_id };
        int32_t open[H2_STREAMS_MAX];
        int r;

        if (!claim_origin(s)) {
                log_debug("a request for %s carries another credential than the others of its connection", s->pair->name);
                h2_stream_reset(s, NGHTTP2_REFUSED_STREAM);
                return h2_pair_dismiss(s->pair);
        }
        for (const H2Stream *t = s->pair->streams; t && within.n_open < H2_STREAMS_MAX; t = t->next)
                open[within.n_open++] = t->guest_id;
        within.open = open;
        r = request_clear(&s->request, &within, s->pair->covered, stream_on_granted, stream_on_cleared, s, ret);
        return r == REQUEST_E_CLEARED ? send_request(s) : r;
}

/* "Go on", or hints. */
int h2_stream_pass_early_head(H2Stream *s, const H2Fields *fields) {
        nghttp2_nv list[H2_FIELDS_MAX];
        int32_t r;

        h2_fields_list(fields, list);
        r = nghttp2_submit_headers(s->pair->guest, NGHTTP2_FLAG_NONE, s->guest_id, NULL, list, fields->n, NULL);
        return r < 0 ? h2_errno(r) : 0;
}

/* A client that waits to be asked for a body that is to be held is asked here. */
static int ask_for_body(H2Stream *s) {
        H2Fields fields = {};
        int r;

        if (!request_expects_continue(&s->request))
                return 0;
        r = h2_fields_add_text(&fields, ":status", "100");
        if (r >= 0)
                r = h2_stream_pass_early_head(s, &fields);
        h2_fields_done(&fields);
        return r;
}

int h2_stream_judge(H2Stream *s, bool ended) {
        Refusal refusal;
        int r;

        s->up.over = ended;
        r = h2_head_build_request(&s->head, ended);
        if (r == -EMSGSIZE)
                return h2_stream_deny(s, 400, "head-too-large", NULL, s->head.error);
        if (r == -EBADMSG)
                return h2_stream_deny(s, 400, "bad-request", NULL, s->head.error);
        if (r < 0)
                return r;
        if (s->pair->refuses) {
                s->request.head = &s->head.head;
                return h2_stream_refuse(s, &s->pair->refusal);
        }
        if (s->head.connect && !s->pair->origin_connects)
                return h2_stream_deny(s, 501, "bad-request", ":protocol", "The origin does not take WebSocket connections over HTTP/2.");

        r = request_begin(&s->request, &s->head.head, &refusal);
        s->holds = r == 0 && !s->head.connect && request_holds_body(&s->request);
        if (s->holds)
                return ended ? h2_stream_end_body(s, NULL) : ask_for_body(s);
        if (r == 0 && s->head.connect)
                r = request_new_websocket(&s->request, true, &s->up.frames);
        if (r == 0)
                r = clear_request(s, &refusal);
        return r == REQUEST_E_REFUSED ? h2_stream_refuse(s, &refusal) : r;
}

/* ---- the request's body ---- */

/* What was held is enough; from here on the body goes by. */
static int end_beginning(H2Stream *s, Refusal *ret) {
        int r;

        s->holds = false;
        r = request_write_held(&s->request, &s->up.data);
        request_pass_held(&s->request);
        return r < 0 ? r : clear_request(s, ret);
}

static int feed_body(H2Stream *s, const uint8_t *data, size_t size, Refusal *ret) {
        int r;

        if (s->holds) {
                s->deadline_usec = time_boottime() + DECIDE_USEC;
                r = request_hold_body(&s->request, data, size, false, ret);
                return r == REQUEST_E_HELD ? end_beginning(s, ret) : r;
        }
        if (s->up.frames)
                return request_feed_websocket(&s->request, s->up.frames, data, size, &s->up.data, ret);
        return request_feed_body(&s->request, data, size, false, &s->up.data, ret);
}

int h2_stream_take_body(H2Stream *s, const uint8_t *data, size_t size) {
        Refusal refusal;
        int r = 0;

        s->up.unreturned += size;
        if (s->late)
                s->deadline_usec = time_boottime() + REFUSED_USEC;
        if (!s->refused && (s->origin_id > 0 || !s->cleared)) {
                r = feed_body(s, data, size, &refusal);
                if (r == REQUEST_E_REFUSED)
                        r = h2_stream_refuse(s, &refusal);
                if (r >= 0 && s->origin_id > 0)
                        (void) nghttp2_session_resume_data(s->pair->origin, s->origin_id);
                h2_stream_touch(s);
        }
        h2_stream_settle(s, &s->up);
        return r;
}

/* What a field of the answer is for the guest. */
int h2_stream_add_masked(H2Stream *s, const HttpField *field, H2Fields *fields) {
        Buffer name = {}, value = {};
        int r;

        if ((r = request_mask_text(&s->request, field->name, &name)) >= 0 && (r = buffer_append(&name, "", 1)) >= 0 &&
            (r = request_mask_text(&s->request, field->value, &value)) >= 0)
                r = h2_fields_add(fields, (const char *) buffer_data(&name), buffer_data(&value), buffer_size(&value), false);
        buffer_done(&name);
        buffer_done(&value);
        return r;
}

int h2_stream_keep_trailers(H2Stream *s, H2Flow *flow, const HttpHead *h) {
        int r = 0;

        flow->trailers = calloc(1, sizeof(*flow->trailers));
        if (!flow->trailers)
                return -ENOMEM;
        for (size_t i = 0; i < h->n_fields && r >= 0; i++) {
                const char *name = h->fields[i].name;

                if (http_field_is_hop_by_hop(h, name) || !(flow == &s->down ? request_passes_trailer(&s->request, name) : http_field_may_trail(name)))
                        continue;
                r = flow == &s->down ? h2_stream_add_masked(s, &h->fields[i], flow->trailers)
                                     : h2_fields_add_text(flow->trailers, name, h->fields[i].value);
        }
        if (flow->trailers->n == 0)
                flow->trailers = fields_free(flow->trailers);
        return r;
}

/* All of a body with a place is there: now the request is judged to its end. What trails such a body stays here. */
static int end_held(H2Stream *s, Refusal *ret) {
        int r;

        r = request_hold_body(&s->request, NULL, 0, true, ret);
        s->deadline_usec = time_boottime() + DECIDE_USEC;
        return r == 0 ? clear_request(s, ret) : r;
}

int h2_stream_end_body(H2Stream *s, H2Head *trailers) {
        Refusal refusal;
        int r;

        s->up.over = true;
        if (s->late) {
                r = h2_stream_submit_answer(s, s->late, is_bodiless(s));
                s->late = fields_free(s->late);
                return r;
        }
        if (s->refused || (s->cleared && s->origin_id == 0))
                return 0;
        r = s->holds ? end_held(s, &refusal) : request_feed_body(&s->request, NULL, 0, true, &s->up.data, &refusal);
        if (r == 0 && trailers && !s->holds) {
                if (h2_head_build_trailers(trailers) < 0)
                        return h2_stream_deny(s, 400, "bad-request", NULL, trailers->error);
                for (size_t i = 0; i < trailers->head.n_fields && r == 0; i++)
                        r = request_judge_trailer(&s->request, &trailers->head.fields[i], &refusal);
                if (r == 0)
                        r = h2_stream_keep_trailers(s, &s->up, &trailers->head);
        }
        if (r == REQUEST_E_REFUSED)
                r = h2_stream_refuse(s, &refusal);
        if (r >= 0 && s->origin_id > 0)
                (void) nghttp2_session_resume_data(s->pair->origin, s->origin_id);
        h2_stream_settle(s, &s->up);
        return r;
}

/* ---- both directions ---- */

nghttp2_ssize h2_stream_give(H2Stream *s, bool up, uint8_t *buffer, size_t size, uint32_t *ret_flags) {
        nghttp2_session *session = up ? s->pair->origin : s->pair->guest;
        H2Flow *flow = up ? &s->up : &s->down;
        size_t n = buffer_size(&flow->data) < size ? buffer_size(&flow->data) : size;

        if (n == 0 && !flow->over)
                return NGHTTP2_ERR_DEFERRED;

        memcpy(buffer, buffer_data(&flow->data), n);
        buffer_consume(&flow->data, n);
        if (up && buffer_size(&flow->data) == 0 && request_is_leaving(&s->request)) {
                buffer_done(&flow->data); /* it was as large as that body */
                request_set_left(&s->request);
        }
        if (buffer_size(&flow->data) == 0 && flow->over) {
                *ret_flags |= NGHTTP2_DATA_FLAG_EOF;
                if (flow->trailers) {
                        nghttp2_nv list[H2_FIELDS_MAX];

                        *ret_flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
                        h2_fields_list(flow->trailers, list);
                        if (nghttp2_submit_trailer(session, up ? s->origin_id : s->guest_id, list, flow->trailers->n) < 0)
                                return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
                }
        }
        h2_stream_touch(s);
        h2_stream_settle(s, flow);
        return (nghttp2_ssize) n;
}
