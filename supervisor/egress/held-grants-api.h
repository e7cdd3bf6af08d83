/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* For whoever holds grants (proxy, inject): learns from egressd's Watch which of them are revoked, whenever that is read. See held-grants.c. */

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "util/cleanup.h"

typedef struct HeldGrants HeldGrants;

/* That grant, which is held, is revoked: its connection is to be cut. */
typedef void (*HeldGrantRevoked)(uint64_t grant, void *userdata);

int held_grants_new(HeldGrants **ret, HeldGrantRevoked revoked, void *userdata);
HeldGrants *held_grants_free(HeldGrants *h);
DEFINE_CLEANUP(HeldGrants *, held_grants_free)

/* A question that may bring a grant is under way. Each is answered once, by whatever becomes of it. */
void held_grants_ask(HeldGrants *h);
/* What it brought; 0: nothing. From now on that grant is held. False: it is revoked already, or cannot be held, and is not to be used. */
bool held_grants_answer(HeldGrants *h, uint64_t grant);
/* The connection of that grant is over. */
void held_grants_over(HeldGrants *h, uint64_t grant);

/* What a message of Watch says about connections. Calls `revoked` for each grant that is held. */
void held_grants_read(HeldGrants *h, const json_t *message);
