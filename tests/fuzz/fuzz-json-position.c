/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* A JSON pointer, a line's end, and a text. What jansson takes, the scanner must find its way through, and count as many elements. */

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "util/json-position.h"
#include "util/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_elements(const json_t *j, const char *text, size_t size) {
        const char *key;
        json_t *value;

        json_object_foreach((json_t *) j, key, value) {
                uint32_t *lines = NULL;
                size_t n = 0;

                /* a key of the scanner is a token of a pointer */
                if (strpbrk(key, "~/"))
                        continue;
                if (json_element_lines(text, size, key, &lines, &n) < 0 || n != json_array_size(value))
                        __builtin_trap();
                for (size_t i = 1; i < n; i++)
                        if (lines[i] < lines[i - 1])
                                __builtin_trap();
                free(lines);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        const uint8_t *end = memchr(data, '\n', size);
        size_t n = end ? (size_t) (end - data) : size;
        const char *text = (const char *) data + n + (end != NULL);
        json_t *j = NULL;
        unsigned line = 0;
        char *pointer;
        int r;

        pointer = strndup((const char *) data, n);
        if (!pointer)
                return 0;
        size = end ? size - n - 1 : 0;
        r = json_position(text, size, pointer, &line);
        if (json_parse(text, size, &j, NULL) == 0) {
                if ((*pointer == '/' || *pointer == '\0') && (r < 0 || line < 1))
                        __builtin_trap();
                check_elements(j, text, size);
                json_decref(j);
        }
        free(pointer);
        return 0;
}
