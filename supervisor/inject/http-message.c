/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * llhttp does the reading, with every leniency off; a fresh parser for each message. It is stopped at
 * each event by HPE_PAUSED from its callbacks. On top of what it refuses by itself, refused are: other
 * versions than the ones below, a Transfer-Encoding that is not exactly "chunked", a field value with a
 * line end or another control character in it, CONNECT, a switch of protocols, and anything
 * above the named maxima. A trailer's fields have maxima of their own.
 */

#include "inject/http-message.h"

#include <errno.h>
#include <llhttp.h>
#include <string.h>
#include <strings.h>

#include "util/text.h"

typedef struct Span {
        size_t begin, end; /* in text */
} Span;

/* What was read of one message. Most of the reader's memory, and a connection that waits has none of it
 * (http_reader_rest()). */
typedef struct Message {
        Buffer text;      /* method, target, reason, names and values, each with a zero byte */
        Span method, target, reason, names[HTTP_FIELDS_MAX], values[HTTP_FIELDS_MAX];
        Buffer trailer;   /* the same of a trailer's fields; apart, since the head's are pointed to from outside */
        Span trailer_names[HTTP_TRAILERS_MAX], trailer_values[HTTP_TRAILERS_MAX];
        HttpField trailers[HTTP_TRAILERS_MAX];
        HttpHead head;
} Message;

struct HttpReader {
        llhttp_t parser;
        HttpKind kind;
        bool head_request, websocket_request;
        bool started;     /* a byte of this message was read */
        bool in_body;     /* the head is complete: fields from here on are trailers */
        bool over;        /* this message ended */

        Message *message; /* owned; NULL before the first byte and after a rest */
        size_t n_fields, n_trailers;

        HttpEvent event;
        const uint8_t *body;
        size_t body_size;
        int failure; /* errno of a callback */
        const char *error;
};

static int http_fail(HttpReader *r, int failure, const char *error) {
        r->failure = failure;
        r->error = error;
        return HPE_USER;
}

static Buffer *text_of(HttpReader *r) {
        return r->in_body ? &r->message->trailer : &r->message->text;
}

static int span_add(HttpReader *r, Span *span, const char *at, size_t size) {
        Buffer *text = text_of(r);
        size_t have = buffer_size(text);

        /* the zero bytes between the texts may have gone beyond the maximum */
        if (have > HTTP_HEAD_MAX || size > HTTP_HEAD_MAX - have)
                return http_fail(r, -EMSGSIZE, r->in_body ? "the trailer is too large" : "the head is too large");
        if (buffer_append(text, at, size) < 0)
                return http_fail(r, -ENOMEM, "out of memory");
        span->end = buffer_size(text);
        return 0;
}

/* Closes a text with its zero byte; the next one starts behind it. */
static int span_close(HttpReader *r, Span *span, Span *next) {
        Buffer *text = text_of(r);

        if (buffer_append(text, "", 1) < 0)
                return http_fail(r, -ENOMEM, "out of memory");
        if (span->end == 0)
                span->end = span->begin;
        if (next)
                *next = (Span) { .begin = buffer_size(text) };
        return 0;
}

static int on_message_begin(llhttp_t *p) {
        HttpReader *r = p->data;

        r->started = true;
        return 0;
}

static int on_method(llhttp_t *p, const char *at, size_t size) {
        HttpReader *r = p->data;

        return span_add(r, &r->message->method, at, size);
}

static int on_method_complete(llhttp_t *p) {
        HttpReader *r = p->data;

        return span_close(r, &r->message->method, &r->message->target);
}

static int on_url(llhttp_t *p, const char *at, size_t size) {
        HttpReader *r = p->data;

        return span_add(r, &r->message->target, at, size);
}

static int on_url_complete(llhttp_t *p) {
        HttpReader *r = p->data;

        return span_close(r, &r->message->target, &r->message->names[0]);
}

static int on_status(llhttp_t *p, const char *at, size_t size) {
        HttpReader *r = p->data;

        return span_add(r, &r->message->reason, at, size);
}

static int on_status_complete(llhttp_t *p) {
        HttpReader *r = p->data;

        return span_close(r, &r->message->reason, &r->message->names[0]);
}

static Span *name_at(HttpReader *r, size_t i) {
        return r->in_body ? &r->message->trailer_names[i] : &r->message->names[i];
}

static Span *value_at(HttpReader *r, size_t i) {
        return r->in_body ? &r->message->trailer_values[i] : &r->message->values[i];
}

static size_t *field_count(HttpReader *r) {
        return r->in_body ? &r->n_trailers : &r->n_fields;
}

static int on_field(llhttp_t *p, const char *at, size_t size) {
        HttpReader *r = p->data;
        size_t n = *field_count(r);

        if (n == (r->in_body ? HTTP_TRAILERS_MAX : HTTP_FIELDS_MAX))
                return http_fail(r, -EMSGSIZE, "too many header fields");
        return span_add(r, name_at(r, n), at, size);
}

static int on_field_complete(llhttp_t *p) {
        HttpReader *r = p->data;
        size_t n = *field_count(r);

        return span_close(r, name_at(r, n), value_at(r, n));
}

static int on_value(llhttp_t *p, const char *at, size_t size) {
        HttpReader *r = p->data;

        return span_add(r, value_at(r, *field_count(r)), at, size);
}

static int on_value_complete(llhttp_t *p) {
        HttpReader *r = p->data;
        size_t n = (*field_count(r))++;
        bool more = n + 1 < (r->in_body ? HTTP_TRAILERS_MAX : HTTP_FIELDS_MAX);

        return span_close(r, value_at(r, n), more ? name_at(r, n + 1) : NULL);
}

static const char *span_text(HttpReader *r, Span span) {
        return (const char *) buffer_data(text_of(r)) + span.begin;
}

/* Cuts blanks off the end of a value (they are no part of it) and looks for what must not be in one. */
static int value_check(HttpReader *r, Span *span) {
        Buffer *b = text_of(r);
        char *text = (char *) b->data + b->begin;

        while (span->end > span->begin && (text[span->end - 1] == ' ' || text[span->end - 1] == '\t'))
                text[--span->end] = 0;
        for (size_t i = span->begin; i < span->end; i++)
                if (((unsigned char) text[i] < 0x20 && text[i] != '\t') || text[i] == 0x7f)
                        return http_fail(r, -EBADMSG, "a control character in a header field");
        return 0;
}

/* Is `token` one of the comma-separated tokens of list? */
static bool list_has(const char *list, const char *token) {
        size_t size = strlen(token);

        while (*list) {
                size_t n;

                list += strspn(list, ", \t");
                n = strcspn(list, ", \t");
                if (n == size && strncasecmp(list, token, n) == 0)
                        return true;
                list += n;
        }
        return false;
}

/* Both an offer of that and its acceptance name it alone. */
static bool names_websocket(const HttpHead *h) {
        const char *upgrade, *connection;

        return http_head_find(h, "upgrade", &upgrade) == 1 && strcasecmp(upgrade, "websocket") == 0 &&
               http_head_find(h, "connection", &connection) == 1 && list_has(connection, "upgrade");
}

/* The spans become pointers only now, because the text may have moved while it grew. */
static int head_build(HttpReader *r) {
        HttpHead *h = &r->message->head;
        int rc;

        *h = (HttpHead) { .n_fields = r->n_fields, .status = r->parser.status_code };
        if (r->kind == HTTP_KIND_REQUEST) {
                h->method = span_text(r, r->message->method);
                h->target = span_text(r, r->message->target);
                for (const char *p = h->target; *p; p++)
                        if ((unsigned char) *p <= 0x20 || (unsigned char) *p >= 0x7f)
                                return http_fail(r, -EBADMSG, "the request's target is not plain ASCII");
        } else {
                rc = value_check(r, &r->message->reason);
                if (rc != 0)
                        return rc;
                h->reason = r->message->reason.end > r->message->reason.begin ? span_text(r, r->message->reason) : "";
        }

        for (size_t i = 0; i < r->n_fields; i++) {
                rc = value_check(r, &r->message->values[i]);
                if (rc != 0)
                        return rc;
                h->fields[i] = (HttpField) { span_text(r, r->message->names[i]), span_text(r, r->message->values[i]) };
        }
        h->websocket = (r->kind == HTTP_KIND_REQUEST || r->parser.status_code == 101) && names_websocket(h);
        return 0;
}

static int head_check(HttpReader *r) {
        llhttp_t *p = &r->parser;
        const char *value;
        size_t n;

        if (p->http_major != 1 || p->http_minor > 1 || (r->kind == HTTP_KIND_REQUEST && p->http_minor != 1))
                return http_fail(r, -EBADMSG, "not HTTP/1.1");
        if (r->kind == HTTP_KIND_REQUEST && p->method == HTTP_CONNECT)
                return http_fail(r, -EBADMSG, "CONNECT inside a connection");
        if (r->kind == HTTP_KIND_RESPONSE && (p->status_code < 100 || p->status_code > 599 ||
                                              (p->status_code == 101 && !(r->websocket_request && r->message->head.websocket))))
                return http_fail(r, -EBADMSG, "an unexpected status code");

        n = http_head_find(&r->message->head, "transfer-encoding", &value);
        if (n > 1 || (n == 1 && (strcasecmp(value, "chunked") != 0 || !(p->flags & F_CHUNKED) || p->http_minor == 0)))
                return http_fail(r, -EBADMSG, "a transfer coding other than chunked");
        if (n == 1 && (p->flags & F_CONTENT_LENGTH))
                return http_fail(r, -EBADMSG, "both Transfer-Encoding and Content-Length");
        return 0;
}

static void head_frame(HttpReader *r) {
        llhttp_t *p = &r->parser;
        HttpHead *h = &r->message->head;
        bool bodiless = r->kind == HTTP_KIND_RESPONSE &&
                        (r->head_request || p->status_code < 200 || p->status_code == 204 || p->status_code == 304);

        h->has_length = p->flags & F_CONTENT_LENGTH;
        h->length = h->has_length ? p->content_length : 0;
        h->keep_alive = llhttp_should_keep_alive(p);
        p->upgrade = 0; /* nobody has to accept an offer to switch */

        if (bodiless) {
                p->flags |= F_SKIPBODY;
                h->framing = HTTP_FRAMING_NONE;
        } else if (p->flags & F_CHUNKED)
                h->framing = HTTP_FRAMING_CHUNKED;
        else if (h->has_length)
                h->framing = h->length > 0 ? HTTP_FRAMING_LENGTH : HTTP_FRAMING_NONE;
        else
                h->framing = r->kind == HTTP_KIND_RESPONSE ? HTTP_FRAMING_CLOSE : HTTP_FRAMING_NONE;
}

static int on_headers_complete(llhttp_t *p) {
        HttpReader *r = p->data;
        int rc;

        rc = head_build(r);
        if (rc != 0)
                return rc;
        rc = head_check(r);
        if (rc != 0)
                return rc;
        head_frame(r);

        r->in_body = true;
        r->event = HTTP_EVENT_HEAD;
        return HPE_PAUSED;
}

static int on_body(llhttp_t *p, const char *at, size_t size) {
        HttpReader *r = p->data;

        if (size == 0)
                return 0; /* llhttp calls this when it is resumed with nothing to read */
        r->event = HTTP_EVENT_BODY;
        r->body = (const uint8_t *) at;
        r->body_size = size;
        return HPE_PAUSED;
}

static int trailers_build(HttpReader *r) {
        int rc = 0;

        for (size_t i = 0; i < r->n_trailers && rc == 0; i++) {
                rc = value_check(r, &r->message->trailer_values[i]);
                r->message->trailers[i] = (HttpField) { span_text(r, r->message->trailer_names[i]), span_text(r, r->message->trailer_values[i]) };
        }
        return rc;
}

static int on_message_complete(llhttp_t *p) {
        HttpReader *r = p->data;
        int rc;

        rc = trailers_build(r);
        if (rc != 0)
                return rc;
        r->over = true;
        r->event = HTTP_EVENT_END;
        return HPE_PAUSED;
}

static const llhttp_settings_t callbacks = {
        .on_message_begin = on_message_begin,
        .on_method = on_method,
        .on_method_complete = on_method_complete,
        .on_url = on_url,
        .on_url_complete = on_url_complete,
        .on_status = on_status,
        .on_status_complete = on_status_complete,
        .on_header_field = on_field,
        .on_header_field_complete = on_field_complete,
        .on_header_value = on_value,
        .on_header_value_complete = on_value_complete,
        .on_headers_complete = on_headers_complete,
        .on_body = on_body,
        .on_message_complete = on_message_complete,
};

static Message *message_free(Message *m) {
        if (!m)
                return NULL;
        buffer_done(&m->text);
        buffer_done(&m->trailer);
        free(m);
        return NULL;
}

static void message_clear(Message *m) {
        buffer_clear(&m->text);
        m->method = m->target = m->reason = m->names[0] = (Span) {};
        buffer_clear(&m->trailer);
        m->trailer_names[0] = (Span) {};
        m->head = (HttpHead) {};
}

static void reader_restart(HttpReader *r) {
        llhttp_init(&r->parser, r->kind == HTTP_KIND_REQUEST ? HTTP_REQUEST : HTTP_RESPONSE, &callbacks);
        r->parser.data = r;
        if (r->message)
                message_clear(r->message);
        r->n_fields = r->n_trailers = 0;
        r->started = r->in_body = r->over = false;
}

int http_reader_new(HttpReader **ret, HttpKind kind) {
        HttpReader *r = calloc(1, sizeof(*r));

        if (!r)
                return -ENOMEM;

        r->kind = kind;
        reader_restart(r);
        *ret = r;
        return 0;
}

HttpReader *http_reader_free(HttpReader *r) {
        if (!r)
                return NULL;
        message_free(r->message);
        free(r);
        return NULL;
}

void http_reader_rest(HttpReader *r) {
        if (!r || r->failure != 0 || (r->started && !r->over))
                return;
        r->message = message_free(r->message);
        reader_restart(r);
}

void http_reader_set_websocket(HttpReader *r, bool on) {
        r->websocket_request = on;
}

void http_reader_set_head_request(HttpReader *r, bool on) {
        r->head_request = on;
}

static int reader_failed(HttpReader *r) {
        if (r->failure == 0) {
                r->failure = -EBADMSG;
                r->error = llhttp_get_error_reason(&r->parser);
                if (!r->error || !*r->error)
                        r->error = llhttp_errno_name(llhttp_get_errno(&r->parser));
        }
        return r->failure;
}

int http_reader_feed(HttpReader *r, const void *data, size_t size, size_t *ret_used,
                     HttpEvent *ret_event, const uint8_t **ret_body, size_t *ret_body_size) {
        enum llhttp_errno e;

        if (r->failure != 0)
                return r->failure;
        if (r->over && size > 0)
                reader_restart(r);
        if (!r->message)
                r->message = calloc(1, sizeof(*r->message));
        if (!r->message)
                return -ENOMEM;

        r->event = HTTP_EVENT_MORE;
        r->body = NULL;
        r->body_size = 0;
        if (llhttp_get_errno(&r->parser) == HPE_PAUSED)
                llhttp_resume(&r->parser);
        /* with no byte at all llhttp still goes on from where it was stopped */
        e = llhttp_execute(&r->parser, data ? data : "", size);
        if (e == HPE_OK)
                *ret_used = size;
        else if (e == HPE_PAUSED)
                *ret_used = (size_t) (llhttp_get_error_pos(&r->parser) - (const char *) (data ? data : ""));
        else
                return reader_failed(r);

        *ret_event = r->event;
        *ret_body = r->body;
        *ret_body_size = r->body_size;
        return 0;
}

int http_reader_eof(HttpReader *r, HttpEvent *ret_event) {
        if (r->failure != 0)
                return r->failure;
        if (r->over || !r->started) {
                *ret_event = HTTP_EVENT_MORE;
                return 0;
        }
        if (r->in_body && r->message->head.framing == HTTP_FRAMING_CLOSE) {
                r->over = true;
                *ret_event = HTTP_EVENT_END;
                return 0;
        }
        r->error = "the connection ended in the middle of a message";
        return r->failure = -EBADMSG;
}

const HttpHead *http_reader_head(const HttpReader *r) {
        static const HttpHead none = {};

        return r->message ? &r->message->head : &none;
}

const HttpField *http_reader_trailers(const HttpReader *r, size_t *ret_n) {
        *ret_n = r->over && r->message ? r->n_trailers : 0;
        return r->message ? r->message->trailers : NULL;
}

bool http_field_may_trail(const char *name) {
        static const char *const never[] = {
                "connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "content-length", "upgrade", "host",
                "authorization", "proxy-authorization", "proxy-authenticate", "www-authenticate", "cookie", "set-cookie", "cache-control", "expect",
                "max-forwards", "pragma", "range", "if-range", "content-encoding", "content-type", "content-range", "location", "age", "expires", "date",
                "retry-after", "vary", "warning", "alt-svc",
        };

        for (size_t i = 0; i < ELEMENTSOF(never); i++)
                if (strcasecmp(name, never[i]) == 0)
                        return false;
        return true;
}

const char *http_reader_error(const HttpReader *r) {
        return r->error ? r->error : "no error";
}

size_t http_head_find(const HttpHead *h, const char *name, const char **ret_value) {
        size_t n = 0;

        for (size_t i = 0; i < h->n_fields; i++)
                if (strcasecmp(h->fields[i].name, name) == 0 && n++ == 0 && ret_value)
                        *ret_value = h->fields[i].value;
        return n;
}

bool http_field_is_hop_by_hop(const HttpHead *h, const char *name) {
        static const char *const always[] = {
                "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection",
                "te", "trailer", "transfer-encoding", "upgrade", "content-length", "http2-settings",
        };

        for (size_t i = 0; i < ELEMENTSOF(always); i++)
                if (strcasecmp(name, always[i]) == 0)
                        return true;
        for (size_t i = 0; i < h->n_fields; i++)
                if (strcasecmp(h->fields[i].name, "connection") == 0 && list_has(h->fields[i].value, name))
                        return true;
        return false;
}

bool http_target_is_plain(const char *target) {
        size_t dots = 0;        /* dots in a segment of nothing but dots */
        bool only_dots = true;

        if (*target != '/')
                return false;

        for (const char *p = target + 1;; p++) {
                char c = *p;

                if (c == '%' && text_hex_digit(p[1]) >= 0 && text_hex_digit(p[2]) >= 0) {
                        c = (char) (text_hex_digit(p[1]) << 4 | text_hex_digit(p[2]));
                        p += 2;
                        if (c == 0)
                                return false;
                        if (c == '?' || c == '#')
                                c = 'x'; /* encoded, it is a part of the segment */
                } else if (c == '#')
                        return false;

                if (c == '/' || c == '\\' || c == '?' || c == 0) {
                        if (only_dots && (dots == 1 || dots == 2))
                                return false;
                        if (c == '?' || c == 0)
                                return true;
                        dots = 0;
                        only_dots = true;
                } else if (c == '.')
                        dots++;
                else
                        only_dots = false;
        }
}
