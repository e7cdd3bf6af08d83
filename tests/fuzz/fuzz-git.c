/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What is read of a push or a fetch does not depend on the pieces in which it comes, and a report can be written whatever the push is. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "inject/git-fetch.h"
#include "inject/git-push.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int push(const uint8_t *data, size_t size, size_t piece, GitPush *p) {
        int r = 0;

        for (size_t i = 0; i < size && r != GIT_PUSH_E_MALFORMED; i += piece) {
                r = git_push_feed(p, data + i, piece < size - i ? piece : size - i, false);
                if (r < 0)
                        __builtin_trap();
        }
        return git_push_feed(p, NULL, 0, true);
}

static const char *why(const GitCommand *command, void *userdata) {
        return command->ref;
}

static void check_report(const GitPush *p) {
        Buffer out = {};
        PktLine line;

        if (git_push_write_report(p, "no", why, NULL, &out) == 0)
                while (buffer_size(&out) > 0) {
                        ssize_t n = pkt_line_read(buffer_data(&out), buffer_size(&out), &line);

                        if (n <= 0)
                                __builtin_trap();
                        buffer_consume(&out, (size_t) n);
                }
        buffer_done(&out);
}

static void compare_pushes(const uint8_t *data, size_t size, size_t piece) {
        _cleanup_(git_push_freep) GitPush *a = NULL, *b = NULL;
        int r, q;

        if (git_push_new(&a) < 0 || git_push_new(&b) < 0)
                __builtin_trap();
        r = push(data, size, size, a);
        q = push(data, size, piece, b);
        if (r != q || a->n_commands != b->n_commands)
                __builtin_trap();
        for (size_t i = 0; r == GIT_PUSH_E_READY && i < a->n_commands; i++)
                if (strcmp(a->commands[i].ref, b->commands[i].ref) != 0 || a->commands[i].change != b->commands[i].change)
                        __builtin_trap();
        check_report(a);
}

static int fetch(const uint8_t *data, size_t size, size_t piece, GitFetch *f) {
        for (size_t i = 0; i < size; i += piece)
                (void) git_fetch_feed(f, data + i, piece < size - i ? piece : size - i, false);
        return git_fetch_feed(f, NULL, 0, true);
}

static void compare_fetches(const uint8_t *data, size_t size, size_t piece) {
        GitFetch a = {}, b = {};

        if (fetch(data, size, size, &a) != fetch(data, size, piece, &b) || a.n_wants != b.n_wants || strcmp(a.command, b.command) != 0)
                __builtin_trap();
        git_fetch_done(&a);
        git_fetch_done(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        if (size < 2)
                return 0;
        if (data[0] & 1)
                compare_pushes(data + 1, size - 1, (data[0] >> 1) + 1);
        else
                compare_fetches(data + 1, size - 1, (data[0] >> 1) + 1);
        return 0;
}
