/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * What a rule of an egress policy says about git over HTTP: pure, for egressd (which request is what), inject (which refs), and anchorctl.
 *
 * A rule's "git" in its full form, as it is frozen and as egressd hands it to inject:
 *
 *   { "repositories": [ "team/app", "team/lib-*" ], "fetch": true, "lfs": false,
 *     "push": { "refs": [ "refs/heads/agent-*" ], "delete": false, "force": false, "max_pack": "64M" } }
 *
 * without "push" if nothing may be pushed.
 */

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a request is, by its method and target. */
typedef enum GitService {
        GIT_NONE,
        GIT_DUMB,        /* the protocol without a server behind it: files */
        GIT_ASK_FETCH,   /* GET …/info/refs?service=git-upload-pack */
        GIT_ASK_PUSH,    /* GET …/info/refs?service=git-receive-pack */
        GIT_FETCH,       /* POST …/git-upload-pack */
        GIT_PUSH,        /* POST …/git-receive-pack */
        GIT_LFS_BATCH,   /* POST …/info/lfs/objects/batch */
} GitService;

/* *ret_repository (may be NULL) points into target; it is *ret_size long, without the slash before it and ".git" behind it. */
GitService git_service_of(const char *method, const char *target, const char **ret_repository, size_t *ret_size);

/* Might an origin take it for a request of the smart protocol, however it is written? `path` is the target's, decoded and without query; NULL: it can be
 * read in two ways. That whose service is anything but GIT_NONE and GIT_DUMB is one. */
bool git_is_smart(const char *method, const char *target, const uint8_t *path, size_t size);

/* May this rule be for that request at all? NULL, or the reason of a denial (static): "git-protocol", "git-fetch", "git-push", "git-lfs". */
const char *git_rule_check_service(const json_t *rule, GitService service);

/* What becomes of a ref. */
typedef enum GitChange {
        GIT_CREATE,
        GIT_FAST_FORWARD, /* shown to be one */
        GIT_FORCE,        /* any other update */
        GIT_DELETE,
} GitChange;

const char *git_change_to_string(GitChange change);
/* -EINVAL */
int git_change_from_string(const char *s, GitChange *ret);

/* May this ref become that? NULL, or the reason (static): "git-push", "git-ref", "git-delete", "git-force". */
const char *git_rule_check_ref(const json_t *rule, const char *ref, GitChange change);

/* In bytes. */
uint64_t git_rule_max_pack(const json_t *rule);

/* The rules of git-check-ref-format(1) for a full name, "refs/…". */
bool git_ref_is_valid(const char *ref);

/* A pattern is a ref, or has one "*" in it, which stands for any text, slashes included (as in a refspec). */
bool git_ref_matches(const char *pattern, const char *ref);
