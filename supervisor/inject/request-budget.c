/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A model call of a run that has a budget. Its body is gathered before anything leaves, since it says what the call may cost at most: the model,
 * and how much output is asked for. Strictly: what cannot be read in one way only (no JSON, an encoded body, the same key twice) is refused.
 *
 * The worst case: input, twice what the body's bytes are worth by the provider's estimate; output, what the request allows, times the number of
 * answers that it asks for; both at the model's price. It is reserved when everything else is decided, and settled by the report of the call: by what its answer
 * says; what no answer has said counts as reserved, since a text that can be seen is not all that a model may have written. A call that does not fit
 * is made smaller, where policy says so, or is made the last one, or refused in the provider's own form.
 * Of the body only the digits of that one number change.
 */

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "inject/request.h"
#include "inject/usage-price.h"
#include "ledger/usage-limits.h"
#include "util/json-position.h"
#include "util/json.h"
#include "util/log.h"
#include "util/text.h"

enum {
        GATHERED_MAX = 32 * 1024 * 1024,
        GATHERED_ALL_MAX = 96 * 1024 * 1024, /* of all connections, until they have left; one of them may be there twice for a moment */
        VALUES_MAX = 500 * 1000,             /* of a body: each becomes a hundred bytes or so */
        OUTPUT_MIN = 16,
};

static const json_t *provider_of(const Request *q) {
        return q->metered->source->provider;
}

static const char *text_of(const json_t *object, const char *key) {
        const char *s = json_string_value(json_object_get(object, key));

        return s ? s : "";
}

/* ---- refusals ---- */

/* Over budget: in the form and with the status that the provider's clients take for the end, not for a reason to try again. */
static int refuse_budget(Request *q, const char *reason, const char *message, Refusal *ret) {
        const char *api = text_of(provider_of(q), "api");
        bool openai = strcmp(api, "openai") == 0;

        request_deny(q, q->head, openai ? 429 : 402, reason, "budget", message, ret);
        budget_over(q->context->budget, message);
        ret->form = openai ? REFUSAL_OPENAI : strcmp(api, "anthropic-messages") == 0 ? REFUSAL_ANTHROPIC : REFUSAL_PLAIN;
        ret->final = true;
        return REQUEST_E_REFUSED;
}

static int refuse(Request *q, unsigned status, const char *reason, const char *message, Refusal *ret) {
        request_deny(q, q->head, status, reason, "body", message, ret);
        return REQUEST_E_REFUSED;
}

/* ---- counting ---- */

/* A run that makes calls faster than anchord writes down what they used must not drive out the reports of the dear ones among them; nor may it fill the
 * audit log with the records of some millions that cost nothing. */
int request_admit_call(Request *q, Refusal *ret) {
        ExchangeContext *c = q->context;

        if (!q->metered)
                return 0;
        if (c->n_calls + budget_earlier_calls(c->budget) >= USAGE_CALLS_MAX)
                return refuse(q, 403, "record-budget", "This run has made more model calls than are recorded of one run.", ret);
        if (c->n_metered + usage_report_waiting(c->usage) >= USAGE_REPORTS_MAX)
                return refuse(q, 503, "busy", "More model calls are under way in this run than can be counted at once. Try again.", ret);
        c->n_calls++;
        c->n_metered++;
        q->counted = true;
        return 0;
}

/* ---- gathering ---- */

int request_begin_budget(Request *q, Refusal *ret) {
        Budget *b = q->context->budget;
        const char *encoding;

        for (size_t i = 0; !q->metered && budget_is_capped(b) && i < q->context->n_credentials; i++) {
                const json_t *provider = q->context->credentials[i].source->provider;

                if (provider && usage_kind(provider, q->name, q->head->method, q->head->target) == USAGE_UNKNOWN)
                        return refuse(q, 403, "unmetered", "This run has a budget, and what this request costs is not counted. "
                                                           "The provider's file lists those that are, and those that cost nothing.", ret);
        }
        q->gathers = q->metered && budget_applies(b);
        if (q->gathers && http_head_find(q->head, "content-encoding", &encoding) > 0 && strcasecmp(encoding, "identity") != 0)
                return refuse(q, 415, "encoded-request", "This run has a budget: the body of a model call must not be encoded.", ret);
        return 0;
}

bool request_may_gather(const Request *q, size_t size) {
        return size <= GATHERED_MAX - buffer_size(&q->held);
}

int request_gather(Request *q, size_t size, Refusal *ret) {
        if (q->context->gathered + size > GATHERED_ALL_MAX)
                return refuse(q, 503, "busy", "Too much of what must be looked at before it leaves is under way in this run. Try again.", ret);
        q->context->gathered += size;
        q->gathered += size;
        return 0;
}

void request_pass_held(Request *q) {
        buffer_done(&q->held);
        buffer_done(&q->held_encoded);
}

bool request_is_leaving(const Request *q) {
        return q->gathered + q->n_held > 0;
}

void request_set_left(Request *q) {
        q->context->gathered -= q->gathered;
        q->context->held -= q->n_held;
        q->gathered = q->n_held = 0;
}

void request_forget_held(Request *q) {
        request_pass_held(q);
        request_set_left(q);
}

/* ---- what it may cost ---- */

static bool is_disguised(const json_t *pointers, const json_t *document) {
        for (size_t i = 0; i < json_array_size(pointers); i++) {
                const char *pointer = json_string_value(json_array_get(pointers, i));

                if (pointer && usage_pointer_is_disguised(document, pointer))
                        return true;
        }
        return false;
}

/* Whatever is there but null and false. */
static bool is_detached(const json_t *pointers, const json_t *document) {
        for (size_t i = 0; i < json_array_size(pointers); i++) {
                const char *pointer = json_string_value(json_array_get(pointers, i));
                const json_t *value = pointer ? usage_pointer(document, pointer) : NULL;

                if (value && !json_is_null(value) && !json_is_false(value))
                        return true;
        }
        return false;
}

/* The largest of what is said at these pointers, since origins differ in which of them they heed; null and zero say nothing. */
static int count_of(const json_t *pointers, const json_t *document, uint64_t missing, uint64_t *ret) {
        uint64_t most = 0;

        for (size_t i = 0; i < json_array_size(pointers); i++) {
                const char *pointer = json_string_value(json_array_get(pointers, i));
                const json_t *n = pointer ? usage_pointer(document, pointer) : NULL;

                if (!n || json_is_null(n))
                        continue;
                if (!json_is_integer(n) || json_integer_value(n) < 0)
                        return -EINVAL;
                if ((uint64_t) json_integer_value(n) > most)
                        most = (uint64_t) json_integer_value(n);
        }
        *ret = most > 0 ? most : missing;
        return 0;
}

/* Where the request says how much output it wants: the digits' place in the body. False: nowhere, or in more than one place. */
static bool find_output(const Request *q, size_t *ret_begin, size_t *ret_end) {
        const json_t *pointers = json_object_get(json_object_get(provider_of(q), "request"), "max_tokens");
        const char *data = (const char *) buffer_data(&q->held);
        size_t n_found = 0, begin, end;

        for (size_t i = 0; i < json_array_size(pointers); i++)
                if (json_range(data, buffer_size(&q->held), json_string_value(json_array_get(pointers, i)), &begin, &end) > 0 && data[begin] >= '0' &&
                    data[begin] <= '9') {
                        *ret_begin = begin;
                        *ret_end = end;
                        n_found++;
                }
        return n_found == 1;
}

/* About: what separates and opens values, outside of strings. */
static bool has_too_many_values(const Request *q) {
        const uint8_t *p = buffer_data(&q->held), *end = p + buffer_size(&q->held);
        size_t n = 0;

        for (bool inside = false; p < end; p++) {
                if (inside && *p == '\\')
                        p++;
                else if (*p == '"')
                        inside = !inside;
                else if (!inside && (*p == ',' || *p == '[' || *p == '{'))
                        n++;
        }
        return n > VALUES_MAX;
}

static int read_need(Request *q, Refusal *ret) {
        const json_t *provider = provider_of(q), *request = json_object_get(provider, "request");
        _cleanup_json_ json_t *document = NULL;
        uint64_t standard, wanted, choices;
        const json_t *model;
        UsagePrice price;

        if (has_too_many_values(q))
                return refuse(q, 413, "body-too-large", "This run has a budget: the body of a model call has too many values to be looked at.", ret);
        if (json_parse((const char *) buffer_data(&q->held), buffer_size(&q->held), &document, NULL) < 0 || !json_is_object(document))
                return refuse(q, 400, "unreadable-request", "This run has a budget: the body of a model call must be a JSON object, with each key once.", ret);

        if (is_disguised(json_object_get(request, "max_tokens"), document) || is_disguised(json_object_get(request, "choices"), document) ||
            is_disguised(json_object_get(request, "model"), document) || is_disguised(json_object_get(request, "detached"), document))
                return refuse(q, 400, "unreadable-request", "This run has a budget: a key of a model call is in another case than it should be.", ret);

        if (is_detached(json_object_get(request, "detached"), document))
                return refuse(q, 403, "unmetered", "This run has a budget, and what a model call uses behind its answer is not counted: make it without.", ret);

        standard = request ? (uint64_t) json_integer_value(json_object_get(request, "max_tokens_default")) : 32000;
        if (count_of(json_object_get(request, "max_tokens"), document, standard, &wanted) < 0 ||
            count_of(json_object_get(request, "choices"), document, 1, &choices) < 0 || wanted > USAGE_TOKENS_MAX || choices > 1U << 10 ||
            wanted * (choices > 0 ? choices : 1) > USAGE_TOKENS_MAX)
                return refuse(q, 400, "unreadable-request", "This run has a budget: how much output a model call wants must be a number that a model can have.", ret);

        model = usage_find(json_object_get(request, "model"), document);
        text_fit(json_is_string(model) ? json_string_value(model) : "", q->model, sizeof(q->model));
        q->wanted_tokens = wanted;
        q->choices = choices > 0 ? choices : 1;

        (void) usage_cost_at_most(provider, q->model, 0, 0, &price);
        if (price == USAGE_PRICE_NONE)
                return refuse(q, 403, "unpriced", "This run has a budget, and the provider's file has no price for this model.", ret);
        return 0;
}

static void fill_need(Request *q, uint64_t output, bool summary, BudgetNeed *ret) {
        const json_t *provider = provider_of(q);
        uint64_t last = summary ? 0 : budget_summary_tokens(q->context->budget) * q->choices;
        UsagePrice price;

        *ret = (BudgetNeed) {
                .provider = text_of(q->metered->source->rule, "provider"),
                .model = q->model,
                .prices_version = text_of(provider, "prices_version"),
                .input_tokens = 2 * usage_estimate(provider, buffer_size(&q->held)),
                .output_tokens = output * q->choices,
                .summary = summary,
        };
        memcpy(ret->call, q->call, sizeof(ret->call));
        ret->cost_microusd = usage_cost_at_most(provider, q->model, ret->input_tokens, ret->output_tokens, &price);
        ret->price = usage_price_name(price);
        if (last > 0) {
                ret->summary_tokens = ret->input_tokens + last;
                ret->summary_cost_microusd = usage_cost_at_most(provider, q->model, ret->input_tokens, last, NULL);
        }
}

/* The largest output that fits into what is left; 0: none worth asking for. */
static uint64_t output_that_fits(const Request *q, const BudgetAnswer *a, uint64_t most) {
        const json_t *provider = provider_of(q);
        uint64_t input = 2 * usage_estimate(provider, buffer_size(&q->held)), fits = most, left;
        uint64_t input_cost = usage_cost_at_most(provider, q->model, input, 0, NULL);

        if (a->room_tokens != BUDGET_NO_CAP) {
                left = a->room_tokens > input ? (a->room_tokens - input) / q->choices : 0;
                fits = left < fits ? left : fits;
        }
        if (a->room_cost != BUDGET_NO_CAP) {
                left = a->room_cost > input_cost ? usage_output_for(provider, q->model, a->room_cost - input_cost) / q->choices : 0;
                fits = left < fits ? left : fits;
        }
        return fits >= OUTPUT_MIN ? fits : 0;
}

static int write_output(Request *q, uint64_t output) {
        size_t begin, end, size = buffer_size(&q->held);
        Buffer out = {};
        char digits[24];
        int r;

        if (!find_output(q, &begin, &end))
                return -ENOENT;
        (void) snprintf(digits, sizeof(digits), "%" PRIu64, output);
        if ((r = buffer_append(&out, buffer_data(&q->held), begin)) < 0 || (r = buffer_append_text(&out, digits)) < 0 ||
            (r = buffer_append(&out, buffer_data(&q->held) + end, size - end)) < 0) {
                buffer_done(&out);
                return r;
        }
        buffer_done(&q->held);
        q->held = out;
        q->held_head->length = buffer_size(&out);
        return 0;
}

/* ---- reserving ---- */

static int ask(Request *q, uint64_t output, bool summary);

/* Over a cap: may the call be made so small that it fits, or be the last one? 1: it is asked for again. */
static int make_smaller(Request *q, const BudgetAnswer *a) {
        size_t begin, end;
        uint64_t output;
        bool summary;
        int r;

        /* places for credentials in the body are where they were found */
        if (q->n_asks >= 3 || q->plan.n_body > 0 || !find_output(q, &begin, &end))
                return 0;
        /* what is to stay free for a last call is not there for this one */
        output = a->lower && a->summary_tokens == 0 && q->n_asks < 2 ? output_that_fits(q, a, q->wanted_tokens) : 0;
        summary = output == 0 && a->summary_tokens > 0;
        if (summary)
                output = output_that_fits(q, a, q->wanted_tokens < a->summary_tokens ? q->wanted_tokens : a->summary_tokens);
        if (output == 0)
                return 0;

        if (output < q->wanted_tokens) {
                r = write_output(q, output);
                if (r < 0)
                        return r;
                log_info("a model call was made smaller: %" PRIu64 " tokens of output instead of %" PRIu64, output, q->wanted_tokens);
        }
        r = ask(q, output, summary);
        return r < 0 ? r : 1;
}

static void request_on_budget(const BudgetAnswer *a, void *userdata) {
        Request *q = userdata;
        Refusal refusal;
        int r = 0;

        q->budget_ask = NULL;
        switch (a->verdict) {
        case BUDGET_GRANTED:
                q->reserved = true;
                break;
        case BUDGET_REFUSED:
                r = make_smaller(q, a);
                if (r > 0)
                        return;
                if (r == 0)
                        r = refuse_budget(q, "over-budget", a->reason, &refusal);
                break;
        case BUDGET_UNAVAILABLE:
                refusal_set(&refusal, 503, "unavailable", "default", a->reason);
                r = REQUEST_E_REFUSED;
                break;
        }
        request_settle(q, r, &refusal);
}

static int ask(Request *q, uint64_t output, bool summary) {
        BudgetNeed need;

        q->n_asks++;
        fill_need(q, output, summary, &need);
        q->reserved_input = need.input_tokens;
        q->reserved_output = need.output_tokens;
        q->reserved_cost = need.cost_microusd;
        return budget_reserve(q->context->budget, &need, request_on_budget, q, &q->budget_ask);
}

int request_reserve(Request *q, Refusal *ret) {
        int r;

        r = read_need(q, ret);
        if (r != 0)
                return r;
        usage_report_new_id(q->context->usage, q->call);
        q->n_asks = 0;
        return ask(q, q->wanted_tokens, false);
}

/* The request is over, or will never leave. */
void request_release(Request *q) {
        q->budget_ask = budget_ask_free(q->budget_ask);
        if (q->reserved)
                budget_release(q->context->budget, q->call);
        q->reserved = false;
}
