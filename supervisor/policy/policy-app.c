/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The member "app" of credentials/NAME.json with "kind": "github-app": whose key the host's value is, and what its tokens may do.
 *
 *   { "id": "123456", "installation": 7654321, "api": "https://api.github.com",
 *     "repositories": [ "acme/widgets", "acme/" and a star ], "permissions": { "contents": "write", "pull_requests": "write" } }
 *
 * A token is for one repository, that of the run's item, which must be one of "repositories". Without "installation" the API is asked which
 * one covers the repository.
 */

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "policy/policy-egress.h"
#include "policy/policy-internal.h"

#define API_DEFAULT "https://api.github.com"
#define NAME_CHARACTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_."

static bool is_name(const char *s, size_t n) {
        return n >= 1 && n <= 100 && strspn(s, NAME_CHARACTERS) >= n && !(n <= 2 && strncmp(s, "..", n) == 0);
}

bool policy_is_repository(const char *s) {
        const char *slash = s ? strchr(s, '/') : NULL;

        return slash && is_name(s, (size_t) (slash - s)) && is_name(slash + 1, strlen(slash + 1));
}

static const char *check_repository(const char *s) {
        const char *slash = strchr(s, '/');

        if (slash && strcmp(slash, "/*") == 0 ? is_name(s, (size_t) (slash - s)) : policy_is_repository(s))
                return NULL;
        return "must be OWNER/NAME or OWNER/*";
}

bool policy_app_covers(const PolicyApp *app, const char *repository) {
        for (size_t i = 0; i < json_array_size(app->repositories); i++) {
                const char *s = json_string_value(json_array_get(app->repositories, i));
                size_t n = strlen(s);

                if (strcmp(s + n - 2, "/*") == 0 ? strncasecmp(s, repository, n - 1) == 0 : strcasecmp(s, repository) == 0)
                        return true;
        }
        return false;
}

/* "https://HOST[:PORT][/PATH]". False: it is no such thing. */
static bool read_api(const char *url, PolicyApp *ret) {
        static const char scheme[] = "https://";
        const char *host = url + strlen(scheme), *end, *path;
        unsigned long port = 443;
        char *digits;

        if (strncmp(url, scheme, strlen(scheme)) != 0)
                return false;
        end = host + strcspn(host, ":/");
        path = end;
        if (*end == ':') {
                if (end[1] < '1' || end[1] > '9')
                        return false;
                port = strtoul(end + 1, &digits, 10);
                path = digits;
        }
        if (end == host || (size_t) (end - host) >= sizeof(ret->host) || port > 65535 || (*path && *path != '/') ||
            strlen(path) >= sizeof(ret->base) || path[strspn(path, NAME_CHARACTERS "/")] || strstr(path, "//") || strstr(path, "/.") ||
            (*path && path[strlen(path) - 1] == '/'))
                return false;

        *(char *) mempcpy(ret->host, host, (size_t) (end - host)) = '\0';
        ret->port = (uint16_t) port;
        strcpy(ret->base, path);
        return check_host_name(ret->host) == NULL;
}

int policy_app_read(const json_t *credential, PolicyApp *ret) {
        const json_t *o = json_object_get(credential, "app");
        const char *api = json_string_value(json_object_get(o, "api"));

        *ret = (PolicyApp) {
                .id = json_string_value(json_object_get(o, "id")),
                .installation = (uint64_t) json_integer_value(json_object_get(o, "installation")),
                .repositories = json_object_get(o, "repositories"),
                .permissions = json_object_get(o, "permissions"),
        };
        return ret->id && json_array_size(ret->repositories) > 0 && json_object_size(ret->permissions) > 0 && read_api(api ?: API_DEFAULT, ret)
                       ? 0
                       : -EINVAL;
}

static const char *check_id(const char *s) {
        return *s == '\0' || strlen(s) > 64 || s[strspn(s, NAME_CHARACTERS)] != '\0' ? "must be an app's id or client id" : NULL;
}

static void check_permissions(const Node *app) {
        static const char *const levels[] = { "read", "write", "admin", NULL };
        const char *name;
        json_t *value;
        Node n;

        if (!node_object(app, "permissions", NODE_REQUIRED, &n))
                return;
        if (json_object_size(n.value) < 1 || json_object_size(n.value) > 64)
                node_fail(&n, "must have between 1 and 64 permissions");
        json_object_foreach(n.value, name, value) {
                const char *level;

                if (*name == '\0' || strlen(name) > 64 || name[strspn(name, "abcdefghijklmnopqrstuvwxyz_")] != '\0')
                        node_fail_at(&n, name, "must be the name of a permission");
                else
                        (void) node_choice(&n, name, NODE_REQUIRED, levels, &level);
        }
}

void policy_check_app(const Node *top, const char *kind) {
        static const char *const known[] = { "id", "installation", "api", "repositories", "permissions", NULL };
        const json_t *repositories;
        const char *text, *wrong;
        PolicyApp parts;
        uint64_t number;
        Node n;

        if (strcmp(kind, "github-app") != 0) {
                if (json_object_get(top->value, "app"))
                        node_fail_at(top, "app", "belongs to a credential of the kind \"github-app\"");
                return;
        }
        if (!node_object(top, "app", NODE_REQUIRED, &n) || !node_check_object(&n, known))
                return;

        if (node_string(&n, "id", NODE_REQUIRED, &text) && (wrong = check_id(text)))
                node_fail_at(&n, "id", "%s", wrong);
        (void) node_uint(&n, "installation", NODE_NULLABLE, 1, INT64_MAX, &number);
        if (node_string(&n, "api", 0, &text) && !read_api(text, &parts))
                node_fail_at(&n, "api", "must be https://HOST, with a port and a path if need be, and no slash at its end");
        (void) node_strings(&n, "repositories", NODE_REQUIRED, 1, 256, check_repository, &repositories);
        check_permissions(&n);
}

/* A token may be made while the request waits: it must not be part of what the request's length is counted from. */
void policy_check_app_places(const Node *top, const PolicyCredential *c) {
        if (strcmp(c->kind, "github-app") != 0)
                return;
        for (size_t i = 0; i < json_array_size(c->places); i++)
                if (json_object_get(json_array_get(c->places, i), "path"))
                        node_fail_at(top, "places", "a minted token has its place in a header: \"header\", \"bearer\" or \"basic\"");
}

/* ---- what the egress policy must allow ---- */

static void check_call(const Node *n, const PolicyApp *app, const EgressPolicy *egress, const char *egress_name, const char *method, const char *path) {
        char target[sizeof(app->base) + 64];
        EgressDecision d;

        (void) snprintf(target, sizeof(target), "%s%s", app->base, path);
        egress_policy_decide(egress, app->host, app->port, method, target, &d);
        if (d.verdict != EGRESS_INSPECT)
                node_fail(n, "its tokens come from https://%s:%u, where egress policy \"%s\" does not allow %s %s (tls: inspect)",
                          app->host, app->port, egress_name, method, target);
}

void policy_check_app_reach(const Node *n, const PolicyCredential *c, const EgressPolicy *egress, const char *egress_name) {
        PolicyApp app;

        if (strcmp(c->kind, "github-app") != 0 || policy_app_read(c->document, &app) < 0)
                return;
        if (app.installation == 0)
                check_call(n, &app, egress, egress_name, "GET", "/repos/owner/name/installation");
        check_call(n, &app, egress, egress_name, "POST", "/app/installations/1/access_tokens");
        check_call(n, &app, egress, egress_name, "DELETE", "/installation/token");
}
