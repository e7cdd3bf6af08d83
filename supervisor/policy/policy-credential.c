/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * credentials/NAME.json: where a credential may be used. Never its value, which is in the host's
 * encrypted store under the same name.
 *
 *   { "description": TEXT, "provider": PROVIDER,
 *     "sentinel": { "prefix": "sk-…", "alphabet": "base64url", "length": 108 },
 *     "hosts": [ HOST ], "ports": [ 443 ], "methods": [ "POST" ], "paths": [ "/v1/" ],
 *     "places": [ { "header": "x-api-key" }, { "bearer": true } ] }
 *
 * The sentinel is what the guest holds instead: the prefix, then random characters of the alphabet up to
 * the length. At least 128 bits of it must be random, so that nobody guesses one and that it cannot be
 * met by chance in other data.
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

static const char *check_sentinel_prefix(const char *s) {
        /* the characters that mean nothing in a header, an URL, a shell or a JSON string */
        if (strlen(s) > 64 ||
            s[strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.")] != '\0')
                return "must be at most 64 letters, digits, '-', '_' and '.'";
        return NULL;
}

static void check_sentinel(const Node *top, PolicyCredential *c) {
        static const char *const known[] = { "prefix", "alphabet", "length", NULL };
        const char *wrong;
        Node n;

        if (!node_object(top, "sentinel", NODE_REQUIRED, &n) || !node_check_object(&n, known))
                return;

        c->prefix = "";
        if (node_string(&n, "prefix", 0, &c->prefix) && (wrong = check_sentinel_prefix(c->prefix)))
                node_fail_at(&n, "prefix", "%s", wrong);
        if (!node_choice(&n, "alphabet", NODE_REQUIRED, alphabets, &c->alphabet) ||
            !node_uint(&n, "length", NODE_REQUIRED, 1, 1024, &c->length))
                return;

        if (c->length < strlen(c->prefix) ||
            (c->length - strlen(c->prefix)) * alphabet_bits(c->alphabet) < 128 * 100)
                node_fail_at(&n, "length", "leaves less than 128 random bits behind the prefix");
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

static void check_places(const Node *top, PolicyCredential *c) {
        static const char *const known[] = { "header", "bearer", NULL };
        Node array;

        if (!node_array(top, "places", NODE_REQUIRED, &array))
                return;
        if (json_array_size(array.value) < 1 || json_array_size(array.value) > 16)
                node_fail(&array, "must have between 1 and 16 places");

        for (size_t i = 0; i < json_array_size(array.value); i++) {
                Node n = node_element(&array, i);
                const char *header, *wrong;
                bool bearer = true;

                if (!node_check_object(&n, known))
                        continue;
                if (json_object_size(n.value) != 1) {
                        node_fail(&n, "must have exactly one of \"header\" and \"bearer\"");
                        continue;
                }
                if (node_string(&n, "header", 0, &header) && (wrong = check_header_name(header)))
                        node_fail_at(&n, "header", "%s", wrong);
                if (node_bool(&n, "bearer", 0, &bearer) && !bearer)
                        node_fail_at(&n, "bearer", "must be true");
        }
        c->places = array.value;
}

void policy_check_credential(Policy *p, PolicyObject *o) {
        static const char *const known[] = {
                "description", "provider", "sentinel", "hosts", "ports", "methods", "paths", "places", NULL,
        };
        PolicyCredential *c = &o->credential;
        Node top = node_top(p, o);
        const char *text;

        if (!node_check_object(&top, known))
                return;

        *c = (PolicyCredential) { .name = o->name, .document = o->document };

        (void) node_string(&top, "description", 0, &text);
        (void) node_reference(&top, "provider", NODE_NULLABLE, POLICY_PROVIDERS, &c->provider);
        check_sentinel(&top, c);
        (void) node_strings(&top, "hosts", NODE_REQUIRED, 1, 64, check_host_name, &c->hosts);
        check_ports(&top, c);
        (void) node_strings(&top, "methods", 0, 1, 32, check_method, &c->methods);
        (void) node_strings(&top, "paths", 0, 1, 256, check_path_pattern, &c->paths);
        check_places(&top, c);
}
