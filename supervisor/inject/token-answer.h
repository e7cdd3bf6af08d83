/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Reads what GitHub's API answers about installations and their tokens. Pure. The token goes into a Secret, and the bytes that it stood in are
 * overwritten before a JSON library sees the rest. Of what may be told on, neither the token nor `proof`, which the API was asked with, is a part, should it have said
 * them back in any of the forms that are masked for a guest (mask.h). */

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "util/secret.h"

enum {
        TOKEN_ANSWER_REASON_SIZE = 256,
        _TOKEN_ANSWER_E_SUCCESS = 0,
        TOKEN_ANSWER_E_WIDER,   /* it is a token, but for more than was asked: it must not be used */
        TOKEN_ANSWER_E_UNCLEAR, /* it is a token, but the rest of the answer cannot be read: nor must this one */
};

/*
 * The answer with status 201: the token, and when it expires (CLOCK_REALTIME). data is changed. `permissions` is what was asked, `repository` OWNER/NAME. -EBADMSG, and
 * ret_reason says why: there is no token in it. Of TOKEN_ANSWER_E_WIDER ret_reason says in what, of TOKEN_ANSWER_E_UNCLEAR why; the latter may be good for a day, which is what
 * *ret_expires_usec then says.
 */
int token_answer_read(char *data, size_t size, const Secret *proof, const json_t *permissions, const char *repository, uint64_t now_usec, Secret **ret, uint64_t *ret_expires_usec,
                      char ret_reason[static TOKEN_ANSWER_REASON_SIZE]);

/* The answer to which installation covers a repository: its id, or 0. */
uint64_t token_answer_read_installation(const char *data, size_t size);

/* The message of an answer that says no, safe to print, or "". */
void token_answer_read_message(const char *data, size_t size, const Secret *proof, char ret[static TOKEN_ANSWER_REASON_SIZE]);
