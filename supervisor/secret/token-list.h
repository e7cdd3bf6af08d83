/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The tokens that were minted and are not known to be revoked or expired. On disk before one of them is used. */

#include "secret/credential-store.h"
#include "util/cleanup.h"
#include "util/secret.h"
#include "util/text.h"

typedef struct TokenList TokenList;

typedef struct Token {
        char id[ID_LENGTH + 1];      /* "t…"; of this list, and no part of the token */
        char run[ID_LENGTH + 1], item[ID_LENGTH + 1];
        char *workflow, *credential; /* owned */
        char *host, *target;         /* owned; where it is revoked, by DELETE */
        uint16_t port;
        uint64_t expires_usec;       /* CLOCK_REALTIME */
        bool unusable;               /* it is here to be revoked, and for nothing else */
        bool recorded;               /* the audit log has it: before that nobody gets it */
        Secret *secret;              /* owned */
} Token;

Token *token_free(Token *t);
DEFINE_CLEANUP(Token *, token_free)
/* A token without its secret yet, with an id of its own; copies the strings. */
int token_new(Token **ret, const char *run, const char *item, const char *workflow, const char *credential,
              const char *host, uint16_t port, const char *target, uint64_t expires_usec);

enum {
        TOKENS_MAX = 1024,
        /* Of one run and credential, of those that have not expired: two while one is renewed; more where the API gives what is not to be used. */
        TOKENS_SHARE_MAX = 16,
        TOKENS_SHARE_ASKED = 4, /* and so many that may have been asked for before that was reached */
};

/*
 * Reads what earlier lives left below state_dir. The list's key is random; key_dir (which does not survive a reboot) has it as it is, and
 * state_dir sealed for each credential of the store that is the key of an app: so it comes back after a reboot with any of them. What is there but cannot be opened is kept aside, as ID.unreadable, for a week; *ret_lost is how much that was. What
 * cannot be read for another reason stays where it is, for the next life.
 */
int token_list_new(TokenList **ret, const char *state_dir, const char *key_dir, const CredentialStore *store, size_t *ret_lost);
TokenList *token_list_free(TokenList *l);
DEFINE_CLEANUP(TokenList *, token_list_free)

/* On disk before it returns; takes the token over on success. -ENOBUFS: the list is full. */
int token_list_add(TokenList *l, Token *t);
/* The audit log has it: on disk before it returns. 0 also if it is not there. */
int token_list_set_recorded(TokenList *l, const char *id);
/* 0 also if it is not there. */
int token_list_remove(TokenList *l, const char *id);

size_t token_list_size(const TokenList *l);
/* Number i of them, in no order; borrowed. */
const Token *token_list_get(const TokenList *l, size_t i);
/* Borrowed, or NULL. */
const Token *token_list_find(const TokenList *l, const char *id);
/* How many of that run and credential have not expired. */
size_t token_list_count(const TokenList *l, const char *run, const char *credential, uint64_t now_usec);
/* The one of that run and credential that lasts longest, if it still does, of those that may be used; borrowed, or NULL. */
const Token *token_list_newest(const TokenList *l, const char *run, const char *credential, uint64_t now_usec);
