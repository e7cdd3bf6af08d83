/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Saying no: in the protocol that the guest speaks, if it can be told, and so that it can be read. */

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "proxy/connection-private.h"

static int on_linger(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        Connection *c = userdata;
        char sink[4096];

        for (int i = 0; i < 16; i++) {
                ssize_t n = recv(fd, sink, sizeof(sink), MSG_DONTWAIT);

                if (n < 0 && (errno == EAGAIN || errno == EINTR))
                        return 0;
                if (n <= 0) {
                        (void) connection_free(c);
                        return 0;
                }
        }
        return 0;
}

/* Sends the last word. The guest's bytes are read off meanwhile: unread ones would turn the close into a reset, and that could
 * overtake what was said. */
static void connection_say(Connection *c, const void *data, size_t size) {
        connection_quiet(c);
        c->state = STATE_LINGER;

        if (send(c->fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t) size || shutdown(c->fd, SHUT_WR) < 0 ||
            sd_event_add_io(c->proxy->event, &c->io, c->fd, EPOLLIN, on_linger, c) < 0 || connection_set_timer(c, LINGER_USEC) < 0)
                connection_reset(c);
}

Refusal connection_refusal(const Connection *c) {
        return (Refusal) { .reason = c->reason ?: "unavailable", .rule = c->rule ?: "default", .name = c->name ?: c->asked_name, .port = c->port };
}

void connection_say_no(Connection *c) {
        Refusal refusal = connection_refusal(c);
        uint8_t alert[REFUSAL_ALERT_SIZE];

        if (c->by_proxy_head || c->speaks_http) {
                _cleanup_free_ char *text = NULL;
                size_t size = 0;

                text = refusal_http(&refusal, &size);
                if (text)
                        connection_say(c, text, size);
                else
                        connection_reset(c);
        } else if (c->speaks_tls || (c->has_seen && c->seen == EGRESS_TLS)) {
                refusal_alert(refusal.reason, alert);
                connection_say(c, alert, sizeof(alert));
        } else
                connection_reset(c);
}

/* What is refused here without a question stands in the log as well. */
static void tell_refused(Connection *c, const char *reason) {
        static const char *const told[] = { "malformed", "too-large", "timeout", "protocol" };

        for (size_t i = 0; i < ELEMENTSOF(told); i++)
                if (strcmp(reason, told[i]) == 0) {
                        refused_log_add(c->proxy->refused,
                                        &(RefusedKind) { .event = "connection", .reason = told[i], .address = c->address,
                                                         .name = c->address[0] ? NULL : c->asked_name, .port = c->port },
                                        true);
                        return;
                }
}

/* Before anything was seen, a moment is granted to see how to say it. */
void connection_refuse(Connection *c, const char *reason) {
        if (reason) {
                connection_replace(&c->reason, reason);
                tell_refused(c, reason);
        }
        if (c->has_seen || c->by_proxy_head)
                connection_say_no(c);
        else
                connection_watch_first_bytes(c, STATE_REFUSE, REFUSE_USEC);
}
