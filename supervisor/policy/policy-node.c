/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Reading a parsed policy file.
 *
 * Each reader takes a member of an object, checks its type and its bounds, and notes whatever is wrong
 * with its JSON pointer (RFC 6901). Nothing stops at the first error: a file with five mistakes has five
 * findings, since an operator wants to fix them in one go. A file with any finding is not used at all, so
 * a reader may leave a default in place after one.
 */

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "policy/policy-egress.h"

Node node_top(Policy *p, PolicyObject *o) {
        return (Node) { .policy = p, .object = o, .value = o->document };
}

Node node_element(const Node *array, size_t i) {
        return (Node) {
                .policy = array->policy,
                .object = array->object,
                .parent = array,
                .index = i,
                .value = json_array_get(array->value, i),
        };
}

static Node node_child(const Node *object, const char *key, json_t *value) {
        return (Node) {
                .policy = object->policy,
                .object = object->object,
                .parent = object,
                .key = key,
                .value = value,
        };
}

static void write_token(FILE *f, const char *key) {
        for (; *key; key++)
                switch (*key) {
                case '~':
                        (void) fputs("~0", f);
                        break;
                case '/':
                        (void) fputs("~1", f);
                        break;
                default:
                        (void) fputc(*key, f);
                }
}

static void write_pointer(FILE *f, const Node *n) {
        if (!n->parent)
                return;

        write_pointer(f, n->parent);
        (void) fputc('/', f);
        if (n->key)
                write_token(f, n->key);
        else
                (void) fprintf(f, "%zu", n->index);
}

char *node_pointer(const Node *n, const char *key) {
        char *text = NULL;
        size_t size;
        FILE *f;

        f = open_memstream(&text, &size);
        if (!f)
                return NULL;

        write_pointer(f, n);
        if (key) {
                (void) fputc('/', f);
                write_token(f, key);
        }
        if (fclose(f) != 0) {
                free(text);
                return NULL;
        }

        return text;
}

static void fail_va(const Node *n, const char *key, bool warning, const char *format, va_list ap) {
        _cleanup_free_ char *pointer = NULL, *reason = NULL;

        pointer = node_pointer(n, key);
        if (!pointer || vasprintf(&reason, format, ap) < 0) {
                reason = NULL;
                n->policy->out_of_memory = true;
                return;
        }

        if (warning)
                policy_add_warning(n->policy, n->object, pointer, reason);
        else
                policy_add_finding(n->policy, n->object, pointer, reason);
}

void node_fail(const Node *n, const char *format, ...) {
        va_list ap;

        va_start(ap, format);
        fail_va(n, NULL, false, format, ap);
        va_end(ap);
}

void node_fail_at(const Node *object, const char *key, const char *format, ...) {
        va_list ap;

        va_start(ap, format);
        fail_va(object, key, false, format, ap);
        va_end(ap);
}

void node_warn_at(const Node *object, const char *key, const char *format, ...) {
        va_list ap;

        va_start(ap, format);
        fail_va(object, key, true, format, ap);
        va_end(ap);
}

bool node_check_object(const Node *n, const char *const *known) {
        const char *key;
        json_t *value;

        if (!json_is_object(n->value)) {
                node_fail(n, "must be an object");
                return false;
        }

        json_object_foreach(n->value, key, value) {
                const char *const *k;

                for (k = known; *k; k++)
                        if (strcmp(*k, key) == 0)
                                break;
                if (!*k)
                        node_fail_at(n, key, "unknown key");
        }

        return true;
}

/* The member, if it is there at all. */
static bool node_member(const Node *object, const char *key, NodeFlags flags, Node *ret) {
        json_t *value;

        value = json_object_get(object->value, key);
        if (!value || (json_is_null(value) && (flags & NODE_NULLABLE))) {
                if (flags & NODE_REQUIRED)
                        node_fail_at(object, key, "is missing");
                return false;
        }

        *ret = node_child(object, key, value);
        return true;
}

static bool is_plain_string(const json_t *j) {
        return json_is_string(j) && strlen(json_string_value(j)) == json_string_length(j);
}

bool node_object(const Node *object, const char *key, NodeFlags flags, Node *ret) {
        Node n;

        if (!node_member(object, key, flags, &n))
                return false;
        if (!json_is_object(n.value)) {
                node_fail(&n, "must be an object");
                return false;
        }

        *ret = n;
        return true;
}

bool node_array(const Node *object, const char *key, NodeFlags flags, Node *ret) {
        Node n;

        if (!node_member(object, key, flags, &n))
                return false;
        if (!json_is_array(n.value)) {
                node_fail(&n, "must be an array");
                return false;
        }

        *ret = n;
        return true;
}

bool node_string(const Node *object, const char *key, NodeFlags flags, const char **ret) {
        Node n;

        if (!node_member(object, key, flags, &n))
                return false;
        if (!is_plain_string(n.value)) {
                node_fail(&n, "must be a string");
                return false;
        }

        *ret = json_string_value(n.value);
        return true;
}

bool node_bool(const Node *object, const char *key, NodeFlags flags, bool *ret) {
        Node n;

        if (!node_member(object, key, flags, &n))
                return false;
        if (!json_is_boolean(n.value)) {
                node_fail(&n, "must be true or false");
                return false;
        }

        *ret = json_is_true(n.value);
        return true;
}

bool node_uint(const Node *object, const char *key, NodeFlags flags, uint64_t min, uint64_t max, uint64_t *ret) {
        Node n;

        if (!node_member(object, key, flags, &n))
                return false;
        if (!json_is_integer(n.value)) {
                node_fail(&n, "must be a whole number");
                return false;
        }
        if (json_integer_value(n.value) < 0 ||
            (uint64_t) json_integer_value(n.value) < min || (uint64_t) json_integer_value(n.value) > max) {
                node_fail(&n, "must be between %" PRIu64 " and %" PRIu64, min, max);
                return false;
        }

        *ret = (uint64_t) json_integer_value(n.value);
        return true;
}

/* A bound as a person would write it. */
static const char *size_text(uint64_t v, char buffer[static 32]) {
        static const char units[] = "BKMGT";
        size_t i = 0;

        while (v >= 1024 && v % 1024 == 0 && i < sizeof(units) - 2) {
                v /= 1024;
                i++;
        }
        (void) snprintf(buffer, 32, "%" PRIu64 "%c", v, units[i]);
        return buffer;
}

static const char *duration_text(uint64_t v, char buffer[static 32]) {
        if (v > 0 && v % 86400 == 0)
                (void) snprintf(buffer, 32, "%" PRIu64 "d", v / 86400);
        else if (v > 0 && v % 3600 == 0)
                (void) snprintf(buffer, 32, "%" PRIu64 "h", v / 3600);
        else if (v > 0 && v % 60 == 0)
                (void) snprintf(buffer, 32, "%" PRIu64 "min", v / 60);
        else
                (void) snprintf(buffer, 32, "%" PRIu64 "s", v);
        return buffer;
}

bool node_size(const Node *object, const char *key, NodeFlags flags, uint64_t min, uint64_t max, uint64_t *ret) {
        char low[32], high[32];
        uint64_t v;
        Node n;
        int r;

        if (!node_member(object, key, flags, &n))
                return false;

        r = is_plain_string(n.value) ? policy_parse_size(json_string_value(n.value), &v) : -EINVAL;
        if (r == -EINVAL) {
                node_fail(&n, "must be a size with a unit, such as \"512M\"");
                return false;
        }
        if (r < 0 || v < min || v > max) {
                node_fail(&n, "must be between %s and %s", size_text(min, low), size_text(max, high));
                return false;
        }

        *ret = v;
        return true;
}

bool node_duration(const Node *object, const char *key, NodeFlags flags, uint64_t min_s, uint64_t max_s, uint64_t *ret_s) {
        char low[32], high[32];
        uint64_t v;
        Node n;
        int r;

        if (!node_member(object, key, flags, &n))
                return false;

        r = is_plain_string(n.value) ? policy_parse_duration(json_string_value(n.value), &v) : -EINVAL;
        if (r == -EINVAL) {
                node_fail(&n, "must be a duration with a unit, such as \"30min\"");
                return false;
        }
        if (r < 0 || v < min_s || v > max_s) {
                node_fail(&n, "must be between %s and %s", duration_text(min_s, low), duration_text(max_s, high));
                return false;
        }

        *ret_s = v;
        return true;
}

bool node_choice(const Node *object, const char *key, NodeFlags flags, const char *const *choices, const char **ret) {
        const char *value;
        char list[256];
        size_t used = 0;

        if (!node_string(object, key, flags, &value))
                return false;

        for (const char *const *c = choices; *c; c++)
                if (strcmp(*c, value) == 0) {
                        *ret = *c;
                        return true;
                }

        list[0] = '\0';
        for (const char *const *c = choices; *c && used < sizeof(list); c++)
                used += (size_t) snprintf(list + used, sizeof(list) - used, "%s\"%s\"",
                                          c == choices ? "" : c[1] ? ", " : " or ", *c);
        node_fail_at(object, key, "must be %s", list);
        return false;
}

bool node_resolve(const Node *n, PolicyKind kind, PolicyObject **ret) {
        static const char *const what[_POLICY_KINDS] = {
                [POLICY_PROVIDERS] = "provider",
                [POLICY_CREDENTIALS] = "credential",
                [POLICY_EGRESS] = "egress policy",
                [POLICY_HARNESS] = "harness",
                [POLICY_WORKFLOWS] = "workflow",
        };
        const char *name;
        PolicyObject *o;

        if (!is_plain_string(n->value)) {
                node_fail(n, "must be a string");
                return false;
        }

        name = json_string_value(n->value);
        if (!text_is_name(name)) {
                node_fail(n, "must be the name of a %s: a lower-case letter, then letters, digits and dashes", what[kind]);
                return false;
        }

        o = policy_object_find(n->policy, kind, name);
        if (!o) {
                node_fail(n, "there is no %s \"%s\"", what[kind], name);
                return false;
        }
        if (o->reason)
                policy_object_taint(n->policy, n->object, o);

        *ret = o;
        return true;
}

bool node_reference(const Node *object, const char *key, NodeFlags flags, PolicyKind kind, const char **ret) {
        PolicyObject *o;
        Node n;

        if (!node_member(object, key, flags, &n) || !node_resolve(&n, kind, &o))
                return false;

        *ret = o->name;
        return true;
}

bool node_strings(const Node *object, const char *key, NodeFlags flags, size_t min, size_t max, NodeStringCheck check,
                  const json_t **ret) {
        Node array;
        bool ok = true;

        if (!node_array(object, key, flags, &array))
                return false;

        if (json_array_size(array.value) < min || json_array_size(array.value) > max) {
                if (json_array_size(array.value) == 0)
                        node_fail(&array, "must not be empty");
                else
                        node_fail(&array, "must have between %zu and %zu entries", min, max);
                return false;
        }

        for (size_t i = 0; i < json_array_size(array.value); i++) {
                Node n = node_element(&array, i);
                const char *wrong;

                if (!is_plain_string(n.value))
                        wrong = "must be a string";
                else
                        wrong = check ? check(json_string_value(n.value)) : NULL;
                if (wrong) {
                        node_fail(&n, "%s", wrong);
                        ok = false;
                }
        }

        if (ok)
                *ret = array.value;
        return ok;
}

const char *check_host_name(const char *s) {
        char normal[254];

        if (egress_normalise_name(s, normal) < 0)
                return egress_name_fault(s);
        if (strcmp(s, normal) != 0)
                return "must be a host name in lower case, without a final dot";
        return NULL;
}

const char *check_method(const char *s) {
        if (*s == '\0' || strlen(s) > 32 || s[strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-")] != '\0')
                return "must be an HTTP method in capital letters";
        return NULL;
}

const char *check_path_pattern(const char *s) {
        uint8_t bytes[PATH_PATTERN_MAX];
        PathPattern pattern;

        return strlen(s) > sizeof(bytes) ? "must not be longer than 1024 bytes" : path_pattern_parse(s, bytes, &pattern);
}

const char *check_path_prefix(const char *s) {
        return strchr(s, '*') ? "must not have a \"*\"" : check_path_pattern(s);
}

const char *check_argument(const char *s) {
        return strlen(s) > 65536 ? "must not be longer than 64K" : NULL;
}

const char *check_absolute_path(const char *s) {
        const char *p;

        if (*s != '/' || strlen(s) > 1024)
                return "must be an absolute path";
        for (p = s; (p = strstr(p, "/..")); p += 3)
                if (p[3] == '\0' || p[3] == '/')
                        return "must not contain \"..\"";
        return NULL;
}

const char *check_json_pointer(const char *s) {
        if ((*s != '/' && *s != '\0') || strlen(s) > 256)
                return "must be a JSON pointer, such as \"/usage/input_tokens\"";
        for (const char *p = s; (p = strchr(p, '~')); p++)
                if (p[1] != '0' && p[1] != '1')
                        return "must be a JSON pointer: \"~\" is written \"~0\"";
        return NULL;
}

static bool is_environment_name(const char *s) {
        static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_";

        return *s != '\0' && strchr(letters, *s) && strlen(s) <= 128 &&
               s[strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789")] == '\0';
}

void node_environment(const Node *object, const char *key, const json_t **ret) {
        static const char *const known[] = { "sentinel", NULL };
        const char *name;
        json_t *value;
        Node env;

        if (!node_object(object, key, 0, &env))
                return;

        json_object_foreach(env.value, name, value) {
                Node n = node_child(&env, name, value);
                const char *credential;

                if (!is_environment_name(name))
                        node_fail(&n, "is no name for an environment variable");
                if (is_plain_string(value))
                        continue;
                if (!json_is_object(value))
                        node_fail(&n, "must be a string or {\"sentinel\": CREDENTIAL}");
                else if (node_check_object(&n, known))
                        (void) node_reference(&n, "sentinel", NODE_REQUIRED, POLICY_CREDENTIALS, &credential);
        }

        *ret = env.value;
}
