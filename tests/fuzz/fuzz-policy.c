/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A set of policy files, and questions to what loads. Files are separated by a line "%%" and begin with a
 * line "KIND NAME"; the kinds are p, c, e, h, w, and o and a for host.json and authority.json.
 */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "policy/policy-internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { TEXTS_MAX = 8, NAME_MAX_SIZE = 64 };

static const char kind_letters[] = "pcehwoa";

typedef struct Set {
        PolicyText texts[TEXTS_MAX];
        char names[TEXTS_MAX][NAME_MAX_SIZE];
        size_t n;
} Set;

static void add(Set *set, const char *text, size_t size) {
        const char *end = memchr(text, '\n', size), *kind;
        size_t n;

        if (!end || size < 3 || text[1] != ' ' || set->n >= TEXTS_MAX)
                return;
        kind = memchr(kind_letters, text[0], sizeof(kind_letters) - 1);
        n = (size_t) (end - text) - 2;
        if (!kind || n >= NAME_MAX_SIZE)
                return;

        memcpy(set->names[set->n], text + 2, n);
        set->names[set->n][n] = '\0';
        if (!text_is_name(set->names[set->n]))
                return;
        set->texts[set->n] = (PolicyText) {
                .kind = (unsigned) (kind - kind_letters),
                .name = set->names[set->n],
                .data = end + 1,
                .size = size - (size_t) (end + 1 - text),
        };
        set->n++;
}

/* What is frozen and thawed is the same policy, and a live denial denies. */
static void change(const EgressPolicy *e) {
        EgressPolicy *thawed = NULL, *denied = NULL, *allowed = NULL;
        char *reason = NULL, *text;
        EgressDecision d;
        size_t size;

        text = egress_policy_freeze(e, &size);
        if (!text || egress_policy_thaw(text, size, &thawed, NULL) < 0 || strcmp(egress_policy_digest(e), egress_policy_digest(thawed)) != 0)
                __builtin_trap();
        free(text);

        if (egress_policy_amend(thawed, false, "api.example.org:443", "fuzz", &denied, &reason) < 0)
                __builtin_trap();
        egress_policy_decide(denied, "api.example.org", 443, NULL, NULL, &d);
        if (d.verdict != EGRESS_DENY || strcmp(egress_policy_digest(denied), egress_policy_digest(e)) == 0)
                __builtin_trap();
        if (egress_policy_amend(denied, true, "api.example.org:443", "fuzz", &allowed, &reason) == 0)
                egress_policy_decide(allowed, "api.example.org", 443, "GET", "/v1", &d);

        free(reason);
        egress_policy_free(allowed);
        egress_policy_free(denied);
        egress_policy_free(thawed);
}

static void ask(const Policy *p) {
        static const char *const names[] = { "api.example.org", "example.org", "x.y.example.org", "*", "127.1", "10.1.2.3", "fd00::1", "xn--bcher-kva.example" };
        static const char *const paths[] = { "/", "/v1/x?y", "/v1/../x", "/%61", "/repos/a/issues", "/pkg/a/b/meta.json" };
        const char *const *list;
        size_t n;

        n = policy_list(p, "egress", &list);
        for (size_t i = 0; i < n; i++) {
                const EgressPolicy *e = policy_find_egress(p, list[i], NULL);
                const char *const *inspected;
                const char *rule;
                EgressDecision d;

                if (!e)
                        continue;
                (void) egress_policy_inspected(e, &inspected);
                change(e);
                for (size_t k = 0; k < ELEMENTSOF(names); k++) {
                        (void) egress_policy_knows(e, names[k], &rule);
                        (void) egress_policy_name_budget(e, names[k], NULL);
                        egress_policy_decide(e, names[k], 443, NULL, NULL, &d);
                        for (size_t j = 0; j < ELEMENTSOF(paths); j++)
                                egress_policy_decide(e, names[k], 443, "GET", paths[j], &d);
                }
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        const char *text = (const char *) data, *end = text + size;
        PolicyFinding *findings = NULL;
        size_t n_findings = 0;
        Policy *p = NULL;
        Set set = {};

        while (text < end) {
                const char *next = memmem(text, (size_t) (end - text), "\n%%\n", 4);

                add(&set, text, (size_t) ((next ?: end) - text));
                text = next ? next + 4 : end;
        }

        if (policy_load_texts(&p, set.texts, set.n, &findings, &n_findings) < 0)
                return 0;
        ask(p);
        policy_findings_free(findings, n_findings);
        policy_free(p);
        return 0;
}
