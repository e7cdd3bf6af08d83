/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "ipc/json-convert.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "util/json.h"

enum { DEPTH_MAX = 128 };

static bool can_pass(const char *text, size_t size) {
        return !memchr(text, 0x7f, size);
}

static int from_variant(sd_json_variant *v, unsigned depth, json_t **ret);
static int to_variant(const json_t *j, unsigned depth, sd_json_variant **ret);

static int from_array(sd_json_variant *v, unsigned depth, json_t **ret) {
        _cleanup_json_ json_t *array = json_array();
        int r;

        if (!array)
                return -ENOMEM;

        for (size_t i = 0; i < sd_json_variant_elements(v); i++) {
                json_t *element;

                r = from_variant(sd_json_variant_by_index(v, i), depth + 1, &element);
                if (r < 0)
                        return r;
                if (json_array_append_new(array, element) < 0)
                        return -ENOMEM;
        }

        *ret = TAKE_PTR(array);
        return 0;
}

static int from_object(sd_json_variant *v, unsigned depth, json_t **ret) {
        _cleanup_json_ json_t *object = json_object();
        int r;

        if (!object)
                return -ENOMEM;

        for (size_t i = 0; i + 1 < sd_json_variant_elements(v); i += 2) {
                const char *key = sd_json_variant_string(sd_json_variant_by_index(v, i));
                json_t *value;

                if (!can_pass(key, strlen(key)))
                        return -EILSEQ;
                r = from_variant(sd_json_variant_by_index(v, i + 1), depth + 1, &value);
                if (r < 0)
                        return r;
                if (json_object_set_new(object, key, value) < 0)
                        return -EINVAL;
        }

        *ret = TAKE_PTR(object);
        return 0;
}

static int from_variant(sd_json_variant *v, unsigned depth, json_t **ret) {
        json_t *j = NULL;

        if (depth > DEPTH_MAX)
                return -ELOOP;

        switch (sd_json_variant_type(v)) {
        case SD_JSON_VARIANT_OBJECT:
                return from_object(v, depth, ret);
        case SD_JSON_VARIANT_ARRAY:
                return from_array(v, depth, ret);
        case SD_JSON_VARIANT_STRING:
                if (!can_pass(sd_json_variant_string(v), strlen(sd_json_variant_string(v))))
                        return -EILSEQ;
                j = json_string(sd_json_variant_string(v));
                break;
        case SD_JSON_VARIANT_INTEGER:
                j = json_integer(sd_json_variant_integer(v));
                break;
        case SD_JSON_VARIANT_UNSIGNED:
                if (sd_json_variant_unsigned(v) > INT64_MAX)
                        return -ERANGE;
                j = json_integer((json_int_t) sd_json_variant_unsigned(v));
                break;
        case SD_JSON_VARIANT_REAL:
                j = json_real(sd_json_variant_real(v));
                break;
        case SD_JSON_VARIANT_BOOLEAN:
                j = json_boolean(sd_json_variant_boolean(v));
                break;
        case SD_JSON_VARIANT_NULL:
                j = json_null();
                break;
        default:
                break;
        }
        if (!j)
                return -EINVAL;

        *ret = j;
        return 0;
}

int json_from_variant(sd_json_variant *v, json_t **ret) {
        return from_variant(v, 0, ret);
}

/* A growing list of variants that holds a reference to each. */
typedef struct VariantList {
        sd_json_variant **items;
        size_t n;
} VariantList;

static void variant_list_done(VariantList *l) {
        for (size_t i = 0; i < l->n; i++)
                sd_json_variant_unref(l->items[i]);
        free(l->items);
}

static int to_array(const json_t *j, unsigned depth, sd_json_variant **ret) {
        _cleanup_(variant_list_done) VariantList list = {};
        size_t size = json_array_size(j);
        int r;

        list.items = calloc(size + 1, sizeof(list.items[0]));
        if (!list.items)
                return -ENOMEM;

        for (size_t i = 0; i < size; i++) {
                r = to_variant(json_array_get(j, i), depth + 1, &list.items[list.n]);
                if (r < 0)
                        return r;
                list.n++;
        }

        return sd_json_variant_new_array(ret, list.items, list.n);
}

static int to_object(const json_t *j, unsigned depth, sd_json_variant **ret) {
        _cleanup_(variant_list_done) VariantList list = {};
        const char *key;
        json_t *value;
        int r;

        list.items = calloc(2 * json_object_size(j) + 1, sizeof(list.items[0]));
        if (!list.items)
                return -ENOMEM;

        json_object_foreach((json_t *) j, key, value) {
                r = can_pass(key, strlen(key)) ? sd_json_variant_new_string(&list.items[list.n], key) : -EILSEQ;
                if (r < 0)
                        return r;
                list.n++;

                r = to_variant(value, depth + 1, &list.items[list.n]);
                if (r < 0)
                        return r;
                list.n++;
        }

        return sd_json_variant_new_object(ret, list.items, list.n);
}

static int to_variant(const json_t *j, unsigned depth, sd_json_variant **ret) {
        if (depth > DEPTH_MAX)
                return -ELOOP;

        switch (json_typeof(j)) {
        case JSON_OBJECT:
                return to_object(j, depth, ret);
        case JSON_ARRAY:
                return to_array(j, depth, ret);
        case JSON_STRING:
                if (!can_pass(json_string_value(j), json_string_length(j)))
                        return -EILSEQ;
                return sd_json_variant_new_stringn(ret, json_string_value(j), json_string_length(j));
        case JSON_INTEGER:
                return sd_json_variant_new_integer(ret, json_integer_value(j));
        case JSON_REAL:
                return sd_json_variant_new_real(ret, json_real_value(j));
        case JSON_TRUE:
        case JSON_FALSE:
                return sd_json_variant_new_boolean(ret, json_is_true(j));
        default:
                return sd_json_variant_new_null(ret);
        }
}

int json_to_variant(const json_t *j, sd_json_variant **ret) {
        return to_variant(j, 0, ret);
}
