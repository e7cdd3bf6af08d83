/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * What the session with the origin tells. It may be as hostile as a guest; what it breaks is its own answer, or its connection. Frames that
 * would lead the guest elsewhere (ALTSVC, ORIGIN) are unknown to this session and end here; pushes were forbidden, and end it.
 */

#include <errno.h>
#include <string.h>

#include "inject/h2-private.h"

static int callback_result(int r) {
        return r < 0 ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

static int origin_on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *userdata) {
        H2Pair *p = userdata;

        h2_head_reset(&p->answer);
        return 0;
}

static int origin_on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name, size_t name_size,
                            const uint8_t *value, size_t value_size, uint8_t flags, void *userdata) {
        H2Pair *p = userdata;

        return frame->hd.type == NGHTTP2_HEADERS ? callback_result(h2_head_add(&p->answer, name, name_size, value, value_size)) : 0;
}

static int origin_on_invalid_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name, size_t name_size,
                                    const uint8_t *value, size_t value_size, uint8_t flags, void *userdata) {
        H2Pair *p = userdata;

        p->answer.malformed = true;
        return 0;
}

/* What the origin can, the guest may ask for: a WebSocket on a stream (RFC 8441, 3). */
static int take_settings(H2Pair *p) {
        static const nghttp2_settings_entry connect = { NGHTTP2_SETTINGS_ENABLE_CONNECT_PROTOCOL, 1 };

        if (p->origin_connects || nghttp2_session_get_remote_settings(p->origin, NGHTTP2_SETTINGS_ENABLE_CONNECT_PROTOCOL) != 1)
                return 0;
        p->origin_connects = true;
        return nghttp2_submit_settings(p->guest, NGHTTP2_FLAG_NONE, &connect, 1) == 0 ? 0 : -ENOMEM;
}

static int take_headers(H2Pair *p, H2Stream *s, bool ended) {
        if (!s->answered)
                return h2_stream_take_head(s, &p->answer, ended);
        return ended ? h2_stream_end_answer(s, &p->answer) : 0;
}

static int origin_on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *userdata) {
        bool ended = frame->hd.flags & NGHTTP2_FLAG_END_STREAM;
        H2Pair *p = userdata;
        H2Stream *s;

        switch (frame->hd.type) {
        case NGHTTP2_SETTINGS:
                return callback_result(take_settings(p));
        case NGHTTP2_GOAWAY:
                return callback_result(h2_pair_leave(p, frame->goaway.error_code));
        case NGHTTP2_HEADERS:
                s = h2_pair_find_origin(p, frame->hd.stream_id);
                return s ? callback_result(take_headers(p, s, ended)) : 0;
        case NGHTTP2_DATA:
                s = h2_pair_find_origin(p, frame->hd.stream_id);
                return s && ended ? callback_result(h2_stream_end_answer(s, NULL)) : 0;
        default:
                return 0;
        }
}

static int origin_on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *data, size_t size, void *userdata) {
        H2Pair *p = userdata;
        H2Stream *s = h2_pair_find_origin(p, id);

        p->down_unreturned += size;
        if (s)
                return callback_result(h2_stream_take_answer(s, data, size));
        (void) nghttp2_session_consume_stream(session, id, size);
        h2_pair_settle(p);
        return 0;
}

static int origin_on_invalid_frame(nghttp2_session *session, const nghttp2_frame *frame, int code, void *userdata) {
        H2Stream *s = h2_pair_find_origin(userdata, frame->hd.stream_id);

        if (s)
                s->malformed = true;
        return 0;
}

/* What the guest is told of a stream that its origin ended early. */
static int end_early(H2Stream *s, uint32_t code) {
        if (s->malformed)
                return h2_stream_deny(s, 502, "origin-malformed", NULL, "The origin's answer is malformed.");
        h2_stream_reset(s, code == NGHTTP2_NO_ERROR ? NGHTTP2_INTERNAL_ERROR : code);
        return 0;
}

static int origin_on_close(nghttp2_session *session, int32_t id, uint32_t code, void *userdata) {
        H2Stream *s = h2_pair_find_origin(userdata, id);

        if (!s)
                return 0;
        s->origin_id = 0;
        h2_stream_drop_origin(s, 0);
        return s->down.over || s->refused ? 0 : callback_result(end_early(s, code));
}

/* A request that was still waiting for its turn. */
static int origin_on_not_sent(nghttp2_session *session, const nghttp2_frame *frame, int code, void *userdata) {
        H2Stream *s = frame->hd.type == NGHTTP2_HEADERS ? h2_pair_find_origin(userdata, frame->hd.stream_id) : NULL;

        if (!s || s->refused)
                return 0;
        s->origin_id = 0;
        h2_stream_reset(s, NGHTTP2_REFUSED_STREAM);
        return 0;
}

int h2_origin_session_new(H2Pair *p, nghttp2_option *option, nghttp2_mem *mem) {
        nghttp2_session_callbacks *c;
        int r;

        if (nghttp2_session_callbacks_new(&c) != 0)
                return -ENOMEM;
        nghttp2_session_callbacks_set_on_begin_headers_callback(c, origin_on_begin_headers);
        nghttp2_session_callbacks_set_on_header_callback(c, origin_on_header);
        nghttp2_session_callbacks_set_on_invalid_header_callback(c, origin_on_invalid_header);
        nghttp2_session_callbacks_set_on_frame_recv_callback(c, origin_on_frame);
        nghttp2_session_callbacks_set_on_data_chunk_recv_callback(c, origin_on_data);
        nghttp2_session_callbacks_set_on_invalid_frame_recv_callback(c, origin_on_invalid_frame);
        nghttp2_session_callbacks_set_on_stream_close_callback(c, origin_on_close);
        nghttp2_session_callbacks_set_on_frame_not_send_callback(c, origin_on_not_sent);
        r = nghttp2_session_client_new3(&p->origin, c, p, option, mem);
        nghttp2_session_callbacks_del(c);
        return r == 0 ? 0 : -ENOMEM;
}
