/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>
#include <string.h>

#include "import/raw-diff.h"

void raw_diff_init(RawDiff *d, RawChangeHandler handler, void *userdata) {
        *d = (RawDiff) {
                .handler = handler,
                .userdata = userdata,
        };
}

/* Six octal digits and a space. */
static int parse_mode(const char **p, const char *end, unsigned *ret) {
        unsigned mode = 0;

        if (end - *p < 7)
                return -EBADMSG;
        for (int i = 0; i < 6; i++) {
                char c = (*p)[i];

                if (c < '0' || c > '7')
                        return -EBADMSG;
                mode = mode << 3 | (unsigned) (c - '0');
        }
        if ((*p)[6] != ' ')
                return -EBADMSG;
        *p += 7;
        *ret = mode;
        return 0;
}

/* An object name and a space. */
static int parse_oid(const char **p, const char *end, char ret[static BUNDLE_OID_SIZE]) {
        size_t n = 0;

        while (*p + n < end && n < BUNDLE_OID_SIZE && (*p)[n] && strchr("0123456789abcdef", (*p)[n]))
                n++;
        if ((n != 40 && n != 64) || *p + n >= end || (*p)[n] != ' ')
                return -EBADMSG;

        memcpy(ret, *p, n);
        ret[n] = 0;
        *p += n + 1;
        return 0;
}

/* ":100644 100644 OID OID M" */
static int parse_meta(const char *p, const char *end, RawChange *ret) {
        char old_oid[BUNDLE_OID_SIZE];
        RawChange c = {};

        if (p == end || *p++ != ':')
                return -EBADMSG;
        if (parse_mode(&p, end, &c.old_mode) < 0 || parse_mode(&p, end, &c.new_mode) < 0 ||
            parse_oid(&p, end, old_oid) < 0 || parse_oid(&p, end, c.oid) < 0)
                return -EBADMSG;
        if (end - p != 1 || !strchr("ADMTUX", *p) || *p == 0)
                return -EBADMSG;

        c.status = *p;
        *ret = c;
        return 0;
}

static int finish_field(RawDiff *d) {
        int r;

        if (!d->in_path) {
                r = parse_meta(d->buffer, d->buffer + d->used, &d->change);
                if (r < 0)
                        return r;
        } else {
                d->change.path = d->buffer;
                d->change.path_size = d->used;
                r = d->handler(&d->change, d->userdata);
                if (r < 0)
                        return r;
        }

        d->in_path = !d->in_path;
        d->used = 0;
        return 0;
}

int raw_diff_push(RawDiff *d, const char *data, size_t size) {
        while (size > 0) {
                const char *end = memchr(data, 0, size);
                size_t n = end ? (size_t) (end - data) : size;
                int r;

                if (n > sizeof(d->buffer) - d->used)
                        return d->in_path ? -ENAMETOOLONG : -EBADMSG;
                memcpy(d->buffer + d->used, data, n);
                d->used += n;

                if (end) {
                        r = finish_field(d);
                        if (r < 0)
                                return r;
                        n++;
                }
                data += n;
                size -= n;
        }
        return 0;
}

int raw_diff_end(const RawDiff *d) {
        return d->in_path || d->used > 0 ? -EBADMSG : 0;
}
