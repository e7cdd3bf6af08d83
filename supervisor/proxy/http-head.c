/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * llhttp reads, in its strict mode: no bare line feeds, no Content-Length beside Transfer-Encoding, no header
 * names with spaces. What it leaves open and two readers could still read differently is refused here: continued header lines,
 * two Host headers, another version than 1.0 and 1.1, a Transfer-Encoding that is not "chunked" and nothing else, or in HTTP/1.0,
 * where old servers do not know it, a GET with a body and another request behind it, and fields by which some servers take another method or path than those of the request line.
 *
 * The parser is paused at the end of each head and of each message, so that the caller can hold a head back until it
 * is decided, and knows which bytes belong to which request.
 */

#include <errno.h>
#include <llhttp.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "egress/agreement-api.h"
#include "proxy/http-head.h"

struct HttpFollower {
        llhttp_t parser;
        llhttp_settings_t settings;
        HttpRequest request;
        char target[HTTP_HEAD_MAX], field[32], host[HTTP_HOST_MAX + 1];
        size_t n_target, n_field, n_host, n_head;
        unsigned n_hosts, n_codings;
        size_t n_chunked;    /* how much of "chunked" the one Transfer-Encoding has */
        bool field_is_long, in_value, second_path;
        bool in_head, broken;
        bool at_line_start;  /* of a head: the byte before was a line feed */
        char line_end[sizeof("HTTP/1.1\r") - 1]; /* what came last of the request line */
        size_t n_line;       /* of the request line so far */
        bool line_over;
        HttpOutcome paused;
        HttpContent content; /* may be NULL */
        void *userdata;      /* borrowed */
        bool is_chunked;
};

static HttpFollower *follower_of(llhttp_t *parser) {
        return parser->data;
}

static int on_begin(llhttp_t *parser) {
        HttpFollower *f = follower_of(parser);

        f->n_target = f->n_field = f->n_host = 0;
        f->n_hosts = f->n_codings = 0;
        f->n_chunked = 0;
        f->field_is_long = f->in_value = f->second_path = false;
        f->request = (HttpRequest) {};
        return 0;
}

static int append(char *buffer, size_t max, size_t *n, const char *at, size_t size) {
        if (size > max - 1 - *n)
                return -1;
        memcpy(buffer + *n, at, size);
        *n += size;
        buffer[*n] = '\0';
        return 0;
}

static int on_url(llhttp_t *parser, const char *at, size_t size) {
        HttpFollower *f = follower_of(parser);

        return append(f->target, sizeof(f->target), &f->n_target, at, size);
}

static int on_field(llhttp_t *parser, const char *at, size_t size) {
        HttpFollower *f = follower_of(parser);

        if (f->in_value) {
                f->in_value = false;
                f->n_field = 0;
                f->field_is_long = false;
        }
        if (append(f->field, sizeof(f->field), &f->n_field, at, size) < 0)
                f->field_is_long = true;
        return 0;
}

/* "chunked", whatever the case, in however many pieces it comes */
static int on_coding(HttpFollower *f, const char *at, size_t size) {
        static const char chunked[] = "chunked";

        if (size > sizeof(chunked) - 1 - f->n_chunked || strncasecmp(chunked + f->n_chunked, at, size) != 0)
                return -1;
        f->n_chunked += size;
        return 0;
}

static int on_value(llhttp_t *parser, const char *at, size_t size) {
        HttpFollower *f = follower_of(parser);
        bool host = !f->field_is_long && strcasecmp(f->field, "host") == 0;
        bool coding = !f->field_is_long && strcasecmp(f->field, "transfer-encoding") == 0;

        if (!f->in_value) {
                f->in_value = true;
                if (!f->field_is_long && agreement_field_overrides(f->field))
                        return -1;
                if (!f->field_is_long && agreement_field_names_path(f->field)) {
                        if (f->request.method) /* a trailer's: that request was decided */
                                return -1;
                        f->second_path = true;
                }
                if ((host && f->n_hosts++ > 0) || (coding && f->n_codings++ > 0))
                        return -1;
        }
        if (coding)
                return on_coding(f, at, size);
        return host ? append(f->host, sizeof(f->host), &f->n_host, at, size) : 0;
}

/* A server that does not read the body of a GET (RFC 9110, 9.3.1) takes it for the next request, unless there is to be none. */
static bool body_may_be_a_request(const llhttp_t *parser) {
        bool has_body = (parser->flags & F_CHUNKED) || parser->content_length > 0;

        return has_body && (parser->method == HTTP_GET || parser->method == HTTP_HEAD) && llhttp_should_keep_alive(parser);
}

static int on_head(llhttp_t *parser) {
        HttpFollower *f = follower_of(parser);

        if (parser->http_major != 1 || parser->http_minor > 1)
                return -1;
        /* llhttp refuses some of this only when it goes on to the body, when the head would be on its way */
        if (f->n_codings > 0 && (f->n_chunked != strlen("chunked") || parser->http_minor == 0 || !(parser->flags & F_CHUNKED)))
                return -1;
        if (body_may_be_a_request(parser))
                return -1;

        while (f->n_host > 0 && (f->host[f->n_host - 1] == ' ' || f->host[f->n_host - 1] == '\t'))
                f->host[--f->n_host] = '\0';
        if (f->n_target == 0)
                return -1;
        if (f->n_host == 0)
                f->host[0] = '\0';

        f->request = (HttpRequest) {
                .method = llhttp_method_name((llhttp_method_t) parser->method),
                .target = f->target,
                .host = f->n_hosts > 0 ? f->host : NULL,
                .second_path = f->second_path,
                .upgrade = parser->upgrade || parser->method == HTTP_CONNECT,
                .minor = parser->http_minor,
        };
        f->is_chunked = parser->flags & F_CHUNKED;
        f->paused = HTTP_HEAD_END;
        return HPE_PAUSED;
}

static int on_body(llhttp_t *parser, const char *at, size_t size) {
        HttpFollower *f = follower_of(parser);

        if (f->content)
                f->content(at, size, f->userdata);
        return 0;
}

static int on_end(llhttp_t *parser) {
        follower_of(parser)->paused = HTTP_MESSAGE_END;
        return HPE_PAUSED;
}

int http_follower_new(HttpFollower **ret) {
        HttpFollower *f;

        f = calloc(1, sizeof(*f));
        if (!f)
                return -ENOMEM;

        llhttp_settings_init(&f->settings);
        f->settings.on_message_begin = on_begin;
        f->settings.on_url = on_url;
        f->settings.on_header_field = on_field;
        f->settings.on_header_value = on_value;
        f->settings.on_headers_complete = on_head;
        f->settings.on_body = on_body;
        f->settings.on_message_complete = on_end;
        llhttp_init(&f->parser, HTTP_REQUEST, &f->settings);
        f->parser.data = f;
        f->in_head = true;
        *ret = f;
        return 0;
}

HttpFollower *http_follower_free(HttpFollower *f) {
        free(f);
        return NULL;
}

/* llhttp reads RTSP and ICE as well. False: this request line is not of HTTP. */
static bool follow_request_line(HttpFollower *f, char c) {
        if (c != '\n') {
                memmove(f->line_end, f->line_end + 1, sizeof(f->line_end) - 1);
                f->line_end[sizeof(f->line_end) - 1] = c;
                f->n_line++;
                return true;
        }

        f->line_over = f->n_line > strlen("\r"); /* empty lines may stand before it */
        f->n_line = 0;
        return !f->line_over || memcmp(f->line_end, "HTTP/", strlen("HTTP/")) == 0;
}

/* A line of a head that begins with white space continues the one before: some readers join them, some do not. */
static bool is_plain_head(HttpFollower *f, const char *data, size_t size) {
        for (size_t i = 0; i < size; i++) {
                if (f->at_line_start && (data[i] == ' ' || data[i] == '\t'))
                        return false;
                f->at_line_start = data[i] == '\n';
                if (!f->line_over && !follow_request_line(f, data[i]))
                        return false;
        }
        return true;
}

static HttpOutcome follower_break(HttpFollower *f, size_t *ret_taken) {
        f->broken = true;
        *ret_taken = 0;
        return HTTP_REFUSED;
}

HttpOutcome http_follower_feed(HttpFollower *f, const char *data, size_t size, size_t *ret_taken) {
        bool was_in_head = f->in_head;
        llhttp_errno_t e;
        size_t taken;

        if (f->broken)
                return follower_break(f, ret_taken);

        f->paused = HTTP_NEED_MORE;
        e = llhttp_execute(&f->parser, data, size);
        if (e == HPE_PAUSED) {
                taken = (size_t) (llhttp_get_error_pos(&f->parser) - data);
                llhttp_resume(&f->parser);
        } else if (e == HPE_OK)
                taken = size;
        else
                return follower_break(f, ret_taken);

        if (was_in_head) {
                f->n_head += taken;
                if (f->n_head > HTTP_HEAD_MAX || !is_plain_head(f, data, taken))
                        return follower_break(f, ret_taken);
        }
        if (f->paused == HTTP_HEAD_END)
                f->in_head = false;
        if (f->paused == HTTP_MESSAGE_END) {
                f->in_head = true;
                f->at_line_start = f->line_over = false;
                f->n_head = 0;
        }

        *ret_taken = taken;
        return f->paused;
}

const HttpRequest *http_follower_request(const HttpFollower *f) {
        return &f->request;
}

bool http_request_is_plain(const HttpRequest *request) {
        return !request->upgrade && (request->target[0] == '/' || strcmp(request->target, "*") == 0);
}

bool http_follower_in_head(const HttpFollower *f) {
        return f->in_head;
}

void http_follower_watch(HttpFollower *f, HttpContent handler, void *userdata) {
        f->content = handler;
        f->userdata = userdata;
}

bool http_follower_is_chunked(const HttpFollower *f) {
        return f->is_chunked;
}

HttpLook http_looks_like(const uint8_t *data, size_t size) {
        size_t i = 0;

        while (i < size && i < 24 && ((data[i] >= 'A' && data[i] <= 'Z') || data[i] == '-'))
                i++;
        if (i == size && i < 24)
                return HTTP_LOOK_MAYBE;
        return i > 0 && i < size && data[i] == ' ' ? HTTP_LOOK_YES : HTTP_LOOK_NO;
}

bool http_split_authority(const char *authority, uint16_t default_port, char ret_host[static HTTP_HOST_MAX + 1], uint16_t *ret_port) {
        const char *colon = strrchr(authority, ':'), *bracket = strrchr(authority, ']');
        unsigned port = default_port;
        size_t n;

        if (bracket && colon && colon < bracket)
                colon = NULL;
        if (colon) {
                size_t digits = strspn(colon + 1, "0123456789");

                if (digits < 1 || digits > 5 || colon[1 + digits] != '\0' || sscanf(colon + 1, "%u", &port) != 1)
                        return false;
        }
        n = colon ? (size_t) (colon - authority) : strlen(authority);
        if (n < 1 || n > HTTP_HOST_MAX || port < 1 || port > 65535)
                return false;
        for (size_t i = 0; i < n; i++)
                if (authority[i] <= ' ' || authority[i] >= 0x7f)
                        return false;

        memcpy(ret_host, authority, n);
        ret_host[n] = '\0';
        *ret_port = (uint16_t) port;
        return true;
}

bool http_split_absolute(const char *target, char ret_authority[static HTTP_HOST_MAX + 1], const char **ret_path) {
        const char *authority = target + strlen("http://");
        size_t n;

        if (strncasecmp(target, "http://", strlen("http://")) != 0)
                return false;
        n = strcspn(authority, "/?#");
        if (n < 1 || n > HTTP_HOST_MAX || memchr(authority, '@', n))
                return false;
        if (authority[n] != '\0' && authority[n] != '/')
                return false;

        memcpy(ret_authority, authority, n);
        ret_authority[n] = '\0';
        *ret_path = authority[n] == '/' ? authority + n : "/";
        return true;
}

static bool name_is(const char *name, size_t n, const char *other) {
        return strlen(other) == n && strncasecmp(name, other, n) == 0;
}

static bool name_is_one_of(const char *name, size_t n, const char *const *list, size_t n_list) {
        for (size_t i = 0; i < n_list; i++)
                if (name_is(name, n, list[i]))
                        return true;
        return false;
}

/* The next line of a head, and its field's name; false behind the last one. */
static bool next_line(const char **at, const char *end, const char **ret_line, size_t *ret_length, size_t *ret_n_name) {
        const char *line = *at, *next, *colon;

        if (line >= end)
                return false;
        next = memchr(line, '\n', (size_t) (end - line));
        next = next ? next + 1 : end;
        if (next - line <= 2)
                return false;

        colon = memchr(line, ':', (size_t) (next - line));
        *ret_line = line;
        *ret_length = (size_t) (next - line);
        *ret_n_name = colon ? (size_t) (colon - line) : 0;
        *at = next;
        return true;
}

/* Does a Connection header of these fields name this one? */
static bool is_nominated(const char *fields, const char *end, const char *name, size_t n) {
        const char *line;
        size_t length, n_name;

        while (next_line(&fields, end, &line, &length, &n_name)) {
                if (!name_is(line, n_name, "connection"))
                        continue;
                for (size_t i = n_name + 1; i < length;) {
                        size_t begin = i + strspn(line + i, ", \t\r\n"), size;

                        if (begin >= length)
                                break;
                        size = strcspn(line + begin, ", \t\r\n");
                        if (size == n && strncasecmp(line + begin, name, n) == 0)
                                return true;
                        i = begin + size;
                }
        }
        return false;
}

static bool field_is_for_proxy(const char *fields, const char *end, const char *name, size_t n) {
        static const char *const dropped[] = { "connection", "keep-alive", "upgrade", "te" };
        /* what says who is asked, and where the message ends, nobody can nominate away */
        static const char *const kept[] = { "host", "content-length", "transfer-encoding" };

        if (n >= 6 && strncasecmp(name, "proxy-", 6) == 0)
                return true;
        if (name_is_one_of(name, n, dropped, ELEMENTSOF(dropped)))
                return true;
        return !name_is_one_of(name, n, kept, ELEMENTSOF(kept)) && is_nominated(fields, end, name, n);
}

char *http_rewrite_head(const char *head, size_t size, const HttpRequest *request, const char *path, size_t *ret_size) {
        static const char last[] = "Connection: close\r\n\r\n";
        _cleanup_free_ char *copy = NULL;
        const char *fields, *end, *line;
        size_t n, length, n_name;
        char *out;

        /* With a zero byte at its end, so that no search can leave it. The path is part of the old head; the rest can only get shorter, but for `last`. */
        copy = strndup(head, size);
        out = malloc(size + strlen(path) + sizeof(last) + 32);
        if (!copy || !out) {
                free(out);
                return NULL;
        }
        n = (size_t) sprintf(out, "%s %s HTTP/1.%u\r\n", request->method, path, request->minor);

        end = copy + strlen(copy);
        fields = strchr(copy + strspn(copy, "\r\n"), '\n'); /* empty lines may stand before a request (RFC 9112, 2.2) */
        fields = fields ? fields + 1 : end;
        for (const char *at = fields; next_line(&at, end, &line, &length, &n_name);)
                if (!field_is_for_proxy(fields, end, line, n_name)) {
                        memcpy(out + n, line, length);
                        n += length;
                }

        memcpy(out + n, last, sizeof(last) - 1);
        *ret_size = n + sizeof(last) - 1;
        return out;
}
