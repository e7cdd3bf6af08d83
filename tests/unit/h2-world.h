/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* A pair of HTTP/2 sessions of inject between a played guest and a played origin, all in one thread. */

#include <nghttp2/nghttp2.h>
#include <stdio.h>

#include "exchange-world.h"
#include "inject/h2-private.h"

/* A field of a head, as these sessions write them. */
#undef KEY
#define KEY "x-api-key: " SENTINEL "\n"

enum { SLOTS = 128,
       H2_PORT = 443 };

/* One stream, as one side sees it. */
typedef struct Slot {
        int32_t id;
        char *head;       /* every field that came, "name: value\n"; "--\n" before each block */
        Buffer body;      /* what came, up to some size */
        uint64_t n_bytes; /* of all of it */
        char *sizes;      /* of the frames of data that came, "12 7 " */
        Buffer out;       /* what is to be sent */
        uint64_t out_more;/* and so many zero bytes behind it */
        bool out_over, ended, closed;
        const char *out_trailers;
        uint32_t code;
} Slot;

typedef struct Side {
        struct H2World *world;
        nghttp2_session *session;
        Slot slots[SLOTS];
        size_t n_slots;
        bool holds; /* takes bytes, but opens no window */
        unsigned n_goaways, n_settings;
        uint32_t goaway;
} Side;

typedef struct H2World {
        World base;
        H2Pair *pair;
        Side guest, origin;
        void (*serve)(struct H2World *w, Slot *slot, bool ended); /* the origin, when a head has come, and at the end of a request */
        size_t most; /* that waited in the pair */
} H2World;

static inline Slot *slot_of(Side *side, int32_t id, bool make) {
        for (size_t i = 0; i < side->n_slots; i++)
                if (side->slots[i].id == id)
                        return &side->slots[i];
        if (!make)
                return NULL;
        assert_true(side->n_slots < SLOTS);
        side->slots[side->n_slots] = (Slot) { .id = id, .head = strdup("") };
        return &side->slots[side->n_slots++];
}

static inline void append_head(Slot *slot, const char *a, const char *b, const char *c, const char *d) {
        char *longer = text_format("%s%s%s%s%s", slot->head, a, b, c, d);

        free(slot->head);
        slot->head = longer;
}

static inline void append_size(Slot *slot, size_t size) {
        char *longer = text_format("%s%zu ", slot->sizes ?: "", size);

        free(slot->sizes);
        slot->sizes = longer;
}

static inline int side_on_begin(nghttp2_session *session, const nghttp2_frame *frame, void *userdata) {
        append_head(slot_of(userdata, frame->hd.stream_id, true), "--\n", "", "", "");
        return 0;
}

static inline int side_on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name, size_t name_size,
                                 const uint8_t *value, size_t value_size, uint8_t flags, void *userdata) {
        append_head(slot_of(userdata, frame->hd.stream_id, true), (const char *) name, ": ", (const char *) value, "\n");
        return 0;
}

static inline int side_on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *userdata) {
        Side *side = userdata;
        H2World *w = side->world;
        bool head = frame->hd.type == NGHTTP2_HEADERS, ended = frame->hd.flags & NGHTTP2_FLAG_END_STREAM;
        Slot *slot;

        if (frame->hd.type == NGHTTP2_GOAWAY) {
                side->n_goaways++;
                side->goaway = frame->goaway.error_code;
        }
        if (frame->hd.type == NGHTTP2_SETTINGS && !(frame->hd.flags & NGHTTP2_FLAG_ACK))
                side->n_settings++;
        if (!head && frame->hd.type != NGHTTP2_DATA)
                return 0;
        slot = slot_of(side, frame->hd.stream_id, true);
        slot->ended = slot->ended || ended;
        if (!head)
                append_size(slot, frame->hd.length);
        if (side == &w->origin && w->serve && (head || ended))
                w->serve(w, slot, ended);
        return 0;
}

static inline int side_on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *data, size_t size, void *userdata) {
        Side *side = userdata;
        Slot *slot = slot_of(side, id, true);

        slot->n_bytes += size;
        if (buffer_size(&slot->body) < 65536)
                assert_int_equal(buffer_append(&slot->body, data, size), 0);
        if (!side->holds)
                assert_int_equal(nghttp2_session_consume(session, id, size), 0);
        return 0;
}

static inline int side_on_close(nghttp2_session *session, int32_t id, uint32_t code, void *userdata) {
        Slot *slot = slot_of(userdata, id, true);

        slot->closed = true;
        slot->code = code;
        return 0;
}

/* "name: value\nname: value\n" */
static inline size_t make_list(const char *text, nghttp2_nv *list, size_t max) {
        size_t n = 0;

        for (const char *p = text; *p; n++) {
                const char *end = strchr(p, '\n'), *colon = strstr(p + 1, ": ");

                assert_true(n < max && end && colon && colon < end);
                list[n] = (nghttp2_nv) { (uint8_t *) p, (uint8_t *) colon + 2, (size_t) (colon - p), (size_t) (end - colon - 2), NGHTTP2_NV_FLAG_NONE };
                p = end + 1;
        }
        return n;
}

static inline nghttp2_ssize side_give(nghttp2_session *session, int32_t id, uint8_t *buffer, size_t size, uint32_t *ret_flags,
                                      nghttp2_data_source *source, void *userdata) {
        Slot *slot = slot_of(userdata, id, true);
        size_t n = buffer_size(&slot->out) < size ? buffer_size(&slot->out) : size;

        memcpy(buffer, buffer_data(&slot->out), n);
        buffer_consume(&slot->out, n);
        if (n == 0 && slot->out_more > 0) {
                n = slot->out_more < size ? slot->out_more : size;
                memset(buffer, '.', n);
                slot->out_more -= n;
        }
        if (buffer_size(&slot->out) + slot->out_more == 0 && slot->out_over) {
                *ret_flags |= NGHTTP2_DATA_FLAG_EOF;
                if (slot->out_trailers) {
                        nghttp2_nv list[16];

                        *ret_flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
                        assert_int_equal(nghttp2_submit_trailer(session, id, list, make_list(slot->out_trailers, list, ELEMENTSOF(list))), 0);
                }
        } else if (n == 0)
                return NGHTTP2_ERR_DEFERRED;
        return (nghttp2_ssize) n;
}

static inline void side_send(Side *side, Slot *slot, const char *text, bool over) {
        assert_int_equal(buffer_append_text(&slot->out, text), 0);
        slot->out_over = over;
        (void) nghttp2_session_resume_data(side->session, slot->id);
}

/* The guest asks; with a body if `bodied`, which side_send() gives then. */
static inline Slot *guest_ask(H2World *w, const char *method, const char *path, const char *fields, bool bodied) {
        const nghttp2_data_provider2 body = { .read_callback = side_give };
        _cleanup_free_ char *text = text_format(":method: %s\n:scheme: https\n:path: %s\n%s%s", method, path,
                                                strstr(fields, ":authority: ") ? "" : ":authority: " NAME "\n", fields);
        nghttp2_nv list[200];
        int32_t id;

        id = nghttp2_submit_request2(w->guest.session, NULL, list, make_list(text, list, ELEMENTSOF(list)), bodied ? &body : NULL, NULL);
        assert_true(id > 0);
        return slot_of(&w->guest, id, true);
}

static inline void origin_answer(H2World *w, Slot *slot, const char *fields, bool bodied) {
        const nghttp2_data_provider2 body = { .read_callback = side_give };
        nghttp2_nv list[32];

        assert_int_equal(nghttp2_submit_response2(w->origin.session, slot->id, list, make_list(fields, list, ELEMENTSOF(list)), bodied ? &body : NULL), 0);
}

static inline Side *side_init(Side *side, H2World *w, bool server) {
        nghttp2_session_callbacks *c;
        nghttp2_option *option;

        side->world = w;
        assert_int_equal(nghttp2_session_callbacks_new(&c), 0);
        assert_int_equal(nghttp2_option_new(&option), 0);
        nghttp2_option_set_no_auto_window_update(option, 1);
        nghttp2_option_set_no_http_messaging(option, 1); /* either may misbehave */
        nghttp2_option_set_max_send_header_block_length(option, 256 * 1024);
        nghttp2_session_callbacks_set_on_begin_headers_callback(c, side_on_begin);
        nghttp2_session_callbacks_set_on_header_callback(c, side_on_header);
        nghttp2_session_callbacks_set_on_frame_recv_callback(c, side_on_frame);
        nghttp2_session_callbacks_set_on_data_chunk_recv_callback(c, side_on_data);
        nghttp2_session_callbacks_set_on_stream_close_callback(c, side_on_close);
        if (server)
                assert_int_equal(nghttp2_session_server_new2(&side->session, c, side, option), 0);
        else
                assert_int_equal(nghttp2_session_client_new2(&side->session, c, side, option), 0);
        nghttp2_option_del(option);
        nghttp2_session_callbacks_del(c);
        return side;
}

static inline void side_settings(Side *side, int32_t id, uint32_t value) {
        nghttp2_settings_entry entry = { id, value };

        assert_int_equal(nghttp2_submit_settings(side->session, NGHTTP2_FLAG_NONE, &entry, id ? 1 : 0), 0);
}

/* ---- bytes ---- */

static inline bool move_side(H2World *w, Side *side, int (*take)(H2Pair *, const void *, size_t), int (*give)(H2Pair *, Buffer *, size_t)) {
        bool any = false;
        Buffer out = {};

        for (unsigned i = 0; i < 64; i++) {
                const uint8_t *data;
                nghttp2_ssize n = nghttp2_session_mem_send2(side->session, &data);

                if (n <= 0)
                        break;
                assert_int_equal(take(w->pair, data, (size_t) n), 0);
                any = true;
        }
        assert_true(give(w->pair, &out, 65536) >= 0);
        if (buffer_size(&out) > 0) {
                any = true;
                (void) nghttp2_session_mem_recv2(side->session, buffer_data(&out), buffer_size(&out));
        }
        buffer_done(&out);
        if (w->base.context.h2_backlog > w->most)
                w->most = w->base.context.h2_backlog;
        return any;
}

/* Until nothing happens any more. */
static inline void h2_run(H2World *w) {
        for (unsigned quiet = 0; quiet < 2;) {
                bool any = move_side(w, &w->guest, h2_pair_take_guest, h2_pair_give_guest);

                if (w->origin.session)
                        any = move_side(w, &w->origin, h2_pair_take_origin, h2_pair_give_origin) || any;
                any = sd_event_run(w->base.event, any ? 0 : 30000) > 0 || any;
                quiet = any ? 0 : quiet + 1;
        }
}

/* ---- set up, tear down ---- */

static inline void h2_on_wake(void *userdata) {
}

static inline H2World *h2_world_new(const Refusal *refusal) {
        H2World *w = calloc(1, sizeof(*w));
        const H2Origin origin = { .name = NAME, .rule = INSPECT_RULE, .port = H2_PORT, .grant = 7, .refusal = refusal };

        w->base.port = H2_PORT;
        set_up_host(&w->base, NULL);
        side_settings(side_init(&w->guest, w, false), 0, 0);
        if (!refusal)
                side_settings(side_init(&w->origin, w, true), 0, 0);
        assert_int_equal(h2_pair_new(&w->pair, &w->base.context, &origin, h2_on_wake, w), 0);
        return w;
}

static inline void side_done(Side *side) {
        nghttp2_session_del(side->session);
        for (size_t i = 0; i < side->n_slots; i++) {
                free(side->slots[i].head);
                free(side->slots[i].sizes);
                buffer_done(&side->slots[i].body);
                buffer_done(&side->slots[i].out);
        }
}

static inline void h2_world_free(H2World *w) {
        h2_pair_free(w->pair);
        assert_int_equal(w->base.context.h2_backlog, 0);
        side_done(&w->guest);
        side_done(&w->origin);
        tear_down_host(&w->base);
        free(w);
}

static inline bool has(const Slot *slot, const char *words) {
        return strstr(slot->head, words);
}

static inline bool body_has(const Slot *slot, const char *words) {
        return memmem(buffer_data(&slot->body), buffer_size(&slot->body), words, strlen(words));
}

static inline int set_up_pair(void **state) {
        *state = h2_world_new(NULL);
        return 0;
}

static inline int tear_down_pair(void **state) {
        h2_world_free(*state);
        return 0;
}

/* Says what it got at the end, with the secret in every part of the answer. */
static inline void serve_plainly(H2World *w, Slot *slot, bool ended) {
        if (!ended)
                return;
        origin_answer(w, slot, ":status: 200\nx-echo: " SECRET "\nalt-svc: h2=\":443\"\ncontent-length: 28\n", true);
        side_send(&w->origin, slot, "a " SECRET " b", true);
}

/* Pieces pass while both directions are open. */
static inline void serve_turns(H2World *w, Slot *slot, bool ended) {
        if (!ended)
                origin_answer(w, slot, ":status: 200\n", true);
        else
                side_send(&w->origin, slot, "bye\n", true);
}
