/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * What comes back for a request: decoded, masked, and read for what a model call used.
 *
 * What cannot be read cannot be masked: an encoding other than gzip is refused. What is encoded goes on decoded, since encoding it again would
 * make the length of what the guest gets depend on the secret.
 *
 * A message of gRPC (gRPC-Web in binary, a stream of Connect) goes on when it is whole, whatever it ends in: its receiver may have to answer before the next one
 * comes. But where messages end says the body, and what stands in that may be an echo: of a message that the guest wrote around a value, to have it cut in the midst. So
 * what is let go at such an end is remembered, and the rest of a value is masked that began in it; and nothing is let go that ends in more than
 * MASK_BEGINNING_MAX characters of the beginning of a value. That this one waits tells the guest that it has guessed so many, so all other messages
 * of the run wait from then on: there is no second guess. The same where a value begins in the very head of a message, whose length it is then.
 */

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

static bool has_messages(const HttpHead *h) {
        const char *type;

        return !h->websocket && http_head_find(h, "content-type", &type) == 1 && grpc_is_type(type);
}

static int start_decoding(Request *q, const HttpHead *h, Refusal *ret) {
        const char *encoding;
        size_t n;

        if (q->context->n_credentials == 0 || h->framing == HTTP_FRAMING_NONE)
                return 0;
        n = http_head_find(h, "content-encoding", &encoding);
        if (n == 0 || (n == 1 && strcasecmp(encoding, "identity") == 0))
                return 0;
        if (n == 1 && (strcasecmp(encoding, "gzip") == 0 || strcasecmp(encoding, "x-gzip") == 0))
                return gunzip_new(&q->gunzip);
        request_deny(q, q->head, 502, "encoded-response", "Content-Encoding", "The origin's answer is encoded in a way that cannot be read here.", ret);
        return REQUEST_E_REFUSED;
}

int request_begin_answer(Request *q, const HttpHead *h, Refusal *ret) {
        int r;

        q->status = h->status;
        q->gets_messages = has_messages(h);
        q->got_messages = (GrpcReader) {};
        /* a part of an answer that reflects a secret may hold a part of the secret, which masking does not find */
        if (h->status == 206 && q->plan.n_items > 0) {
                request_deny(q, q->head, 502, "partial-response", NULL, "The origin answered in parts, which it was not asked for.", ret);
                return REQUEST_E_REFUSED;
        }
        if (h->websocket && http_head_find(h, "sec-websocket-extensions", NULL) > 0) {
                request_deny(q, q->head, 502, "origin-malformed", "Sec-WebSocket-Extensions", "The origin uses an extension that nobody asked for.", ret);
                return REQUEST_E_REFUSED;
        }
        r = start_decoding(q, h, ret);
        if (r == 0)
                start_usage(q, h);
        return r;
}

/* What it is the digest of is not what goes on, if anything of that was masked. And if it was, the digest would let the guest test guesses of the value
 * as fast as it can compute. So it goes wherever something might be. */
static bool is_digest(const char *name) {
        static const char *const names[] = { "content-md5", "content-digest", "repr-digest", "digest" };

        for (size_t i = 0; i < ELEMENTSOF(names); i++)
                if (strcasecmp(name, names[i]) == 0)
                        return true;
        return false;
}

bool request_passes_field(const Request *q, const HttpHead *head, const char *name) {
        /* another way to the same origin would be one around this place */
        if (strcasecmp(name, "alt-svc") == 0)
                return false;
        if (q->gunzip && strcasecmp(name, "content-encoding") == 0)
                return false;
        return !http_field_is_hop_by_hop(head, name) && !(q->context->n_credentials > 0 && is_digest(name));
}

bool request_passes_trailer(const Request *q, const char *name) {
        return http_field_may_trail(name) && !(q->context->n_credentials > 0 && is_digest(name));
}

int request_mask_text(Request *q, const char *text, Buffer *out) {
        int r;

        r = request_renew_mask(q);
        if (r >= 0)
                r = masker_feed(q->mask, text, strlen(text), out);
        return r < 0 ? r : masker_finish(q->mask, out);
}

/* What stands in out behind `begin` goes to the guest. */
static void read_usage(Request *q, const Buffer *out, size_t begin) {
        if (q->usage && buffer_size(out) > begin)
                usage_reader_feed(q->usage, buffer_data(out) + begin, buffer_size(out) - begin);
}

static int feed_piece(Request *q, const void *data, size_t size, bool last, Buffer *out) {
        size_t begin = buffer_size(out);
        int r = request_renew_mask(q);

        if (r >= 0 && size > 0)
                r = masker_feed(q->mask, data, size, out);
        if (r >= 0 && last)
                r = masker_finish(q->mask, out);
        read_usage(q, out, begin);
        return r;
}

/* The message that is whole by now. */
static int release_answer(Request *q, Buffer *out) {
        ExchangeContext *c = q->context;
        size_t begin = buffer_size(out);
        int r = request_renew_mask(q);

        if (r < 0 || c->wary)
                return r;
        r = masker_begins_before(c->beginnings, q->got_messages.start, q->got_messages.n_start, GRPC_HEAD);
        if (r == 0)
                r = masker_release(q->mask, c->beginnings, out);
        if (r > 0)
                log_notice("a message from %s is cut where a credential begins: messages wait for the next ones in this run", q->name);
        c->wary = r > 0;
        read_usage(q, out, begin);
        return r < 0 ? r : 0;
}

/* A compressed message cannot be read; the origin was not told that it may send one. */
static int feed_decoded(Request *q, const uint8_t *data, size_t size, bool last, Buffer *out) {
        int r = 0;

        while (q->gets_messages && size > 0 && r >= 0) {
                bool whole;
                size_t n = grpc_next(&q->got_messages, data, size, &whole);

                if (q->got_messages.compressed && q->context->n_credentials > 0)
                        return -EBADMSG;
                r = feed_piece(q, data, n, false, out);
                if (r >= 0 && whole)
                        r = release_answer(q, out);
                data += n;
                size -= n;
        }
        return r < 0 ? r : feed_piece(q, data, size, last, out);
}

int request_feed_answer(Request *q, const void *data, size_t size, bool last, Buffer *out) {
        Buffer decoded = {};
        int r;

        if (!q->gunzip)
                return feed_decoded(q, data, size, last, out);

        r = gunzip_feed(q->gunzip, data, size, &decoded);
        if (r == 0 && last)
                r = gunzip_finish(q->gunzip);
        if (r == 0)
                r = feed_decoded(q, buffer_data(&decoded), buffer_size(&decoded), last, out);
        else
                log_warning("the answer of %s cannot be decoded: %s", q->name, r == -EFBIG ? "it swells beyond all measure" : strerror(-r));
        buffer_done(&decoded);
        return r;
}

/* What is held back of an answer that broke off reaches nobody any more, but was said. */
static void read_held_back(Request *q) {
        Buffer rest = {};

        if (q->usage)
                (void) feed_piece(q, NULL, 0, true, &rest);
        buffer_done(&rest);
}

void request_report_usage(Request *q, bool complete) {
        const InjectCredential *c = q->metered;
        UsageCall call;

        if (!c || !q->sent)
                return;
        call = (UsageCall) {
                .id = q->reserved ? q->call : NULL,
                .provider = json_string_value(json_object_get(c->source->rule, "provider")),
                .host = q->name,
                .credential = q->plan.n_items > 0 ? q->plan.items[0].credential->source->name : NULL,
                .latency_usec = time_boottime() - q->started_usec,
                .status = q->status,
                .complete = complete,
        };
        if (!complete)
                read_held_back(q);
        usage_call_conclude(&call, c->source->provider, q->usage, q->prompt_bytes);
        if (q->reserved && budget_is_capped(q->context->budget))
                usage_call_settle(&call, c->source->provider, q->reserved_input, q->reserved_output, q->reserved_cost);
        usage_report_add(q->context->usage, &call);
        q->reserved = false; /* its report ends the reservation */

        q->usage = usage_reader_free(q->usage);
        q->metered = NULL;
}
