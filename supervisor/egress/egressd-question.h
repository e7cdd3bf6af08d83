/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What the proxy and inject ask of egressd, and what comes of it before anything is resolved. See egressd-connect.c. */

#include <stdbool.h>
#include <stdint.h>

#include "egress/egressd-private.h"
#include "policy/policy.h"
#include "util/json.h"

enum { REQUEST_TEXT_SIZE = 256 };

typedef struct Question {
        const char *address, *name, *sni, *host, *method, *path; /* borrowed from the call's parameters */
        uint64_t port, within;
        uint64_t stream;              /* of `within`: which of the requests that its connection carries; 0: it carries one at a time */
        uint64_t open[EGRESS_STREAMS_MAX]; /* those that are under way there */
        size_t n_open;
        EgressProtocol protocol;
        bool ech;
        bool second_path;             /* a field of the request names one more (agreement-api.h) */
        bool resolve;                 /* of Look: does the name lead anywhere? */
} Question;

typedef struct Verdict {
        EgressDecision decision;
        const char *reason;   /* NULL: not denied (so far) */
        const char *rule;
        char name[254];       /* "" if it could not be told; an address as address_format() writes it if it is literal */
        bool literal;         /* there is no name: only a rule about networks can allow it */
        const char *detail;   /* for the record; may be NULL */
        char request[REQUEST_TEXT_SIZE]; /* "GET /v1/x", without query; where detail points if a request was denied */
} Verdict;

/* Of Look (only the target) or of Connect. False: the reader says what is wrong. */
bool question_read(JsonReader *reader, json_t *params, bool look, Question *ret);

/* Target and policy. `run` may be NULL: not registered. */
void question_decide(Egressd *e, EgressRun *run, const Question *question, Verdict *ret);

/* Does what the connection says about itself agree with the name? Sets v->reason if not. */
void question_agree(const Peer *peer, const Question *question, Verdict *v);
