/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* HTTP messages from a guest or an origin. However the bytes are cut, the same events come out. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "inject/http-message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_all(HttpKind kind, bool head, const uint8_t *data, size_t size, size_t piece, Buffer *out) {
        _cleanup_(http_reader_freep) HttpReader *r = NULL;
        HttpEvent event;

        if (http_reader_new(&r, kind) < 0)
                return;
        http_reader_set_head_request(r, head);

        for (size_t at = 0; at < size;) {
                size_t n = size - at < piece ? size - at : piece, used, body_size;
                const uint8_t *body;

                do {
                        if (http_reader_feed(r, data + at, n, &used, &event, &body, &body_size) < 0) {
                                (void) buffer_append_text(out, "!");
                                return;
                        }
                        at += used;
                        n -= used;
                        if (event == HTTP_EVENT_BODY)
                                (void) buffer_append(out, body, body_size);
                        if (event == HTTP_EVENT_HEAD) {
                                const HttpHead *h = http_reader_head(r);

                                for (size_t i = 0; i < h->n_fields; i++) {
                                        (void) buffer_append_text(out, h->fields[i].name);
                                        (void) buffer_append_text(out, h->fields[i].value);
                                }
                                if (h->target)
                                        (void) http_target_is_plain(h->target);
                        }
                        if (event == HTTP_EVENT_END)
                                (void) buffer_append_text(out, "E");
                } while (event != HTTP_EVENT_MORE);
        }
        (void) http_reader_eof(r, &event);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        Buffer whole = {}, pieces = {};
        HttpKind kind;
        bool head;

        if (size < 2)
                return 0;
        kind = data[0] & 1 ? HTTP_KIND_RESPONSE : HTTP_KIND_REQUEST;
        head = data[0] & 2;
        read_all(kind, head, data + 2, size - 2, size, &whole);
        read_all(kind, head, data + 2, size - 2, data[1] % 16 + 1, &pieces);

        if (buffer_size(&whole) != buffer_size(&pieces) ||
            (buffer_size(&whole) > 0 && memcmp(buffer_data(&whole), buffer_data(&pieces), buffer_size(&whole)) != 0))
                __builtin_trap();
        buffer_done(&whole);
        buffer_done(&pieces);
        return 0;
}
