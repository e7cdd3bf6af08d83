/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * What each request must pass, in this order: it was read strictly (by its carrier); its Host is the name that the connection was opened
 * for; its target means one path; its sentinels are in their places; egressd allows name, method and path; the audit log has
 * that a credential is used. Only then may it be written to an origin, with the secret in its place.
 *
 * A Request that goes first is not called any more: the question is freed, and the record's callback finds that nobody waits.
 */

#include "inject/request-git.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "egress/agreement-api.h"
#include "policy/policy.h"
#include "util/json.h"
#include "util/log.h"
#include "util/text.h"

/* Waits for the audit log; outlives a request that goes first. */
struct RecordWait {
        Request *request;  /* borrowed; NULL once it is gone */
        size_t credential; /* its number; SIZE_MAX: it is of a push */
};

/* ---- refusals ---- */

void refusal_set(Refusal *ret, unsigned status, const char *reason, const char *rule, const char *message) {
        *ret = (Refusal) { .status = status };
        (void) snprintf(ret->reason, sizeof(ret->reason), "%s", reason);
        (void) snprintf(ret->rule, sizeof(ret->rule), "%s", rule);
        (void) snprintf(ret->message, sizeof(ret->message), "%s", message);
}

static char *refusal_text(const Refusal *refusal) {
        _cleanup_json_ json_t *body = NULL;

        switch (refusal->form) {
        case REFUSAL_OPENAI:
                body = json_pack("{s:{s:s, s:s, s:n, s:s, s:s}}", "error", "message", refusal->message, "type", "insufficient_quota", "param",
                                 "code", "insufficient_quota", "reason", refusal->reason);
                break;
        case REFUSAL_ANTHROPIC:
                body = json_pack("{s:s, s:{s:s, s:s, s:s}}", "type", "error", "error", "type", "billing_error", "message", refusal->message,
                                 "reason", refusal->reason);
                break;
        case REFUSAL_PLAIN:
                body = json_pack("{s:s, s:{s:s, s:s, s:s, s:s}}", "type", "error", "error", "type", "anchorhold_refused", "reason", refusal->reason,
                                 "rule", refusal->rule, "message", refusal->message);
                break;
        }
        return body ? json_dumps(body, JSON_COMPACT) : NULL;
}

int request_answer_refusal(const Request *q, const Refusal *refusal, RefusalAnswer *ret) {
        _cleanup_free_ char *text = NULL;

        *ret = (RefusalAnswer) { .status = refusal->status, .type = "application/json" };
        if (request_git_answer(q, refusal, ret))
                return 0;
        text = refusal_text(refusal);
        return text ? buffer_append_text(&ret->body, text) : -ENOMEM;
}

/* For records: the target's path, without a query, escaped and not too long. */
static char *record_path(const HttpHead *h) {
        size_t n = h && h->target ? strcspn(h->target, "?") : 0;

        return text_escape(n > 0 ? h->target : "", n < 256 ? n : 256, false);
}

static json_t *describe(const Request *q, const HttpHead *h, const char *reason, const char *where) {
        _cleanup_free_ char *path = record_path(h), *safe = NULL;

        safe = where ? text_escape(where, strnlen(where, 64), false) : NULL;
        return json_pack("{s:s, s:i, s:s, s:s?, s:s?, s:s?}", "name", q->name, "port", (int) q->port, "reason", reason,
                         "method", h ? h->method : NULL, "path", path, "where", safe);
}

/* Takes data, which describe() made, over. */
static void deny_as(Request *q, unsigned status, const char *reason, const char *rule, const char *message, json_t *data, Refusal *ret) {
        _cleanup_free_ char *key = text_format("%s %s %u", reason, q->name, q->port);

        log_info("refused a request for %s: %s", q->name, reason);
        if (data)
                (void) json_object_set_new(data, "rule", json_string(rule));
        if (key)
                notes_add(q->context->notes, "conn.deny", key, data);
        else
                json_unref(data);
        refusal_set(ret, status, reason, rule, message);
}

void request_deny(Request *q, const HttpHead *head, unsigned status, const char *reason, const char *where, const char *message, Refusal *ret) {
        deny_as(q, status, reason, "default", message, describe(q, head, reason, where), ret);
}

static int deny(Request *q, unsigned status, const char *reason, const char *where, const char *message, Refusal *ret) {
        request_deny(q, q->head, status, reason, where, message, ret);
        return REQUEST_E_REFUSED;
}

/* What the head says of itself is not what the connection was allowed for: by the rule that allowed it, as egressd says it of a request in the clear.
 * detail (may be NULL): what it says. */
static int deny_head(Request *q, unsigned status, const char *reason, const char *where, const char *detail, const char *message, Refusal *ret) {
        _cleanup_free_ char *safe = detail ? text_escape(detail, strnlen(detail, 254), false) : NULL;
        json_t *data = describe(q, q->head, reason, where);

        if (data && safe)
                (void) json_object_set_new(data, "detail", json_string(safe));
        deny_as(q, status, reason, q->rule ?: "default", message, data, ret);
        return REQUEST_E_REFUSED;
}

int request_misuse(Request *q, const InjectCredential *credential, const char *where, Refusal *ret) {
        _cleanup_free_ char *key = text_format("%s %s %u", credential->source->name, q->name, q->port);
        json_t *data = describe(q, q->head, "misuse", where);

        log_warning("blocked the sentinel of credential %s on its way to %s", credential->source->name, q->name);
        if (data)
                (void) json_object_set_new(data, "credential", json_string(credential->source->name));
        if (key)
                notes_add(q->context->notes, "credential.misuse", key, data);
        else
                json_unref(data);
        refusal_set(ret, 403, "credential-misuse", "default",
                    "This request carries a credential to where it does not belong. It was blocked and recorded.");
        return REQUEST_E_REFUSED;
}

static int unavailable(Refusal *ret, const char *message) {
        refusal_set(ret, 503, "unavailable", "default", message);
        return REQUEST_E_REFUSED;
}

/* ---- judging ---- */

/* Is this the name that the connection is for, with its port or none? */
static bool host_is_ours(const Request *q, const char *value) {
        const char *colon = strrchr(value, ':');
        char name[254];

        if (colon) {
                _cleanup_free_ char *expected = text_format("%u", q->port), *bare = strndup(value, (size_t) (colon - value));

                if (!expected || !bare || strcmp(colon + 1, expected) != 0 || egress_normalise_name(bare, name) < 0)
                        return false;
        } else if (egress_normalise_name(value, name) < 0)
                return false;
        return strcmp(name, q->name) == 0;
}

/* Is there one Host, and is it that name? Else *ret_claimed is the first that is another, NULL if none is. */
static bool host_agrees(const Request *q, const HttpHead *h, const char **ret_claimed) {
        const char *value;

        *ret_claimed = NULL;
        for (size_t i = 0; i < h->n_fields && !*ret_claimed; i++)
                if (strcasecmp(h->fields[i].name, "host") == 0 && !host_is_ours(q, h->fields[i].value))
                        *ret_claimed = h->fields[i].value;
        return !*ret_claimed && http_head_find(h, "host", &value) == 1;
}

static void begin_metering(Request *q, const HttpHead *h) {
        for (size_t i = 0; i < q->context->n_credentials; i++) {
                const InjectCredential *c = &q->context->credentials[i];

                if (c->source->provider && usage_is_call(c->source->provider, q->name, h->method, h->target))
                        q->metered = c;
        }
}

/* What would bring back the secret in parts, or in a place that the origin makes: no request with a credential asks for that. */
static const char *find_reflecting(const HttpHead *h) {
        if (strcmp(h->method, "TRACE") == 0)
                return "method";
        if (http_head_find(h, "range", NULL) > 0)
                return "Range";
        return http_head_find(h, "if-range", NULL) > 0 ? "If-Range" : NULL;
}

/* RFC 6455, 4.1, and RFC 8441, 5; the key and the rest of it are between the two ends. */
static bool is_handshake(const HttpHead *h) {
        const char *version;

        return strcmp(h->method, "GET") == 0 && (h->extended || (h->framing == HTTP_FRAMING_NONE && http_head_find(h, "sec-websocket-key", NULL) == 1)) &&
               http_head_find(h, "sec-websocket-version", &version) == 1 && strcmp(version, "13") == 0;
}

/* What a WebSocket carries is not read for what a model call used. */
static const char *find_unmetered(const SubstitutePlan *plan, const HttpHead *h) {
        for (size_t i = 0; h->websocket && i < plan->n_items; i++)
                if (plan->items[i].credential->source->provider)
                        return plan->items[i].place->kind <= PLACE_BASIC ? h->fields[plan->items[i].field].name : "target";
        return NULL;
}

int request_refuse_plan(Request *q, Refusal *ret) {
        const SubstitutePlan *plan = &q->plan;

        switch (plan->verdict) {
        case SUBSTITUTE_MISUSE:
                return request_misuse(q, plan->credential, plan->where, ret);
        case SUBSTITUTE_FOREIGN:
                return deny(q, 403, "foreign-credential", plan->where, "This host may be used with this run's own credential only.", ret);
        case SUBSTITUTE_NOT_HERE:
                return deny(q, 403, "credential-scope", plan->where, "The credential may not be used with this method and path.", ret);
        case SUBSTITUTE_REVOKED:
                return deny(q, 403, "credential-revoked", plan->where, "The credential was revoked.", ret);
        case SUBSTITUTE_CANNOT:
                return deny(q, 422, "cannot-substitute", plan->where,
                            "The request is signed, or has a digest of what would change: no credential can be put in its place.", ret);
        case SUBSTITUTE_PLAIN:
        case SUBSTITUTE_REPLACE:
                break;
        }
        return 0;
}

static void drop_held(Request *q) {
        free(q->held_head);
        q->held_head = NULL;
        request_forget_held(q);
        q->context->n_metered -= q->counted;
        q->counted = false;
        q->rewrite = (BodyRewrite) {};
        q->git = request_git_free(q->git);
}

int request_begin(Request *q, const HttpHead *h, Refusal *ret) {
        const char *reflecting = find_reflecting(h), *expected, *unmetered, *claimed, *type;
        int r;

        q->head = h;
        q->started_usec = time_boottime();
        q->status = 0;
        q->prompt_bytes = 0;
        q->gathers = q->reserved = false;
        q->sent = false;
        q->metered = NULL;
        q->sends_messages = http_head_find(h, "content-type", &type) == 1 && grpc_is_type(type);
        q->sent_messages = (GrpcReader) {};
        q->gets_messages = false;
        drop_held(q);

        if (!host_agrees(q, h, &claimed))
                return deny_head(q, 421, "fronting", "Host", claimed, "The request's Host is not the name that this connection was opened for.", ret);
        if (!http_target_is_plain(h->target))
                return deny_head(q, 400, "path", "target", NULL, "The request's target is not in origin form, or has dot segments.", ret);

        for (size_t i = 0; i < h->n_fields; i++)
                if (agreement_field_overrides(h->fields[i].name))
                        return deny_head(q, 400, "bad-request", h->fields[i].name, NULL, "A header field names another method, path or host than the request's own: leave it out.", ret);

        r = request_git_begin(q);
        if (r < 0)
                return r;
        substitute_plan(q->context->credentials, q->context->n_credentials, q->name, q->port, h, &q->plan);
        r = request_refuse_plan(q, ret);
        if (r != 0)
                return r;
        q->plan.answered = request_git_holds(q);

        if (http_head_find(h, "expect", &expected) > 0 && strcasecmp(expected, "100-continue") != 0)
                return deny_head(q, 417, "bad-request", "Expect", NULL, "Nothing but 100-continue can be expected.", ret);
        if (h->websocket && !is_handshake(h))
                return deny_head(q, 400, "bad-request", "Upgrade", NULL, "That is no opening handshake of a WebSocket.", ret);
        unmetered = find_unmetered(&q->plan, h);
        if (unmetered)
                return deny(q, 403, "unmetered", unmetered, "Calls of a model over WebSocket cannot be counted here; use HTTP.", ret);
        if ((q->plan.n_items > 0 || q->plan.n_body > 0) && reflecting)
                return deny(q, 422, "cannot-substitute", reflecting, "A request with a credential cannot ask for parts of an answer, or for itself.", ret);
        begin_metering(q, h);
        r = request_begin_budget(q, ret);
        return r != 0 ? r : request_admit_call(q, ret);
}

/* ---- the audit log, before a credential leaves ---- */

static int record_use(Request *q, Refusal *ret, bool *ret_waits);

void request_settle(Request *q, int r, const Refusal *refusal) {
        RequestCleared cleared = q->cleared;

        q->cleared = NULL;
        cleared(r, refusal, q->userdata);
}

/* What is left are tokens, and the budget. */
void request_go_on(Request *q, int r, Refusal *refusal) {
        if (r == 0)
                r = request_wait_for_token(q, refusal);
        if (r == REQUEST_E_WAITS)
                return;
        if (r == 0 && q->gathers) {
                r = request_reserve(q, refusal);
                if (r == 0)
                        return;
        }
        request_settle(q, r, refusal);
}

static void request_on_recorded(int r, void *userdata) {
        _cleanup_free_ RecordWait *wait = userdata;
        Request *q = wait->request;
        bool waits = false;
        Refusal refusal;

        if (!q)
                return;
        q->record = NULL;
        if (r < 0) {
                log_error_errno(r, "the use of a credential could not be recorded: it is not used");
                r = unavailable(&refusal, "The audit log did not take the record.");
        } else {
                if (wait->credential == SIZE_MAX)
                        q->git->recorded = true;
                else
                        q->context->used[wait->credential] = true;
                r = record_use(q, &refusal, &waits); /* a request may carry more than one */
        }
        if (!waits)
                request_go_on(q, r, &refusal);
}

/* The first credential of the plan whose use is not in the log yet, or -1. */
static ssize_t find_unrecorded(const Request *q) {
        for (size_t i = 0; i < q->plan.n_items; i++) {
                size_t k = (size_t) (q->plan.items[i].credential - q->context->credentials);

                if (!q->context->used[k])
                        return (ssize_t) k;
        }
        return -1;
}

static json_t *describe_use(const Request *q, const InjectCredential *c) {
        _cleanup_free_ char *path = record_path(q->head);

        return json_pack("{s:s, s:s, s:i, s:s, s:s}", "credential", c->source->name, "name", q->name, "port", (int) q->port, "method", q->head->method,
                         "path", path);
}

/* One record after the other; nothing leaves before the last one is in the log. */
static int record_use(Request *q, Refusal *ret, bool *ret_waits) {
        ssize_t k = find_unrecorded(q);
        RecordWait *wait;
        json_t *data;
        int r;

        if (k < 0 && !request_git_must_record(q))
                return 0;

        data = k < 0 ? request_git_record(q) : describe_use(q, &q->context->credentials[k]);
        wait = malloc(sizeof(*wait));
        if (!wait || !data) {
                free(wait);
                json_decref(data);
                return -ENOMEM;
        }
        *wait = (RecordWait) { .request = q, .credential = k < 0 ? SIZE_MAX : (size_t) k };

        r = audit_append(q->context->audit, k < 0 ? "git.push" : "credential.used", q->context->run, NULL, NULL, data, request_on_recorded, wait);
        if (r < 0) {
                free(wait);
                return unavailable(ret, "The audit log did not take the record.");
        }
        q->record = wait;
        *ret_waits = true;
        return 0;
}

/* ---- egressd ---- */

int request_read_answer(const EgressAnswer *a, Refusal *ret) {
        char message[sizeof(ret->message)];

        if (a->pass)
                return 0;
        if (strcmp(a->reason, "unavailable") == 0)
                return unavailable(ret, "The host did not decide.");
        if (strcmp(a->reason, "disagreement") == 0) {
                refusal_set(ret, 503, "disagreement", "default", "Two parts of the host were told different things about this run: nothing leaves.");
                return REQUEST_E_REFUSED;
        }
        (void) snprintf(message, sizeof(message), "Not allowed by policy (%s, %s).", a->reason, a->rule);
        refusal_set(ret, 403, a->reason, a->rule, message);
        return REQUEST_E_REFUSED;
}

static int take_answer(Request *q, const EgressAnswer *a, Refusal *ret, bool *ret_waits) {
        int r;

        r = request_read_answer(a, ret);
        if (r != 0)
                return r;
        r = q->granted(a, q->userdata);
        if (r >= 0)
                r = request_git_judge(q, a, ret);
        return r != 0 ? r : record_use(q, ret, ret_waits);
}

static void request_on_answer(const EgressAnswer *a, void *userdata) {
        Request *q = userdata;
        bool waits = false;
        Refusal refusal;
        int r;

        q->question = NULL;
        r = take_answer(q, a, &refusal, &waits);
        if (!waits)
                request_go_on(q, r, &refusal);
}

/* Nobody needs to be asked whether it may be made. */
static int clear_covered(Request *q, Refusal *ret) {
        bool waits = false;
        int r;

        tally_count(q->context->tally, q->name, q->port, q->rule ?: "default", q->head->method, q->head->target);
        /* no rule about git allows it, for that would be weighed: so no token is put in that nobody sent */
        r = request_git_judge(q, &(EgressAnswer) { .pass = true }, ret);
        if (r == 0)
                r = record_use(q, ret, &waits);
        if (r != 0 || waits)
                return r;
        r = request_wait_for_token(q, ret);
        if (r != 0)
                return r == REQUEST_E_WAITS ? 0 : r;
        return q->gathers ? request_reserve(q, ret) : REQUEST_E_CLEARED;
}

static bool names_second_path(const HttpHead *h) {
        for (size_t i = 0; i < h->n_fields; i++)
                if (agreement_field_names_path(h->fields[i].name))
                        return true;
        return false;
}

int request_clear(Request *q, const EgressWithin *within, bool covered, RequestGranted granted, RequestCleared cleared, void *userdata, Refusal *ret) {
        int r;

        q->granted = granted;
        q->cleared = cleared;
        q->userdata = userdata;
        if (within && covered)
                return clear_covered(q, ret);
        r = egress_link_ask(q->context->egress, q->name, q->port, q->head->method, q->head->target, names_second_path(q->head), within, request_on_answer, q, &q->question);
        if (r == -ENOTCONN || r == -EBUSY)
                return unavailable(ret, "The host decides nothing at the moment.");
        return r;
}

void request_cancel(Request *q) {
        q->question = egress_question_free(q->question);
        if (q->record)
                q->record->request = NULL;
        q->record = NULL;
        q->mint = mint_wait_free(q->mint);
        q->budget_ask = budget_ask_free(q->budget_ask);
        q->cleared = NULL;
}

void request_set_sent(Request *q) {
        q->sent = true;
        request_pass_held(q);
}

uint64_t request_carried(const Request *q) {
        uint64_t bits = 0;

        for (size_t i = 0; i < q->plan.n_items; i++)
                bits |= 1ULL << (q->plan.items[i].credential - q->context->credentials);
        return bits;
}

/* ---- start and end ---- */

int request_init(Request *q, ExchangeContext *c, const char *name, uint16_t port, const char *rule) {
        int r;

        *q = (Request) { .context = c, .name = name, .rule = rule, .port = port, .generation = c->generation };
        r = request_make_masker(q, false, &q->mask);
        return r < 0 ? r : request_make_masker(q, true, &q->tripwire);
}

void request_done(Request *q) {
        request_finish(q, false);
        q->mask = masker_free(q->mask);
        q->tripwire = masker_free(q->tripwire);
}

void request_finish(Request *q, bool complete) {
        request_cancel(q);
        request_report_usage(q, complete);
        q->gunzip = gunzip_free(q->gunzip);
        tripwire_gzip_done(&q->opened);
        request_release(q);
        drop_held(q);
        q->plan = (SubstitutePlan) {};
        q->head = NULL;
        q->sent = false;
}
