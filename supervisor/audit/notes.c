/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "audit/notes.h"

#include <errno.h>
#include <string.h>

#include "ipc/ipc.h"
#include "util/json.h"
#include "util/log.h"
#include "util/text.h"

#define WINDOW_USEC (10ULL * 1000 * 1000)

#define FLAG_USEC (10ULL * 1000 * 1000)

enum { NOTES_MAX = 64, FLAGS_MAX = 32 };

typedef struct Note {
        const char *event; /* static */
        char *key;         /* owned; NULL: this place is free */
        json_t *data;      /* ref */
        uint64_t until_usec, count; /* count: since the last record */
} Note;

struct Notes {
        AuditClient *audit; /* borrowed */
        const char *run;    /* borrowed */
        sd_event_source *timer; /* owned */
        Note notes[NOTES_MAX];
        IpcClient *anchord;     /* owned */
        json_t *flags;          /* ref; parameters of what anchord does not know yet, oldest first */
        bool telling;           /* of the first of them */
};

/* ---- flags ---- */

static void flag_next(Notes *n);

static void notes_on_told(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        Notes *n = userdata;

        n->telling = false;
        /* anchord may be starting anew; whatever else it says is its last word */
        if (error && (strcmp(error, "io.anchorhold.Disconnected") == 0 || strcmp(error, "io.anchorhold.Timeout") == 0))
                return;
        if (error)
                log_warning("anchord did not flag the run: %s", error);
        (void) json_array_remove(n->flags, 0);
        flag_next(n);
}

static void flag_next(Notes *n) {
        int r;

        if (n->telling || json_array_size(n->flags) == 0)
                return;
        r = ipc_client_call_async(n->anchord, "io.anchorhold.Run.Misuse", json_incref(json_array_get(n->flags, 0)), NULL, 0, false, FLAG_USEC,
                                  notes_on_told, n);
        if (r < 0)
                log_error_errno(r, "anchord cannot be told of a misuse");
        else
                n->telling = true;
}

static void flag(Notes *n, const json_t *data) {
        if (json_array_size(n->flags) < FLAGS_MAX)
                (void) json_array_append_new(n->flags, json_pack("{s:O, s:O, s:O}", "credential", json_object_get(data, "credential"), "name",
                                                                 json_object_get(data, "name"), "where", json_object_get(data, "where")));
        flag_next(n);
}

/* ---- records ---- */

static void note_record(Notes *n, Note *note, uint64_t count) {
        json_t *data = json_copy(note->data);
        int r;

        if (data)
                (void) json_object_set_new(data, "count", json_integer((json_int_t) count));
        r = data ? audit_append(n->audit, note->event, n->run, NULL, NULL, data, NULL, NULL) : -ENOMEM;
        if (r < 0)
                log_error_errno(r, "%s: cannot be recorded", note->event);
}

static void note_close(Notes *n, Note *note) {
        if (!note->key)
                return;
        if (note->count > 0)
                note_record(n, note, note->count);
        json_unref(note->data);
        free(note->key);
        *note = (Note) {};
}

static int notes_on_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        Notes *n = userdata;
        uint64_t now = time_boottime();
        bool any = false;

        for (size_t i = 0; i < NOTES_MAX; i++) {
                if (n->notes[i].key && n->notes[i].until_usec <= now)
                        note_close(n, &n->notes[i]);
                any = any || n->notes[i].key;
        }
        flag_next(n);
        if (any || json_array_size(n->flags) > 0) {
                (void) sd_event_source_set_time_relative(s, 1000000);
                (void) sd_event_source_set_enabled(s, SD_EVENT_ONESHOT);
        }
        return 0;
}

int notes_new(Notes **ret, sd_event *event, AuditClient *audit, const char *run, const char *run_api) {
        _cleanup_(notes_freep) Notes *n = calloc(1, sizeof(*n));
        int r;

        if (!n)
                return -ENOMEM;
        n->audit = audit;
        n->run = run;
        n->flags = json_array();
        r = n->flags ? ipc_client_new(&n->anchord, event, run_api) : -ENOMEM;
        if (r < 0)
                return r;
        r = sd_event_add_time_relative(event, &n->timer, CLOCK_BOOTTIME, 1000000, 0, notes_on_timer, n);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(n);
        return 0;
}

Notes *notes_free(Notes *n) {
        if (!n)
                return NULL;
        for (size_t i = 0; i < NOTES_MAX; i++)
                note_close(n, &n->notes[i]);
        n->timer = sd_event_source_disable_unref(n->timer);
        n->anchord = ipc_client_free(n->anchord);
        if (json_array_size(n->flags) > 0)
                log_warning("%zu misuses were not reported to anchord", json_array_size(n->flags));
        json_unref(n->flags);
        free(n);
        return NULL;
}

/* The note of that kind; else a free place, or the one that ends first. */
static Note *note_find(Notes *n, const char *event, const char *key) {
        Note *place = &n->notes[0];

        for (size_t i = 0; i < NOTES_MAX; i++) {
                Note *note = &n->notes[i];

                if (note->key && strcmp(note->event, event) == 0 && strcmp(note->key, key) == 0)
                        return note;
                if (!note->key || (place->key && note->until_usec < place->until_usec))
                        place = note;
        }
        note_close(n, place);
        return place;
}

void notes_add(Notes *n, const char *event, const char *key, json_t *data) {
        Note *note = note_find(n, event, key);

        if (note->key) {
                note->count++;
                json_unref(data);
                return;
        }

        *note = (Note) { .event = event, .key = strdup(key), .data = data, .until_usec = time_boottime() + WINDOW_USEC };
        if (!note->key || !data) {
                log_oom();
                json_unref(data);
                free(note->key);
                *note = (Note) {};
                return;
        }
        note_record(n, note, 1);
        if (strcmp(event, "credential.misuse") == 0)
                flag(n, data);
        (void) sd_event_source_set_time_relative(n->timer, 1000000);
        (void) sd_event_source_set_enabled(n->timer, SD_EVENT_ONESHOT);
}
