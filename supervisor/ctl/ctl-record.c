/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Audit records of the network, as a line that a person reads. Pure functions. */

#include <string.h>

#include "ctl/ctl-format.h"
#include "ctl/ctl.h"
#include "util/json.h"
#include "util/text.h"

bool ctl_record_is_network(const char *event) {
        return strncmp(event, "egress.", strlen("egress.")) == 0 || strncmp(event, "dns.", strlen("dns.")) == 0 ||
               strncmp(event, "conn.", strlen("conn.")) == 0 || strcmp(event, "credential.misuse") == 0 || strcmp(event, "policy.changed") == 0;
}

bool ctl_record_is_denial(const char *event, const json_t *data) {
        static const char *const denials[] = { "dns.refused", "egress.deny", "conn.deny", "credential.misuse" };

        for (size_t i = 0; i < ELEMENTSOF(denials); i++)
                if (strcmp(denials[i], event) == 0)
                        return true;
        return false;
}

bool ctl_record_is_of_inject(const char *actor) {
        return actor && strncmp(actor, "anchor-inject@", strlen("anchor-inject@")) == 0;
}

static int64_t number(const json_t *data, const char *key) {
        return json_integer_value(json_object_get(data, key));
}

uint64_t ctl_record_refusals(const char *event, const json_t *data) {
        int64_t count = number(data, "count");

        return !ctl_record_is_denial(event, data) ? 0 : count > 1 ? (uint64_t) count : 1;
}

/* Of a record that stands for many requests: which they were, the first few with how often. */
static void write_requests(FILE *f, const json_t *data) {
        enum { SHOWN = 3 };
        const json_t *requests = json_object_get(data, "requests");
        size_t n = json_array_size(requests);

        for (size_t i = 0; i < n && i < SHOWN; i++) {
                const json_t *one = json_array_get(requests, i);
                json_int_t count = json_integer_value(json_array_get(one, 2));

                (void) fprintf(f, "%s %s %s", i > 0 ? "," : "", json_string_value(json_array_get(one, 0)) ?: "?", json_string_value(json_array_get(one, 1)) ?: "?");
                if (n > 1 && count > 1)
                        (void) fprintf(f, " (%lld)", (long long) count);
        }
        if (n > SHOWN)
                (void) fprintf(f, " and %zu more", n - SHOWN);
}

static void write_target(FILE *f, const char *event, const json_t *data) {
        const char *name = ctl_string(data, "name") ?: ctl_string(data, "host") ?: ctl_string(data, "address");

        if (strncmp(event, "dns.", 4) == 0) {
                (void) fprintf(f, "lookup of %s", name ?: "?");
                return;
        }
        (void) fputs(name ?: "?", f);
        if (json_is_integer(json_object_get(data, "port")))
                (void) fprintf(f, ":%lld", (long long) number(data, "port"));
}

/* What the host sees of what was allowed. The proxy and inject both get "pass" for it. */
static const char *readability(const char *actor, const json_t *data) {
        const char *verdict = ctl_string(data, "verdict"), *protocol = ctl_string(data, "protocol");

        if (!verdict || strcmp(verdict, "pass") != 0)
                return verdict && strcmp(verdict, "inspect") == 0 ? "to be inspected" : verdict;
        if (protocol && strcmp(protocol, "http") == 0)
                return "read, in the clear";
        return ctl_record_is_of_inject(actor) ? "inspected" : actor ? "passed through unread" : verdict;
}

static void write_detail(FILE *f, const char *event, const char *actor, const json_t *data) {
        static const char *const words[] = { "protocol", "method", "path" };
        const char *reason = ctl_string(data, "reason"), *source = ctl_string(data, "source"), *detail = ctl_string(data, "detail"), *address = ctl_string(data, "address");
        char in[CTL_TEXT_SIZE], out[CTL_TEXT_SIZE], span[CTL_TEXT_SIZE];
        size_t n_details = json_array_size(json_object_get(data, "details"));

        for (size_t i = 0; i < ELEMENTSOF(words); i++)
                if (ctl_string(data, words[i]))
                        (void) fprintf(f, " %s", ctl_string(data, words[i]));
        write_requests(f, data);
        if (strcmp(event, "egress.allow") == 0 && readability(actor, data))
                (void) fprintf(f, " (%s)", readability(actor, data));
        if (strcmp(event, "dns.allow") == 0 && address)
                (void) fprintf(f, ": %s", address);
        if (reason)
                (void) fprintf(f, ": %s", reason);
        if (source)
                (void) fprintf(f, " %s", source);
        if (detail && n_details > 1)
                (void) fprintf(f, " (%s and %zu more)", detail, n_details - 1);
        else if (detail)
                (void) fprintf(f, " (%s)", detail);
        if (number(data, "count") > 1)
                (void) fprintf(f, ", %lld times", (long long) number(data, "count"));
        if (json_is_integer(json_object_get(data, "bytes_in")))
                (void) fprintf(f, ": %s in, %s out, %s", format_size((uint64_t) number(data, "bytes_in"), in),
                               format_size((uint64_t) number(data, "bytes_out"), out),
                               format_duration((uint64_t) number(data, "duration_us"), span));
}

/* Whether the fence refused something by this name: it is neither what it let through nor our own tests of it (net/fence-counts.c). */
static bool kept_by_fence(const char *name, const json_t *count) {
        return json_integer_value(count) > 0 && strcmp(name, "connect_allowed") != 0 && strcmp(name, "tested") != 0;
}

static void write_totals(FILE *f, const json_t *data) {
        static const struct {
                const char *member, *text;
        } reasons[] = {
                { "other_source", "for a forged source address" },
                { "not_ipv4", "that were not IPv4" },
                { "other_device", "from another device" },
        };
        json_t *fence = json_object_get(data, "fence"), *count;
        const json_t *dropped = json_object_get(data, "dropped");
        long long rejected = number(data, "rejected"), kept = 0;
        const char *name, *separator = " (";

        json_object_foreach(fence, name, count)
                if (kept_by_fence(name, count))
                        kept += json_integer_value(count);

        (void) fprintf(f, "in all, %lld packet%s turned away by the guest's network", rejected, rejected == 1 ? "" : "s");
        for (size_t i = 0; i < ELEMENTSOF(reasons); i++)
                if (number(dropped, reasons[i].member) > 0)
                        (void) fprintf(f, ", %lld dropped %s", (long long) number(dropped, reasons[i].member), reasons[i].text);
        if (kept == 0)
                return;

        /* what a closing connection sends behind its grant is among it: so by name */
        (void) fprintf(f, ", %lld attempt%s or packet%s of the run's own processes by the fence", kept, kept == 1 ? "" : "s", kept == 1 ? "" : "s");
        json_object_foreach(fence, name, count)
                if (kept_by_fence(name, count)) {
                        (void) fprintf(f, "%s%s %lld", separator, name, (long long) json_integer_value(count));
                        separator = ", ";
                }
        (void) fputc(')', f);
}

char *ctl_record_text(const char *event, const char *actor, const json_t *data) {
        _cleanup_free_ char *raw = NULL;
        size_t size;
        FILE *f;

        f = open_memstream(&raw, &size);
        if (!f)
                return NULL;

        if (strcmp(event, "egress.registered") == 0 || strcmp(event, "egress.released") == 0)
                (void) fprintf(f, "%s%s", strcmp(event, "egress.registered") == 0 ? "policy of workflow " : "policy withdrawn",
                               ctl_string(data, "workflow") ?: "");
        else if (strcmp(event, "policy.changed") == 0)
                (void) fprintf(f, "the policy was changed: %s", ctl_string(data, "change") ?: "?");
        else if (strcmp(event, "egress.totals") == 0)
                write_totals(f, data);
        else {
                write_target(f, event, data);
                write_detail(f, event, actor, data);
        }
        if (fclose(f) != 0)
                return NULL;

        return text_escape(raw, strlen(raw), false);
}
