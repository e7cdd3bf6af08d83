/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Commands come first, each a pkt-line "BEFORE AFTER REF", behind the first one's zero byte what the client can do; then a flush, then, if it
 * said so, its options and another flush, then the pack, unless everything is a deletion.
 *
 * Whether an update is a fast-forward cannot be seen from the two names. It is shown by the pack, which git begins with its commits: so where a ref
 * is updated the beginning of the pack is read as well, up to a bound. What is not shown to be a fast-forward counts as none. That the ref is
 * at BEFORE now is what the origin itself compares, in the transaction in which it updates it.
 */

#include "inject/git-push.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inject/pkt-line.h"
#include "util/text.h"

enum { STAGE_COMMANDS, STAGE_OPTIONS, STAGE_PACK, STAGE_READY, STAGE_MALFORMED };

int git_push_new(GitPush **ret) {
        GitPush *p = calloc(1, sizeof(*p));

        if (!p)
                return -ENOMEM;
        *ret = p;
        return 0;
}

GitPush *git_push_free(GitPush *p) {
        if (!p)
                return NULL;
        for (size_t i = 0; i < p->n_commands; i++)
                free(p->commands[i].ref);
        free(p->commands);
        buffer_done(&p->line);
        git_pack_free(p->pack);
        free(p);
        return NULL;
}

static int malformed(GitPush *p, const char *why) {
        p->error = why;
        p->stage = STAGE_MALFORMED;
        return GIT_PUSH_E_MALFORMED;
}

/* ---- commands ---- */

static bool has_word(const char *text, const char *word) {
        size_t n = strlen(word);

        for (const char *p = text; (p = strstr(p, word)); p += n)
                if ((p == text || p[-1] == ' ') && (p[n] == '\0' || p[n] == ' '))
                        return true;
        return false;
}

static void read_capabilities(GitPush *p, const char *text) {
        p->reports = has_word(text, "report-status") || has_word(text, "report-status-v2");
        p->sideband = has_word(text, "side-band-64k") || has_word(text, "side-band");
        p->options = has_word(text, "push-options");
}

static bool is_zero(const char *name) {
        return name[strspn(name, "0")] == '\0';
}

static int add_command(GitPush *p, const char *text) {
        size_t n = strspn(text, "0123456789abcdef");
        GitCommand *more, c = {};

        if ((n != 40 && n != 64) || (p->name_size > 0 && n != 2 * p->name_size) || text[n] != ' ' ||
            strspn(text + n + 1, "0123456789abcdef") != n || text[2 * n + 1] != ' ')
                return malformed(p, "a ref update is not \"BEFORE AFTER REF\"");
        p->name_size = n / 2;
        memcpy(c.before, text, n);
        memcpy(c.after, text + n + 1, n);
        if (!git_ref_is_valid(text + 2 * n + 2))
                return malformed(p, "a ref to update has no valid name");
        for (size_t i = 0; i < p->n_commands; i++)
                if (strcmp(p->commands[i].ref, text + 2 * n + 2) == 0)
                        return malformed(p, "a ref is to be updated twice");
        if (is_zero(c.before) && is_zero(c.after))
                return malformed(p, "a ref update creates and deletes at once");
        if (p->n_commands == GIT_PUSH_COMMANDS_MAX)
                return malformed(p, "more refs are to be updated than can be judged at once");
        c.change = is_zero(c.before) ? GIT_CREATE : is_zero(c.after) ? GIT_DELETE : GIT_FORCE;

        more = reallocarray(p->commands, p->n_commands + 1, sizeof(*more));
        if (!more)
                return -ENOMEM;
        p->commands = more;
        c.ref = strdup(text + 2 * n + 2);
        if (!c.ref)
                return -ENOMEM;
        p->commands[p->n_commands++] = c;
        return 0;
}

/* Also in lines that are none: a client that would speak without a report, or sign what it says, is not understood. */
static int take_line(GitPush *p, const PktLine *line) {
        size_t n = pkt_line_text_size(line), text;
        _cleanup_free_ char *copy = NULL;

        copy = malloc(n + 1);
        if (!copy)
                return -ENOMEM;
        memcpy(copy, line->data, n);
        copy[n] = '\0';
        text = strlen(copy);
        if (p->stage == STAGE_OPTIONS)
                return text == n ? 0 : malformed(p, "a push option has a zero byte");
        if (strncmp(copy, "shallow ", 8) == 0 && p->n_commands == 0)
                return 0;
        if (strncmp(copy, "push-cert", 9) == 0)
                return malformed(p, "signed pushes are not understood here");
        if (text < n && p->n_commands > 0)
                return malformed(p, "a ref update has a zero byte");
        if (text < n && strlen(copy + text + 1) != n - text - 1)
                return malformed(p, "capabilities have a zero byte");
        if (text < n)
                read_capabilities(p, copy + text + 1);
        return add_command(p, copy);
}

static bool must_be_proved(const GitPush *p) {
        for (size_t i = 0; i < p->n_commands; i++)
                if (p->commands[i].change == GIT_FORCE)
                        return true;
        return false;
}

/* Commands are over, or options. */
static int take_flush(GitPush *p) {
        if (p->stage == STAGE_COMMANDS && p->options) {
                p->stage = STAGE_OPTIONS;
                return 0;
        }
        p->stage = must_be_proved(p) ? STAGE_PACK : STAGE_READY;
        return p->stage == STAGE_PACK ? git_pack_new(&p->pack, p->name_size) : 0;
}

/* Uses bytes up to the end of a pkt-line. */
static int feed_head(GitPush *p, const uint8_t **data, size_t *size) {
        PktLine line;
        ssize_t used;
        size_t n;
        int r;

        /* a line at a time: what is behind the flush is pack */
        n = buffer_size(&p->line) < 4 ? 4 - buffer_size(&p->line) : 0;
        if (n == 0) {
                /* its four digits say how much there will be; no more is looked at */
                used = pkt_line_read(buffer_data(&p->line), PKT_LINE_MAX, &line);
                if (used < 0)
                        return malformed(p, "that is no pkt-line");
                n = (size_t) used > buffer_size(&p->line) ? (size_t) used - buffer_size(&p->line) : 0;
        }
        n = n < *size ? n : *size;
        r = buffer_append(&p->line, *data, n);
        if (r < 0)
                return r;
        *data += n;
        *size -= n;
        p->head_size += n;
        if (p->head_size > GIT_PUSH_HEAD_MAX)
                return malformed(p, "its ref updates are larger than can be judged");

        used = pkt_line_read(buffer_data(&p->line), buffer_size(&p->line), &line);
        if (used < 0)
                return malformed(p, "that is no pkt-line");
        if (used == 0)
                return 0;
        r = line.kind == PKT_DATA ? take_line(p, &line) : line.kind == PKT_FLUSH ? take_flush(p) : malformed(p, "a delimiter is not expected here");
        buffer_clear(&p->line);
        return r;
}

/* ---- ancestry ---- */

static void prove(GitPush *p) {
        uint8_t before[GIT_NAME_MAX], after[GIT_NAME_MAX];

        for (size_t i = 0; p->pack && i < p->n_commands; i++) {
                GitCommand *c = &p->commands[i];

                if (c->change == GIT_FORCE && text_unhex(c->before, before, p->name_size) == 0 && text_unhex(c->after, after, p->name_size) == 0 &&
                    git_pack_descends(p->pack, after, before))
                        c->change = GIT_FAST_FORWARD;
        }
        p->pack = git_pack_free(p->pack);
        p->stage = STAGE_READY;
}

int git_push_feed(GitPush *p, const void *data, size_t size, bool last) {
        const uint8_t *at = data;
        int r;

        while (size > 0 && p->stage < STAGE_PACK) {
                r = feed_head(p, &at, &size);
                if (r != 0)
                        return r;
        }
        if (p->stage == STAGE_MALFORMED)
                return GIT_PUSH_E_MALFORMED;
        if (p->stage < STAGE_PACK)
                return last ? malformed(p, "it ends among its ref updates") : 0;

        p->pack_size += size;
        if (p->stage == STAGE_PACK && (git_pack_feed(p->pack, at, size) || last || p->pack_size > GIT_PUSH_PROOF_MAX))
                prove(p);
        return p->stage == STAGE_READY ? GIT_PUSH_E_READY : 0;
}

/* ---- the report ---- */

static int append_line(Buffer *out, const char *text) {
        size_t n = strlen(text);

        return pkt_line_append(out, text, n < 1000 ? n : 1000);
}

int git_push_write_report(const GitPush *p, const char *unpack, GitPushWhy why, void *userdata, Buffer *out) {
        Buffer report = {};
        int r;

        if (!p->reports || p->n_commands == 0)
                return -ENOTSUP;

        {
                _cleanup_free_ char *line = text_format("unpack %s\n", unpack);

                r = line ? append_line(&report, line) : -ENOMEM;
        }
        for (size_t i = 0; i < p->n_commands && r >= 0; i++) {
                _cleanup_free_ char *line = text_format("ng %s %s\n", p->commands[i].ref, why(&p->commands[i], userdata));

                r = line ? append_line(&report, line) : -ENOMEM;
        }
        if (r >= 0)
                r = pkt_line_append_flush(&report);

        if (r >= 0 && !p->sideband)
                r = buffer_append(out, buffer_data(&report), buffer_size(&report));
        /* in pieces that the small band takes as well */
        for (size_t i = 0; p->sideband && i < buffer_size(&report) && r >= 0; i += 900) {
                size_t n = buffer_size(&report) - i < 900 ? buffer_size(&report) - i : 900;
                uint8_t piece[901] = { 1 };

                memcpy(piece + 1, buffer_data(&report) + i, n);
                r = pkt_line_append(out, piece, n + 1);
        }
        if (r >= 0 && p->sideband)
                r = pkt_line_append_flush(out);
        buffer_done(&report);
        return r < 0 ? r : 0;
}
