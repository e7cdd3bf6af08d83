/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "util/json.h"

#include <errno.h>
#include <openssl/sha.h>
#include <stdarg.h>
#include <string.h>

#include "util/text.h"

int json_parse(const char *data, size_t size, json_t **ret, char **ret_reason) {
        json_error_t error = {};
        json_t *j;

        /* jansson passes over one behind a number */
        if (size > 0 && memchr(data, '\0', size)) {
                if (ret_reason)
                        *ret_reason = strdup("a zero byte is not part of JSON");
                return -EINVAL;
        }

        j = json_loadb(data, size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
        if (!j) {
                if (json_error_code(&error) == json_error_out_of_memory)
                        return -ENOMEM;
                if (ret_reason)
                        *ret_reason = text_format("line %d, column %d: %s", error.line, error.column, error.text);
                return -EINVAL;
        }

        *ret = j;
        return 0;
}

/* The two characters outside of ASCII that fold to a letter in it: U+017F, long s, and U+212A, Kelvin sign. */
static bool folds_to(const char *text, const char *key) {
        static const struct {
                const char *text;
                char to;
        } others[] = { { "\xc5\xbf", 's' }, { "\xe2\x84\xaa", 'k' } };

        while (*text && *key) {
                char from = (char) (*text >= 'A' && *text <= 'Z' ? *text | 0x20 : *text), to = (char) (*key >= 'A' && *key <= 'Z' ? *key | 0x20 : *key);
                size_t n = 1;

                for (size_t i = 0; i < ELEMENTSOF(others); i++)
                        if (strncmp(text, others[i].text, strlen(others[i].text)) == 0) {
                                from = others[i].to;
                                n = strlen(others[i].text);
                        }
                if (from != to)
                        return false;
                text += n;
                key++;
        }
        return !*text && !*key;
}

bool json_has_lookalike(const json_t *object, const char *key) {
        const char *k;
        json_t *value;

        json_object_foreach((json_t *) object, k, value)
                if (strcmp(k, key) != 0 && folds_to(k, key))
                        return true;
        return false;
}

char *json_canonical(const json_t *j) {
        return json_dumps(j, JSON_SORT_KEYS | JSON_COMPACT | JSON_ENSURE_ASCII | JSON_ENCODE_ANY);
}

int json_digest(const json_t *j, char ret_hex[static 65]) {
        uint8_t digest[SHA256_DIGEST_LENGTH];
        _cleanup_free_ char *text = NULL;

        text = json_canonical(j);
        if (!text)
                return -ENOMEM;
        if (!SHA256((const uint8_t *) text, strlen(text), digest))
                return -EIO;

        text_hex(digest, sizeof(digest), ret_hex);
        return 0;
}

/* base + "/" + key, with "~" and "/" of the key escaped as RFC 6901 wants it. */
static char *json_pointer_append(const char *base, const char *key) {
        char *pointer, *p;

        pointer = malloc(strlen(base) + 2 * (key ? strlen(key) : 0) + 2);
        if (!pointer)
                return NULL;

        p = stpcpy(pointer, base);
        if (!key)
                return pointer;

        *p++ = '/';
        for (; *key; key++) {
                if (*key == '~' || *key == '/') {
                        *p++ = '~';
                        *p++ = *key == '~' ? '0' : '1';
                } else
                        *p++ = *key;
        }
        *p = '\0';
        return pointer;
}

void json_reader_fail(JsonReader *r, const char *base, const char *key, const char *format, ...) {
        va_list ap;

        if (r->failed)
                return;

        r->failed = true;
        r->pointer = json_pointer_append(base, key);
        va_start(ap, format);
        if (vasprintf(&r->reason, format, ap) < 0)
                r->reason = NULL;
        va_end(ap);
}

static const char *json_type_name(const json_t *j) {
        switch (json_typeof(j)) {
        case JSON_OBJECT:
                return "an object";
        case JSON_ARRAY:
                return "an array";
        case JSON_STRING:
                return "a string";
        case JSON_INTEGER:
                return "an integer";
        case JSON_REAL:
                return "a number with a fraction";
        case JSON_TRUE:
        case JSON_FALSE:
                return "a boolean";
        default:
                return "null";
        }
}

/* The member, or NULL if it is not there; then a missing required one has been recorded. */
static json_t *json_read_member(JsonReader *r, const json_t *object, const char *base, const char *key, JsonFlags flags) {
        json_t *j = json_object_get(object, key);

        if (j && !(json_is_null(j) && (flags & JSON_F_NULLABLE)))
                return j;

        if (flags & JSON_F_REQUIRED)
                json_reader_fail(r, base, key, "is missing");
        return NULL;
}

static bool json_fail_type(JsonReader *r, const json_t *j, const char *base, const char *key, const char *wanted) {
        json_reader_fail(r, base, key, "must be %s, is %s", wanted, json_type_name(j));
        return false;
}

bool json_read_string(JsonReader *r, const json_t *object, const char *base, const char *key, JsonFlags flags, const char **ret) {
        json_t *j = json_read_member(r, object, base, key, flags);

        if (!j)
                return false;
        if (!json_is_string(j))
                return json_fail_type(r, j, base, key, "a string");

        *ret = json_string_value(j);
        return true;
}

bool json_read_uint(JsonReader *r, const json_t *object, const char *base, const char *key, JsonFlags flags, uint64_t min, uint64_t max, uint64_t *ret) {
        json_t *j = json_read_member(r, object, base, key, flags);
        json_int_t value;

        if (!j)
                return false;
        if (!json_is_integer(j))
                return json_fail_type(r, j, base, key, "an integer");

        value = json_integer_value(j);
        if (value < 0 || (uint64_t) value < min || (uint64_t) value > max) {
                json_reader_fail(r, base, key, "must be from %llu to %llu, is %lld", (unsigned long long) min,
                                 (unsigned long long) max, (long long) value);
                return false;
        }

        *ret = (uint64_t) value;
        return true;
}

bool json_read_bool(JsonReader *r, const json_t *object, const char *base, const char *key, JsonFlags flags, bool *ret) {
        json_t *j = json_read_member(r, object, base, key, flags);

        if (!j)
                return false;
        if (!json_is_boolean(j))
                return json_fail_type(r, j, base, key, "true or false");

        *ret = json_is_true(j);
        return true;
}

bool json_read_object(JsonReader *r, const json_t *object, const char *base, const char *key, JsonFlags flags, json_t **ret) {
        json_t *j = json_read_member(r, object, base, key, flags);

        if (!j)
                return false;
        if (!json_is_object(j))
                return json_fail_type(r, j, base, key, "an object");

        *ret = j;
        return true;
}

bool json_read_array(JsonReader *r, const json_t *object, const char *base, const char *key, JsonFlags flags, json_t **ret) {
        json_t *j = json_read_member(r, object, base, key, flags);

        if (!j)
                return false;
        if (!json_is_array(j))
                return json_fail_type(r, j, base, key, "an array");

        *ret = j;
        return true;
}

void json_check_keys(JsonReader *r, const json_t *object, const char *base, const char *const *known) {
        const char *key;
        json_t *value;

        json_object_foreach((json_t *) object, key, value) {
                size_t i = 0;

                while (known[i] && strcmp(known[i], key) != 0)
                        i++;
                if (!known[i])
                        json_reader_fail(r, base, key, "is not a known key");
        }
}
