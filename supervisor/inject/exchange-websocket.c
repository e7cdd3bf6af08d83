/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A connection that has switched to WebSocket (RFC 6455): frames in both directions, until either side ends. What the guest sends is searched
 * for sentinels, what the origin sends is masked, as with any body. A side that sends what is no frame, or a sentinel where it
 * does not belong, ends both; the guest learns the reason from a Close frame, and the origin nothing.
 *
 * A guest that sends nothing more is gone, unless a Close frame was its last word: then it may still read, and gets what the origin sends up to that one's Close.
 */

#include <errno.h>

#include "inject/exchange-private.h"
#include "util/log.h"

/* A connection on which nothing comes either way; most peers ping each other much more often. */
#define WEBSOCKET_USEC (15 * 60 * SECOND_USEC)
/* The origin's Close, once the guest has nothing more to say. */
#define WEBSOCKET_CLOSE_USEC (10 * SECOND_USEC)

int exchange_begin_websocket(Exchange *x) {
        int r;

        r = request_new_websocket(&x->request, true, &x->frames_up);
        if (r < 0 || (r = request_new_websocket(&x->request, false, &x->frames_down)) < 0)
                return r;
        exchange_set_phase(x, PHASE_WEBSOCKET, x->guest_ended ? WEBSOCKET_CLOSE_USEC : WEBSOCKET_USEC);
        return 1;
}

/* What is on its way to the guest ends with a whole frame: so a Close frame can follow. */
static int end_websocket(Exchange *x, unsigned code, const char *reason) {
        int r;

        r = websocket_close_frame(code, reason, &x->to_guest);
        request_finish(&x->request, false);
        exchange_drop_origin(x);
        exchange_set_phase(x, PHASE_FLUSH, 10 * SECOND_USEC);
        return r < 0 ? r : 1;
}

static int pass_up(Exchange *x) {
        Refusal refusal;
        int r, got;

        if (buffer_size(&x->to_origin) >= EXCHANGE_BACKLOG_MAX)
                return 0;
        got = exchange_read_guest(x);
        if (got < 0)
                return got;
        if (buffer_size(&x->from_guest) == 0)
                return got;

        r = request_feed_websocket(&x->request, x->frames_up, buffer_data(&x->from_guest), buffer_size(&x->from_guest), &x->to_origin, &refusal);
        buffer_clear(&x->from_guest);
        if (r == REQUEST_E_REFUSED)
                return end_websocket(x, refusal.status == 403 ? WEBSOCKET_POLICY_VIOLATION : WEBSOCKET_PROTOCOL_ERROR, refusal.reason);
        return r < 0 ? r : 1;
}

static int finish_websocket(Exchange *x, bool complete) {
        request_finish(&x->request, complete);
        exchange_drop_origin(x);
        exchange_set_phase(x, PHASE_FLUSH, 10 * SECOND_USEC);
        return 1;
}

static int pass_down(Exchange *x) {
        bool ended = false;
        Refusal refusal;
        ssize_t size;
        int r = 0, got;

        if (buffer_size(&x->to_guest) >= EXCHANGE_BACKLOG_MAX)
                return 0;
        got = exchange_read_piece(x->origin, &x->from_origin, &ended, &size);
        x->bytes_in += (uint64_t) size;

        if (buffer_size(&x->from_origin) > 0)
                r = request_feed_origin_websocket(&x->request, x->frames_down, buffer_data(&x->from_origin), buffer_size(&x->from_origin), &x->to_guest);
        buffer_clear(&x->from_origin);
        if (r == -EBADMSG) {
                log_warning("%s sends what is no WebSocket: %s", x->name, websocket_error(x->frames_down));
                request_deny(&x->request, http_reader_head(x->requests), 502, "origin-malformed", "frame", websocket_error(x->frames_down), &refusal);
                return end_websocket(x, WEBSOCKET_INTERNAL_ERROR, refusal.reason);
        }
        if (r < 0)
                return r;
        if (got < 0 || ended)
                return finish_websocket(x, ended);
        return got;
}

int exchange_websocket_step(Exchange *x) {
        bool could_speak = !x->guest_ended;
        int up, down;

        up = pass_up(x);
        if (up < 0 || x->phase != PHASE_WEBSOCKET)
                return up;
        down = pass_down(x);
        if (down < 0 || x->phase != PHASE_WEBSOCKET)
                return down;
        if (!x->guest_ended) {
                if (up > 0 || down > 0)
                        exchange_set_phase(x, PHASE_WEBSOCKET, WEBSOCKET_USEC);
                return up > 0 || down > 0;
        }
        if (could_speak)
                exchange_set_phase(x, PHASE_WEBSOCKET, WEBSOCKET_CLOSE_USEC);
        if (buffer_size(&x->to_origin) > 0)
                return up > 0 || down > 0;
        if (!websocket_is_closed(x->frames_up))
                return -ESHUTDOWN;
        return websocket_is_closed(x->frames_down) ? finish_websocket(x, true) : up > 0 || down > 0;
}
