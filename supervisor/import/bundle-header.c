/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "import/bundle-header.h"
#include "util/cleanup.h"

#define PACK_HEAD_SIZE 12

typedef struct Line {
        const char *data;
        size_t size;
} Line;

static bool line_is(Line l, const char *s) {
        return l.size == strlen(s) && memcmp(l.data, s, l.size) == 0;
}

/* The next line without its newline; false if there is no whole one. */
static bool next_line(const char **p, size_t *left, Line *ret) {
        const char *end = memchr(*p, '\n', *left);

        if (!end)
                return false;
        *ret = (Line) { *p, (size_t) (end - *p) };
        *left -= ret->size + 1;
        *p = end + 1;
        return true;
}

/* An object name of that length at the start, and a space or the end after it. */
static bool starts_with_oid(Line l, size_t oid_length) {
        if (l.size < oid_length || (l.size > oid_length && l.data[oid_length] != ' '))
                return false;
        for (size_t i = 0; i < oid_length; i++)
                if (!strchr("0123456789abcdef", l.data[i]) || l.data[i] == 0)
                        return false;
        return true;
}

static const char *parse_capability(Line l, BundleHeader *h) {
        if (line_is(l, "@object-format=sha1"))
                h->oid_length = 40;
        else if (line_is(l, "@object-format=sha256"))
                h->oid_length = 64;
        else
                return "the bundle needs a capability that is not accepted (a partial clone, for example)";
        return NULL;
}

static const char *parse_ref(Line l, BundleHeader *h) {
        size_t name_size;
        BundleRef *ref;

        if (!starts_with_oid(l, h->oid_length) || l.size < h->oid_length + 2)
                return "a line of the bundle's head is neither a reference nor a prerequisite";

        name_size = l.size - h->oid_length - 1;
        if (name_size > BUNDLE_REF_NAME_MAX || memchr(l.data + h->oid_length + 1, 0, name_size))
                return "a reference of the bundle has a name that is too long or no text";

        if (h->n_refs < BUNDLE_REFS_MAX) {
                ref = &h->refs[h->n_refs];
                memcpy(ref->oid, l.data, h->oid_length);
                memcpy(ref->name, l.data + h->oid_length + 1, name_size);
        }
        h->n_refs++;
        return NULL;
}

static const char *parse_line(Line l, bool v3, BundleHeader *h) {
        if (l.data[0] == '@')
                return v3 && h->n_refs == 0 && h->n_prerequisites == 0 ? parse_capability(l, h)
                                                                       : "a capability where the bundle's head has none";
        if (l.data[0] == '-') {
                if (h->n_refs > 0 || !starts_with_oid((Line) { l.data + 1, l.size - 1 }, h->oid_length))
                        return "a prerequisite of the bundle is malformed";
                h->n_prerequisites++;
                return NULL;
        }
        return parse_ref(l, h);
}

static const char *parse(const char *p, size_t left, BundleHeader *h) {
        const char *start = p, *reason;
        bool v3;
        Line l;

        if (!next_line(&p, &left, &l))
                return "not a git bundle";
        v3 = line_is(l, "# v3 git bundle");
        if (!v3 && !line_is(l, "# v2 git bundle"))
                return "not a git bundle";

        for (;;) {
                if (!next_line(&p, &left, &l))
                        return "the bundle's head is cut off or too long";
                if (l.size == 0)
                        break;
                reason = parse_line(l, v3, h);
                if (reason)
                        return reason;
        }

        if (left < PACK_HEAD_SIZE)
                return "the bundle is cut off before its pack";
        if (memcmp(p, "PACK\0\0\0\2", 8) != 0)
                return "the bundle's pack is not one of version 2";

        h->pack_offset = (size_t) (p - start);
        for (size_t i = 8; i < PACK_HEAD_SIZE; i++)
                h->n_objects = h->n_objects << 8 | (uint8_t) p[i];
        return NULL;
}

int bundle_header_parse(const void *data, size_t size, BundleHeader *ret, const char **ret_reason) {
        BundleHeader h = { .oid_length = 40 };
        const char *reason;

        reason = parse(data, size < BUNDLE_HEADER_MAX + PACK_HEAD_SIZE ? size : BUNDLE_HEADER_MAX + PACK_HEAD_SIZE, &h);
        if (reason) {
                *ret_reason = reason;
                return -EBADMSG;
        }

        *ret = h;
        return 0;
}
