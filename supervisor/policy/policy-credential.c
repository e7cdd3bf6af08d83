/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * credentials/NAME.json: where a credential may be used. Never its value, which is in the host's
 * encrypted store under the same name.
 *
 *   { "description": TEXT, "kind": "static" | "github-app", "app": { as atop policy-app.c }, "provider": PROVIDER, "on_foreign": "refuse" | "pass" | "replace",
 *     "sentinel": { "prefix": "ghp_", "alphabet": "alnum", "length": 40, "checksum": "crc32-base62" },
 *     "hosts": [ HOST ], "ports": [ 443 ], "methods": [ "POST" ], "paths": [ "/v1/" ],
 *     "places": [ { "header": "x-api-key" }, { "bearer": true }, { "basic": "user" | "password" | "either" },
 *                 { "git": USER },
 *                 { "query": PARAMETER, "method": "GET", "path": "/exact" },
 *                 { "json": "/pointer", "method": "POST", "path": "/exact" },
 *                 { "form": FIELD, "method": "POST", "path": "/exact" } ] }
 *
 * The sentinel is what the guest holds instead: the prefix, then random characters of the alphabet, then the checksum if there is one, up
 * to the length. At least 128 bits of it must be random, so that nobody guesses one and that it cannot be
 * met by chance in other data.
 *
 * A value in a query or a body is content to an origin, and content can be kept and read back. So such a place is one method on
 * one path, and a workflow may use it only if its egress policy lets nothing else write to that host (policy-reach.c).
 *
 * A credential that names a provider is for hosts of that provider alone; one for a host that any provider's file lists names one that does.
 */

#include <string.h>

#include "policy/policy-internal.h"

/* The names are those of secret/sentinel.c, which makes them. */
static const char *const alphabets[] = {
        "hex", "lower-alnum", "upper-alnum", "base32", "alnum", "base64", "base64url", NULL,
};

/* Of one character, in hundredths of a bit, rounded down. */
static unsigned alphabet_bits(const char *alphabet) {
        static const unsigned bits[] = { 400, 516, 516, 500, 595, 600, 600 };

        for (size_t i = 0; alphabets[i]; i++)
                if (alphabets[i] == alphabet)
                        return bits[i];
        return 0;
}

/* Checksums at the end of a token that tools look at: "crc32-base62" is GitHub's, six characters over what is behind the prefix. */
static const char *const checksums[] = { "crc32-base62", NULL };

enum { CHECKSUM_LENGTH = 6 };

static const char *check_sentinel_prefix(const char *s) {
        /* the characters that mean nothing in a header, an URL, a shell or a JSON string */
        if (strlen(s) > 64 ||
            s[strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.")] != '\0')
                return "must be at most 64 letters, digits, '-', '_' and '.'";
        return NULL;
}

static void check_sentinel(const Node *top, PolicyCredential *c) {
        static const char *const known[] = { "prefix", "alphabet", "length", "checksum", NULL };
        const char *wrong;
        size_t fixed;
        Node n;

        if (!node_object(top, "sentinel", NODE_REQUIRED, &n) || !node_check_object(&n, known))
                return;

        c->prefix = "";
        if (node_string(&n, "prefix", 0, &c->prefix) && (wrong = check_sentinel_prefix(c->prefix)))
                node_fail_at(&n, "prefix", "%s", wrong);
        (void) node_choice(&n, "checksum", NODE_NULLABLE, checksums, &c->checksum);
        if (!node_choice(&n, "alphabet", NODE_REQUIRED, alphabets, &c->alphabet) ||
            !node_uint(&n, "length", NODE_REQUIRED, 1, 1024, &c->length))
                return;

        if (c->checksum && strcmp(c->alphabet, "alnum") != 0)
                node_fail_at(&n, "checksum", "is made of the alphabet \"alnum\"");
        fixed = strlen(c->prefix) + (c->checksum ? CHECKSUM_LENGTH : 0);
        if (c->length < fixed || (c->length - fixed) * alphabet_bits(c->alphabet) < 128 * 100)
                node_fail_at(&n, "length", "leaves less than 128 random bits %s", c->checksum ? "between prefix and checksum" : "behind the prefix");
}

static void check_ports(const Node *top, PolicyCredential *c) {
        Node array;

        if (!node_array(top, "ports", NODE_REQUIRED, &array))
                return;
        if (json_array_size(array.value) < 1 || json_array_size(array.value) > 16)
                node_fail(&array, "must have between 1 and 16 ports");

        for (size_t i = 0; i < json_array_size(array.value); i++) {
                Node n = node_element(&array, i);

                if (!json_is_integer(n.value) || json_integer_value(n.value) < 1 || json_integer_value(n.value) > 65535)
                        node_fail(&n, "must be a port between 1 and 65535");
        }
        c->ports = array.value;
}

static const char *check_header_name(const char *s) {
        static const char *const unfit[] = { "host", "content-length", "transfer-encoding", "connection", "cookie" };

        if (*s == '\0' || strlen(s) > 64 || s[strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789-")] != '\0')
                return "must be a header's name in lower case";
        for (size_t i = 0; i < ELEMENTSOF(unfit); i++)
                if (strcmp(s, unfit[i]) == 0)
                        return "must not be a header that frames or routes the request";
        return NULL;
}

static const char *check_parameter(const char *s) {
        if (*s == '\0' || strlen(s) > 64 || s[strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.[]")] != '\0')
                return "must be 1 to 64 letters, digits, '-', '_', '.', '[' and ']'";
        return NULL;
}

/* Not a pattern: the path as a request writes it, and nothing below it. */
static const char *check_exact_path(const char *s) {
        if (strchr(s, '*') || strchr(s, ';'))
                return "must be one path: no wildcard, no parameters";
        if (s[0] == '/' && s[1] != '\0' && s[strlen(s) - 1] == '/')
                return "must be one path, not all that is below it";
        return check_path_pattern(s);
}

static const char *check_body_pointer(const char *s) {
        return *s == '\0' ? "must not be the whole body" : check_json_pointer(s);
}

/* A place that is content: in a query, or in a body. */
static void check_content_place(const Node *n) {
        static const char *const bodies[] = { "POST", "PUT", "PATCH" };
        const char *method = "", *path, *name, *wrong;
        bool fits = false;

        if (node_string(n, "query", 0, &name) && (wrong = check_parameter(name)))
                node_fail_at(n, "query", "%s", wrong);
        if (node_string(n, "form", 0, &name) && (wrong = check_parameter(name)))
                node_fail_at(n, "form", "%s", wrong);
        if (node_string(n, "json", 0, &name) && (wrong = check_body_pointer(name)))
                node_fail_at(n, "json", "%s", wrong);
        if (node_string(n, "path", NODE_REQUIRED, &path) && (wrong = check_exact_path(path)))
                node_fail_at(n, "path", "%s", wrong);
        if (!node_string(n, "method", NODE_REQUIRED, &method))
                return;
        wrong = check_method(method);
        if (wrong)
                node_fail_at(n, "method", "%s", wrong);
        for (size_t i = 0; i < ELEMENTSOF(bodies); i++)
                fits = fits || strcmp(method, bodies[i]) == 0;
        if (!wrong && !json_object_get(n->value, "query") && !fits)
                node_fail_at(n, "method", "must be one whose request has a body: POST, PUT or PATCH");
}

static void check_head_place(const Node *n) {
        static const char *const halves[] = { "user", "password", "either", NULL };
        const char *header, *half, *user, *wrong;
        bool bearer = true;

        if (node_string(n, "header", 0, &header) && (wrong = check_header_name(header)))
                node_fail_at(n, "header", "%s", wrong);
        if (node_bool(n, "bearer", 0, &bearer) && !bearer)
                node_fail_at(n, "bearer", "must be true");
        (void) node_choice(n, "basic", 0, halves, &half);
        if (node_string(n, "git", 0, &user) && (*user == '\0' || strlen(user) > 64 ||
                                                user[strspn(user, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.@")] != '\0'))
                node_fail_at(n, "git", "must be a user's name: 1 to 64 letters, digits, '-', '_', '.' and '@'");
}

static void check_place(const Node *n) {
        static const char *const known[] = { "header", "bearer", "basic", "git", "query", "json", "form", "method", "path", NULL };
        static const char *const kinds[] = { "header", "bearer", "basic", "git", "query", "json", "form" };
        size_t n_kinds = 0, kind = 0;

        if (!node_check_object(n, known))
                return;
        for (size_t i = 0; i < ELEMENTSOF(kinds); i++)
                if (json_object_get(n->value, kinds[i])) {
                        kind = i;
                        n_kinds++;
                }

        if (n_kinds != 1)
                node_fail(n, "must have exactly one of \"header\", \"bearer\", \"basic\", \"git\", \"query\", \"json\" and \"form\"");
        else if (kind >= 4)
                check_content_place(n);
        else if (json_object_size(n->value) != 1)
                node_fail(n, "\"method\" and \"path\" belong to a place in a query or a body; for a header the credential's own \"methods\" and \"paths\" hold");
        else
                check_head_place(n);
}

static void check_places(const Node *top, PolicyCredential *c) {
        Node array;

        if (!node_array(top, "places", NODE_REQUIRED, &array))
                return;
        if (json_array_size(array.value) < 1 || json_array_size(array.value) > 16)
                node_fail(&array, "must have between 1 and 16 places");

        for (size_t i = 0; i < json_array_size(array.value); i++) {
                Node n = node_element(&array, i);

                check_place(&n);
        }
        c->places = array.value;
}

static bool has_host(const PolicyObject *provider, const char *host) {
        json_t *hosts = json_object_get(provider->document, "hosts");

        for (size_t i = 0; i < json_array_size(hosts); i++) {
                const char *s = json_string_value(json_array_get(hosts, i));

                if (s && strcmp(s, host) == 0)
                        return true;
        }
        return false;
}

/* Calls are counted by their host and their credential's provider. If these two do not know each other, a value is used and nothing is counted: with a
 * budget or without, that is no policy. */
static void check_metering(const Node *top, const PolicyCredential *c) {
        const PolicyObject *own = c->provider ? policy_object_find(top->policy, POLICY_PROVIDERS, c->provider) : NULL;
        Node array;

        if (!c->hosts || (own && own->reason) || !node_array(top, "hosts", 0, &array))
                return;
        for (size_t i = 0; i < json_array_size(array.value); i++) {
                Node n = node_element(&array, i);
                const char *host = json_string_value(n.value);

                if (own && !has_host(own, host))
                        node_fail(&n, "is none of the hosts of provider \"%s\", so that its calls would not be counted", c->provider);
                for (size_t k = 0; !own && k < top->policy->n_objects[POLICY_PROVIDERS]; k++) {
                        const PolicyObject *other = top->policy->objects[POLICY_PROVIDERS][k];

                        if (other->reason || !has_host(other, host))
                                continue;
                        node_fail(&n, "is a host of provider \"%s\", which the credential does not name, so that its calls would not be counted", other->name);
                        break;
                }
        }
}

void policy_check_credential(Policy *p, PolicyObject *o) {
        static const char *const known[] = {
                "description", "kind", "app", "provider", "on_foreign", "sentinel", "hosts", "ports", "methods", "paths", "places", NULL,
        };
        static const char *const kinds[] = { "static", "github-app", NULL };
        static const char *const foreign[] = { "refuse", "pass", "replace", NULL };
        PolicyCredential *c = &o->credential;
        Node top = node_top(p, o);
        const char *text;

        if (!node_check_object(&top, known))
                return;

        *c = (PolicyCredential) { .name = o->name, .document = o->document, .kind = kinds[0], .on_foreign = foreign[0] };

        (void) node_string(&top, "description", 0, &text);
        (void) node_reference(&top, "provider", NODE_NULLABLE, POLICY_PROVIDERS, &c->provider);
        (void) node_choice(&top, "kind", 0, kinds, &c->kind);
        policy_check_app(&top, c->kind);
        (void) node_choice(&top, "on_foreign", 0, foreign, &c->on_foreign);
        check_sentinel(&top, c);
        (void) node_strings(&top, "hosts", NODE_REQUIRED, 1, 64, check_host_name, &c->hosts);
        check_ports(&top, c);
        (void) node_strings(&top, "methods", 0, 1, 32, check_method, &c->methods);
        (void) node_strings(&top, "paths", 0, 1, 256, check_path_pattern, &c->paths);
        check_places(&top, c);
        policy_check_app_places(&top, c);
        check_metering(&top, c);
}
