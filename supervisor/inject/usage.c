/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A provider's file lists, for each number, JSON pointers to where it may stand; the first that is there
 * counts. An answer is one document, or a stream of events whose data lines are documents. In a stream
 * numbers are cumulative (Anthropic's message_start has the input, each message_delta the output so far), so
 * that the last value wins. A number that is missing, negative or no integer changes nothing.
 *
 * Bounds: a data line longer than LINE_MAX and a document longer than DOCUMENT_MAX are passed over. The
 * call is still recorded then, with `found` false.
 *
 * Of the price table, the entry counts whose name is the model's; else the longest that the model's name
 * starts with ("claude-x" for "claude-x-20260101"); else "default".
 */

#include "inject/usage.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "inject/buffer.h"
#include "policy/policy.h"
#include "util/json.h"
#include "util/text.h"

enum {
        USAGE_LINE_MAX = 1024 * 1024,
        USAGE_DOCUMENT_MAX = 8 * 1024 * 1024,
};

struct UsageReader {
        const json_t *pointers; /* borrowed; the file's "usage" */
        UsageFormat format;
        Buffer text;   /* the line or document so far */
        bool too_long; /* skip what is left of it */
        Usage usage;
};

UsageFormat usage_format_of(const char *content_type) {
        size_t n = strcspn(content_type, "; \t");

        if (n == strlen("application/json") && strncasecmp(content_type, "application/json", n) == 0)
                return USAGE_FORMAT_JSON;
        if (n == strlen("text/event-stream") && strncasecmp(content_type, "text/event-stream", n) == 0)
                return USAGE_FORMAT_EVENTS;
        return USAGE_FORMAT_NONE;
}

bool usage_is_call(const json_t *provider, const char *host, const char *method, const char *target) {
        const json_t *hosts = json_object_get(provider, "hosts"), *calls = json_object_get(provider, "calls");
        size_t path_size = strcspn(target, "?");
        bool has_host = false;

        for (size_t i = 0; i < json_array_size(hosts); i++) {
                const char *s = json_string_value(json_array_get(hosts, i));

                has_host = has_host || (s && strcasecmp(s, host) == 0);
        }
        if (!has_host)
                return false;

        for (size_t i = 0; i < json_array_size(calls); i++) {
                const json_t *call = json_array_get(calls, i);
                const char *m = json_string_value(json_object_get(call, "method"));
                const char *p = json_string_value(json_object_get(call, "path"));

                if (m && p && strcmp(m, method) == 0 && strlen(p) == path_size && strncmp(p, target, path_size) == 0)
                        return true;
        }
        return false;
}

/* RFC 6901, without the escapes' rarer uses in arrays. */
static const json_t *follow_pointer(const json_t *j, const char *pointer) {
        while (*pointer == '/') {
                char key[128];
                size_t n = 0;

                for (pointer++; *pointer && *pointer != '/'; pointer++) {
                        char c = *pointer;

                        if (c == '~' && (pointer[1] == '0' || pointer[1] == '1'))
                                c = *++pointer == '0' ? '~' : '/';
                        if (n + 1 < sizeof(key))
                                key[n++] = c;
                }
                key[n] = 0;

                if (json_is_object(j))
                        j = json_object_get(j, key);
                else if (json_is_array(j) && *key && strspn(key, "0123456789") == n && n < 9)
                        j = json_array_get(j, (size_t) atoi(key));
                else
                        return NULL;
        }
        return j;
}

static const json_t *find(const UsageReader *r, const json_t *document, const char *what) {
        const json_t *pointers = json_object_get(r->pointers, what);

        for (size_t i = 0; i < json_array_size(pointers); i++) {
                const char *pointer = json_string_value(json_array_get(pointers, i));
                const json_t *found = pointer ? follow_pointer(document, pointer) : NULL;

                if (found)
                        return found;
        }
        return NULL;
}

static void take_number(UsageReader *r, const json_t *document, const char *what, uint64_t *value) {
        const json_t *n = find(r, document, what);

        if (!json_is_integer(n) || json_integer_value(n) < 0)
                return;
        *value = (uint64_t) json_integer_value(n);
        r->usage.found = true;
}

static void take_document(UsageReader *r, const char *data, size_t size) {
        _cleanup_json_ json_t *document = NULL;
        const char *model;

        if (json_parse(data, size, &document, NULL) < 0 || !json_is_object(document))
                return;

        take_number(r, document, "input_tokens", &r->usage.input_tokens);
        take_number(r, document, "output_tokens", &r->usage.output_tokens);
        take_number(r, document, "cache_read_tokens", &r->usage.cache_read_tokens);
        take_number(r, document, "cache_write_tokens", &r->usage.cache_write_tokens);

        model = json_string_value(find(r, document, "model"));
        if (model && *model && strlen(model) < sizeof(r->usage.model)) {
                _cleanup_free_ char *safe = text_escape(model, strlen(model), false);

                if (safe && strlen(safe) < sizeof(r->usage.model))
                        strcpy(r->usage.model, safe);
        }
}

int usage_reader_new(UsageReader **ret, const json_t *provider, UsageFormat format) {
        UsageReader *r = calloc(1, sizeof(*r));

        if (!r)
                return -ENOMEM;
        r->pointers = json_object_get(provider, "usage");
        r->format = format;
        *ret = r;
        return 0;
}

UsageReader *usage_reader_free(UsageReader *r) {
        if (!r)
                return NULL;
        buffer_done(&r->text);
        free(r);
        return NULL;
}

static void keep(UsageReader *r, const uint8_t *data, size_t size, size_t max) {
        if (r->too_long || size > max - buffer_size(&r->text) || buffer_append(&r->text, data, size) < 0) {
                r->too_long = true;
                buffer_clear(&r->text);
        }
}

static void take_line(UsageReader *r) {
        const char *line = (const char *) buffer_data(&r->text);
        size_t size = buffer_size(&r->text);

        if (!r->too_long && size >= 5 && memcmp(line, "data:", 5) == 0)
                take_document(r, line + 5, size - 5);
        r->too_long = false;
        buffer_clear(&r->text);
}

void usage_reader_feed(UsageReader *r, const void *data, size_t size) {
        const uint8_t *p = data;

        if (r->format == USAGE_FORMAT_JSON)
                keep(r, p, size, USAGE_DOCUMENT_MAX);
        if (r->format != USAGE_FORMAT_EVENTS)
                return;

        while (size > 0) {
                const uint8_t *end = memchr(p, '\n', size);
                size_t n = end ? (size_t) (end - p) : size;

                keep(r, p, n, USAGE_LINE_MAX);
                if (end) {
                        take_line(r);
                        n++;
                }
                p += n;
                size -= n;
        }
}

void usage_reader_finish(UsageReader *r, Usage *ret) {
        if (r->format == USAGE_FORMAT_JSON && !r->too_long && buffer_size(&r->text) > 0)
                take_document(r, (const char *) buffer_data(&r->text), buffer_size(&r->text));
        else if (r->format == USAGE_FORMAT_EVENTS && buffer_size(&r->text) > 0)
                take_line(r);
        buffer_clear(&r->text);
        *ret = r->usage;
}

static const json_t *find_prices(const json_t *provider, const char *model) {
        json_t *prices = json_object_get(provider, "prices"), *value;
        const json_t *best = NULL;
        const char *name;
        size_t longest = 0;

        json_object_foreach(prices, name, value) {
                size_t n = strlen(name);

                if (n > longest && strcmp(name, "default") != 0 && strncmp(name, model, n) == 0) {
                        best = value;
                        longest = n;
                }
        }
        return best ? best : json_object_get(prices, "default");
}

uint64_t usage_cost(const json_t *provider, const Usage *u) {
        const json_t *prices = find_prices(provider, u->model);
        const struct {
                const char *name;
                uint64_t tokens;
        } parts[] = {
                { "input", u->input_tokens },
                { "output", u->output_tokens },
                { "cache_read", u->cache_read_tokens },
                { "cache_write", u->cache_write_tokens },
        };
        unsigned __int128 sum = 0;

        for (size_t i = 0; i < ELEMENTSOF(parts); i++) {
                json_int_t price = json_integer_value(json_object_get(prices, parts[i].name));

                if (price > 0)
                        sum += (unsigned __int128) parts[i].tokens * (uint64_t) price;
        }
        sum = (sum + 999999) / 1000000;
        return sum > UINT64_MAX ? UINT64_MAX : (uint64_t) sum;
}
