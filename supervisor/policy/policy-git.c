/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "policy/policy-git.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "policy/policy.h"
#include "util/cleanup.h"
#include "util/text.h"

/* ---- requests ---- */

static bool ends_in(const char *text, size_t size, const char *end, size_t *ret_size) {
        size_t n = strlen(end);

        if (size <= n || memcmp(text + size - n, end, n) != 0)
                return false;
        *ret_size = size - n;
        return true;
}

static GitService service_of(const char *method, const char *path, size_t size, const char *query, size_t *ret_size) {
        bool get = strcmp(method, "GET") == 0, post = strcmp(method, "POST") == 0;

        if (ends_in(path, size, "/info/refs", ret_size)) {
                if (get && strcmp(query, "?service=git-upload-pack") == 0)
                        return GIT_ASK_FETCH;
                if (get && strcmp(query, "?service=git-receive-pack") == 0)
                        return GIT_ASK_PUSH;
                return GIT_DUMB;
        }
        if (!post || *query)
                return GIT_NONE;
        if (ends_in(path, size, "/git-upload-pack", ret_size))
                return GIT_FETCH;
        if (ends_in(path, size, "/git-receive-pack", ret_size))
                return GIT_PUSH;
        return ends_in(path, size, "/info/lfs/objects/batch", ret_size) ? GIT_LFS_BATCH : GIT_NONE;
}

GitService git_service_of(const char *method, const char *target, const char **ret_repository, size_t *ret_size) {
        size_t path = strcspn(target, "?"), n = 0;
        GitService s;

        s = service_of(method, target, path, target + path, &n);
        if (s != GIT_NONE && ret_repository) {
                bool slash = *target == '/';

                (void) ends_in(target, n, ".git", &n);
                *ret_repository = target + slash;
                *ret_size = n - slash;
        }
        return s;
}

/* ---- what might be one ---- */

enum { TARGET_MAX = 8192, DECODINGS_MAX = 4 };

/* In place; whether there was any escape. */
static bool unescape(char *text) {
        bool any = false;
        char *to = text;

        for (const char *p = text; *p; to++)
                if (*p == '%' && text_hex_digit(p[1]) >= 0 && text_hex_digit(p[2]) >= 0) {
                        *to = (char) (text_hex_digit(p[1]) * 16 + text_hex_digit(p[2]) ?: ' '); /* a zero would end the text */
                        p += 3;
                        any = true;
                } else
                        *to = *p++;
        *to = '\0';
        return any;
}

/* A path with more than one reading: it is enough that one of git's words is in any of them. */
static bool has_word_of_git(const char *path, size_t size) {
        static const char *const words[] = { "git-upload-", "git-receive-pack", "refs", "batch" };
        char text[TARGET_MAX + 1];
        unsigned n = 0;

        if (size > TARGET_MAX)
                return true;
        memcpy(text, path, size);
        text[size] = '\0';
        while (unescape(text))
                if (++n == DECODINGS_MAX)
                        return true;
        for (const char *p = text; *p; p++)
                if ((unsigned char) *p < ' ' || (unsigned char) *p >= 0x7f)
                        return true;
        for (size_t i = 0; i < ELEMENTSOF(words); i++)
                if (strcasestr(text, words[i]))
                        return true;
        return false;
}

/* Does it end in that, whatever an origin drops (parameters, a slash at the end) or folds (case)? */
static bool ends_somehow(const char *text, size_t size, const char *end) {
        size_t n = strlen(end);

        return size >= n && strncasecmp(text + size - n, end, n) == 0;
}

bool git_is_smart(const char *method, const char *target, const uint8_t *path, size_t size) {
        static const char *const services[] = { "/git-upload-pack", "/git-receive-pack", "/git-upload-archive", "/info/lfs/objects/batch" };
        bool reads = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0, parameter = false;
        size_t end = strcspn(target, "?"), n = 0;
        char text[TARGET_MAX];

        if (!path || size > sizeof(text))
                return has_word_of_git(target, end);
        for (size_t i = 0; i < size; i++) {
                parameter = path[i] == ';' || (parameter && path[i] != '/');
                if (!parameter)
                        text[n++] = (char) path[i];
        }
        while (n > 0 && text[n - 1] == '/')
                n--;

        if (ends_somehow(text, n, "/info/refs"))
                return !reads || target[end] == '?'; /* without a service it is the dumb protocol's */
        for (size_t i = 0; i < ELEMENTSOF(services); i++)
                if (ends_somehow(text, n, services[i]))
                        return !reads;
        return false;
}

const char *git_rule_check_service(const json_t *rule, GitService service) {
        bool fetch = json_is_true(json_object_get(rule, "fetch")), push = json_object_get(rule, "push");

        switch (service) {
        case GIT_NONE:
        case GIT_DUMB:
                return "git-protocol";
        case GIT_ASK_FETCH:
        case GIT_FETCH:
                return fetch ? NULL : "git-fetch";
        case GIT_ASK_PUSH:
        case GIT_PUSH:
                return push ? NULL : "git-push";
        case GIT_LFS_BATCH:
                return json_is_true(json_object_get(rule, "lfs")) ? NULL : "git-lfs";
        }
        return "git-protocol";
}

/* ---- refs ---- */

static const char *const changes[] = {
        [GIT_CREATE] = "create",
        [GIT_FAST_FORWARD] = "fast-forward",
        [GIT_FORCE] = "force",
        [GIT_DELETE] = "delete",
};

const char *git_change_to_string(GitChange change) {
        return changes[change];
}

int git_change_from_string(const char *s, GitChange *ret) {
        for (size_t i = 0; i < ELEMENTSOF(changes); i++)
                if (strcmp(changes[i], s) == 0) {
                        *ret = (GitChange) i;
                        return 0;
                }
        return -EINVAL;
}

/* One part of the name, between slashes. */
static bool part_is_valid(const char *part, size_t n) {
        if (n == 0 || part[0] == '.' || part[n - 1] == '.' || (n >= 5 && memcmp(part + n - 5, ".lock", 5) == 0))
                return false;
        for (size_t i = 0; i < n; i++)
                if ((unsigned char) part[i] <= ' ' || part[i] == 0x7f || strchr("~^:?*[\\", part[i]) || (i + 1 < n && part[i] == '.' && part[i + 1] == '.') ||
                    (i + 1 < n && part[i] == '@' && part[i + 1] == '{'))
                        return false;
        return true;
}

bool git_ref_is_valid(const char *ref) {
        size_t n_parts = 0;

        if (strncmp(ref, "refs/", 5) != 0 || strlen(ref) > 1024)
                return false;
        for (const char *p = ref;; n_parts++) {
                size_t n = strcspn(p, "/");

                if (!part_is_valid(p, n))
                        return false;
                if (p[n] == '\0')
                        return n_parts >= 1;
                p += n + 1;
        }
}

bool git_ref_matches(const char *pattern, const char *ref) {
        const char *star = strchr(pattern, '*');
        size_t head, tail, n = strlen(ref);

        if (!star)
                return strcmp(pattern, ref) == 0;
        head = (size_t) (star - pattern);
        tail = strlen(star + 1);
        return n > head + tail && strncmp(pattern, ref, head) == 0 && strcmp(ref + n - tail, star + 1) == 0;
}

const char *git_rule_check_ref(const json_t *rule, const char *ref, GitChange change) {
        const json_t *push = json_object_get(rule, "push"), *refs = json_object_get(push, "refs");
        bool named = false;

        if (!push)
                return "git-push";
        for (size_t i = 0; i < json_array_size(refs) && !named; i++) {
                const char *pattern = json_string_value(json_array_get(refs, i));

                named = pattern && git_ref_matches(pattern, ref);
        }
        if (!named || !git_ref_is_valid(ref))
                return "git-ref";
        if (change == GIT_DELETE && !json_is_true(json_object_get(push, "delete")))
                return "git-delete";
        if (change == GIT_FORCE && !json_is_true(json_object_get(push, "force")))
                return "git-force";
        return NULL;
}

uint64_t git_rule_max_pack(const json_t *rule) {
        const char *text = json_string_value(json_object_get(json_object_get(rule, "push"), "max_pack"));
        uint64_t v;

        return text && policy_parse_size(text, &v) == 0 ? v : 0;
}
