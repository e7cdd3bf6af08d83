/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A set of egress rules as text: the lines that its digest is over, and the language of the policy file.
 *
 * The digest is over the compiled form, one line a rule, sorted: neither a description, nor the order of rules, nor the way in
 * which a default was spelled changes it.
 */

#include <errno.h>
#include <openssl/sha.h>
#include <string.h>

#include "policy/policy-egress.h"
#include "util/json.h"

/* ---- digest ---- */

static int compare_ports(const void *a, const void *b) {
        return (int) ((const EgressPort *) a)->port - (int) ((const EgressPort *) b)->port;
}

static int compare_texts(const void *a, const void *b) {
        return strcmp(*(const char *const *) a, *(const char *const *) b);
}

/* None of what is written here can have a blank or a line's end in it. */
static void write_rule(FILE *f, const EgressRules *s, const EgressRule *r) {
        EgressPort ports[EGRESS_PORTS_MAX] = {};
        const char *texts[EGRESS_PATHS_MAX] = {};
        size_t n = 0;

        (void) fprintf(f, "%s %s", r->deny ? "deny" : "allow", r->pattern);

        if (r->n_ports > 0)
                memcpy(ports, r->ports, r->n_ports * sizeof(*ports));
        qsort(ports, r->n_ports, sizeof(*ports), compare_ports);
        for (size_t i = 0; i < r->n_ports; i++)
                (void) fprintf(f, " %u%s%s", ports[i].port, r->deny ? "" : "/", r->deny ? "" : egress_protocol_to_string(ports[i].protocol));

        for (size_t i = 0; r->methods != EGRESS_ANY_METHOD && i < s->n_methods; i++)
                if (r->methods & (UINT64_C(1) << i))
                        texts[n++] = s->methods[i];
        qsort(texts, n, sizeof(*texts), compare_texts);
        for (size_t i = 0; i < n; i++)
                (void) fprintf(f, " %s", texts[i]);

        for (size_t i = 0; i < r->n_paths; i++)
                texts[i] = r->paths[i].text;
        qsort(texts, r->n_paths, sizeof(*texts), compare_texts);
        for (size_t i = 0; i < r->n_paths; i++)
                (void) fprintf(f, " %s", texts[i]);

        if (r->git)
                (void) fprintf(f, " git=%s", r->git);
        if (!r->deny)
                (void) fprintf(f, " %s %u", r->inspect ? "inspect" : "pass", r->subject == EGRESS_WILDCARD ? r->max_names : 1);
        (void) fputc('\n', f);
}

int egress_rules_digest(EgressRules *s) {
        _cleanup_free_ char *text = NULL, *sorted = NULL;
        _cleanup_free_ const char **lines = NULL;
        uint8_t digest[SHA256_DIGEST_LENGTH];
        size_t size = 0, n = 0;
        char *to;
        FILE *f;

        f = open_memstream(&text, &size);
        if (!f)
                return -ENOMEM;
        for (size_t i = 0; i < s->n_rules; i++)
                write_rule(f, s, &s->rules[i]);
        if (fclose(f) != 0)
                return -ENOMEM;

        lines = calloc(s->n_rules + 1, sizeof(*lines));
        sorted = malloc(size + 1);
        if (!lines || !sorted)
                return -ENOMEM;
        for (char *p = text, *end; n < s->n_rules && (end = strchr(p, '\n')); p = end + 1) {
                *end = '\0';
                lines[n++] = p;
        }
        qsort(lines, n, sizeof(*lines), compare_texts);

        to = sorted;
        for (size_t i = 0; i < n; i++)
                to = stpcpy(stpcpy(to, lines[i]), "\n");
        if (!SHA256((const uint8_t *) sorted, (size_t) (to - sorted), digest))
                return -EIO;

        text_hex(digest, sizeof(digest), s->digest);
        return 0;
}

/* ---- back to the language ---- */

static json_t *ports_to_json(const EgressRule *r) {
        json_t *ports = json_array();

        for (size_t i = 0; ports && i < r->n_ports; i++)
                if (json_array_append_new(ports, r->deny ? json_integer(r->ports[i].port)
                                                         : json_pack("{s:i, s:s}", "port", r->ports[i].port, "protocol",
                                                                     egress_protocol_to_string(r->ports[i].protocol))) < 0)
                        return json_unref(ports);
        return ports;
}

static json_t *texts_to_json(const EgressRules *s, const EgressRule *r, bool paths) {
        json_t *array = json_array();

        for (size_t i = 0; array && paths && i < r->n_paths; i++)
                if (json_array_append_new(array, json_string(r->paths[i].text)) < 0)
                        return json_unref(array);
        for (size_t i = 0; array && !paths && i < s->n_methods; i++)
                if ((r->methods & (UINT64_C(1) << i)) && json_array_append_new(array, json_string(s->methods[i])) < 0)
                        return json_unref(array);
        return array;
}

json_t *egress_rule_to_json(const EgressRules *s, const EgressRule *r, bool with_origin) {
        _cleanup_json_ json_t *j = NULL;

        j = json_pack("{s:s}", r->subject == EGRESS_NETWORK ? "network" : "name", r->pattern);
        if (!j ||
            (r->n_ports > 0 && json_object_set_new(j, "ports", ports_to_json(r)) < 0) ||
            (r->git && json_object_set_new(j, "git", json_loads(r->git, 0, NULL)) < 0) ||
            (!r->git && r->methods != EGRESS_ANY_METHOD && json_object_set_new(j, "methods", texts_to_json(s, r, false)) < 0) ||
            (!r->git && r->n_paths > 0 && json_object_set_new(j, "paths", texts_to_json(s, r, true)) < 0) ||
            (!r->deny && egress_rule_carries(r, EGRESS_TLS) && json_object_set_new(j, "tls", json_string(r->inspect ? "inspect" : "pass")) < 0) ||
            (!r->deny && r->subject == EGRESS_WILDCARD && json_object_set_new(j, "max_names", json_integer(r->max_names)) < 0) ||
            (with_origin && json_object_set_new(j, "origin", json_pack("{s:s, s:s, s:i, s:s*}", "label", r->label, "file", r->file,
                                                                       "line", (int) r->line, "who", r->who)) < 0))
                return NULL;

        return TAKE_PTR(j);
}
