/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Bytes from a QEMU that is not ours any more, in pieces, into the reader of QMP. A message has what its kind promises, and is the same if everything
 * came in one piece.
 */

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#include "vmm/qmp.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SEEN_MAX = 64 };

/* What one reading brought: `n` messages, the first of them kept, and how it ended. */
typedef struct Seen {
        QmpMessage messages[SEEN_MAX]; /* owned */
        size_t n;
        int r;
} Seen;

static void check(const QmpMessage *m) {
        assert(json_is_object(m->document) && m->id >= -1);
        switch (m->kind) {
        case QMP_GREETING:
        case QMP_RETURN:
                assert(m->body && !m->name);
                break;
        case QMP_ERROR:
                assert(json_is_object(m->body) && m->name);
                break;
        case QMP_EVENT:
                assert(m->name);
                break;
        }
}

static void read_all(const uint8_t *data, size_t size, bool in_pieces, Seen *ret) {
        _cleanup_(qmp_reader_freep) QmpReader *r = NULL;
        QmpMessage m;

        *ret = (Seen) { .r = qmp_reader_new(&r) };
        while (ret->r >= 0 && size > 0) {
                size_t n = in_pieces ? 1 + data[0] % 97 : size;

                n = n < size ? n : size;
                ret->r = qmp_reader_feed(r, data, n);
                data += n;
                size -= n;
                while (ret->r >= 0 && (ret->r = qmp_reader_next(r, &m)) > 0) {
                        check(&m);
                        if (ret->n < SEEN_MAX)
                                ret->messages[ret->n] = m;
                        else
                                qmp_message_done(&m);
                        ret->n++;
                }
        }
}

static void seen_done(Seen *s) {
        for (size_t i = 0; i < s->n && i < SEEN_MAX; i++)
                qmp_message_done(s->messages + i);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        Seen pieces, whole;

        read_all(data, size, true, &pieces);
        read_all(data, size, false, &whole);
        if (size < QMP_LINE_MAX) { /* more in one piece is refused as such */
                assert(pieces.n == whole.n && pieces.r == whole.r);
                for (size_t i = 0; i < pieces.n && i < SEEN_MAX; i++) {
                        assert(pieces.messages[i].kind == whole.messages[i].kind && pieces.messages[i].id == whole.messages[i].id);
                        assert(json_equal(pieces.messages[i].document, whole.messages[i].document));
                }
        }
        seen_done(&pieces);
        seen_done(&whole);
        return 0;
}
