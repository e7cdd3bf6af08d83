/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * One request and its answer, whatever carries them (HTTP/1.1, or a stream of HTTP/2): what the head must pass before it may leave,
 * what its body is searched for, what is masked in the answer, what a model call is counted as. Knows no connection.
 */

#include "inject/body-place.h"
#include "inject/exchange.h"
#include "inject/grpc.h"
#include "inject/gunzip.h"
#include "inject/http-message.h"
#include "inject/mask.h"
#include "inject/substitute.h"
#include "inject/tripwire-api.h"
#include "inject/usage.h"
#include "inject/websocket.h"

/* Whose clients are to understand it. */
typedef enum RefusalForm { REFUSAL_PLAIN, REFUSAL_ANTHROPIC, REFUSAL_OPENAI } RefusalForm;

/* Why there is no answer of the origin's. */
typedef struct Refusal {
        unsigned status;
        RefusalForm form;
        bool final; /* trying again is of no use, whatever the status says */
        char reason[64], rule[256], message[512];
} Refusal;

enum {
        _REQUEST_E_SUCCESS,
        REQUEST_E_REFUSED, /* the refusal says why; nothing of it (or nothing more) may leave */
        REQUEST_E_WAITS,   /* within request*.c: it goes on from the loop */
        REQUEST_E_HELD,    /* enough of the body is held */
        REQUEST_E_CLEARED, /* it may leave at once */
};

/* An answer of ours in its place. */
typedef struct RefusalAnswer {
        unsigned status;
        const char *type; /* static */
        bool late;        /* its client takes it only once it has sent all of the request */
        Buffer body;      /* the caller's to free */
} RefusalAnswer;

/* egressd's answer, if it passed: borrowed, for the time of the call. Negative: the request is over. */
typedef int (*RequestGranted)(const EgressAnswer *a, void *userdata);
/* The request may leave (0), was refused (REQUEST_E_REFUSED, refusal is set), or failed (negative errno). Called once, from the loop. */
typedef void (*RequestCleared)(int r, const Refusal *refusal, void *userdata);

typedef struct RecordWait RecordWait;
typedef struct RequestGit RequestGit;

/* Embedded by whatever carries it; fields are for reading only. */
typedef struct Request {
        ExchangeContext *context; /* borrowed */
        const char *name;         /* borrowed; of the origin */
        const char *rule;         /* borrowed; what the connection is inspected for. NULL: not known */
        uint16_t port;
        const HttpHead *head;     /* borrowed; NULL between requests; what is to leave, once a body was held */
        SubstitutePlan plan;      /* borrows from the head */
        HttpHead *held_head;      /* owned; the head with the length of the body as it leaves; NULL unless a body was held */
        Buffer held;              /* the body as it came, or what it stands for */
        Buffer held_encoded;      /* as it came, if it was decoded */
        BodyRewrite rewrite;      /* and where it changes */
        Masker *mask, *tripwire;  /* owned; the first works on the answer, the second finds sentinels in the request's body */
        TripwireGzip opened;      /* and in what that stands for */
        Gunzip *gunzip;           /* owned; NULL unless the answer is encoded */
        UsageReader *usage;       /* owned; NULL unless this is a model call */
        const InjectCredential *metered; /* borrowed; whose provider it is */
        uint64_t started_usec, prompt_bytes; /* the latter: of the body, as the origin gets it */
        bool sends_messages, gets_messages; /* of gRPC or the like: each goes on when it is whole, */
        GrpcReader sent_messages, got_messages; /* of which these are the state */
        unsigned status;          /* the answer's; 0: none yet */
        bool sent;                /* the origin may have got it */

        /* of a model call in a run that has a budget (request-budget.c) */
        bool gathers;             /* its body is held, since it says what the call may cost */
        bool reserved;
        bool counted;             /* in the context's n_metered */
        size_t gathered;          /* of `held`, in the context's count */
        size_t n_held;            /* bytes of `held` and `held_encoded`, in the context's other count */
        char call[BUDGET_CALL_SIZE], model[USAGE_MODEL_SIZE];
        uint64_t wanted_tokens, choices;
        uint64_t reserved_input, reserved_output, reserved_cost;
        unsigned n_asks;
        BudgetAsk *budget_ask;    /* owned */

        RequestGit *git;          /* owned; NULL unless it is one of git's (request-git.h) */

        EgressQuestion *question; /* owned */
        MintWait *mint;           /* owned */
        uint64_t generation;      /* of the values that `mask` knows, */
        uint64_t frames_generation; /* and of those that what works on the origin's frames knows */
        RecordWait *record;       /* owned by the audit log's callback */
        RequestGranted granted;
        RequestCleared cleared;
        void *userdata;
} Request;

/* For one origin; may then carry one request after another. */
int request_init(Request *q, ExchangeContext *c, const char *name, uint16_t port, const char *rule);
/* Cancels what is under way, and reports a model call that was begun. */
void request_done(Request *q);

/*
 * Judges a head that was read strictly. 0, REQUEST_E_REFUSED (and recorded), or negative errno. head must stay until
 * the request is finished.
 */
int request_begin(Request *q, const HttpHead *head, Refusal *ret);
/* Has it a place in its body, or is it a call whose cost must be known? Then all of that comes first, before request_clear(): by request_hold_body(), to which nothing but the end may follow
 * `last`. Such a request leaves with what request_write_held() gives as its body, and the length in q->head.
 * Of some, only the beginning comes first: then request_hold_body() says REQUEST_E_HELD, or gets `last` before that, the head stays as it was, and what comes after it goes through
 * request_feed_body(). */
bool request_holds_body(const Request *q);
bool request_holds_beginning(const Request *q);
/* Asked before the body is waited for: does the client wait to be told to send it? The carrier then says 100 (Continue) itself. */
bool request_expects_continue(const Request *q);
int request_hold_body(Request *q, const void *data, size_t size, bool last, Refusal *ret);
int request_write_held(Request *q, Buffer *out);
/* Asks egressd, then has the use of credentials recorded. 0 if `cleared` will be called, REQUEST_E_CLEARED if there is nothing to wait for, else as above. `within`: the connection
 * that is to carry it, NULL if there is none yet; covered: its grant is for every request on it, so that nobody is asked (and it is counted: tally.h). */
int request_clear(Request *q, const EgressWithin *within, bool covered, RequestGranted granted, RequestCleared cleared, void *userdata, Refusal *ret);
/* 0 if egressd's answer says yes, else REQUEST_E_REFUSED. */
int request_read_answer(const EgressAnswer *a, Refusal *ret);
/* Forgets what request_clear() waits for. */
void request_cancel(Request *q);
/* From now on the origin may have it. */
void request_set_sent(Request *q);
/* What was held takes memory of the carrier's until the origin has taken it, and counts that long: is there such, and now it has left. */
bool request_is_leaving(const Request *q);
void request_set_left(Request *q);
/* A piece of the body, or its end: what may leave is appended to out. */
int request_feed_body(Request *q, const void *data, size_t size, bool last, Buffer *out, Refusal *ret);

/* A field of the request's trailer, before the end of its body leaves: a sentinel has no place there. The same outcomes. */
int request_judge_trailer(Request *q, const HttpField *field, Refusal *ret);

/* The final head of the answer. The same outcomes. */
int request_begin_answer(Request *q, const HttpHead *head, Refusal *ret);
/* May this field of an answer's head be passed on? (Framing and what is about one connection is the carrier's.) Of a final head, asked after
 * request_begin_answer(). */
bool request_passes_field(const Request *q, const HttpHead *head, const char *name);
/* And one of its trailer? */
bool request_passes_trailer(const Request *q, const char *name);
/* A text of the answer's head. */
int request_mask_text(Request *q, const char *text, Buffer *out);
/* A piece of the answer's body, or its end: decoded and masked. -EBADMSG, -EFBIG: its encoding is broken, or a bomb. */
int request_feed_answer(Request *q, const void *data, size_t size, bool last, Buffer *out);
/* One direction of the WebSocket that the request has opened. */
int request_new_websocket(Request *q, bool from_client, Websocket **ret);
/* What the client sends on it: frames that may leave are appended to out. REQUEST_E_REFUSED: those are none (400), or a sentinel is in them (403);
 * recorded, and all of out is to be thrown away. */
int request_feed_websocket(Request *q, Websocket *s, const void *data, size_t size, Buffer *out, Refusal *ret);

/* What the origin sends on it, masked. -EBADMSG: as websocket_feed(). */
int request_feed_origin_websocket(Request *q, Websocket *s, const void *data, size_t size, Buffer *out);

/* The request is over; complete says whether its answer was read to the end. Another one may begin. */
void request_finish(Request *q, bool complete);

/* A part of that: reports a model call that was sent and is not reported yet. */
void request_report_usage(Request *q, bool complete);

/* The credentials in the request under way, a bit each by their number. */
uint64_t request_carried(const Request *q);

/* ---- request-body.c, for request-git.c ---- */

/* The head says what the held body is. */
int request_settle_length(Request *q);

/* ---- request-mint.c, for request.c ---- */

/* 0: every credential of the plan has a value. REQUEST_E_WAITS: it will, or the refusal will say why not; request_go_on() then.
 * REQUEST_E_REFUSED: one was revoked since the request was planned. */
int request_wait_for_token(Request *q, Refusal *ret);

/* ---- for request-mint.c ---- */

/* Egressd, the audit log and perhaps a minter have said what they say; q may be gone after it. */
void request_go_on(Request *q, int r, Refusal *refusal);

/* ---- request-mask.c, for request.c and request-answer.c ---- */

/* For one direction of one request after another: of the values that an answer may hold, or (tripwire) of the sentinels that
 * have no business on the way to this host. */
int request_make_masker(const Request *q, bool tripwire, Masker **ret);
/* Before anything of the answer is masked: a value may have come or changed since the masker was made, and be in what comes
 * now, from whatever host. */
int request_renew_mask(Request *q);

/* ---- for request-body.c ---- */

/* A sentinel on a wrong way: blocked, and on record. REQUEST_E_REFUSED. */
int request_misuse(Request *q, const InjectCredential *credential, const char *where, Refusal *ret);
/* The plan's verdict, if it is a refusal. */
int request_refuse_plan(Request *q, Refusal *ret);

/* ---- request-encoded.c, for request-body.c ---- */

/* So many bytes more of a body with a place: 0, or REQUEST_E_REFUSED since the run has enough of them already. */
int request_count_held(Request *q, size_t size, Refusal *ret);
/* The whole held body, which has a place: if it came in gzip, `held` is decoded now, and searched as what came was. */
int request_open_held(Request *q, Refusal *ret);

/* ---- request-budget.c, for the others ---- */

/* Says whether the body must be gathered; refuses what a budget does not allow for. */
int request_begin_budget(Request *q, Refusal *ret);
/* A model call of whose use anchord could not be told is not made. */
int request_admit_call(Request *q, Refusal *ret);
/* Reserves the worst case; the end is request_settle(). */
int request_reserve(Request *q, Refusal *ret);
/* Gives back what is reserved still. */
void request_release(Request *q);
/* Is that not too much of one body? */
bool request_may_gather(const Request *q, size_t size);
/* So much more of it is held: counted, or REQUEST_E_REFUSED since the run has too much of them. */
int request_gather(Request *q, size_t size, Refusal *ret);
/* The held body was handed on, and is in the carrier's hand now: it goes on being counted. */
void request_pass_held(Request *q);
/* The held body is not needed any more. */
void request_forget_held(Request *q);

/* ---- for request-budget.c ---- */

/* The end of request_clear(): q may be gone after it. */
void request_settle(Request *q, int r, const Refusal *refusal);

/* ---- refusals ---- */

void refusal_set(Refusal *ret, unsigned status, const char *reason, const char *rule, const char *message);
/* The same, with a record conn.deny. head may be NULL or incomplete; where may be NULL. */
void request_deny(Request *q, const HttpHead *head, unsigned status, const char *reason, const char *where, const char *message, Refusal *ret);
/* In the form that the request's client shows to its user. Before the request is finished. */
int request_answer_refusal(const Request *q, const Refusal *refusal, RefusalAnswer *ret);
