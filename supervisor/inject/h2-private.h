/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Shared by h2-pair.c (life, bytes, bounds), h2-stream.c (one request), h2-answer.c (its answer), h2-guest.c and h2-origin.c (what the sessions
 * tell). */

#include <nghttp2/nghttp2.h>

#include "inject/h2-fields.h"
#include "inject/h2-head.h"
#include "inject/h2-pair.h"

#define H2_SECOND_USEC (1000ULL * 1000)

enum {
        H2_STREAMS_MAX = 100,
        H2_STREAM_WINDOW = 128 * 1024,
        H2_WINDOW = 256 * 1024,              /* of a connection; */
        H2_WINDOW_SMALL = 64 * 1024,         /* with many connections */
        H2_MANY_CONNECTIONS = 64,
        H2_BACKLOG_MAX = 4 * 1024 * 1024,    /* of one direction of a pair, while the process has not H2_BACKLOG_ALL in hand; */
        H2_BACKLOG_SMALL = 64 * 1024,        /* then */
        H2_BACKLOG_ALL = 32 * 1024 * 1024,

        /* Frames that cost work and carry nothing: what a guest may send of them at once, and each second. */
        H2_NOISE_MAX = 4000,
        H2_NOISE_SECOND = 400,
};

/* One direction of a stream: what came from one side and is to leave on the other. */
typedef struct H2Flow {
        Buffer data;
        H2Fields *trailers; /* owned; NULL: none (yet) */
        size_t unreturned;  /* bytes for which the sender's window was not opened again */
        size_t counted;     /* of `data`, in the pair's backlog */
        bool over;          /* nothing more will come */
        Websocket *frames;  /* owned; NULL unless the stream is one (RFC 8441) */
} H2Flow;

typedef struct H2Stream {
        H2Pair *pair; /* borrowed */
        struct H2Stream *next, **prev;
        int32_t guest_id, origin_id; /* 0: not open on that side */
        H2Head head;
        Request request;
        H2Flow up, down;       /* from the guest, from the origin */
        uint64_t deadline_usec;
        bool holds;            /* its body comes first, all of it: it has a place for a credential */
        bool cleared;          /* was sent to the origin */
        bool answered;         /* a final head is on its way to the guest */
        bool refused;          /* the answer is ours; */
        H2Fields *late;        /* owned; its head, if that is to wait until all of the request is there */
        bool malformed;        /* the origin's answer is */
} H2Stream;

struct H2Pair {
        ExchangeContext *context; /* borrowed */
        H2Wake wake;
        void *userdata;
        const char *name, *rule; /* borrowed */
        uint16_t port;
        int64_t grant;
        bool covered;
        uint64_t carried; /* which credentials the connection to the origin is for, a bit each: once it is for some, no request with others goes there */

        nghttp2_session *guest, *origin; /* owned; origin NULL: there is none */
        H2Stream *streams;               /* owned */
        size_t n_streams;
        H2Head answer, trailers; /* block of fields that is being read, from the origin and from the guest */
        size_t up_backlog, down_backlog; /* of all streams */
        size_t up_unreturned, down_unreturned; /* bytes for which the connections' windows were not opened again */

        bool refuses, leaving, broken, origin_ended, origin_connects;
        Refusal refusal;
        int64_t noise; /* what is left of it */
        uint64_t noise_usec, idle_usec;
        uint64_t dismissed_usec; /* when the guest was told to open no new streams; 0: it was not */
};

/* h2-pair.c */
H2Stream *h2_pair_find_guest(H2Pair *p, int32_t id);
H2Stream *h2_pair_find_origin(H2Pair *p, int32_t id);
/* Gives windows back as far as memory allows. */
void h2_pair_settle(H2Pair *p);
/* No new streams; those that are open go on. */
int h2_pair_leave(H2Pair *p, uint32_t code);
/* The same for a guest that has done nothing wrong: streams that it opened before it hears of it are taken as well. */
int h2_pair_dismiss(H2Pair *p);
/* A record that the guest broke the protocol; reason as in conn.deny. */
void h2_pair_note(H2Pair *p, const char *reason, const char *where);
/* false: too much of it, and the connection is being ended. */
bool h2_pair_admit_noise(H2Pair *p, unsigned cost);

/* h2-guest.c, h2-origin.c: negative errno. */
int h2_guest_session_new(H2Pair *p, nghttp2_option *option, nghttp2_mem *mem);
int h2_origin_session_new(H2Pair *p, nghttp2_option *option, nghttp2_mem *mem);

/* Negative errno for a failure of nghttp2. */
int h2_errno(int code);

/* h2-stream.c, h2-answer.c: 0, or negative errno, which ends the pair. */
int h2_stream_new(H2Stream **ret, H2Pair *p, int32_t guest_id);
H2Stream *h2_stream_free(H2Stream *s);
int h2_stream_judge(H2Stream *s, bool ended);
int h2_stream_refuse(H2Stream *s, const Refusal *refusal);
int h2_stream_deny(H2Stream *s, unsigned status, const char *reason, const char *where, const char *message);
/* Ends it on both sides. */
void h2_stream_reset(H2Stream *s, uint32_t code);
void h2_stream_drop_origin(H2Stream *s, uint32_t code);
int h2_stream_take_body(H2Stream *s, const uint8_t *data, size_t size);
int h2_stream_end_body(H2Stream *s, H2Head *trailers);
int h2_stream_take_head(H2Stream *s, H2Head *head, bool ended);
int h2_stream_take_answer(H2Stream *s, const uint8_t *data, size_t size);
int h2_stream_end_answer(H2Stream *s, H2Head *trailers);
/* What nghttp2 asks for when it can send. up: for the origin's session. */
nghttp2_ssize h2_stream_give(H2Stream *s, bool up, uint8_t *buffer, size_t size, uint32_t *ret_flags);
void h2_stream_touch(H2Stream *s);
/* Opens the sender's window by what has left the flow, or never will. */
void h2_stream_settle(H2Stream *s, H2Flow *flow);
/* What a field of the answer is for the guest. */
int h2_stream_add_masked(H2Stream *s, const HttpField *field, H2Fields *fields);
int h2_stream_keep_trailers(H2Stream *s, H2Flow *flow, const HttpHead *h);
/* "Go on", or hints. */
int h2_stream_pass_early_head(H2Stream *s, const H2Fields *fields);
/* The final head; a body follows unless it has ended. */
int h2_stream_submit_answer(H2Stream *s, const H2Fields *fields, bool ended);
