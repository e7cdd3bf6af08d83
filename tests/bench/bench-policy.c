/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * What a decision costs with 10, 1,000 and 100,000 rules, and how long so many take to load. One line of JSON for each count; bench.py
 * makes ratios of them. Half of the rules are names, a quarter wildcards, a quarter paths of one name, and a quarter of all are denials.
 *
 *   bench-policy [ROUNDS]
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "policy/policy-internal.h"

enum { QUESTIONS = 512 };

static uint64_t now_ns(void) {
        struct timespec t;

        (void) clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t) t.tv_sec * 1000000000 + (uint64_t) t.tv_nsec;
}

static void write_rule(FILE *f, size_t i, bool deny) {
        switch (i % 4) {
        case 0:
        case 1:
                (void) fprintf(f, "{\"name\": \"host-%zu.example.org\"", i);
                break;
        case 2:
                (void) fprintf(f, "{\"name\": \"*.zone-%zu.example.net\"", i);
                break;
        default:
                (void) fprintf(f, "{\"name\": \"api.example.org\", \"paths\": [\"/v%zu/items\", \"/v%zu/*/raw\"]", i, i);
        }
        (void) fprintf(f, "%s}", deny ? "" : ", \"ports\": [443]");
}

static char *make_policy(size_t n_rules, size_t *ret_size) {
        char *text = NULL;
        FILE *f = open_memstream(&text, ret_size);

        if (!f)
                return NULL;
        for (int deny = 0; deny < 2; deny++) {
                size_t from = deny ? n_rules * 3 / 4 : 0, to = deny ? n_rules : n_rules * 3 / 4;

                (void) fprintf(f, "%s\"%s\": [", deny ? ", " : "{", deny ? "deny" : "allow");
                for (size_t i = from; i < to; i++) {
                        (void) fputs(i == from ? "\n" : ",\n", f);
                        write_rule(f, i, deny);
                }
                (void) fputs("]", f);
        }
        (void) fputs("}\n", f);
        return fclose(f) == 0 ? text : NULL;
}

typedef struct Question {
        char name[64], path[64];
} Question;

static void make_question(Question *q, size_t n_rules, size_t k) {
        size_t i = k * 2654435761U % n_rules;

        q->path[0] = '\0';
        if (i % 4 < 2)
                (void) snprintf(q->name, sizeof(q->name), "host-%zu.example.org", i);
        else if (i % 4 == 2)
                (void) snprintf(q->name, sizeof(q->name), "a.b.zone-%zu.example.net", i);
        else {
                (void) snprintf(q->name, sizeof(q->name), "api.example.org");
                (void) snprintf(q->path, sizeof(q->path), "/v%zu/%s", i, k % 2 ? "items/7" : "x/raw");
        }
        if (k % 8 == 7)
                (void) snprintf(q->name, sizeof(q->name), "nowhere-%zu.example.com", i);
}

static int run(size_t n_rules, size_t rounds) {
        static Question questions[QUESTIONS];
        uint64_t start, load_ns, best = UINT64_MAX;
        _cleanup_(policy_freep) Policy *p = NULL;
        _cleanup_free_ char *text = NULL;
        PolicyFinding *findings = NULL;
        size_t size, n_findings = 0, n_allowed = 0;
        const EgressPolicy *e;

        text = make_policy(n_rules, &size);
        if (!text)
                return 1;
        start = now_ns();
        if (policy_load_texts(&p, &(PolicyText) { POLICY_EGRESS, "bench", text, size }, 1, &findings, &n_findings) < 0)
                return 1;
        load_ns = now_ns() - start;
        e = policy_find_egress(p, "bench", NULL);
        if (!e) {
                fprintf(stderr, "%s: %s\n", findings[0].pointer, findings[0].reason);
                return 1;
        }

        for (size_t k = 0; k < QUESTIONS; k++)
                make_question(&questions[k], n_rules, k);
        for (size_t round = 0; round < rounds; round++) {
                n_allowed = 0;
                start = now_ns();
                for (size_t k = 0; k < QUESTIONS; k++) {
                        EgressDecision d;

                        egress_policy_decide(e, questions[k].name, 443, *questions[k].path ? "GET" : NULL, questions[k].path, &d);
                        n_allowed += d.verdict != EGRESS_DENY;
                }
                if (now_ns() - start < best)
                        best = now_ns() - start;
        }

        printf("{\"rules\": %zu, \"decision_ns\": %.1f, \"load_ms\": %.2f, \"bytes\": %zu, \"allowed\": %zu, \"questions\": %d}\n", n_rules,
               (double) best / QUESTIONS, (double) load_ns / 1e6, size, n_allowed, QUESTIONS);
        return 0;
}

int main(int argc, char *argv[]) {
        size_t rounds = argc > 1 ? strtoul(argv[1], NULL, 10) : 200;

        return run(10, rounds) || run(1000, rounds) || run(100000, rounds);
}
