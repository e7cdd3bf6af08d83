/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A path pattern, a line's end, and a request's path. What the matcher says is compared with a plain recursive one over the same decoded
 * pieces, as long as that is cheap. And the path is asked whether it might be git's.
 */

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "policy/policy-egress.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { STEPS_MAX = 200000 };

static size_t steps;

/* Piece k and what is behind it, at the place i of the path. */
static bool match(const PathPattern *p, size_t k, size_t at_piece, const PathText *t, size_t i) {
        size_t n = p->length[k];
        bool across;

        if (++steps > STEPS_MAX || n > t->n - i || memcmp(p->bytes + at_piece, t->bytes + i, n) != 0)
                return false;
        i += n;
        if (k + 1 == p->n_pieces)
                return i == t->n;

        across = p->across & (1U << k);
        if (across && p->length[k + 1] > 0 && n > 0 && p->bytes[at_piece + n - 1] == '/' && p->bytes[at_piece + n] == '/' &&
            match(p, k + 1, at_piece + n, t, i - 1))
                return true;
        for (;; i++) {
                if (match(p, k + 1, at_piece + n, t, i))
                        return true;
                if (i >= t->n || (!across && t->bytes[i] == '/'))
                        return false;
        }
}

static bool expected(const PathPattern *p, const PathText *t) {
        size_t n = p->n_bytes;

        if (t->ambiguous)
                return false;
        if (p->n_pieces > 1)
                return match(p, 0, 0, t, 0);
        return n <= t->n && memcmp(p->bytes, t->bytes, n) == 0 && (n == t->n || p->bytes[n - 1] == '/' || t->bytes[n] == '/');
}

/* What is a request of git's smart protocol by its letters might be one. */
static void ask_for_git(const char *target, const PathText *t) {
        static const char *const methods[] = { "GET", "POST" };

        for (size_t i = 0; i < ELEMENTSOF(methods); i++) {
                GitService service = git_service_of(methods[i], target, NULL, NULL);

                if (!git_is_smart(methods[i], target, t->ambiguous ? NULL : t->bytes, t->n) && service != GIT_NONE && service != GIT_DUMB)
                        abort();
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        static PathText text;
        uint8_t bytes[PATH_PATTERN_MAX];
        char *copy, *path;
        PathPattern p;
        bool covers;

        copy = malloc(size + 1);
        if (!copy)
                return 0;
        memcpy(copy, data, size);
        copy[size] = '\0';
        path = strchr(copy, '\n');
        if (path) {
                *path++ = '\0';
                path_text_parse(path, &text);
                ask_for_git(path, &text);
                if (strlen(copy) <= sizeof(bytes) && !path_pattern_parse(copy, bytes, &p)) {
                        steps = 0;
                        covers = path_pattern_matches(&p, &text);
                        if (covers != expected(&p, &text) && steps <= STEPS_MAX)
                                __builtin_trap();
                }
        }
        free(copy);
        return 0;
}
