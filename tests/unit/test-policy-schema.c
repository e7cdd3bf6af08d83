/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The published schemas say what the loader does. Every vendor file is taken, and changed at every place
 * in every way of a list; whatever the loader takes, the schema must take, and neither takes an unknown key or
 * lacks a required one. What only the loader can see (references, public suffixes, overlaps) it may refuse
 * alone.
 *
 * The validator below knows what our schemas use of JSON Schema, and fails at any other keyword.
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <regex.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "policy/policy-internal.h"
#include "util/io.h"
#include "util/json.h"

/* ---- a small validator ---- */

static bool valid(const json_t *root, const json_t *schema, const json_t *v);

static bool has_type(const char *type, const json_t *v) {
        return (strcmp(type, "object") == 0 && json_is_object(v)) || (strcmp(type, "array") == 0 && json_is_array(v)) ||
               (strcmp(type, "string") == 0 && json_is_string(v)) || (strcmp(type, "integer") == 0 && json_is_integer(v)) ||
               (strcmp(type, "boolean") == 0 && json_is_boolean(v)) || (strcmp(type, "null") == 0 && json_is_null(v));
}

static bool matches(const char *pattern, const char *text) {
        regex_t regex;
        bool found;

        assert_int_equal(regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB), 0);
        found = regexec(&regex, text, 0, NULL, 0) == 0;
        regfree(&regex);
        return found;
}

static bool any_of(const json_t *root, const json_t *choices, const json_t *v, bool is_schema) {
        for (size_t i = 0; i < json_array_size(choices); i++)
                if (is_schema ? valid(root, json_array_get(choices, i), v) : json_equal(json_array_get(choices, i), v))
                        return true;
        return false;
}

static bool members_valid(const json_t *root, const json_t *schema, const json_t *v) {
        const json_t *known = json_object_get(schema, "properties"), *rest = json_object_get(schema, "additionalProperties"),
                     *names = json_object_get(schema, "propertyNames");
        const char *key;
        json_t *member;

        json_object_foreach((json_t *) v, key, member) {
                const json_t *sub = json_object_get(known, key) ?: rest;
                _cleanup_json_ json_t *name = json_string(key);

                if (json_is_false(sub) || (json_is_object(sub) && !valid(root, sub, member)) || (names && !valid(root, names, name)))
                        return false;
        }
        return true;
}

static bool keyword_valid(const json_t *root, const json_t *schema, const char *keyword, const json_t *k, const json_t *v) {
        if (strcmp(keyword, "$ref") == 0)
                return valid(root, json_object_get(json_object_get(root, "$defs"), json_string_value(k) + strlen("#/$defs/")), v);
        if (strcmp(keyword, "type") == 0)
                return has_type(json_string_value(k), v);
        if (strcmp(keyword, "enum") == 0)
                return any_of(root, k, v, false);
        if (strcmp(keyword, "anyOf") == 0)
                return any_of(root, k, v, true);
        if (strcmp(keyword, "const") == 0)
                return json_equal(k, v);
        if (strcmp(keyword, "pattern") == 0)
                return !json_is_string(v) || matches(json_string_value(k), json_string_value(v));
        if (strcmp(keyword, "maxLength") == 0)
                return !json_is_string(v) || json_string_length(v) <= (size_t) json_integer_value(k);
        if (strcmp(keyword, "minimum") == 0)
                return !json_is_integer(v) || json_integer_value(v) >= json_integer_value(k);
        if (strcmp(keyword, "maximum") == 0)
                return !json_is_integer(v) || json_integer_value(v) <= json_integer_value(k);
        if (strcmp(keyword, "minItems") == 0)
                return !json_is_array(v) || json_array_size(v) >= (size_t) json_integer_value(k);
        if (strcmp(keyword, "maxItems") == 0)
                return !json_is_array(v) || json_array_size(v) <= (size_t) json_integer_value(k);
        if (strcmp(keyword, "items") == 0) {
                for (size_t i = 0; json_is_array(v) && i < json_array_size(v); i++)
                        if (!valid(root, k, json_array_get(v, i)))
                                return false;
                return true;
        }
        if (strcmp(keyword, "required") == 0) {
                for (size_t i = 0; json_is_object(v) && i < json_array_size(k); i++)
                        if (!json_object_get(v, json_string_value(json_array_get(k, i))))
                                return false;
                return true;
        }
        if (strcmp(keyword, "properties") == 0 || strcmp(keyword, "additionalProperties") == 0)
                return !json_is_object(v) || members_valid(root, schema, v);
        if (strcmp(keyword, "propertyNames") == 0 || strcmp(keyword, "description") == 0 || strcmp(keyword, "title") == 0 ||
            strcmp(keyword, "$schema") == 0 || strcmp(keyword, "$defs") == 0)
                return true;

        fail_msg("keyword %s", keyword);
        return false;
}

static bool valid(const json_t *root, const json_t *schema, const json_t *v) {
        const char *keyword;
        json_t *k;

        assert_non_null(schema);
        json_object_foreach((json_t *) schema, keyword, k)
                if (!keyword_valid(root, schema, keyword, k, v))
                        return false;
        return true;
}

/* ---- the vendor's files ---- */

static const char *const folders[] = {
        [POLICY_PROVIDERS] = "providers",
        [POLICY_CREDENTIALS] = "credentials",
        [POLICY_EGRESS] = "egress",
        [POLICY_HARNESS] = "harness",
        [POLICY_WORKFLOWS] = "workflows",
        [_POLICY_KINDS] = "host",
        [_POLICY_KINDS + 1] = "authority",
};

enum { FILES_MAX = 64 };

typedef struct File {
        PolicyText text; /* data is owned */
        char name[300];
        json_t *document, *schema;
} File;

static File files[FILES_MAX];
static size_t n_files;

static json_t *parse_file(const char *path, char **ret_data, size_t *ret_size) {
        json_t *j = NULL;

        if (io_read_file(AT_FDCWD, path, 1 << 20, ret_data, ret_size) < 0 || json_parse(*ret_data, *ret_size, &j, NULL) < 0)
                fail_msg("%s", path);
        return j;
}

/* What the vendor's files have no use for yet. */
static const struct {
        unsigned kind;
        const char *name, *text;
} more[] = {
        { POLICY_EGRESS, "rich",
          "{\"allow\": [{\"description\": \"d\", \"name\": \"*.example.org\", \"ports\": [443, {\"port\": 22, \"protocol\": \"raw\"}], \"max_names\": 7,"
          "\"tls\": \"inspect\"}, {\"name\": \"a.example.org\", \"ports\": [80, 443], \"methods\": [\"GET\"], \"paths\": [\"/v1/\"]}],"
          "\"deny\": [{\"description\": \"d\", \"name\": \"b.example.org\", \"ports\": [443, 7], \"methods\": [\"PUT\"], \"paths\": [\"/x\"]}]}" },
        { POLICY_HARNESS, "rich",
          "{\"image\": null, \"argv\": [\"x\"], \"stdin\": \"{task}\", \"cwd\": \"/workspace\", \"env\": {\"A\": \"b\", \"C\": {\"sentinel\": \"anthropic\"}},"
          "\"files\": [{\"path\": \"/x\", \"content\": \"y\", \"mode\": \"0600\"}], \"output\": \"text\"}" },
        { POLICY_WORKFLOWS, "rich",
          "{\"template\": \"base\", \"repository\": true, \"egress\": \"anthropic\", \"credentials\": [\"anthropic\"], \"harness\": null,"
          "\"steps\": [{\"name\": \"p\", \"kind\": \"prepare\", \"argv\": [\"x\"], \"cwd\": \"/\", \"env\": {\"K\": {\"sentinel\": \"anthropic\"}},"
          "\"timeout\": \"1min 5s\"}], \"verify\": null}" },
        { POLICY_CREDENTIALS, "rich",
          "{\"description\": \"d\", \"kind\": \"static\", \"on_foreign\": \"replace\", \"provider\": null,"
          "\"sentinel\": {\"prefix\": \"ghp_\", \"alphabet\": \"alnum\", \"length\": 40, \"checksum\": \"crc32-base62\"},"
          "\"hosts\": [\"api.example.org\"], \"ports\": [443], \"methods\": [\"GET\"], \"paths\": [\"/v1/\"],"
          "\"places\": [{\"header\": \"x-key\"}, {\"bearer\": true}, {\"basic\": \"either\"}, {\"query\": \"key\", \"method\": \"GET\", \"path\": \"/a\"},"
          "{\"json\": \"/a/0\", \"method\": \"POST\", \"path\": \"/b\"}, {\"form\": \"user[key]\", \"method\": \"PUT\", \"path\": \"/\"}]}" },
        { POLICY_CREDENTIALS, "app",
          "{\"kind\": \"github-app\", \"app\": {\"id\": \"Iv1.ab-c\", \"installation\": 7, \"api\": \"https://ghe.example.org:8443/api/v3\","
          "\"repositories\": [\"acme/widgets\", \"acme/*\"], \"permissions\": {\"contents\": \"write\", \"pull_requests\": \"read\"}},"
          "\"sentinel\": {\"prefix\": \"ghs_\", \"alphabet\": \"alnum\", \"length\": 40},"
          "\"hosts\": [\"git.example.org\"], \"ports\": [443], \"places\": [{\"bearer\": true}]}" },
        { _POLICY_KINDS + 2, NULL, NULL },
};

static void add_more(void) {
        for (size_t i = 0; more[i].name; i++) {
                _cleanup_free_ char *schema_path = text_format("policy/schema/%s.json", folders[more[i].kind]), *schema = NULL;
                File *f = &files[n_files++];
                size_t size;

                f->schema = parse_file(schema_path, &schema, &size);
                assert_int_equal(json_parse(more[i].text, strlen(more[i].text), &f->document, NULL), 0);
                (void) snprintf(f->name, sizeof(f->name), "%s", more[i].name);
                f->text = (PolicyText) { .kind = more[i].kind, .name = f->name, .data = strdup(more[i].text), .size = strlen(more[i].text) };
        }
}

static void add_file(unsigned kind, const char *path, const char *name) {
        _cleanup_free_ char *schema_path = text_format("policy/schema/%s.json", folders[kind]), *schema = NULL;
        char *data = NULL;
        File *f = &files[n_files++];
        size_t size;

        assert_true(n_files <= FILES_MAX);
        f->schema = parse_file(schema_path, &schema, &size);
        f->document = parse_file(path, &data, &size);
        (void) snprintf(f->name, sizeof(f->name), "%s", name);
        f->text = (PolicyText) { .kind = kind, .name = f->name, .data = data, .size = size };
}

static int read_all(void **state) {
        for (unsigned kind = 0; kind < ELEMENTSOF(folders); kind++) {
                char path[600];
                struct dirent *de;
                DIR *d;

                if (kind >= _POLICY_KINDS) {
                        (void) snprintf(path, sizeof(path), "policy/%s.json", folders[kind]);
                        add_file(kind, path, folders[kind]);
                        continue;
                }
                (void) snprintf(path, sizeof(path), "policy/%s", folders[kind]);
                d = opendir(path);
                assert_non_null(d);
                while ((de = readdir(d))) {
                        char name[256];

                        if (de->d_name[0] == '.')
                                continue;
                        (void) snprintf(path, sizeof(path), "policy/%s/%s", folders[kind], de->d_name);
                        (void) snprintf(name, sizeof(name), "%.*s", (int) strlen(de->d_name) - (int) strlen(".json"), de->d_name);
                        add_file(kind, path, name);
                }
                (void) closedir(d);
        }
        add_more();
        return 0;
}

static int free_all(void **state) {
        for (size_t i = 0; i < n_files; i++) {
                free((char *) files[i].text.data);
                json_decref(files[i].document);
                json_decref(files[i].schema);
        }
        return 0;
}

/* Does the loader find nothing in this one, with `changed` in its place? */
static bool loads(const File *f, const json_t *changed) {
        _cleanup_free_ char *text = json_dumps(changed, JSON_ENCODE_ANY);
        PolicyText texts[FILES_MAX];
        PolicyFinding *findings = NULL;
        size_t n_findings = 0;
        Policy *p = NULL;
        bool fine = true;

        for (size_t i = 0; i < n_files; i++) {
                texts[i] = files[i].text;
                if (&files[i] == f) {
                        texts[i].data = text;
                        texts[i].size = strlen(text);
                }
        }
        assert_int_equal(policy_load_texts(&p, texts, n_files, &findings, &n_findings), 0);
        for (size_t i = 0; i < n_findings; i++)
                fine &= strcmp(findings[i].file, f->name) != 0;
        policy_findings_free(findings, n_findings);
        policy_free(p);
        return fine;
}

static void test_vendor_files(void **state) {
        for (size_t i = 0; i < n_files; i++) {
                assert_true(valid(files[i].schema, files[i].schema, files[i].document));
                assert_true(loads(&files[i], files[i].document));
        }
}

/* ---- changes ---- */

static void compare(const File *f, const json_t *top, bool must_fail) {
        bool schema = valid(f->schema, f->schema, top), loader = loads(f, top);

        if ((loader && !schema) || (must_fail && (loader || schema))) {
                _cleanup_free_ char *text = json_dumps(top, JSON_INDENT(1));

                fail_msg("%s/%s: the schema says %d, the loader %d:\n%s", folders[f->text.kind], f->name, schema, loader, text);
        }
}

/* Maps with keys of the operator's choice. */
static bool is_open_map(const char *key) {
        return key && (strcmp(key, "env") == 0 || strcmp(key, "prices") == 0);
}

static void vary(const File *f, json_t *top, json_t *container, const char *key, size_t index) {
        static const char *const others[] = {
                "null", "true", "false", "0", "-1", "7", "65536", "1000000", "2.5", "\"\"", "\"x\"", "\"X\"", "\"/x\"", "\"1h\"", "\"512M\"",
                "\"inspect\"", "\"a.example.org\"", "\"*.example.org\"", "[]", "[\"x\"]", "[7]", "[{}]", "{}", "{\"x\": 1}", "{\"sentinel\": \"anthropic\"}",
        };
        json_t *old = json_incref(key ? json_object_get(container, key) : json_array_get(container, index));

        for (size_t i = 0; i < ELEMENTSOF(others); i++) {
                json_t *other = NULL;

                assert_int_equal(json_parse(others[i], strlen(others[i]), &other, NULL), 0);
                if (key)
                        (void) json_object_set_new(container, key, other);
                else
                        (void) json_array_set_new(container, index, other);
                compare(f, top, false);
        }
        if (key) {
                (void) json_object_del(container, key);
                compare(f, top, false);
                (void) json_object_set(container, key, old);
        } else {
                (void) json_array_set(container, index, old);
        }
        json_decref(old);
}

static void walk(const File *f, json_t *top, json_t *v, const char *name) {
        if (json_is_array(v))
                for (size_t i = 0; i < json_array_size(v); i++) {
                        vary(f, top, v, NULL, i);
                        walk(f, top, json_array_get(v, i), NULL);
                }
        if (!json_is_object(v))
                return;

        if (!is_open_map(name)) {
                (void) json_object_set_new(v, "zzz", json_true());
                compare(f, top, true);
                (void) json_object_del(v, "zzz");
        }
        for (void *i = json_object_iter(v); i;) {
                _cleanup_free_ char *key = strdup(json_object_iter_key(i));

                vary(f, top, v, key, 0);
                walk(f, top, json_object_get(v, key), key);
                i = json_object_iter_next(v, json_object_iter_at(v, key));
        }
}

static void test_changes(void **state) {
        for (size_t i = 0; i < n_files; i++) {
                _cleanup_json_ json_t *copy = json_deep_copy(files[i].document);

                walk(&files[i], copy, copy, NULL);
                assert_true(json_equal(copy, files[i].document));
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_vendor_files),
                cmocka_unit_test(test_changes),
        };

        return cmocka_run_group_tests(tests, read_all, free_all);
}
