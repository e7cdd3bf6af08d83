/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "inject/h2-fields.h"

#include <errno.h>
#include <string.h>

void h2_fields_done(H2Fields *f) {
        buffer_done(&f->text);
}

int h2_fields_add(H2Fields *f, const char *name, const void *value, size_t size, bool secret) {
        size_t at = buffer_size(&f->text), name_size = strlen(name);
        int r;

        if (f->n == H2_FIELDS_MAX)
                return -E2BIG;
        if ((r = buffer_append(&f->text, name, name_size)) < 0 || (r = buffer_append(&f->text, value, size)) < 0)
                return r;
        f->items[f->n].name = at;
        f->items[f->n].name_size = name_size;
        f->items[f->n].value = at + name_size;
        f->items[f->n].value_size = size;
        f->items[f->n].secret = secret;
        f->n++;
        return 0;
}

int h2_fields_add_text(H2Fields *f, const char *name, const char *value) {
        return h2_fields_add(f, name, value, strlen(value), false);
}

void h2_fields_list(const H2Fields *f, nghttp2_nv ret[H2_FIELDS_MAX]) {
        uint8_t *text = f->text.data ? f->text.data + f->text.begin : NULL;

        for (size_t i = 0; i < f->n; i++)
                ret[i] = (nghttp2_nv) {
                        .name = text + f->items[i].name,
                        .namelen = f->items[i].name_size,
                        .value = text + f->items[i].value,
                        .valuelen = f->items[i].value_size,
                        .flags = f->items[i].secret ? NGHTTP2_NV_FLAG_NO_INDEX : NGHTTP2_NV_FLAG_NONE,
                };
}
