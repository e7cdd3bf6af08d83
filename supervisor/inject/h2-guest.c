/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * What the session with the guest tells. Everything here is reached by bytes of the guest. nghttp2 has checked order and form of frames and of
 * header fields; a stream on which they are wrong is reset by it, and that is recorded.
 */

#include <errno.h>
#include <string.h>

#include "inject/h2-private.h"

static int callback_result(int r) {
        return r < 0 ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

/* Frames that carry nothing. Window updates are paid for by the data that they make room for (see guest_on_sent). */
static int guest_on_begin_frame(nghttp2_session *session, const nghttp2_frame_hd *hd, void *userdata) {
        unsigned cost;

        switch (hd->type) {
        case NGHTTP2_DATA:
                cost = hd->length == 0 && !(hd->flags & NGHTTP2_FLAG_END_STREAM) ? 1 : 0;
                break;
        case NGHTTP2_SETTINGS:
                cost = hd->flags & NGHTTP2_FLAG_ACK ? 1 : 20;
                break;
        case NGHTTP2_RST_STREAM:
                cost = 20; /* each time work was begun for nothing */
                break;
        case NGHTTP2_PING:
                cost = 4;
                break;
        default:
                cost = 1;
        }
        return h2_pair_admit_noise(userdata, cost) ? 0 : NGHTTP2_ERR_CALLBACK_FAILURE;
}

static int guest_on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *userdata) {
        H2Pair *p = userdata;
        H2Stream *s;

        if (frame->headers.cat != NGHTTP2_HCAT_REQUEST) {
                h2_head_reset(&p->trailers);
                return 0;
        }
        return callback_result(h2_stream_new(&s, p, frame->hd.stream_id));
}

static H2Head *head_of(H2Pair *p, const nghttp2_frame *frame) {
        H2Stream *s;

        if (frame->hd.type != NGHTTP2_HEADERS)
                return NULL;
        if (frame->headers.cat != NGHTTP2_HCAT_REQUEST)
                return &p->trailers;
        s = h2_pair_find_guest(p, frame->hd.stream_id);
        return s ? &s->head : NULL;
}

static int guest_on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name, size_t name_size,
                           const uint8_t *value, size_t value_size, uint8_t flags, void *userdata) {
        H2Head *head = head_of(userdata, frame);

        return head ? callback_result(h2_head_add(head, name, name_size, value, value_size)) : 0;
}

/* One that nghttp2 would pass over: the head is refused instead. */
static int guest_on_invalid_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name, size_t name_size,
                                   const uint8_t *value, size_t value_size, uint8_t flags, void *userdata) {
        H2Head *head = head_of(userdata, frame);

        if (head)
                head->malformed = true;
        return 0;
}

static int guest_on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *userdata) {
        bool ended = frame->hd.flags & NGHTTP2_FLAG_END_STREAM;
        H2Pair *p = userdata;
        H2Stream *s;

        if (frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA)
                return 0;
        s = h2_pair_find_guest(p, frame->hd.stream_id);
        if (!s)
                return 0;
        if (frame->hd.type == NGHTTP2_HEADERS && frame->headers.cat == NGHTTP2_HCAT_REQUEST)
                return callback_result(h2_stream_judge(s, ended));
        if (!ended)
                return 0;
        return callback_result(h2_stream_end_body(s, frame->hd.type == NGHTTP2_HEADERS ? &p->trailers : NULL));
}

static int guest_on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *data, size_t size, void *userdata) {
        H2Pair *p = userdata;
        H2Stream *s = h2_pair_find_guest(p, id);

        p->up_unreturned += size;
        if (s)
                return callback_result(h2_stream_take_body(s, data, size));
        (void) nghttp2_session_consume_stream(session, id, size);
        h2_pair_settle(p);
        return 0;
}

static int guest_on_invalid_frame(nghttp2_session *session, const nghttp2_frame *frame, int code, void *userdata) {
        h2_pair_note(userdata, "bad-request", nghttp2_strerror(code));
        return 0;
}

static int guest_on_sent(nghttp2_session *session, const nghttp2_frame *frame, void *userdata) {
        H2Pair *p = userdata;
        H2Stream *s;

        if (frame->hd.type == NGHTTP2_GOAWAY && frame->goaway.error_code != NGHTTP2_NO_ERROR)
                h2_pair_note(p, "bad-request", nghttp2_http2_strerror(frame->goaway.error_code));
        if (frame->hd.type == NGHTTP2_DATA && p->noise < H2_NOISE_MAX)
                p->noise += 2;

        /* the answer is complete: nobody waits for the rest of the request */
        if ((frame->hd.type == NGHTTP2_DATA || frame->hd.type == NGHTTP2_HEADERS) && frame->hd.flags & NGHTTP2_FLAG_END_STREAM) {
                s = h2_pair_find_guest(p, frame->hd.stream_id);
                if (s && !s->up.over)
                        (void) nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, frame->hd.stream_id, NGHTTP2_NO_ERROR);
        }
        return 0;
}

static int guest_on_close(nghttp2_session *session, int32_t id, uint32_t code, void *userdata) {
        H2Stream *s = h2_pair_find_guest(userdata, id);

        if (!s)
                return 0;
        h2_stream_drop_origin(s, code == NGHTTP2_NO_ERROR ? NGHTTP2_CANCEL : code);
        s->guest_id = 0;
        h2_stream_free(s);
        return 0;
}

int h2_guest_session_new(H2Pair *p, nghttp2_option *option, nghttp2_mem *mem) {
        nghttp2_session_callbacks *c;
        int r;

        if (nghttp2_session_callbacks_new(&c) != 0)
                return -ENOMEM;
        nghttp2_session_callbacks_set_on_begin_frame_callback(c, guest_on_begin_frame);
        nghttp2_session_callbacks_set_on_begin_headers_callback(c, guest_on_begin_headers);
        nghttp2_session_callbacks_set_on_header_callback(c, guest_on_header);
        nghttp2_session_callbacks_set_on_invalid_header_callback(c, guest_on_invalid_header);
        nghttp2_session_callbacks_set_on_frame_recv_callback(c, guest_on_frame);
        nghttp2_session_callbacks_set_on_data_chunk_recv_callback(c, guest_on_data);
        nghttp2_session_callbacks_set_on_invalid_frame_recv_callback(c, guest_on_invalid_frame);
        nghttp2_session_callbacks_set_on_frame_send_callback(c, guest_on_sent);
        nghttp2_session_callbacks_set_on_stream_close_callback(c, guest_on_close);
        r = nghttp2_session_server_new3(&p->guest, c, p, option, mem);
        nghttp2_session_callbacks_del(c);
        return r == 0 ? 0 : -ENOMEM;
}
