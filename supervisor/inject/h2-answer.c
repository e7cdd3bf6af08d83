/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What an origin answers on a stream: heads, data, trailers, frames of a WebSocket; masked on their way into the stream's `down`. */

#include <errno.h>
#include <stdio.h>

#include "inject/h2-private.h"

static int pass_fields(H2Stream *s, const HttpHead *h, H2Fields *fields) {
        int r = 0;

        for (size_t i = 0; i < h->n_fields && r >= 0; i++)
                if (request_passes_field(&s->request, h, h->fields[i].name))
                        r = h2_stream_add_masked(s, &h->fields[i], fields);
        return r;
}

/* A body that is masked may change its length, and what that would be must not depend on the secret. */
static int pass_length(H2Stream *s, const HttpHead *h, H2Fields *fields) {
        char text[24];

        if (!h->has_length || h->status == 204 || (h->framing != HTTP_FRAMING_NONE && s->pair->context->n_credentials > 0))
                return 0;
        (void) snprintf(text, sizeof(text), "%llu", (unsigned long long) h->length);
        return h2_fields_add_text(fields, "content-length", text);
}

static int pass_head(H2Stream *s, const HttpHead *h, bool ended) {
        H2Fields fields = {};
        char status[16];
        int r;

        (void) snprintf(status, sizeof(status), "%u", h->status);
        if ((r = h2_fields_add_text(&fields, ":status", status)) >= 0 && (r = pass_fields(s, h, &fields)) >= 0) {
                if (h->status < 200)
                        r = h2_stream_pass_early_head(s, &fields);
                else if ((r = pass_length(s, h, &fields)) >= 0)
                        r = h2_stream_submit_answer(s, &fields, ended);
        }
        h2_fields_done(&fields);
        return r;
}

int h2_stream_take_head(H2Stream *s, H2Head *head, bool ended) {
        Refusal refusal;
        int r;

        r = h2_head_build_answer(head, ended);
        if (r == -ENOMEM)
                return r;
        if (r < 0 || (head->head.status < 200 && ended))
                return h2_stream_deny(s, 502, "origin-malformed", NULL, r < 0 ? head->error : "an answer without a final head");
        if (head->head.status >= 200) {
                head->head.websocket = s->head.connect && head->head.status < 300;
                r = request_begin_answer(&s->request, &head->head, &refusal);
                if (r != 0)
                        return r == REQUEST_E_REFUSED ? h2_stream_refuse(s, &refusal) : r;
                if (head->head.websocket && (r = request_new_websocket(&s->request, false, &s->down.frames)) < 0)
                        return r;
        }
        r = pass_head(s, &head->head, ended);
        if (r >= 0 && ended) {
                s->down.over = true;
                request_finish(&s->request, true);
        }
        h2_stream_touch(s);
        return r;
}

static bool is_undecodable(int r) {
        return r == -EBADMSG || r == -EFBIG;
}

static int deny_undecodable(H2Stream *s) {
        return h2_stream_deny(s, 502, "encoded-response", "Content-Encoding", "The origin's answer cannot be decoded.");
}

int h2_stream_take_answer(H2Stream *s, const uint8_t *data, size_t size) {
        int r;

        s->down.unreturned += size;
        r = s->down.frames ? request_feed_origin_websocket(&s->request, s->down.frames, data, size, &s->down.data)
                           : request_feed_answer(&s->request, data, size, false, &s->down.data);
        if (r == -EBADMSG && s->down.frames)
                r = h2_stream_deny(s, 502, "origin-malformed", "frame", websocket_error(s->down.frames));
        else if (is_undecodable(r))
                r = deny_undecodable(s);
        (void) nghttp2_session_resume_data(s->pair->guest, s->guest_id);
        h2_stream_touch(s);
        h2_stream_settle(s, &s->down);
        return r;
}

int h2_stream_end_answer(H2Stream *s, H2Head *trailers) {
        int r;

        r = request_feed_answer(&s->request, NULL, 0, true, &s->down.data);
        if (is_undecodable(r))
                return deny_undecodable(s);
        if (r >= 0 && trailers) {
                if (h2_head_build_trailers(trailers) < 0)
                        return h2_stream_deny(s, 502, "origin-malformed", NULL, trailers->error);
                r = h2_stream_keep_trailers(s, &s->down, &trailers->head);
        }
        s->down.over = true;
        request_finish(&s->request, true);
        (void) nghttp2_session_resume_data(s->pair->guest, s->guest_id);
        h2_stream_settle(s, &s->down);
        return r;
}
