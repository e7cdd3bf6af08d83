/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "inject/notes.h"

#include <errno.h>
#include <string.h>

#include "util/json.h"
#include "util/log.h"
#include "util/text.h"

#define WINDOW_USEC (10ULL * 1000 * 1000)

enum { NOTES_MAX = 64 };

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
};

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
        if (any) {
                (void) sd_event_source_set_time_relative(s, 1000000);
                (void) sd_event_source_set_enabled(s, SD_EVENT_ONESHOT);
        }
        return 0;
}

int notes_new(Notes **ret, sd_event *event, AuditClient *audit, const char *run) {
        _cleanup_(notes_freep) Notes *n = calloc(1, sizeof(*n));
        int r;

        if (!n)
                return -ENOMEM;
        n->audit = audit;
        n->run = run;
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
        (void) sd_event_source_set_time_relative(n->timer, 1000000);
        (void) sd_event_source_set_enabled(n->timer, SD_EVENT_ONESHOT);
}
