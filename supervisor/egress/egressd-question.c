/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <stdio.h>
#include <string.h>

#include "egress/agreement-api.h"
#include "egress/egressd-question.h"
#include "policy/policy-git.h"

static void read_open(JsonReader *reader, json_t *params, Question *ret) {
        json_t *open = NULL;

        if (!json_read_array(reader, params, "", "open", JSON_F_NULLABLE, &open))
                return;
        if (json_array_size(open) > EGRESS_STREAMS_MAX) {
                json_reader_fail(reader, "", "open", "has more than %d numbers", EGRESS_STREAMS_MAX);
                return;
        }
        for (size_t i = 0; i < json_array_size(open); i++) {
                json_int_t number = json_integer_value(json_array_get(open, i));

                if (number <= 0)
                        json_reader_fail(reader, "", "open", "must be numbers of streams");
                else
                        ret->open[ret->n_open++] = (uint64_t) number;
        }
}

bool question_read(JsonReader *reader, json_t *params, bool look, Question *ret) {
        const char *protocol = "raw";

        if (look) {
                static const char *const known[] = { "address", "name", "port", "resolve", NULL };

                json_check_keys(reader, params, "", known);
        } else {
                static const char *const known[] = { "address", "name", "port", "protocol", "sni", "ech", "host", "method", "path", "second_path", "within", "stream", "open", NULL };

                json_check_keys(reader, params, "", known);
        }

        (void) json_read_string(reader, params, "", "address", JSON_F_NULLABLE, &ret->address);
        (void) json_read_string(reader, params, "", "name", JSON_F_NULLABLE, &ret->name);
        (void) json_read_uint(reader, params, "", "port", JSON_F_REQUIRED, 1, 65535, &ret->port);
        if (!look && json_read_string(reader, params, "", "protocol", JSON_F_REQUIRED, &protocol) &&
            protocol_from_text(protocol, &ret->protocol) < 0)
                json_reader_fail(reader, "", "protocol", "must be \"tls\", \"http\" or \"raw\"");
        (void) json_read_string(reader, params, "", "sni", JSON_F_NULLABLE, &ret->sni);
        (void) json_read_bool(reader, params, "", "ech", JSON_F_NULLABLE, &ret->ech);
        (void) json_read_bool(reader, params, "", "resolve", JSON_F_NULLABLE, &ret->resolve);
        (void) json_read_string(reader, params, "", "host", JSON_F_NULLABLE, &ret->host);
        (void) json_read_string(reader, params, "", "method", JSON_F_NULLABLE, &ret->method);
        (void) json_read_string(reader, params, "", "path", JSON_F_NULLABLE, &ret->path);
        (void) json_read_bool(reader, params, "", "second_path", JSON_F_NULLABLE, &ret->second_path);
        (void) json_read_uint(reader, params, "", "within", JSON_F_NULLABLE, 1, INT64_MAX, &ret->within);
        (void) json_read_uint(reader, params, "", "stream", JSON_F_NULLABLE, 1, INT64_MAX, &ret->stream);
        read_open(reader, params, ret);
        if (!ret->address == !ret->name)
                json_reader_fail(reader, "", "name", "either a name or an address");
        return !reader->failed;
}

/* An address in a CONNECT, or the host of an absolute-form target, that a rule about its network may admit. */
static bool parse_literal(const char *text, Address *ret) {
        char bare[ADDRESS_TEXT_SIZE];
        size_t n = strlen(text);

        if (n < 2 || text[0] != '[' || text[n - 1] != ']')
                return address_parse(text, ret) >= 0 && ret->family == AF_INET;
        if (n - 2 >= sizeof(bare))
                return false;
        memcpy(bare, text + 1, n - 2);
        bare[n - 2] = '\0';
        return address_parse(bare, ret) >= 0 && ret->family == AF_INET6;
}

static void find_target(const EgressRun *run, const Question *question, Verdict *v) {
        const char *text = question->name ?: question->address, *name;
        Address address;

        if (address_parse(text, &address) >= 0 || parse_literal(text, &address)) {
                name = run ? egress_run_name_of(run, &address) : NULL;
                if (name)
                        strcpy(v->name, name);
                else if (question->name) {
                        v->literal = true;
                        (void) address_format(&address, v->name);
                } else
                        v->reason = "literal-address";
        } else if (question->address || egress_normalise_name(text, v->name) < 0) {
                v->name[0] = '\0';
                v->reason = "no-rule";
        }
}

/* Without the query, which may hold anything, but for the two of git's that say what is asked for. */
static void describe_request(const Question *question, char ret[static REQUEST_TEXT_SIZE]) {
        GitService service = git_service_of(question->method, question->path, NULL, NULL);
        size_t n = service == GIT_ASK_FETCH || service == GIT_ASK_PUSH ? strlen(question->path) : strcspn(question->path, "?");

        (void) snprintf(ret, REQUEST_TEXT_SIZE, "%.32s %.*s", question->method, (int) n, question->path);
}

/* An address that a guest could write in more ways than inet_pton() reads ends in a label of digits, which no name does. */
void question_decide(Egressd *e, EgressRun *run, const Question *question, Verdict *v) {
        *v = (Verdict) { .decision = { .verdict = EGRESS_DENY }, .rule = "default" };

        find_target(run, question, v);
        if (v->reason)
                return;
        if (!run || run->lost) {
                v->reason = "unavailable";
                v->detail = run ? "the frozen policy is lost" : "the run is not registered";
                return;
        }
        if (!e->audit_works) {
                v->reason = "unavailable";
                v->detail = "the audit log does not answer";
                return;
        }
        if (egressd_over_budget(run)) {
                v->reason = "record-budget";
                return;
        }
        if (!run->policy) {
                v->reason = v->literal ? "literal-address" : "no-rule";
                return;
        }

        egress_policy_decide(run->policy, v->name, (uint16_t) question->port, question->method, question->path, &v->decision);
        v->rule = v->decision.rule;
        if (v->decision.verdict != EGRESS_DENY && !(question->second_path && egress_policy_weighs_paths(run->policy, v->name, (uint16_t) question->port)))
                return;
        if (v->decision.verdict != EGRESS_DENY)
                v->reason = "second-path"; /* the origin alone knows how it reads the other one, so that nobody here can say whether it is allowed */
        else
                v->reason = v->literal && strcmp(v->decision.reason, "no-rule") == 0 ? "literal-address" : v->decision.reason;
        if (question->method && question->path) {
                describe_request(question, v->request);
                v->detail = v->request;
        }
}

void question_agree(const Peer *peer, const Question *question, Verdict *v) {
        Observed seen = { .protocol = question->protocol, .sni = question->sni, .ech = question->ech, .host = question->host };

        if (peer->roles & PEER_INJECT) {
                /* It ended the TLS that the proxy had compared already; it has the requests, and only inspected hosts are its business. */
                if (v->decision.protocol != EGRESS_TLS || question->protocol != EGRESS_TLS)
                        v->reason = "protocol";
                else if (v->decision.verdict != EGRESS_INSPECT)
                        v->reason = "no-rule";
                else if (question->host && !agreement_host_matches(question->host, v->name, (uint16_t) question->port))
                        v->reason = "fronting";
        } else
                v->reason = agreement_check(v->name, (uint16_t) question->port, v->decision.protocol, &seen);

        if (v->reason && strcmp(v->reason, "fronting") == 0)
                v->detail = question->sni ?: question->host;
        else if (v->reason && strcmp(v->reason, "protocol") == 0)
                v->detail = protocol_to_text(question->protocol);
}
