/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "inject/tripwire-api.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "inject/decode.h"

/* ---- heads ---- */

static bool is_in_any_form(const char *text, size_t size, const char *sentinel) {
        const MaskPair pair = { sentinel, strlen(sentinel), "", 0 };
        _cleanup_(masker_freep) Masker *m = NULL;
        Buffer rest = {};
        bool found;

        found = masker_new(&m, &pair, 1) < 0 || masker_feed(m, text, size, &rest) < 0 || masker_finish(m, &rest) < 0 || masker_hits(m) > 0;
        buffer_done(&rest);
        return found;
}

bool tripwire_text_has(const char *text, size_t size, const char *sentinel) {
        _cleanup_free_ char *decoded = NULL;
        size_t n;

        if (size < strlen(sentinel)) /* every form is at least as long */
                return false;

        /* what cannot be looked at must not pass */
        decoded = malloc(size + 1);
        if (!decoded)
                return true;
        n = decode_percent(text, size, false, decoded);
        for (size_t i = 0; i < n; i++)
                if (decoded[i] == '\0')
                        decoded[i] = ' ';
        decoded[n] = '\0';
        return strcasestr(decoded, sentinel) || is_in_any_form(text, size, sentinel);
}

static bool basic_has(const char *value, const char *sentinel) {
        _cleanup_free_ char *user = NULL;
        const char *password;

        if (decode_basic(value, &user, &password) < 0)
                return false;
        return tripwire_text_has(user, strlen(user), sentinel) || tripwire_text_has(password, strlen(password), sentinel);
}

/* A field as it stands in a line, without the line's end. */
static bool line_has(const char *line, size_t size, size_t n_name, const char *sentinel) {
        _cleanup_free_ char *value = NULL;

        if (tripwire_text_has(line, size, sentinel))
                return true;
        if (n_name == size)
                return false;
        line += n_name + 1;
        size -= n_name + 1;
        while (size > 0 && (*line == ' ' || *line == '\t')) {
                line++;
                size--;
        }
        value = strndup(line, size);
        return !value || basic_has(value, sentinel);
}

ssize_t tripwire_find_in_head(const char *head, size_t size, const char *const *sentinels, size_t n_sentinels, char ret_where[static TRIPWIRE_WHERE_SIZE]) {
        const char *end = head + size;
        bool first = true;

        while (head < end) {
                const char *newline = memchr(head, '\n', (size_t) (end - head)), *next = newline ? newline + 1 : end, *colon;
                size_t n = (size_t) ((newline ?: end) - head), n_name;

                if (n > 0 && head[n - 1] == '\r')
                        n--;
                colon = first ? NULL : memchr(head, ':', n);
                n_name = colon ? (size_t) (colon - head) : n;
                for (size_t i = 0; i < n_sentinels; i++) {
                        if (!line_has(head, n, n_name, sentinels[i]))
                                continue;
                        n = n_name < TRIPWIRE_WHERE_SIZE ? n_name : TRIPWIRE_WHERE_SIZE - 1;
                        memcpy(ret_where, first ? "target" : head, first ? strlen("target") : n);
                        ret_where[first ? strlen("target") : n] = '\0';
                        return (ssize_t) i;
                }
                first = first && n == 0; /* empty lines may stand before it */
                head = next;
        }
        return -1;
}

/* ---- streams ---- */

struct Tripwire {
        Masker *masker; /* owned */
        const char *const *sentinels; /* borrowed */
        size_t n_sentinels;
        TripwireGzip gzip;
};

static int make_masker(Masker **ret, const char *const *sentinels, size_t n_sentinels) {
        MaskPair pairs[MASK_PAIRS_MAX];

        if (n_sentinels > MASK_PAIRS_MAX)
                return -E2BIG;
        for (size_t i = 0; i < n_sentinels; i++)
                pairs[i] = (MaskPair) { sentinels[i], strlen(sentinels[i]), "", 0 };
        return masker_new(ret, pairs, n_sentinels);
}

int tripwire_new(Tripwire **ret, const char *const *sentinels, size_t n_sentinels) {
        _cleanup_(tripwire_freep) Tripwire *t = NULL;
        int r;

        t = calloc(1, sizeof(*t));
        if (!t)
                return -ENOMEM;
        t->sentinels = sentinels;
        t->n_sentinels = n_sentinels;
        r = make_masker(&t->masker, sentinels, n_sentinels);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(t);
        return 0;
}

Tripwire *tripwire_free(Tripwire *t) {
        if (!t)
                return NULL;
        tripwire_gzip_done(&t->gzip);
        masker_free(t->masker);
        free(t);
        return NULL;
}

static int search(Masker *m, const void *data, size_t size, bool last, size_t *ret) {
        uint64_t before = masker_hits(m);
        Buffer passed = {};
        int r;

        r = masker_feed(m, data, size, &passed);
        if (r >= 0 && last)
                r = masker_finish(m, &passed);
        buffer_done(&passed);
        if (r < 0)
                return r;
        if (masker_hits(m) > before) {
                *ret = masker_last(m);
                return 1;
        }
        return masker_has_pending(m, ret);
}

int tripwire_feed(Tripwire *t, const void *data, size_t size, bool last, size_t *ret) {
        int r = search(t->masker, data, size, last, ret);

        return r != 0 ? r : tripwire_gzip_feed(&t->gzip, t->sentinels, t->n_sentinels, data, size, last, ret);
}

/* ---- what stands in gzip ---- */

void tripwire_gzip_done(TripwireGzip *g) {
        gunzip_free(g->gunzip);
        masker_free(g->text);
        *g = (TripwireGzip) {};
}

static int begin_gzip(TripwireGzip *g, const char *const *sentinels, size_t n_sentinels, const uint8_t *data) {
        int r;

        g->begun = true;
        if (data[0] != 0x1f || n_sentinels == 0)
                return 0;
        r = gunzip_new(&g->gunzip);
        return r < 0 ? r : make_masker(&g->text, sentinels, n_sentinels);
}

/* In slices, since the masker's views of a text are many times as large, and its stream may then wait for an hour. */
static int search_opened(Masker *m, const Buffer *opened, size_t *ret) {
        enum { SLICE = 4096 };
        const uint8_t *p = buffer_data(opened);
        size_t left = buffer_size(opened);
        int r = 0;

        while (r == 0 && left > 0) {
                size_t n = left < SLICE ? left : SLICE;

                r = search(m, p, n, false, ret);
                masker_rest(m);
                p += n;
                left -= n;
        }
        return r;
}

/* A piece that is small enough for a bomb to be noticed before it has swollen far. What cannot be opened is left alone from there on. */
static int open_piece(TripwireGzip *g, const uint8_t *data, size_t size, size_t *ret) {
        Buffer opened = {};
        int r, found;

        r = gunzip_feed(g->gunzip, data, size, &opened);
        g->n_opened += buffer_size(&opened);
        found = r == -ENOMEM ? r : search_opened(g->text, &opened, ret);
        buffer_done(&opened);
        if (r < 0 || g->n_opened > TRIPWIRE_OPENED_MAX)
                g->gunzip = gunzip_free(g->gunzip);
        return found;
}

int tripwire_gzip_feed(TripwireGzip *g, const char *const *sentinels, size_t n_sentinels, const void *data, size_t size, bool last, size_t *ret) {
        enum { PIECE = 1024 };
        const uint8_t *p = data;
        int r = 0;

        if (!g->begun && size > 0)
                r = begin_gzip(g, sentinels, n_sentinels, p);
        while (r == 0 && g->gunzip && size > 0) {
                size_t n = size < PIECE ? size : PIECE;

                r = open_piece(g, p, n, ret);
                p += n;
                size -= n;
        }
        if (last)
                tripwire_gzip_done(g);
        return r;
}
