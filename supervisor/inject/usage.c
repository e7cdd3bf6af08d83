/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A provider's file lists, for each number, JSON pointers to where it may stand; the first that is there
 * counts. An answer is one document, or a stream of events whose data lines are documents. In a stream
 * numbers are cumulative (Anthropic's message_start has the input, each message_delta the output so far), so
 * that the last value wins. A number that is missing, negative or no integer changes nothing.
 *
 * An answer that broke off may not have said yet what it used, and a stream of OpenAI's Chat Completions never does
 * unless the request asks for it. Then the numbers are worked out from bytes, by the ratio in the provider's file, and
 * marked: the input from the request's body, the output from the text that came after the last number (the
 * strings at the file's pointers; without such, all of the answer). An answer with another status than 2xx costs what it says, which is
 * mostly nothing; no answer at all costs its input, since nobody can say that the origin did not do the work.
 *
 * Bounds: a data line longer than LINE_MAX and a document longer than DOCUMENT_MAX are passed over. The
 * call is still recorded then.
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
        BYTES_PER_TOKEN = 4,
};

#define NUMBER_MAX (1ULL << 50) /* beyond this nobody's answer is believed */

struct UsageReader {
        const json_t *provider, *pointers, *texts; /* borrowed; the file, its "usage" and "estimate/text" */
        UsageFormat format;
        Buffer text;   /* the line or document so far */
        bool too_long; /* skip what is left of it */
        bool has_input, has_output;
        uint64_t bytes;      /* of the whole answer */
        uint64_t text_bytes; /* since the last number of output tokens */
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

/* ---- requests ---- */

static PolicyPathRelation listed(const json_t *list, const char *method, const char *target) {
        PolicyPathRelation found = POLICY_PATH_OTHER;

        for (size_t i = 0; i < json_array_size(list); i++) {
                const json_t *call = json_array_get(list, i);
                const char *m = json_string_value(json_object_get(call, "method"));
                const char *p = json_string_value(json_object_get(call, "path"));
                PolicyPathRelation one;

                if (!m || !p || strcmp(m, method) != 0)
                        continue;
                one = policy_path_is(p, target);
                if (one == POLICY_PATH_SAME)
                        return one;
                if (one == POLICY_PATH_UNCLEAR)
                        found = one;
        }
        return found;
}

UsageKind usage_kind(const json_t *provider, const char *host, const char *method, const char *target) {
        const json_t *hosts = json_object_get(provider, "hosts");
        bool has_host = false;

        for (size_t i = 0; i < json_array_size(hosts); i++) {
                const char *s = json_string_value(json_array_get(hosts, i));

                has_host = has_host || (s && strcasecmp(s, host) == 0);
        }
        if (!has_host)
                return USAGE_ELSEWHERE;
        if (listed(json_object_get(provider, "calls"), method, target) != POLICY_PATH_OTHER)
                return USAGE_CALL;
        return listed(json_object_get(provider, "free"), method, target) == POLICY_PATH_SAME ? USAGE_FREE : USAGE_UNKNOWN;
}

bool usage_is_call(const json_t *provider, const char *host, const char *method, const char *target) {
        return usage_kind(provider, host, method, target) == USAGE_CALL;
}

/* ---- pointers ---- */

const json_t *usage_pointer(const json_t *j, const char *pointer) {
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

bool usage_pointer_is_disguised(const json_t *j, const char *pointer) {
        char parent[512] = {}, key[128];

        for (const char *p = pointer; *p == '/';) {
                size_t n = strcspn(p + 1, "/");

                if (n >= sizeof(key) || (size_t) (p - pointer) >= sizeof(parent))
                        return false;
                memcpy(parent, pointer, (size_t) (p - pointer));
                memcpy(key, p + 1, n);
                key[n] = '\0';
                if (json_has_lookalike(usage_pointer(j, parent), key))
                        return true;
                p += n + 1;
        }
        return false;
}

const json_t *usage_find(const json_t *pointers, const json_t *document) {
        for (size_t i = 0; i < json_array_size(pointers); i++) {
                const char *pointer = json_string_value(json_array_get(pointers, i));
                const json_t *found = pointer ? usage_pointer(document, pointer) : NULL;

                if (found)
                        return found;
        }
        return NULL;
}

uint64_t usage_estimate(const json_t *provider, uint64_t bytes) {
        json_int_t ratio = json_integer_value(json_object_get(json_object_get(provider, "estimate"), "bytes_per_token"));
        uint64_t per_token = ratio > 0 ? (uint64_t) ratio : BYTES_PER_TOKEN;

        return bytes / per_token + (bytes % per_token > 0);
}

/* ---- answers ---- */

static bool take_number(UsageReader *r, const json_t *document, const char *what, uint64_t *value) {
        const json_t *n = usage_find(json_object_get(r->pointers, what), document);

        if (!json_is_integer(n) || json_integer_value(n) < 0)
                return false;
        *value = (uint64_t) json_integer_value(n) < NUMBER_MAX ? (uint64_t) json_integer_value(n) : NUMBER_MAX;
        r->usage.found = true;
        return true;
}

static void take_text(UsageReader *r, const json_t *document, size_t size) {
        if (!r->texts) {
                r->text_bytes += size;
                return;
        }
        for (size_t i = 0; i < json_array_size(r->texts); i++) {
                const json_t *text = usage_pointer(document, json_string_value(json_array_get(r->texts, i)));

                if (json_is_string(text))
                        r->text_bytes += json_string_length(text);
        }
}

static void take_document(UsageReader *r, const char *data, size_t size) {
        _cleanup_json_ json_t *document = NULL;
        const char *model;

        if (json_parse(data, size, &document, NULL) < 0 || !json_is_object(document))
                return;

        if (r->format == USAGE_FORMAT_EVENTS)
                take_text(r, document, size);
        if (take_number(r, document, "input_tokens", &r->usage.input_tokens))
                r->has_input = true;
        if (take_number(r, document, "output_tokens", &r->usage.output_tokens)) {
                r->has_output = true;
                r->text_bytes = 0; /* it counts what came so far */
        }
        (void) take_number(r, document, "cache_read_tokens", &r->usage.cache_read_tokens);
        (void) take_number(r, document, "cache_write_tokens", &r->usage.cache_write_tokens);

        model = json_string_value(usage_find(json_object_get(r->pointers, "model"), document));
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
        r->provider = provider;
        r->pointers = json_object_get(provider, "usage");
        r->texts = json_object_get(json_object_get(provider, "estimate"), "text");
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

        r->bytes += size;
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

static void read_rest(UsageReader *r) {
        if (r->format == USAGE_FORMAT_JSON && !r->too_long && buffer_size(&r->text) > 0)
                take_document(r, (const char *) buffer_data(&r->text), buffer_size(&r->text));
        else if (r->format == USAGE_FORMAT_EVENTS && buffer_size(&r->text) > 0)
                take_line(r);
        buffer_clear(&r->text);
}

void usage_conclude(const json_t *provider, UsageReader *r, const UsageFacts *facts, Usage *ret) {
        bool worked = facts->status == 0 || (facts->status >= 200 && facts->status < 300);
        uint64_t bytes = 0;

        *ret = (Usage) {};
        if (r) {
                read_rest(r);
                *ret = r->usage;
                bytes = r->format == USAGE_FORMAT_EVENTS ? r->text_bytes : r->has_output ? 0 : r->bytes;
        }
        if (r && r->has_input && json_is_true(json_object_get(provider, "input_includes_cache")))
                ret->input_tokens -= ret->cache_read_tokens < ret->input_tokens ? ret->cache_read_tokens : ret->input_tokens;
        if (!worked)
                return;

        ret->input_unsaid = !r || !r->has_input;
        /* of a stream that broke off nobody knows whether the last number that came is the last word: the first event may have one already */
        ret->output_unsaid = !r || !r->has_output || !facts->complete;
        if (ret->input_unsaid) {
                ret->input_tokens = usage_estimate(provider, facts->prompt_bytes);
                ret->estimated = true;
        }
        /* complete, and it has a number of output tokens: then that is the last word */
        if (r && bytes > 0 && (!facts->complete || !r->has_output)) {
                ret->output_tokens += usage_estimate(provider, bytes);
                ret->estimated = true;
        }
}
