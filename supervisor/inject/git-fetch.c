/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "inject/git-fetch.h"

#include <errno.h>
#include <string.h>

#include "inject/pkt-line.h"

enum { TEXT_MAX = 4096 }; /* of one line: a list of capabilities, a pattern of refs */

void git_fetch_done(GitFetch *f) {
        buffer_done(&f->line);
}

static int fail(GitFetch *f, const char *why) {
        f->error = why;
        f->failed = true;
        return -EBADMSG;
}

static bool begins(const char *text, const char *with) {
        return strncmp(text, with, strlen(with)) == 0;
}

static bool is_name(const char *text, char end) {
        size_t n = strspn(text, "0123456789abcdef");

        return (n == 40 || n == 64) && (text[n] == end || text[n] == '\0');
}

static void count_argument(GitFetch *f, const char *text) {
        f->n_wants += begins(text, "want ") || begins(text, "want-ref ");
        f->n_haves += begins(text, "have ");
        f->shallow = f->shallow || begins(text, "shallow ") || begins(text, "deepen");
        f->partial = f->partial || begins(text, "filter ");
}

/* What a client of version 2 asks for; what it says about itself, and arguments, are the commands' own. */
static int take_v2(GitFetch *f, const char *text) {
        static const char *const commands[] = { "ls-refs", "fetch", "object-info", "bundle-uri" };

        if (f->in_arguments) {
                if ((begins(text, "want ") && !is_name(text + 5, '\0')) || (begins(text, "have ") && !is_name(text + 5, '\0')))
                        return fail(f, "it wants or has something that is no object's name");
                count_argument(f, text);
                return 0;
        }
        if (!begins(text, "command="))
                return *f->command ? 0 : fail(f, "it begins with no command");
        if (*f->command)
                return fail(f, "it has more than one command");
        for (size_t i = 0; i < ELEMENTSOF(commands); i++)
                if (strcmp(text + 8, commands[i]) == 0) {
                        strcpy(f->command, commands[i]);
                        return 0;
                }
        return fail(f, "its command is not known here");
}

static int take_v0(GitFetch *f, const char *text) {
        static const char *const others[] = { "deepen ", "deepen-since ", "deepen-not ", "filter " };

        strcpy(f->command, "fetch");
        count_argument(f, text);
        if (begins(text, "want "))
                return is_name(text + 5, ' ') ? 0 : fail(f, "it wants something that is no object's name");
        if (begins(text, "have "))
                return is_name(text + 5, '\0') ? 0 : fail(f, "it has something that is no object's name");
        if (begins(text, "shallow "))
                return is_name(text + 8, '\0') ? 0 : fail(f, "its history ends at something that is no object's name");
        if (strcmp(text, "done") == 0)
                return 0;
        for (size_t i = 0; i < ELEMENTSOF(others); i++)
                if (begins(text, others[i]))
                        return 0;
        return fail(f, "it asks for something that is not known here");
}

static int take_text(GitFetch *f, const PktLine *line) {
        size_t n = pkt_line_text_size(line);
        char text[TEXT_MAX + 1];

        if (n > TEXT_MAX || memchr(line->data, '\0', n))
                return fail(f, "a line is too long, or has a zero byte");
        memcpy(text, line->data, n);
        text[n] = '\0';
        for (size_t i = 0; i < n; i++)
                if ((uint8_t) text[i] < ' ' || text[i] == 0x7f)
                        return fail(f, "a line has control characters");
        if (f->version == 0 && !*f->command && begins(text, "command="))
                f->version = 2;
        return f->version == 2 ? take_v2(f, text) : take_v0(f, text);
}

static int take_line(GitFetch *f, const PktLine *line) {
        switch (line->kind) {
        case PKT_DATA:
                return take_text(f, line);
        case PKT_DELIM:
                if (f->version != 2 || !*f->command || f->in_arguments)
                        return fail(f, "a delimiter is not expected here");
                f->in_arguments = true;
                return 0;
        case PKT_FLUSH:
                if (f->version == 2) /* a request is over; another one would have a body of its own */
                        f->in_arguments = true;
                return 0;
        case PKT_RESPONSE_END:
                break;
        }
        return fail(f, "a response's end is not expected here");
}

int git_fetch_feed(GitFetch *f, const void *data, size_t size, bool last) {
        int r;

        if (f->failed)
                return -EBADMSG;
        r = buffer_append(&f->line, data, size);
        while (r == 0 && buffer_size(&f->line) > 0) {
                PktLine line;
                ssize_t used = pkt_line_read(buffer_data(&f->line), buffer_size(&f->line), &line);

                if (used < 0)
                        return fail(f, "that is no pkt-line");
                if (used == 0)
                        break;
                r = take_line(f, &line);
                buffer_consume(&f->line, (size_t) used);
        }
        if (r == 0 && last && buffer_size(&f->line) > 0)
                return fail(f, "it ends within a pkt-line");
        return r;
}
