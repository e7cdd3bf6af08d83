/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What comes back for a request: masked, and read for what a model call used. */

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "inject/request.h"
#include "util/json.h"
#include "util/log.h"

static void start_usage(Request *q, const HttpHead *h) {
        const char *type = "";

        (void) http_head_find(h, "content-type", &type);
        if (q->metered && !q->usage && usage_reader_new(&q->usage, q->metered->source->provider, usage_format_of(type)) < 0)
                log_oom();
}

/*
 * An origin that encodes a body although it was asked not to is refused: what cannot be read cannot be masked.
 */
int request_begin_answer(Request *q, const HttpHead *h, Refusal *ret) {
        const char *encoding;

        q->status = h->status;
        if (q->context->n_credentials > 0 && h->framing != HTTP_FRAMING_NONE &&
            http_head_find(h, "content-encoding", &encoding) > 0 && strcasecmp(encoding, "identity") != 0) {
                request_deny(q, q->head, 502, "encoded-response", "Content-Encoding", "The origin encoded its answer although it was asked not to.", ret);
                return REQUEST_E_REFUSED;
        }
        start_usage(q, h);
        return 0;
}

bool request_passes_field(const HttpHead *head, const char *name) {
        return !http_field_is_hop_by_hop(head, name);
}

int request_mask_text(Request *q, const char *text, Buffer *out) {
        int r;

        r = masker_feed(q->mask, text, strlen(text), out);
        return r < 0 ? r : masker_finish(q->mask, out);
}

int request_feed_answer(Request *q, const void *data, size_t size, bool last, Buffer *out) {
        int r = 0;

        if (size > 0 && q->usage)
                usage_reader_feed(q->usage, data, size);
        if (size > 0)
                r = masker_feed(q->mask, data, size, out);
        return r >= 0 && last ? masker_finish(q->mask, out) : r;
}

void request_report_usage(Request *q, bool complete) {
        const InjectCredential *c = q->metered;
        UsageCall call;

        if (!c || !q->sent)
                return;
        call = (UsageCall) {
                .provider = json_string_value(json_object_get(c->source->rule, "provider")),
                .host = q->name,
                .credential = q->plan.n_items > 0 ? q->plan.items[0].credential->source->name : NULL,
                .latency_usec = time_boottime() - q->started_usec,
                .status = q->status,
                .complete = complete,
        };
        if (q->usage)
                usage_reader_finish(q->usage, &call.usage);
        call.cost_microusd = usage_cost(c->source->provider, &call.usage);
        usage_report_add(q->context->usage, &call);

        q->usage = usage_reader_free(q->usage);
        q->metered = NULL;
}
