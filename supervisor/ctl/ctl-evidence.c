/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What speaks for a result, a line for each fact: who saw it, and what it was. */

#include "ctl/ctl-evidence.h"

#include <ctype.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/json.h"
#include "util/text.h"

/* The uid that begins there ("uid 37"), and behind it is no more of a word; its length, 0: none. */
static size_t uid_length(const char *at, uid_t *ret) {
        char *end;
        long uid;

        if (strncmp(at, "uid ", 4) != 0 || at[4] < '0' || at[4] > '9')
                return 0;
        uid = strtol(at + 4, &end, 10);
        if (uid < 0 || uid >= UINT32_MAX || isalnum((unsigned char) *end))
                return 0;
        *ret = (uid_t) uid;
        return (size_t) (end - at);
}

char *ctl_name_users(const char *text) {
        char *named = NULL;
        size_t size;
        FILE *f = open_memstream(&named, &size);

        if (!f)
                return NULL;
        for (const char *at = text; *at;) {
                bool begins = at == text || (!isalnum((unsigned char) at[-1]) && at[-1] != '(');
                uid_t uid = 0;
                size_t n = begins ? uid_length(at, &uid) : 0;
                const struct passwd *pw = n > 0 ? getpwuid(uid) : NULL;

                if (pw)
                        (void) fprintf(f, "%s (%.*s)", pw->pw_name, (int) n, at);
                else
                        (void) fwrite(at, 1, n > 0 ? n : 1, f);
                at += n > 0 ? n : 1;
        }
        if (fclose(f) != 0) {
                free(named);
                return NULL;
        }
        return named;
}

/* A value that is no object, and no list of objects. */
static char *value_text(const json_t *value) {
        if (json_is_string(value))
                return strdup(json_string_value(value));
        if (json_is_null(value))
                return strdup("-");
        return json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
}

/* "a, b" */
static char *list_text(const json_t *list) {
        char *text = strdup("");
        json_t *value;
        size_t i;

        json_array_foreach(list, i, value) {
                _cleanup_free_ char *before = text, *one = value_text(value);

                text = before && one ? text_format("%s%s%s", before, i > 0 ? ", " : "", one) : NULL;
        }
        return text;
}

/* Whatever it is, a line for each value, under its name: "guest kernel: 6.12". */
static void facts(Ctl *ctl, const char *title, const char *name, const json_t *value) {
        _cleanup_free_ char *text = NULL, *line = NULL;
        const char *key;
        json_t *member;

        if (json_is_object(value)) {
                json_object_foreach((json_t *) value, key, member) {
                        _cleanup_free_ char *longer = text_format("%s%s%s", name, *name ? " " : "", key);

                        if (longer)
                                facts(ctl, title, longer, member);
                }
                return;
        }
        if (json_is_object(json_array_get(value, 0))) {
                for (size_t i = 0; i < json_array_size(value); i++)
                        facts(ctl, title, name, json_array_get(value, i));
                return;
        }

        text = json_is_array(value) ? list_text(value) : value_text(value);
        line = text ? text_format("%s%s%s", name, *name ? ": " : "", text) : NULL;
        ctl_field(ctl, title, line);
}

static void one_fact(Ctl *ctl, const json_t *fact) {
        static const char *const known[] = { "name", "source", "outcome" };
        _cleanup_json_ json_t *rest = json_copy((json_t *) fact);
        _cleanup_free_ char *line = text_format("%s: %s", ctl_string(fact, "name") ?: "?", ctl_string(fact, "outcome") ?: "?");

        ctl_field(ctl, "Fact", line);
        ctl_field(ctl, "Seen by", ctl_string(fact, "source"));
        for (size_t i = 0; i < ELEMENTSOF(known); i++)
                (void) json_object_del(rest, known[i]);
        facts(ctl, "Reported", "", json_object_get(rest, "reported"));
        (void) json_object_del(rest, "reported");
        facts(ctl, "", "", rest);
}

void ctl_show_evidence(Ctl *ctl, const json_t *evidence) {
        static const char *const known[] = { "run", "commit", "egress", "facts" };
        _cleanup_json_ json_t *rest = json_is_object(evidence) ? json_copy((json_t *) evidence) : NULL;
        const json_t *list = json_object_get(evidence, "facts");

        if (!evidence || json_is_null(evidence))
                return;

        (void) fprintf(ctl->out, "\nEvidence\n");
        if (!rest) {
                facts(ctl, "Fact", "", evidence);
                return;
        }
        ctl_field(ctl, "Run", ctl_string(evidence, "run"));
        ctl_field(ctl, "Commit", ctl_string(evidence, "commit"));
        for (size_t i = 0; i < json_array_size(list); i++)
                one_fact(ctl, json_array_get(list, i));
        facts(ctl, "Policy", "", json_object_get(evidence, "egress"));
        for (size_t i = 0; i < ELEMENTSOF(known); i++)
                (void) json_object_del(rest, known[i]);
        facts(ctl, "Further", "", rest); /* nothing is kept back because it is new */
}
