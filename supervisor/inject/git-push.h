/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * The body of a POST to git-receive-pack (gitprotocol-pack(5), "Reference Update Request and Packfile Transfer"): which refs are to
 * become what, and what the pack shows of their ancestry. And git's own answer, if that is refused. Pure.
 */

#include "inject/buffer.h"
#include "inject/git-pack.h"
#include "inject/pkt-line.h"
#include "policy/policy-git.h"

enum {
        GIT_PUSH_COMMANDS_MAX = 256,
        GIT_PUSH_HEAD_MAX = 256 * 1024,      /* of commands and options */
        GIT_PUSH_PROOF_MAX = 4 * 1024 * 1024, /* of the pack, as it comes: so much is held to see what descends from what */
};

typedef struct GitCommand {
        char *ref; /* owned */
        char before[2 * GIT_NAME_MAX + 1], after[2 * GIT_NAME_MAX + 1]; /* hexadecimal; zeros: the ref is not there */
        GitChange change;
} GitCommand;

typedef struct GitPush {
        GitCommand *commands; /* owned */
        size_t n_commands;
        size_t name_size;                  /* in bytes; 0 before the first command */
        bool reports, sideband, options;   /* what the client asked for */
        uint64_t pack_size;                /* so far */
        const char *error;                 /* static; why it cannot be read */

        /* the reader's own */
        int stage;
        Buffer line;
        size_t head_size;
        GitPack *pack; /* owned; NULL unless something must be proved */
} GitPush;

enum {
        _GIT_PUSH_E_SUCCESS,
        GIT_PUSH_E_READY,     /* all is known that will be: what follows is pack */
        GIT_PUSH_E_MALFORMED, /* error says why */
};

int git_push_new(GitPush **ret);
GitPush *git_push_free(GitPush *p);
DEFINE_CLEANUP(GitPush *, git_push_free)

/* Reads on; last: nothing more will come. 0: more is needed before it can be judged; else as above, each time from then on; negative
 * errno. */
int git_push_feed(GitPush *p, const void *data, size_t size, bool last);

/* What a server says that took none of it: in place of the pack's state, and of each ref. Texts of one line. -ENOTSUP: the client
 * wants no report. */
typedef const char *(*GitPushWhy)(const GitCommand *command, void *userdata);
int git_push_write_report(const GitPush *p, const char *unpack, GitPushWhy why, void *userdata, Buffer *out);
