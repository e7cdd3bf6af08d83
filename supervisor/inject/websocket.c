/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A message goes on in other frames than it came in, which RFC 6455, 5.4 allows where no extension says otherwise: what the masker
 * has decided of a piece makes a frame. A message that is there as a whole stays whole, and one that trickles goes on as it trickles. What is held back
 * of a fragment goes in front of the next one, so that what is looked for is found across frames. Control frames come between the
 * fragments of a message, so they have a masker of their own; they are short (5.5), and go on only as a whole.
 */

#include "inject/websocket.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum {
        FIN = 0x80,
        RESERVED_BITS = 0x70,
        MASKED = 0x80,
        HEADER_MAX = 14,
        CONTROL_MAX = 125,
        OP_CONTINUATION = 0,
        OP_TEXT = 1,
        OP_BINARY = 2,
        OP_CLOSE = 8,
        OP_PING = 9,
        OP_PONG = 10,
};

struct Websocket {
        bool from_client;
        Masker *messages, *controls; /* owned */
        const char *error;

        uint8_t header[HEADER_MAX];
        size_t header_size;          /* bytes of it so far; its whole size once in_payload */
        bool in_payload;
        bool fin;
        uint8_t op, key[4];
        uint64_t size, done;         /* of the payload */

        bool in_message;             /* a data frame without FIN came */
        bool message_begun;          /* a frame of it went on */
        uint8_t message_op;
        bool closed;                 /* a Close frame came: nothing may follow */
        Buffer plain, decided;       /* of the piece at hand; a control frame's until it is whole */
};

int websocket_new(Websocket **ret, bool from_client, Masker *messages, Masker *controls) {
        Websocket *s = calloc(1, sizeof(*s));

        if (!s) {
                masker_free(messages);
                masker_free(controls);
                return -ENOMEM;
        }
        *s = (Websocket) { .from_client = from_client, .messages = messages, .controls = controls };
        *ret = s;
        return 0;
}

Websocket *websocket_free(Websocket *s) {
        if (!s)
                return NULL;
        masker_free(s->messages);
        masker_free(s->controls);
        buffer_done(&s->plain);
        buffer_done(&s->decided);
        free(s);
        return NULL;
}

void websocket_set_maskers(Websocket *s, Masker *messages, Masker *controls) {
        masker_take_over(messages, s->messages);
        masker_take_over(controls, s->controls);
        masker_free(s->messages);
        masker_free(s->controls);
        s->messages = messages;
        s->controls = controls;
}

bool websocket_is_closed(const Websocket *s) {
        return s->closed;
}

const char *websocket_error(const Websocket *s) {
        return s->error ? s->error : "no error";
}

uint64_t websocket_hits(const Websocket *s) {
        return masker_hits(s->messages) + masker_hits(s->controls);
}

size_t websocket_last_hit(const Websocket *s) {
        return masker_last(masker_hits(s->controls) > 0 ? s->controls : s->messages);
}

/* ---- writing ---- */

static int write_frame(bool masked, uint8_t first, const uint8_t *data, size_t size, Buffer *out) {
        uint8_t header[HEADER_MAX] = { first }, key[4], *p;
        size_t n = 2;

        if (size <= 125)
                header[1] = (uint8_t) size;
        else {
                size_t bytes = size <= UINT16_MAX ? 2 : 8;

                header[1] = bytes == 2 ? 126 : 127;
                for (size_t i = 0; i < bytes; i++)
                        header[n++] = (uint8_t) ((uint64_t) size >> 8 * (bytes - 1 - i));
        }
        if (masked) {
                if (getrandom(key, sizeof(key), 0) != sizeof(key))
                        return -EIO;
                header[1] |= MASKED;
                memcpy(header + n, key, sizeof(key));
                n += sizeof(key);
        }

        p = buffer_reserve(out, n + size);
        if (!p)
                return -ENOMEM;
        memcpy(p, header, n);
        if (size > 0)
                memcpy(p + n, data, size);
        for (size_t i = 0; masked && i < size; i++)
                p[n + i] ^= key[i % 4];
        buffer_commit(out, n + size);
        return 0;
}

int websocket_close_frame(unsigned code, const char *reason, Buffer *out) {
        uint8_t payload[CONTROL_MAX] = { (uint8_t) (code >> 8), (uint8_t) code };
        size_t n = strnlen(reason, sizeof(payload) - 2);

        memcpy(payload + 2, reason, n);
        return write_frame(false, FIN | OP_CLOSE, payload, n + 2, out);
}

/* ---- reading ---- */

static int bad(Websocket *s, const char *error) {
        s->error = error;
        return -EBADMSG;
}

static bool is_control(const Websocket *s) {
        return s->op & 8;
}

/* How many bytes this header has, as far as one can tell from what is there of it. */
static size_t header_needs(const Websocket *s) {
        size_t n = 2;

        if (s->header_size < 2)
                return 2;
        if ((s->header[1] & 0x7f) == 126)
                n += 2;
        else if ((s->header[1] & 0x7f) == 127)
                n += 8;
        return n + (s->header[1] & MASKED ? 4 : 0);
}

static int read_size(Websocket *s) {
        size_t n = s->header[1] & 0x7f, bytes = n == 126 ? 2 : n == 127 ? 8 : 0;

        s->size = bytes > 0 ? 0 : n;
        for (size_t i = 0; i < bytes; i++)
                s->size = s->size << 8 | s->header[2 + i];
        if ((bytes == 2 && s->size <= 125) || (bytes == 8 && s->size <= UINT16_MAX))
                return bad(s, "a length in more bytes than it needs");
        if (s->size >> 63)
                return bad(s, "a length beyond all measure");
        return 0;
}

static int check_header(Websocket *s) {
        if (s->header[0] & RESERVED_BITS)
                return bad(s, "an extension that was not agreed upon");
        if (!(s->header[1] & MASKED) == s->from_client)
                return bad(s, s->from_client ? "a client's frame without a mask" : "a server's frame with a mask");
        if (is_control(s)) {
                if (s->op > OP_PONG)
                        return bad(s, "an unknown kind of frame");
                if (!s->fin || s->size > CONTROL_MAX)
                        return bad(s, "a control frame that is fragmented or too large");
                return s->op == OP_CLOSE && s->size == 1 ? bad(s, "a Close frame with half a code") : 0;
        }
        if (s->op > OP_BINARY)
                return bad(s, "an unknown kind of frame");
        if ((s->op == OP_CONTINUATION) != s->in_message)
                return bad(s, s->in_message ? "a message within a message" : "a continuation of nothing");
        return 0;
}

static int begin_frame(Websocket *s) {
        int r;

        s->fin = s->header[0] & FIN;
        s->op = s->header[0] & 0xf;
        r = read_size(s);
        if (r < 0 || (r = check_header(s)) < 0)
                return r;
        if (s->header[1] & MASKED)
                memcpy(s->key, s->header + s->header_size - 4, 4);
        s->in_payload = true;
        s->done = 0;
        if (!is_control(s) && s->op != OP_CONTINUATION) {
                s->message_op = s->op;
                s->in_message = true;
                s->message_begun = false;
        }
        return 0;
}

static int take_payload(Websocket *s, const uint8_t *data, size_t size) {
        uint8_t *p;

        if (size == 0)
                return 0;
        p = buffer_reserve(&s->plain, size);
        if (!p)
                return -ENOMEM;
        memcpy(p, data, size);
        for (size_t i = 0; s->from_client && i < size; i++)
                p[i] ^= s->key[(s->done + i) % 4];
        buffer_commit(&s->plain, size);
        s->done += size;
        return 0;
}

static int pass_control(Websocket *s, Buffer *out) {
        size_t skip = s->op == OP_CLOSE && s->size >= 2 ? 2 : 0; /* the code is no text */
        size_t n;
        int r;

        r = buffer_append(&s->decided, buffer_data(&s->plain), skip);
        if (r < 0 || (r = masker_feed(s->controls, buffer_data(&s->plain) + skip, s->size - skip, &s->decided)) < 0 ||
            (r = masker_finish(s->controls, &s->decided)) < 0)
                return r;
        n = buffer_size(&s->decided);
        return write_frame(s->from_client, FIN | s->op, buffer_data(&s->decided), n < CONTROL_MAX ? n : CONTROL_MAX, out);
}

/* What is decided by now; `last`: and with that the message is over. */
static int pass_message(Websocket *s, bool last, Buffer *out) {
        int r;

        r = masker_feed(s->messages, buffer_data(&s->plain), buffer_size(&s->plain), &s->decided);
        if (r < 0 || (last && (r = masker_finish(s->messages, &s->decided)) < 0))
                return r;
        if (buffer_size(&s->decided) == 0 && !last)
                return 0;
        r = write_frame(s->from_client, (uint8_t) ((last ? FIN : 0) | (s->message_begun ? OP_CONTINUATION : s->message_op)),
                        buffer_data(&s->decided), buffer_size(&s->decided), out);
        s->message_begun = true;
        s->in_message = !last;
        return r;
}

/* The payload as far as it is there. */
static int pass_piece(Websocket *s, Buffer *out) {
        bool whole = s->done == s->size;
        int r;

        if (is_control(s) && !whole)
                return 0;
        r = is_control(s) ? pass_control(s, out) : pass_message(s, whole && s->fin, out);
        buffer_clear(&s->plain);
        buffer_clear(&s->decided);
        if (whole) {
                s->in_payload = false;
                s->header_size = 0;
                s->closed = s->op == OP_CLOSE;
        }
        return r;
}

int websocket_feed(Websocket *s, const void *data, size_t size, Buffer *out) {
        const uint8_t *p = data;
        int r = 0;

        if (s->error)
                return -EBADMSG;
        while (size > 0 && r == 0) {
                size_t n;

                if (s->closed)
                        return bad(s, "something behind the Close frame");
                if (!s->in_payload) {
                        s->header[s->header_size++] = *p++;
                        size--;
                        if (s->header_size < header_needs(s))
                                continue;
                        r = begin_frame(s);
                        if (r < 0 || s->size > 0)
                                continue;
                }
                n = s->size - s->done < size ? (size_t) (s->size - s->done) : size;
                r = take_payload(s, p, n);
                p += n;
                size -= n;
                if (r == 0)
                        r = pass_piece(s, out);
        }
        return r;
}
