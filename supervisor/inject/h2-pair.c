/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * One connection of HTTP/2 of the guest, and the one to the origin that was opened for it:
 *
 *   guest ═ server session ═ stream: request judged, searched ═ client session ═ origin
 *                            stream: answer masked
 *
 * Each stream is judged by itself, as a request of HTTP/1.1 is (request.c); a refusal is the answer of that stream and leaves the
 * others alone. Nothing of the framing is passed through: header blocks, settings, pings and priorities end here, and frames
 * that this program does not know, too. What is carried over: heads (also 1xx), data, trailers, resets and GOAWAY.
 *
 * Memory. A side's stream window opens as the other side takes the bytes (h2-stream.c). The window of the connection opens at
 * once, so that one slow stream does not stop the others, until H2_BACKLOG_MAX bytes wait for slow readers; from there on it opens
 * as they are taken. If the process holds much for all its pairs together, that bound is small. Header blocks and the number of
 * streams are bounded; so is what may be sent of frames that carry nothing (resets, pings, settings, empty data): whoever exceeds
 * that is told to calm down, and its connection ends.
 *
 * A connection to the origin is for one credential (or one set of them), as with HTTP/1.1: the first request that carries one
 * says which; those without any go along. One that carries another is refused as a stream of which nothing was done, and the
 * guest is told to open no new ones on its connection: clients then begin anew on another by themselves (RFC 9113, 8.7),
 * which 421 makes hardly any do that is no browser. But they try each request a few times only (curl: five): so those that
 * were on their way when the guest was told are taken if they may go on this connection, and the connection ends later (6.8).
 *
 * A pair is used from its connections' callbacks, and from answers of egressd and auditd; these wake the owner.
 */

#include "inject/h2-pair.h"

#include <errno.h>
#include <malloc.h>
#include <string.h>

#include "inject/h2-private.h"
#include "util/log.h"
#include "util/text.h"

#define IDLE_USEC (75 * H2_SECOND_USEC)
/* From when the guest is told to go until nothing new is taken: longer than what it has sent is on its way. */
#define DISMISS_USEC (5 * H2_SECOND_USEC)

/* ---- memory of the sessions: it has held secrets ---- */

static void *h2_malloc(size_t size, void *userdata) {
        return malloc(size > 0 ? size : 1);
}

static void *h2_calloc(size_t n, size_t size, void *userdata) {
        return calloc(n, size);
}

static void h2_free(void *p, void *userdata) {
        if (p)
                explicit_bzero(p, malloc_usable_size(p));
        free(p);
}

static void *h2_realloc(void *p, size_t size, void *userdata) {
        size_t had = p ? malloc_usable_size(p) : 0;
        void *q;

        if (had >= size && p)
                return p;
        q = malloc(size > 0 ? size : 1);
        if (!q)
                return NULL;
        if (p)
                memcpy(q, p, had);
        h2_free(p, NULL);
        return q;
}

/* ---- windows ---- */

void h2_pair_settle(H2Pair *p) {
        size_t bound = p->context->h2_backlog < H2_BACKLOG_ALL ? H2_BACKLOG_MAX : H2_BACKLOG_SMALL;

        /* these fail only for want of memory; then the window stays as small as it is */
        if (p->up_unreturned > 0 && p->up_backlog < bound) {
                (void) nghttp2_session_consume_connection(p->guest, p->up_unreturned);
                p->up_unreturned = 0;
        }
        if (p->origin && p->down_unreturned > 0 && p->down_backlog < bound) {
                (void) nghttp2_session_consume_connection(p->origin, p->down_unreturned);
                p->down_unreturned = 0;
        }
}

/* ---- what the guest does against the protocol ---- */

void h2_pair_note(H2Pair *p, const char *reason, const char *where) {
        Request whole = { .context = p->context, .name = p->name, .port = p->port };
        Refusal refusal;

        request_deny(&whole, NULL, 400, reason, where, "", &refusal);
}

bool h2_pair_admit_noise(H2Pair *p, unsigned cost) {
        uint64_t now;

        if (p->broken)
                return false;
        p->noise -= cost;
        if (p->noise >= 0)
                return true;

        now = time_boottime();
        p->noise += (int64_t) ((now - p->noise_usec) * H2_NOISE_SECOND / H2_SECOND_USEC);
        p->noise_usec = now;
        if (p->noise > H2_NOISE_MAX)
                p->noise = H2_NOISE_MAX;
        if (p->noise >= 0)
                return true;

        p->broken = true;
        h2_pair_note(p, "flood", "frames without content");
        (void) nghttp2_session_terminate_session(p->guest, NGHTTP2_ENHANCE_YOUR_CALM);
        return false;
}

/* ---- streams ---- */

H2Stream *h2_pair_find_guest(H2Pair *p, int32_t id) {
        for (H2Stream *s = p->streams; s; s = s->next)
                if (s->guest_id == id)
                        return s;
        return NULL;
}

H2Stream *h2_pair_find_origin(H2Pair *p, int32_t id) {
        for (H2Stream *s = p->streams; s && id > 0; s = s->next)
                if (s->origin_id == id)
                        return s;
        return NULL;
}

/* ---- bytes ---- */

int h2_pair_take_guest(H2Pair *p, const void *data, size_t size) {
        nghttp2_ssize n;

        if (p->broken)
                return 0; /* it was told to go */
        n = nghttp2_session_mem_recv2(p->guest, data, size);
        if (n == NGHTTP2_ERR_NOMEM)
                return -ENOMEM;
        if (n < 0 && !p->broken) {
                p->broken = true;
                h2_pair_note(p, n == NGHTTP2_ERR_FLOODED ? "flood" : "bad-request", nghttp2_strerror((int) n));
                (void) nghttp2_session_terminate_session(p->guest, n == NGHTTP2_ERR_FLOODED ? NGHTTP2_ENHANCE_YOUR_CALM : NGHTTP2_PROTOCOL_ERROR);
        }
        return 0;
}

int h2_pair_take_origin(H2Pair *p, const void *data, size_t size) {
        nghttp2_ssize n;

        if (!p->origin || p->origin_ended)
                return 0;
        n = nghttp2_session_mem_recv2(p->origin, data, size);
        if (n == NGHTTP2_ERR_NOMEM)
                return -ENOMEM;
        if (n < 0 || !nghttp2_session_want_read(p->origin)) {
                if (n < 0)
                        log_warning("the connection to %s is malformed: %s", p->name, nghttp2_strerror((int) n));
                return h2_pair_end_origin(p);
        }
        return 0;
}

int h2_pair_end_origin(H2Pair *p) {
        int r;

        if (p->origin_ended)
                return 0;
        p->origin_ended = true;
        for (H2Stream *s = p->streams; s; s = s->next) {
                s->origin_id = 0;
                if (!s->cleared || s->down.over || s->refused)
                        continue;
                r = h2_stream_deny(s, 502, "origin-closed", NULL, "The origin closed the connection before its answer was complete.");
                if (r < 0)
                        return r;
        }
        return h2_pair_leave(p, NGHTTP2_NO_ERROR);
}

int h2_pair_leave(H2Pair *p, uint32_t code) {
        int r;

        if (p->leaving || p->broken)
                return 0;
        p->leaving = true;
        r = nghttp2_submit_goaway(p->guest, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(p->guest), code, NULL, 0);
        return r == 0 ? 0 : -ENOMEM;
}

int h2_pair_dismiss(H2Pair *p) {
        if (p->dismissed_usec > 0 || p->leaving || p->broken)
                return 0;
        p->dismissed_usec = time_boottime();
        return nghttp2_submit_shutdown_notice(p->guest) == 0 ? 0 : -ENOMEM;
}

static int give(nghttp2_session *session, Buffer *out, size_t max) {
        bool any = false;

        while (buffer_size(out) < max) {
                const uint8_t *data;
                nghttp2_ssize n = nghttp2_session_mem_send2(session, &data);
                int r;

                if (n == 0)
                        break;
                if (n < 0)
                        return n == NGHTTP2_ERR_NOMEM ? -ENOMEM : -EPROTO;
                r = buffer_append(out, data, (size_t) n);
                if (r < 0)
                        return r;
                any = true;
        }
        return any;
}

int h2_pair_give_guest(H2Pair *p, Buffer *out, size_t max) {
        return give(p->guest, out, max);
}

int h2_pair_give_origin(H2Pair *p, Buffer *out, size_t max) {
        int r, k;

        if (!p->origin || p->origin_ended)
                return 0;
        r = give(p->origin, out, max);
        if (r < 0 || nghttp2_session_want_read(p->origin) || nghttp2_session_want_write(p->origin))
                return r;
        /* it broke the protocol and was told so, or has left */
        k = h2_pair_end_origin(p);
        return k < 0 ? k : 1;
}

bool h2_pair_is_over(const H2Pair *p) {
        return !nghttp2_session_want_write(p->guest) && (p->broken || !nghttp2_session_want_read(p->guest));
}

int h2_pair_cut(H2Pair *p, int32_t id) {
        H2Stream *s = h2_pair_find_guest(p, id);

        if (!s || s->refused)
                return 0;
        return h2_stream_deny(s, 403, "policy-changed", NULL, "The run's policy was changed, and does not allow this request any more.");
}

uint64_t h2_pair_carried(const H2Pair *p) {
        return p->carried;
}

/* ---- time ---- */

static int stream_on_deadline(H2Stream *s) {
        if (s->refused) {
                h2_stream_reset(s, NGHTTP2_CANCEL);
                return 0;
        }
        return s->cleared ? h2_stream_deny(s, 504, "origin-timeout", NULL, "The origin did not answer in time.")
                          : h2_stream_deny(s, 503, "unavailable", NULL, "The host did not decide in time.");
}

int h2_pair_tick(H2Pair *p) {
        uint64_t now = time_boottime();
        int r;

        if (p->dismissed_usec > 0 && now - p->dismissed_usec > DISMISS_USEC) {
                r = h2_pair_leave(p, NGHTTP2_NO_ERROR);
                if (r < 0)
                        return r;
        }
        if (p->n_streams == 0)
                return now - p->idle_usec > IDLE_USEC ? h2_pair_leave(p, NGHTTP2_NO_ERROR) : 0;
        for (H2Stream *s = p->streams; s; s = s->next) {
                if (s->deadline_usec > now)
                        continue;
                s->deadline_usec = now + 10 * H2_SECOND_USEC;
                r = stream_on_deadline(s);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* ---- start and end ---- */

static int make_sessions(H2Pair *p) {
        nghttp2_mem mem = { NULL, h2_malloc, h2_free, h2_calloc, h2_realloc };
        nghttp2_option *option;
        int r;

        if (nghttp2_option_new(&option) != 0)
                return -ENOMEM;
        nghttp2_option_set_no_auto_window_update(option, 1);
        nghttp2_option_set_no_closed_streams(option, 1);
        nghttp2_option_set_max_continuations(option, 8); /* a head of 64 KiB takes four */
        nghttp2_option_set_max_send_header_block_length(option, 4 * HTTP_HEAD_MAX);
        nghttp2_option_set_max_outbound_ack(option, 200);
        nghttp2_option_set_stream_reset_rate_limit(option, 200, 20);
        nghttp2_option_set_max_reserved_remote_streams(option, 0);
        nghttp2_option_set_max_deflate_dynamic_table_size(option, 4096);
        r = h2_guest_session_new(p, option, &mem);
        if (r >= 0 && !p->refuses)
                r = h2_origin_session_new(p, option, &mem);
        nghttp2_option_del(option);
        return r;
}

static int send_prefaces(H2Pair *p) {
        int32_t window = p->context->n_exchanges < H2_MANY_CONNECTIONS ? H2_WINDOW : H2_WINDOW_SMALL;
        const nghttp2_settings_entry guest[] = {
                { NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, H2_STREAMS_MAX },
                { NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, H2_STREAM_WINDOW },
                { NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, HTTP_HEAD_MAX },
        };
        const nghttp2_settings_entry origin[] = {
                { NGHTTP2_SETTINGS_ENABLE_PUSH, 0 },
                { NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, H2_STREAM_WINDOW },
                { NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, HTTP_HEAD_MAX },
        };

        if (nghttp2_submit_settings(p->guest, NGHTTP2_FLAG_NONE, guest, ELEMENTSOF(guest)) != 0 ||
            nghttp2_session_set_local_window_size(p->guest, NGHTTP2_FLAG_NONE, 0, window) != 0)
                return -ENOMEM;
        if (p->origin && (nghttp2_submit_settings(p->origin, NGHTTP2_FLAG_NONE, origin, ELEMENTSOF(origin)) != 0 ||
                          nghttp2_session_set_local_window_size(p->origin, NGHTTP2_FLAG_NONE, 0, window) != 0))
                return -ENOMEM;
        return 0;
}

int h2_pair_new(H2Pair **ret, ExchangeContext *c, const H2Origin *origin, H2Wake wake, void *userdata) {
        _cleanup_(h2_pair_freep) H2Pair *p = calloc(1, sizeof(*p));
        int r;

        if (!p)
                return -ENOMEM;
        *p = (H2Pair) {
                .context = c,
                .wake = wake,
                .userdata = userdata,
                .name = origin->name,
                .rule = origin->rule,
                .port = origin->port,
                .grant = origin->grant,
                .covered = origin->covered,
                .noise = H2_NOISE_MAX,
                .noise_usec = time_boottime(),
                .idle_usec = time_boottime(),
        };
        if (origin->refusal) {
                p->refuses = true;
                p->refusal = *origin->refusal;
        }
        if ((r = make_sessions(p)) < 0 || (r = send_prefaces(p)) < 0)
                return r;

        *ret = TAKE_PTR(p);
        return 0;
}

H2Pair *h2_pair_free(H2Pair *p) {
        if (!p)
                return NULL;

        while (p->streams)
                h2_stream_free(p->streams);
        nghttp2_session_del(p->guest);
        nghttp2_session_del(p->origin);
        h2_head_done(&p->answer);
        h2_head_done(&p->trailers);
        free(p);
        return NULL;
}
