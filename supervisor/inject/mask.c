/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * What is held back must not depend on the needles' values. A masker that held back exactly what could
 * still become a needle would tell, by what it delays, how far a guess is right: an agent that gets an
 * origin to echo guesses would learn a secret byte by byte. So the rule knows only lengths and
 * the alphabet: held back is the longest tail of visible ASCII characters that has, in each view, at most one unit less
 * than the longest form of a needle (mask-form.h). A blank, a line end or any other byte releases everything before it, so
 * that the events of a stream, which end with an empty line, are never late.
 *
 * The text falls apart into runs of visible characters, and no needle reaches beyond one. Runs that are shorter than the
 * shortest needle are skipped, which makes binary data cheap. A run is read from its start, or from the end of the last
 * needle found in it, unit by unit in each view that differs from the others there; where a view stands between two calls is
 * kept in `ahead`. A needle that starts left of the tail is complete or impossible: either enough units follow it, or a byte that
 * no needle has. Hence deciding only left of the tail gives what a search in the whole stream would give,
 * however it was cut. fuzz-mask compares the two.
 *
 * Candidates are found with rolling hashes under a random base, each over all of a needle (of Base64: over all but at most its shared
 * digits and one more), and compared in constant time: the time depends on the text's bytes and on lengths, not on how much
 * of a needle they match. Of needles that are long enough, a sieve (mask-sieve.h) says first where this is worth while: there the time tells
 * also whether two thirds of a needle stand in a row.
 */

#include "inject/mask.h"

#include <assert.h>
#include <errno.h>
#include <openssl/crypto.h>
#include <stdbool.h>
#include <string.h>

#include "inject/mask-needles.h"

#define UNLIKELY(x) __builtin_expect((x), 0)

/* A run as one view reads it. */
typedef struct Track {
        MaskView view;
        const uint8_t *units; /* n of them; borrowed from the text in the raw view, else from the masker */
        const uint32_t *at;   /* n + 1: where they start, and where the last one ends; NULL in the raw view */
        size_t begin, n;      /* begin: where the first one starts */
} Track;

typedef struct Match {
        const Needle *needle; /* NULL: none */
        const Base64Form *form; /* NULL: plain */
        const Track *track;
        size_t unit, n_units, begin, end;
} Match;

struct Masker {
        Needles *of; /* ref */
        uint64_t hits;
        size_t last; /* the needle that was hit last */
        Buffer held;
        size_t sent; /* so many of the held bytes, from the first, went on before it was decided what they are (masker_release()) */
        size_t ahead[_MASK_VIEWS]; /* how many of the held bytes belong to a unit that began before them */
        uint8_t *units[_MASK_VIEWS]; /* owned: room for tracks */
        uint32_t *at[_MASK_VIEWS];
        size_t room;
};

static void free_room(Masker *m) {
        for (unsigned v = 0; v < _MASK_VIEWS; v++) {
                if (m->units[v])
                        explicit_bzero(m->units[v], m->room);
                free(m->units[v]);
                free(m->at[v]);
                m->units[v] = NULL;
                m->at[v] = NULL;
        }
        m->room = 0;
}

int masker_new_for(Masker **ret, Needles *needles) {
        Masker *m = calloc(1, sizeof(*m));

        if (!m)
                return -ENOMEM;
        m->of = mask_needles_ref(needles);
        *ret = m;
        return 0;
}

int masker_new(Masker **ret, const MaskPair *pairs, size_t n_pairs) {
        _cleanup_(mask_needles_unrefp) Needles *needles = NULL;
        int r;

        r = mask_needles_new(&needles, pairs, n_pairs);
        return r < 0 ? r : masker_new_for(ret, needles);
}

Masker *masker_free(Masker *m) {
        if (!m)
                return NULL;
        free_room(m);
        buffer_done(&m->held);
        mask_needles_unref(m->of);
        free(m);
        return NULL;
}

void masker_take_over(Masker *m, Masker *from) {
        assert(m->of->n > 0 || buffer_size(&from->held) == 0); /* one without needles holds nothing back */
        m->held = from->held;
        from->held = (Buffer) {};
        m->sent = from->sent;
        memcpy(m->ahead, from->ahead, sizeof(m->ahead));
        m->hits = from->hits;
        m->last = from->last;
}

void masker_rest(Masker *m) {
        if (m && m->of->n > 0 && buffer_size(&m->held) == 0) {
                free_room(m);
                buffer_done(&m->held);
        }
}

/* ---- tracks ---- */

static size_t track_at(const Track *t, size_t i) {
        return t->at ? t->at[i] : t->begin + i;
}

/* How many units start left of `where`. */
static size_t track_before(const Track *t, size_t where) {
        size_t low = 0, high = t->n;

        if (!t->at)
                return where <= t->begin ? 0 : where - t->begin < t->n ? where - t->begin : t->n;
        while (low < high) {
                size_t middle = low + (high - low) / 2;

                if (t->at[middle] < where)
                        low = middle + 1;
                else
                        high = middle;
        }
        return low;
}

static int make_room(Masker *m, size_t size) {
        if (m->room >= size)
                return 0;
        free_room(m);
        for (unsigned v = MASK_VIEW_RAW + 1; v < _MASK_VIEWS; v++) {
                m->units[v] = malloc(size);
                m->at[v] = malloc((size + 1) * sizeof(*m->at[v]));
                if (!m->units[v] || !m->at[v])
                        return -ENOMEM; /* what is there is freed with the masker */
        }
        m->room = size;
        return 0;
}

/* The run [begin, end) of p; nothing that could belong to it follows if it is closed. */
static void track_read(Masker *m, Track *t, MaskView view, const uint8_t *p, size_t begin, size_t end, bool closed) {
        uint8_t *units = m->units[view];
        uint32_t *at = m->at[view];
        size_t n = 0;

        *t = (Track) { .view = view, .begin = begin };
        if (view == MASK_VIEW_RAW) {
                t->units = p + begin;
                t->n = end - begin;
                return;
        }

        while (begin < end) {
                size_t size = mask_unit(view, p + begin, end - begin, closed, &units[n]);

                if (size == 0)
                        break;
                at[n++] = (uint32_t) begin;
                begin += size;
        }
        at[n] = (uint32_t) begin;
        t->units = units;
        t->at = at;
        t->n = n;
}

/* The views that differ in [begin, end), read; returns how many. ahead: where each of them goes on behind `begin`. */
static size_t read_tracks(Masker *m, const uint8_t *p, size_t begin, size_t end, bool closed, const size_t *ahead, Track *tracks) {
        bool percent = memchr(p + begin, '%', end - begin), json = memchr(p + begin, '\\', end - begin);
        bool wanted[_MASK_VIEWS] = { true, percent, json, percent && json };
        size_t n = 0;

        for (unsigned v = 0; v < _MASK_VIEWS; v++)
                if (wanted[v])
                        track_read(m, &tracks[n++], v, p, begin + ahead[v] < end ? begin + ahead[v] : end, end, closed);
        return n;
}

/* ---- search ---- */

static void match_take(Match *best, const Needle *d, const Base64Form *f, const Track *t, size_t unit, size_t n) {
        size_t begin = track_at(t, unit), end = track_at(t, unit + n);

        if (!best->needle || begin < best->begin || (begin == best->begin && end > best->end))
                *best = (Match) { d, f, t, unit, n, begin, end };
}

static void check_plain(const Needle *d, const Track *t, size_t i, uint64_t hash, Match *best) {
        if (hash == d->hash && CRYPTO_memcmp(t->units + i, d->pair.needle, d->pair.needle_size) == 0)
                match_take(best, d, NULL, t, i, d->pair.needle_size);
}

/* i: where the window starts, which is behind a shared digit. */
static void check_forms(const Needle *d, const Track *t, size_t i, uint64_t hash, size_t starts, Match *best) {
        for (unsigned k = 0; k < MASK_SHIFTS; k++) {
                const Base64Form *f = &d->forms[k];

                if (hash != d->window_hashes[k] || i < f->lead || i - f->lead >= starts || f->size > t->n - (i - f->lead))
                        continue;
                if (base64_form_matches(f, t->units + i - f->lead))
                        match_take(best, d, f, t, i - f->lead, f->size);
        }
}

static size_t smaller(size_t a, size_t b) {
        return a < b ? a : b;
}

/*
 * All forms of one needle that start left of unit `to`, and with what the hashes cover (without a shared digit) not left of `from`. Both hashes
 * roll in one loop, so that neither waits for the other.
 */
static void search_range(const Masker *m, const Needle *d, const Track *t, size_t from, size_t to, Match *best) {
        const uint64_t base = m->of->base, h0 = d->window_hashes[0], h1 = d->window_hashes[1], h2 = d->window_hashes[2];
        size_t n = d->pair.needle_size, w = d->window, plain_end = from, forms_end = from, both, i;
        const uint8_t *u = t->units;
        uint64_t h = 0, g = 0;

        if (t->n >= n && from < smaller(to, t->n - n + 1)) {
                plain_end = smaller(to, t->n - n + 1);
                h = mask_needles_hash_plain(m->of, u + from, n);
        }
        if (d->has_forms && t->n >= w && from < smaller(to + 1, t->n - w + 1)) {
                forms_end = smaller(to + 1, t->n - w + 1);
                g = mask_needles_hash_digits(m->of, u + from, w);
        }

        both = smaller(plain_end, forms_end);
        for (i = from; i + 1 < both; i++) {
                if (UNLIKELY((h == d->hash) | (g == h0) | (g == h1) | (g == h2))) {
                        check_plain(d, t, i, h, best);
                        check_forms(d, t, i, g, to, best);
                }
                h = h * base + (u[i + n] - u[i] * d->power);
                g = g * base + (mask_base64_digits[u[i + w]] - mask_base64_digits[u[i]] * d->window_power);
        }
        for (size_t k = i; k < plain_end; k++) {
                check_plain(d, t, k, h, best);
                if (k + 1 < plain_end)
                        h = h * base + (u[k + n] - u[k] * d->power);
        }
        for (size_t k = i; k < forms_end; k++) {
                check_forms(d, t, k, g, to, best);
                if (k + 1 < forms_end)
                        g = g * base + (mask_base64_digits[u[k + w]] - mask_base64_digits[u[k]] * d->window_power);
        }
}

/* All forms of one needle that start at one of the first `starts` units, where a sieve does not rule them out. */
static void search_needle(const Masker *m, const Needle *d, const Track *t, size_t starts, Match *best) {
        size_t stride, at = 0;

        if (starts == 0)
                return;
        if (!d->sieve) {
                search_range(m, d, t, 0, starts, best);
                return;
        }

        stride = d->sieve->stride;
        for (;;) {
                at = sieve_next(d->sieve, t->units, smaller(t->n, starts - 1 + stride + d->sieve->block), at);
                if (at == SIZE_MAX)
                        return;
                search_range(m, d, t, at < stride ? 0 : at + 1 - stride, smaller(starts, at + 1), best);
                if (best->needle)
                        starts = smaller(starts, track_before(t, best->begin + 1));
                at += stride;
        }
}

/* The first needle that starts left of limit; the longest of those that start there. */
static void search(const Masker *m, const Track *tracks, size_t n_tracks, size_t limit, Match *ret) {
        *ret = (Match) {};
        for (size_t i = 0; i < n_tracks; i++)
                for (size_t k = 0; k < m->of->n; k++) {
                        size_t bound = ret->needle ? smaller(limit, ret->begin + 1) : limit;

                        search_needle(m, &m->of->list[k], &tracks[i], track_before(&tracks[i], bound), ret);
                }
}

/* ---- replacing ---- */

/* What of it did not go on before. */
static int pass(const Masker *m, const uint8_t *p, size_t from, size_t to, Buffer *out) {
        if (from < m->sent)
                from = m->sent;
        return from < to ? buffer_append(out, p + from, to - from) : 0;
}

/* From the nth digit on. */
static int replace_digits(const Match *f, size_t from, Buffer *out) {
        const uint8_t *units = f->track->units + f->unit;
        bool escape = f->track->view == MASK_VIEW_PERCENT || f->track->view == MASK_VIEW_BOTH;
        bool url_safe = memchr(units, '-', f->n_units) || memchr(units, '_', f->n_units);

        for (size_t i = from; i < f->n_units; i++) {
                char c = base64_form_replace(f->form, units, i, url_safe);
                int r;

                if (escape && (c == '+' || c == '/'))
                        r = buffer_append_text(out, c == '+' ? "%2B" : "%2F");
                else
                        r = buffer_append(out, &c, 1);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* As many units as went on before are missing from what takes their place. */
static int replace(Masker *m, const Match *f, Buffer *out) {
        size_t from = f->begin < m->sent ? smaller(track_before(f->track, m->sent) - f->unit, f->n_units) : 0;

        if (f->end > m->sent) {
                m->hits++;
                m->last = (size_t) (f->needle - m->of->list);
        }
        if (f->form)
                return replace_digits(f, from, out);
        from = smaller(from, f->needle->pair.replacement_size);
        return buffer_append(out, (const uint8_t *) f->needle->pair.replacement + from, f->needle->pair.replacement_size - from);
}

/* ---- runs ---- */

/* How far a run is decided that may go on. */
static size_t decided(const Masker *m, const Track *tracks, size_t n_tracks, size_t begin, size_t end) {
        size_t limit = end;

        for (size_t i = 0; i < n_tracks; i++) {
                size_t n = tracks[i].n;

                limit = smaller(limit, n < m->of->longest ? begin : track_at(&tracks[i], n - m->of->longest + 1));
        }
        return limit;
}

static void keep_ahead(Masker *m, const Track *tracks, size_t n_tracks, size_t begin, size_t limit, const size_t *ahead) {
        for (unsigned v = 0; v < _MASK_VIEWS; v++)
                m->ahead[v] = begin + ahead[v] > limit ? begin + ahead[v] - limit : 0;
        for (size_t i = 0; i < n_tracks; i++)
                m->ahead[tracks[i].view] = track_at(&tracks[i], track_before(&tracks[i], limit)) - limit;
}

/*
 * The run [begin, end) of p: what is needed of [*done, …) goes out. *ret_limit: up to where it is decided; for one that is not
 * closed, the masker remembers where its views go on.
 */
static int mask_run(Masker *m, const uint8_t *p, size_t begin, size_t end, bool closed, size_t *done, size_t *ret_limit, Buffer *out) {
        size_t ahead[_MASK_VIEWS] = {}, n_tracks, limit;
        Track tracks[_MASK_VIEWS];
        Match match;
        int r;

        r = make_room(m, end - begin);
        if (r < 0)
                return r;

        if (begin == 0)
                memcpy(ahead, m->ahead, sizeof(ahead));
        for (;;) {
                n_tracks = read_tracks(m, p, begin, end, closed, ahead, tracks);
                limit = closed ? end : decided(m, tracks, n_tracks, begin, end);
                search(m, tracks, n_tracks, limit, &match);
                if (!match.needle)
                        break;

                if ((r = pass(m, p, *done, match.begin, out)) < 0 || (r = replace(m, &match, out)) < 0)
                        return r;
                *done = begin = match.end;
                memset(ahead, 0, sizeof(ahead));
        }

        if (!closed)
                keep_ahead(m, tracks, n_tracks, begin, limit, ahead);
        *ret_limit = limit;
        return 0;
}

/* From `from` on, the next run that is not too short, or the one at the end however short it is. *ret_end is size if there is none. */
static size_t find_run(const Masker *m, const uint8_t *p, size_t size, size_t from, size_t *ret_end) {
        size_t begin = from, i;

        while (m->of->shortest <= size - begin) {
                /* if the last byte that it would have is none of a run, the next one starts behind that */
                for (i = begin + m->of->shortest; i > begin && mask_is_visible(p[i - 1]); i--)
                        ;
                if (i == begin) {
                        *ret_end = mask_visible_end(p, begin + m->of->shortest, size);
                        return begin;
                }
                begin = i;
        }

        for (i = size; i > begin && mask_is_visible(p[i - 1]); i--)
                ;
        *ret_end = size;
        return i;
}

static int masker_scan(Masker *m, bool last, Buffer *out) {
        const uint8_t *p = buffer_data(&m->held);
        size_t size = buffer_size(&m->held), done = 0, limit = size, begin = 0, end = 0;
        bool open = false;
        int r;

        while (end < size) {
                begin = find_run(m, p, size, end, &end);
                if (begin == end)
                        break;
                open = end == size && !last;
                r = mask_run(m, p, begin, end, !open, &done, &limit, out);
                if (r < 0)
                        return r;
        }
        if (!open) {
                limit = size;
                memset(m->ahead, 0, sizeof(m->ahead));
        }

        r = pass(m, p, done, limit, out);
        if (r < 0)
                return r;
        buffer_consume(&m->held, limit);
        m->sent = m->sent > limit ? m->sent - limit : 0;
        return 0;
}

int masker_feed(Masker *m, const void *data, size_t size, Buffer *out) {
        int r;

        if (m->of->n == 0)
                return buffer_append(out, data, size);

        r = buffer_append(&m->held, data, size);
        if (r < 0)
                return r;
        return masker_scan(m, false, out);
}

int masker_finish(Masker *m, Buffer *out) {
        return m->of->n == 0 ? 0 : masker_scan(m, true, out);
}

/* Is a needle of m in [begin, end) of p, which is all of a run from where the views go on, that begins left of `limit`? */
static int find(Masker *m, const uint8_t *p, size_t begin, size_t end, const size_t *ahead, size_t limit) {
        Track tracks[_MASK_VIEWS];
        Match match;
        size_t n;
        int r;

        if (m->of->n == 0 || end - begin < m->of->shortest)
                return 0;
        r = make_room(m, end - begin);
        if (r < 0)
                return r;
        n = read_tracks(m, p, begin, end, true, ahead, tracks);
        search(m, tracks, n, limit, &match);
        return match.needle != NULL;
}

/* What is held is one run. Of that which is replaced by now nothing is a beginning any more. */
int masker_release(Masker *m, Masker *beginnings, Buffer *out) {
        static const size_t nowhere[_MASK_VIEWS] = {};
        size_t size = buffer_size(&m->held), done = 0, limit, last = m->last;
        const uint8_t *p = buffer_data(&m->held);
        uint64_t hits = m->hits;
        Buffer scratch = {};
        int r;

        if (m->of->n == 0 || size == 0)
                return 0;
        r = mask_run(m, p, 0, size, true, &done, &limit, &scratch);
        if (r >= 0 && beginnings)
                r = find(beginnings, p, done, size, done == 0 ? m->ahead : nowhere, size);
        if (r == 0 && (r = pass(m, p, done, size, &scratch)) >= 0)
                r = buffer_append(out, buffer_data(&scratch), buffer_size(&scratch));
        if (r == 0)
                m->sent = size;
        else {
                m->hits = hits;
                m->last = last;
        }
        buffer_done(&scratch);
        return r;
}

int masker_begins_before(Masker *m, const void *data, size_t size, size_t limit) {
        static const size_t nowhere[_MASK_VIEWS] = {};
        const uint8_t *p = data;
        size_t end;
        int r = 0;

        for (size_t i = 0; i < smaller(limit, size) && r == 0; i = end > i ? end : i + 1) {
                end = mask_visible_end(p, i, size);
                r = find(m, p, i, end, nowhere, limit);
        }
        return r;
}

uint64_t masker_hits(const Masker *m) {
        return m->hits;
}

size_t masker_last(const Masker *m) {
        return m->last;
}

/* What is held is one run, of which a view may go on a little behind its beginning. */
int masker_has_pending(Masker *m, size_t *ret_number) {
        size_t size = buffer_size(&m->held), n_tracks;
        Track tracks[_MASK_VIEWS];
        Match match;
        int r;

        if (m->of->n == 0 || size < m->of->shortest)
                return 0;
        r = make_room(m, size);
        if (r < 0)
                return r;

        n_tracks = read_tracks(m, buffer_data(&m->held), 0, size, true, m->ahead, tracks);
        search(m, tracks, n_tracks, size, &match);
        if (!match.needle)
                return 0;
        *ret_number = (size_t) (match.needle - m->of->list);
        return 1;
}
