/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The last stage of a connection: bytes both ways, and in cleartext HTTP a decision for each request. */

#include <errno.h>
#include <string.h>

#include "egress/egress-api.h"
#include "proxy/connection-private.h"
#include "util/json.h"

static int on_refuse_request(sd_event_source *s, void *userdata) {
        _cleanup_free_ char *text = NULL;
        Connection *c = userdata;
        Refusal refusal = connection_refusal(c);
        size_t size = 0;

        c->defer = sd_event_source_disable_unref(c->defer);
        text = refusal_http(&refusal, &size);
        if (!text || relay_refuse(c->relay, text, size) < 0)
                connection_reset(c);
        return 0;
}

static void on_request_decided(IpcClient *client, const char *error, json_t *params, bool more, void *userdata) {
        Connection *c = userdata;
        Answer a;

        if (!connection_called(c))
                return;

        if (!connection_read_answer(c, error, params, &a))
                connection_replace(&c->reason, "unavailable");
        else if (strcmp(a.verdict, "pass") == 0) {
                c->waiting = false;
                c->approved = true;
                relay_resume(c->relay);
                return;
        }

        if (sd_event_add_defer(c->proxy->event, &c->defer, on_refuse_request, c) < 0)
                connection_reset(c);
}

static int ask_about_request(Connection *c) {
        json_t *params = connection_params(c);

        if (!params || json_object_set_new(params, "within", json_integer((json_int_t) c->grant)) < 0) {
                json_unref(params);
                return -ENOMEM;
        }
        c->waiting = true;
        return connection_call(c, c->proxy->egress, EGRESS_INTERFACE ".Connect", params, NULL, 0, ASK_USEC, on_request_decided);
}

static void forget_request(Connection *c) {
        free(c->method);
        free(c->path);
        free(c->host);
        c->method = c->path = c->host = NULL;
}

/* Which of the guest's bytes may go on? Bodies of decided requests, and heads once egressd has said so. */
static ssize_t connection_filter(const uint8_t *data, size_t size, void *userdata) {
        Connection *c = userdata;
        size_t free_to_go = 0;
        int r;

        if (c->approved) {
                c->approved = false;
                free_to_go = c->n_fed;
        }

        while (!c->waiting && !c->ended && c->n_fed < size) {
                const HttpRequest *request;
                HttpOutcome o;
                size_t taken;

                o = http_follower_feed(c->follower, (const char *) data + c->n_fed, size - c->n_fed, &taken);
                c->n_fed += taken;
                request = http_follower_request(c->follower);

                if (o == HTTP_MESSAGE_END && c->absolute) {
                        free_to_go = c->n_fed;
                        c->ended = true;
                } else if (o == HTTP_MESSAGE_END || (o == HTTP_NEED_MORE && !http_follower_in_head(c->follower))) {
                        free_to_go = c->n_fed;
                } else if (o == HTTP_HEAD_END && c->first_head) {
                        c->first_head = false; /* the same bytes that were peeked at and decided */
                        free_to_go = c->n_fed;
                } else if (o == HTTP_HEAD_END || o == HTTP_REFUSED) {
                        if (o == HTTP_HEAD_END && http_request_is_plain(request))
                                r = connection_remember_request(c, request);
                        else {
                                /* egressd denies and records what is not a request */
                                forget_request(c);
                                c->seen = EGRESS_RAW;
                                r = 0;
                        }
                        if (r >= 0)
                                r = ask_about_request(c);
                        if (r < 0)
                                return r;
                }
        }

        c->n_fed -= free_to_go;
        return (ssize_t) free_to_go;
}

static void connection_on_relayed(int r, void *userdata) {
        Connection *c = userdata;

        if (r < 0)
                connection_reset(c);
        else
                (void) connection_free(c);
}

void connection_relay(Connection *c) {
        RelayFilter filter = c->seen == EGRESS_HTTP && c->expected == EGRESS_HTTP ? connection_filter : NULL;
        int r = 0;

        connection_quiet(c);
        c->state = STATE_RELAY;
        if (filter && !c->absolute) {
                c->follower = http_follower_free(c->follower);
                r = http_follower_new(&c->follower);
                c->first_head = true;
        }
        if (r >= 0)
                r = relay_new(&c->relay, c->proxy->event, c->fd, c->origin_fd, filter, connection_on_relayed, c);
        if (r >= 0 && c->prefix)
                r = relay_prepend(c->relay, c->prefix, c->n_prefix);
        if (r < 0)
                connection_reset(c);
}
