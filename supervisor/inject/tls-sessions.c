/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "inject/tls-sessions.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "util/text.h"

typedef struct Slot {
        char *key; /* owned; NULL: this place is free */
        SSL_SESSION *session; /* owned */
        uint64_t since_usec, number; /* the latter: how many were put before it */
} Slot;

struct TlsSessions {
        Slot slots[TLS_SESSIONS_MAX];
        uint64_t n_put;
};

static void slot_clear(Slot *slot) {
        free(slot->key);
        SSL_SESSION_free(slot->session);
        *slot = (Slot) {};
}

int tls_sessions_new(TlsSessions **ret) {
        *ret = calloc(1, sizeof(**ret));
        return *ret ? 0 : -ENOMEM;
}

TlsSessions *tls_sessions_free(TlsSessions *s) {
        for (size_t i = 0; s && i < TLS_SESSIONS_MAX; i++)
                slot_clear(&s->slots[i]);
        free(s);
        return NULL;
}

/* The oldest of its kind if that has enough, else a free place, else the oldest of all. */
static Slot *find_place(TlsSessions *s, const char *key) {
        Slot *oldest = &s->slots[0], *own = NULL;
        size_t n_own = 0;

        for (size_t i = 0; i < TLS_SESSIONS_MAX; i++) {
                Slot *slot = &s->slots[i];

                if (!slot->key || (oldest->key && slot->number < oldest->number))
                        oldest = slot;
                if (!slot->key || strcmp(slot->key, key) != 0)
                        continue;
                n_own++;
                if (!own || slot->number < own->number)
                        own = slot;
        }
        return n_own >= TLS_SESSIONS_OF_KEY_MAX ? own : oldest;
}

void tls_sessions_put(TlsSessions *s, const char *key, SSL_SESSION *session) {
        Slot *slot = find_place(s, key);

        slot_clear(slot);
        *slot = (Slot) { .key = strdup(key), .session = session, .since_usec = time_boottime(), .number = s->n_put++ };
        if (!slot->key)
                slot_clear(slot);
}

SSL_SESSION *tls_sessions_take(TlsSessions *s, const char *key) {
        uint64_t now = time_boottime();
        SSL_SESSION *session;
        Slot *newest = NULL;

        for (size_t i = 0; i < TLS_SESSIONS_MAX; i++) {
                Slot *slot = &s->slots[i];

                if (!slot->key)
                        continue;
                if (now - slot->since_usec > TLS_SESSION_SECONDS * UINT64_C(1000000))
                        slot_clear(slot);
                else if (strcmp(slot->key, key) == 0 && (!newest || slot->number > newest->number))
                        newest = slot;
        }
        if (!newest)
                return NULL;
        session = newest->session;
        newest->session = NULL;
        slot_clear(newest);
        return session;
}
