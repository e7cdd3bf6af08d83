/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The last stage of a connection: bytes both ways, in cleartext HTTP a decision for each request, and in TLS one for a second hello. */

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "egress/egress-api.h"
#include "proxy/connection-private.h"
#include "util/json.h"

static int refuse_within(Connection *c) {
        Refusal refusal = connection_refusal(c);
        uint8_t alert[REFUSAL_ALERT_SIZE];
        _cleanup_free_ char *text = NULL;
        size_t size = 0;

        if (c->expected == EGRESS_TLS) {
                refusal_alert(refusal.reason, alert);
                return relay_refuse(c->relay, alert, sizeof(alert));
        }
        text = refusal_http(&refusal, &size);
        if (!text)
                return -ENOMEM;
        return c->cut ? relay_break_off(c->relay, text, size) : relay_refuse(c->relay, text, size);
}

static int on_refuse_request(sd_event_source *s, void *userdata) {
        Connection *c = userdata;

        c->defer = sd_event_source_disable_unref(c->defer);
        if (refuse_within(c) < 0)
                connection_reset(c);
        return 0;
}

/* From where the relay may not be called. */
static int refuse_later(Connection *c) {
        c->waiting = true;
        return sd_event_add_defer(c->proxy->event, &c->defer, on_refuse_request, c);
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

        if (refuse_later(c) < 0)
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
        c->second_path = false;
}

/* ---- cleartext HTTP ---- */

/* head: all of it, if it is one */
static int judge_head(Connection *c, HttpOutcome o, const uint8_t *head, size_t size) {
        const HttpRequest *request = http_follower_request(c->follower);
        int r = 0;

        if (o == HTTP_HEAD_END && http_request_is_plain(request))
                r = connection_remember_request(c, request);
        else {
                /* egressd denies and records what is not a request */
                forget_request(c);
                c->seen = EGRESS_RAW;
        }
        if (r >= 0 && o == HTTP_HEAD_END && connection_misuses_head(c, head, size))
                return refuse_later(c);
        return r < 0 ? r : ask_about_request(c);
}

/* Which of the guest's bytes may go on? Bodies of decided requests, and heads once egressd has said so. What is not let on when a head ends is that head. */
static ssize_t filter_http(const uint8_t *data, size_t size, bool *ret_undecided, void *userdata) {
        Connection *c = userdata;
        size_t free_to_go = 0;
        int r;

        if (c->approved) {
                c->approved = false;
                free_to_go = c->n_fed;
        }

        while (!c->waiting && !c->ended && c->n_fed < size) {
                bool in_body = !http_follower_in_head(c->follower);
                HttpOutcome o;
                size_t taken;

                o = http_follower_feed(c->follower, (const char *) data + c->n_fed, size - c->n_fed, &taken);
                r = in_body ? connection_misuses_body(c, data + c->n_fed, taken, o == HTTP_MESSAGE_END) : 0;
                if (r != 0) {
                        c->cut = true;
                        r = r < 0 ? r : refuse_later(c);
                        if (r < 0)
                                return r;
                        break; /* nothing of that piece leaves */
                }
                c->n_fed += taken;

                if (o == HTTP_MESSAGE_END && c->absolute) {
                        free_to_go = c->n_fed;
                        c->ended = true;
                } else if (o == HTTP_MESSAGE_END || (o == HTTP_NEED_MORE && !http_follower_in_head(c->follower))) {
                        free_to_go = c->n_fed;
                } else if (o == HTTP_HEAD_END && c->first_head) {
                        c->first_head = false; /* the same bytes that were peeked at and decided */
                        free_to_go = c->n_fed;
                } else if (o == HTTP_HEAD_END || o == HTTP_REFUSED) {
                        r = judge_head(c, o, data + free_to_go, c->n_fed - free_to_go);
                        if (r < 0)
                                return r;
                }
        }

        *ret_undecided = c->waiting;
        c->n_fed -= free_to_go;
        return (ssize_t) free_to_go;
}

/* ---- TLS ---- */

static void observe_tls(const uint8_t *data, size_t size, void *userdata) {
        Connection *c = userdata;

        hello_retry_feed_server(&c->retry, data, size);
}

static ssize_t accept_hello(Connection *c, size_t size) {
        hello_retry_accept(&c->retry);
        relay_watch(c->relay, NULL, NULL);
        return (ssize_t) size;
}

/* The first hello was decided about. Until it is sure that there will be no second one, records are looked at (hello-retry.c). */
static ssize_t filter_tls(const uint8_t *data, size_t size, bool *ret_undecided, void *userdata) {
        Connection *c = userdata;
        HelloRetryOutcome o;
        ClientHello second;
        size_t pass;
        int r;

        if (c->approved)
                return accept_hello(c, size);
        if (c->waiting) {
                *ret_undecided = true;
                return 0;
        }

        o = hello_retry_check_client(&c->retry, data, size, &pass, &second);
        if (o == HELLO_RETRY_PASS) {
                if (c->retry.state == HELLO_RETRY_OVER)
                        relay_watch(c->relay, NULL, NULL);
                return (ssize_t) pass;
        }
        if (o == HELLO_RETRY_SECOND && second.has_sni && !second.has_ech && strcasecmp(second.sni, c->hello.sni) == 0)
                return accept_hello(c, size);

        *ret_undecided = true;
        if (o == HELLO_RETRY_WAIT)
                return (ssize_t) pass;
        if (o == HELLO_RETRY_SECOND)
                c->hello = second;
        else
                c->seen = EGRESS_RAW; /* is denied as another protocol */
        r = ask_about_request(c);
        return r < 0 ? r : (ssize_t) pass;
}

/* ---- both ways ---- */

static void connection_on_relayed(int r, void *userdata) {
        Connection *c = userdata;

        if (r < 0)
                connection_reset(c);
        else
                (void) connection_free(c);
}

void connection_relay(Connection *c) {
        RelayObserver observer = NULL;
        RelayFilter filter = NULL;
        int r = 0;

        connection_quiet(c);
        c->state = STATE_RELAY;
        if (c->seen == EGRESS_HTTP && c->expected == EGRESS_HTTP)
                filter = filter_http;
        else if (c->seen == EGRESS_TLS && c->expected == EGRESS_TLS) {
                filter = filter_tls;
                observer = observe_tls;
        }

        if (filter == filter_http && !c->absolute) {
                c->follower = http_follower_free(c->follower);
                r = http_follower_new(&c->follower);
                c->first_head = true;
        }
        if (r >= 0 && filter == filter_http)
                connection_watch_body(c);
        if (r >= 0)
                r = relay_new(&c->relay, c->proxy->event, c->fd, c->origin_fd, filter, connection_on_relayed, c);
        if (r >= 0)
                relay_watch(c->relay, filter, observer);
        if (r >= 0 && c->prefix)
                r = relay_prepend(c->relay, c->prefix, c->n_prefix);
        if (r < 0)
                connection_reset(c);
}
