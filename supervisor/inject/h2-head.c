/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "inject/h2-head.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "util/text.h"

void h2_head_done(H2Head *h) {
        buffer_done(&h->text);
}

void h2_head_reset(H2Head *h) {
        Buffer text = h->text;

        buffer_clear(&text);
        *h = (H2Head) { .text = text };
}

static int add_text(H2Head *h, const void *data, size_t size, size_t *ret_at) {
        int r;

        if (buffer_size(&h->text) == 0) {
                r = buffer_append(&h->text, "", 1);
                if (r < 0)
                        return r;
        }
        *ret_at = buffer_size(&h->text);
        r = buffer_append(&h->text, data, size);
        return r < 0 ? r : buffer_append(&h->text, "", 1);
}

static size_t *find_pseudo(H2Head *h, const char *name, size_t size) {
        struct {
                const char *name;
                size_t *at;
        } known[] = {
                { ":method", &h->method },
                { ":path", &h->path },
                { ":authority", &h->authority },
                { ":scheme", &h->scheme },
                { ":protocol", &h->protocol },
                { ":status", &h->status },
        };

        for (size_t i = 0; i < ELEMENTSOF(known); i++)
                if (strlen(known[i].name) == size && memcmp(known[i].name, name, size) == 0)
                        return known[i].at;
        return NULL;
}

int h2_head_add(H2Head *h, const void *name, size_t name_size, const void *value, size_t value_size) {
        size_t *pseudo = find_pseudo(h, name, name_size), used = buffer_size(&h->text);
        int r;

        if (h->too_large)
                return 0;
        if (used > HTTP_HEAD_MAX || name_size + value_size > HTTP_HEAD_MAX - used || (!pseudo && h->n_fields == HTTP_FIELDS_MAX)) {
                h->too_large = true;
                return 0;
        }
        if (pseudo)
                return add_text(h, value, value_size, pseudo);

        if ((r = add_text(h, name, name_size, &h->names[h->n_fields])) < 0 || (r = add_text(h, value, value_size, &h->values[h->n_fields])) < 0)
                return r;
        h->n_fields++;
        return 0;
}

static int fail(H2Head *h, int r, const char *error) {
        h->error = error;
        return r;
}

static const char *text_at(const H2Head *h, size_t at) {
        return at > 0 ? (const char *) buffer_data(&h->text) + at : "";
}

static bool has_control(const char *s) {
        for (; *s; s++)
                if (((unsigned char) *s < 0x20 && *s != '\t') || *s == 0x7f)
                        return true;
        return false;
}

/* The fields, now that the text does not move any more. */
static int build_fields(H2Head *h) {
        if (h->too_large)
                return fail(h, -EMSGSIZE, "the head is too large");
        if (h->malformed)
                return fail(h, -EBADMSG, "a malformed header field");
        for (size_t i = 0; i < h->n_fields; i++) {
                const char *name = text_at(h, h->names[i]), *value = text_at(h, h->values[i]);

                if (has_control(value))
                        return fail(h, -EBADMSG, "a control character in a header field");
                h->head.fields[h->head.n_fields++] = (HttpField) { name, value };
        }
        return 0;
}

/* nghttp2 compares what is announced with what comes; here it is only read. */
static int read_length(H2Head *h) {
        const char *value;
        size_t n = http_head_find(&h->head, "content-length", &value);

        if (n == 0)
                return 0;
        if (n > 1 || !*value || strlen(value) > 18 || value[strspn(value, "0123456789")])
                return fail(h, -EBADMSG, "more than one content-length, or no number");
        h->head.has_length = true;
        h->head.length = strtoull(value, NULL, 10);
        return 0;
}

static void frame(H2Head *h, bool ended) {
        h->head.framing = ended ? HTTP_FRAMING_NONE : h->head.has_length && h->head.length > 0 ? HTTP_FRAMING_LENGTH : HTTP_FRAMING_CHUNKED;
}

static int check_target(H2Head *h) {
        const char *target = text_at(h, h->path);

        if (h->path == 0 || !*target)
                return fail(h, -EBADMSG, "no :path");
        for (const char *p = target; *p; p++)
                if ((unsigned char) *p <= 0x20 || (unsigned char) *p >= 0x7f)
                        return fail(h, -EBADMSG, "the request's target is not plain ASCII");
        h->head.target = target;
        return 0;
}

static int check_method(H2Head *h) {
        const char *method = text_at(h, h->method);

        if (!*method || method[strspn(method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-")])
                return fail(h, -EBADMSG, "no :method, or none of upper-case letters");
        if (strcmp(method, "CONNECT") == 0) {
                if (h->protocol == 0 || strcasecmp(text_at(h, h->protocol), "websocket") != 0)
                        return fail(h, -EBADMSG, "CONNECT inside a connection");
                h->connect = true;
                method = "GET";
        } else if (h->protocol != 0)
                return fail(h, -EBADMSG, ":protocol without CONNECT");
        h->head.method = method;
        return 0;
}

/* Both names of the same thing must say the same. */
static int join_authority(H2Head *h) {
        const char *authority = text_at(h, h->authority), *host;

        if (h->authority == 0 || (http_head_find(&h->head, "host", &host) == 1 && strcasecmp(host, authority) == 0))
                return 0;
        if (has_control(authority))
                return fail(h, -EBADMSG, "a control character in :authority");
        if (h->head.n_fields == HTTP_FIELDS_MAX)
                return fail(h, -EMSGSIZE, "the head is too large");
        h->head.fields[h->head.n_fields++] = (HttpField) { "host", authority };
        return 0;
}

int h2_head_build_request(H2Head *h, bool ended) {
        int r;

        h->head = (HttpHead) { .keep_alive = true, .reason = "" };
        if ((r = check_method(h)) < 0 || (r = build_fields(h)) < 0 || (r = check_target(h)) < 0 || (r = join_authority(h)) < 0 || (r = read_length(h)) < 0)
                return r;
        if (strcmp(text_at(h, h->scheme), "https") != 0)
                return fail(h, -EBADMSG, ":scheme is not https");
        frame(h, ended);
        h->head.websocket = h->head.extended = h->connect;
        return 0;
}

int h2_head_build_answer(H2Head *h, bool ended) {
        const char *status = text_at(h, h->status);
        int r;

        h->head = (HttpHead) { .keep_alive = true, .reason = "" };
        if ((r = build_fields(h)) < 0 || (r = read_length(h)) < 0)
                return r;
        if (strlen(status) != 3 || status[strspn(status, "0123456789")] || *status < '1' || *status > '5' || strcmp(status, "101") == 0)
                return fail(h, -EBADMSG, "an unexpected status code");
        h->head.status = (unsigned) atoi(status);
        frame(h, ended);
        return 0;
}

int h2_head_build_trailers(H2Head *h) {
        int r;

        h->head = (HttpHead) { .keep_alive = true, .reason = "" };
        r = build_fields(h);
        if (r < 0)
                return r;
        if (h->method || h->path || h->authority || h->scheme || h->protocol || h->status)
                return fail(h, -EBADMSG, "a pseudo-header field in trailers");
        return 0;
}
