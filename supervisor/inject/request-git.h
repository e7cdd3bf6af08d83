/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* A request of git's smart protocol, or of the batch API of Git LFS: a part of request.c. */

#include "inject/git-fetch.h"
#include "inject/git-push.h"
#include "inject/gunzip.h"
#include "inject/request.h"

typedef struct RequestGit {
        GitService service;
        char *repository;   /* owned; as the target has it, escaped */
        const char *error;  /* static; why the body cannot be read */
        GitPush *push;      /* owned; of a push, as the next two are of a fetch */
        GitFetch fetch;
        Gunzip *gunzip;     /* owned */
        uint64_t decoded;
        json_t *batch;      /* owned; the body of LFS */

        json_t *rule;       /* owned; what egressd's answer says of it; NULL: nothing yet */
        char *label;        /* owned; the rule's */
        bool passing;       /* of a push: its beginning is over */
        bool recorded;      /* git.push is in the audit log */
} RequestGit;

/* Is it one? Then q->git is there. */
int request_git_begin(Request *q);
RequestGit *request_git_free(RequestGit *g);

/* Must its body, or the beginning of it, come before request_clear()? */
bool request_git_holds(const Request *q);
/* As request_hold_body(). */
int request_git_hold(Request *q, const void *data, size_t size, bool last, Refusal *ret);
/* The rest of a push goes by. */
int request_git_pass(Request *q, const void *data, size_t size, bool last, Refusal *ret);

/* egressd has allowed the request: is it one that its rule, if that is about git, allows? */
int request_git_judge(Request *q, const EgressAnswer *a, Refusal *ret);
/* What is to be in the audit log before a push leaves, the caller's; NULL: nothing (any more), or no memory. */
json_t *request_git_record(const Request *q);
bool request_git_must_record(const Request *q);

/* The answer in the form in which git shows its user the refusal. False: it has none for that. */
bool request_git_answer(const Request *q, const Refusal *refusal, RefusalAnswer *ret);
