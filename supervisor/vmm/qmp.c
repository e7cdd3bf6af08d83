/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "vmm/qmp.h"

#include <errno.h>
#include <string.h>

struct QmpReader {
        char *data;         /* owned */
        size_t start, end, size;
        size_t scanned;     /* from start: known to hold no newline */
};

void qmp_message_done(QmpMessage *m) {
        json_decref(m->document);
        *m = (QmpMessage) {};
}

static bool take_member(json_t *document, const char *key, json_t **ret) {
        json_t *value = json_object_get(document, key);

        if (!value)
                return false;

        *ret = value;
        return true;
}

int qmp_message_parse(const char *line, size_t size, QmpMessage *ret) {
        QmpMessage m = { .id = -1 };
        json_t *id;

        m.document = json_loadb(line, size, JSON_REJECT_DUPLICATES, NULL);
        if (!json_is_object(m.document))
                goto bad;

        id = json_object_get(m.document, "id");
        if (id) {
                if (!json_is_integer(id) || json_integer_value(id) < 0)
                        goto bad;
                m.id = json_integer_value(id);
        }

        if (take_member(m.document, "return", &m.body))
                m.kind = QMP_RETURN;
        else if (take_member(m.document, "error", &m.body)) {
                m.kind = QMP_ERROR;
                m.name = json_string_value(json_object_get(m.body, "class"));
                if (!m.name)
                        goto bad;
        } else if (json_object_get(m.document, "event")) {
                m.kind = QMP_EVENT;
                m.name = json_string_value(json_object_get(m.document, "event"));
                if (!m.name)
                        goto bad;
                m.body = json_object_get(m.document, "data");
        } else if (take_member(m.document, "QMP", &m.body))
                m.kind = QMP_GREETING;
        else
                goto bad;

        *ret = m;
        return 0;

bad:
        json_decref(m.document);
        return -EBADMSG;
}

int qmp_reader_new(QmpReader **ret) {
        QmpReader *r = calloc(1, sizeof(*r));

        if (!r)
                return -ENOMEM;

        *ret = r;
        return 0;
}

QmpReader *qmp_reader_free(QmpReader *r) {
        if (r)
                free(r->data);
        free(r);
        return NULL;
}

int qmp_reader_feed(QmpReader *r, const void *data, size_t size) {
        size_t have = r->end - r->start, want;
        char *p;

        if (size == 0)
                return 0;
        if (size > QMP_LINE_MAX - have)
                return -EMSGSIZE;

        if (r->start > 0) {
                memmove(r->data, r->data + r->start, have);
                r->start = 0;
                r->end = have;
        }

        want = have + size;
        if (want > r->size) {
                want = want < 4096 ? 4096 : want;
                p = realloc(r->data, want);
                if (!p)
                        return -ENOMEM;
                r->data = p;
                r->size = want;
        }

        memcpy(r->data + r->end, data, size);
        r->end += size;
        return 0;
}

int qmp_reader_next(QmpReader *r, QmpMessage *ret) {
        for (;;) {
                size_t have = r->end - r->start, length;
                const char *line, *newline;

                if (r->scanned >= have)
                        return 0;

                line = r->data + r->start;
                newline = memchr(line + r->scanned, '\n', have - r->scanned);
                if (!newline) {
                        r->scanned = have;
                        return 0;
                }

                length = (size_t) (newline - line);
                r->start += length + 1;
                r->scanned = 0;
                if (length > 0 && line[length - 1] == '\r')
                        length--;
                if (length == 0)
                        continue;

                return qmp_message_parse(line, length, ret) < 0 ? -EBADMSG : 1;
        }
}
