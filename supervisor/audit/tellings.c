/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Somebody counts what a guest can cause any number of, and says when a record of it is due. Here it is sent, and kept until auditd has acknowledged it. One that
 * auditd did not take (it was gone, slow, or full) is sent again when its owner says so, and until then the owner begins no further ones of that run:
 * they go on being counted, in a table that is bounded. So what is kept here is bounded as well, by what may be under way at once.
 *
 * Each has a key of its own, by which auditd knows one that it wrote without our hearing of it when that comes again: it is recorded once.
 * What has not been acknowledged when this process ends is its owner's to remember.
 *
 * That the log takes nothing is logged once, here for all owners, and so is its end: when nothing waits to be sent again. What it refused for good, audit-client.c logs.
 */

#include "audit/tellings.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "util/json.h"
#include "util/log.h"

typedef struct Telling {
        Tellings *tellings; /* borrowed */
        struct Telling *next, **prev;
        const char *event;  /* static */
        char run[ID_LENGTH + 1];
        char *actor;        /* owned; or NULL */
        json_t *data;       /* owned */
        uint64_t count;
        unsigned kind;
        char key[48];       /* of this record alone */
        bool refused;       /* and not sent again yet */
} Telling;

struct Tellings {
        AuditClient *audit; /* borrowed */
        TellingsAnswered answered;
        void *userdata;
        Telling *first, **end; /* owned; in the order in which they were begun, and so are they sent again */
        char life[ID_LENGTH + 1]; /* no other process has it */
        uint64_t n_tellings; /* so far */
        bool failing;        /* and that was logged */
};

static Telling *telling_free(Telling *t) {
        if (!t)
                return NULL;

        if (t->prev) {
                *t->prev = t->next;
                if (t->next)
                        t->next->prev = t->prev;
                else
                        t->tellings->end = t->prev;
        }
        json_decref(t->data);
        free(t->actor);
        free(t);
        return NULL;
}
DEFINE_CLEANUP(Telling *, telling_free)

int tellings_new(Tellings **ret, AuditClient *audit, TellingsAnswered answered, void *userdata) {
        _cleanup_(tellings_freep) Tellings *t = malloc(sizeof(*t));
        int r;

        if (!t)
                return -ENOMEM;
        *t = (Tellings) { .audit = audit, .answered = answered, .userdata = userdata };
        t->end = &t->first;
        r = text_make_id('l', t->life);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(t);
        return 0;
}

Tellings *tellings_free(Tellings *t) {
        while (t && t->first)
                (void) telling_free(t->first);
        free(t);
        return NULL;
}

static bool is_any_refused(const Tellings *all) {
        for (const Telling *t = all->first; t; t = t->next)
                if (t->refused)
                        return true;
        return false;
}

static void log_state(Tellings *all, const char *run, int r) {
        if (r == -EINVAL || r == -EACCES)
                return;
        if (r < 0 && !all->failing)
                log_warning_errno(r, "run %s: the audit log does not take what is counted; it is kept, and sent again", run);
        else if (r >= 0 && all->failing && !is_any_refused(all))
                log_notice("the audit log takes what is counted again");
        else
                return;
        all->failing = r < 0;
}

static void on_told(int r, void *userdata) {
        Telling *t = userdata;
        Tellings *all = t->tellings;
        char run[ID_LENGTH + 1];
        uint64_t count = t->count;
        unsigned kind = t->kind;

        (void) snprintf(run, sizeof(run), "%s", t->run);
        t->refused = r < 0 && r != -EINVAL && r != -EACCES;
        if (!t->refused)
                (void) telling_free(t);
        log_state(all, run, r);
        all->answered(run, kind, count, r, all->userdata);
}

static int send_telling(Telling *t) {
        return audit_append_once(t->tellings->audit, t->key, t->event, t->run, NULL, t->actor, json_incref(t->data), on_told, t);
}

int tellings_tell(Tellings *all, const char *event, const char *run, const char *actor, json_t *data, uint64_t count, unsigned kind) {
        _cleanup_(telling_freep) Telling *t = NULL;
        int r;

        t = calloc(1, sizeof(*t));
        if (!t || !data || (actor && !(t->actor = strdup(actor)))) {
                json_decref(data);
                return -ENOMEM;
        }
        t->tellings = all;
        t->event = event;
        t->data = data;
        t->count = count;
        t->kind = kind;
        (void) snprintf(t->key, sizeof(t->key), "%s/%llu", all->life, (unsigned long long) ++all->n_tellings);
        (void) snprintf(t->run, sizeof(t->run), "%s", run);

        r = send_telling(t);
        if (r < 0)
                return r;

        t->prev = all->end;
        *all->end = t;
        all->end = &TAKE_PTR(t)->next;
        return 0;
}

void tellings_again(Tellings *all, size_t pending_max) {
        for (Telling *t = all->first; t; t = t->next) {
                int r;

                if (!t->refused || audit_pending(all->audit, t->run) >= pending_max)
                        continue;
                r = send_telling(t);
                if (r < 0)
                        log_warning_errno(r, "run %s: a record that stands for %llu cannot be sent yet", t->run, (unsigned long long) t->count);
                else
                        t->refused = false;
        }
}

bool tellings_is_refused(const Tellings *all, const char *run) {
        for (const Telling *t = all->first; t; t = t->next)
                if (t->refused && strcmp(t->run, run) == 0)
                        return true;
        return false;
}

bool tellings_is_under_way(const Tellings *all) {
        for (const Telling *t = all->first; t; t = t->next)
                if (!t->refused)
                        return true;
        return false;
}

bool tellings_is_empty(const Tellings *all) {
        return !all->first;
}
