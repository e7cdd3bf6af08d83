/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Which key a refusal has, a guest chooses: a name, a port, one of many reasons. So an event has NOTES_MAX places, each for one key, from its
 * first record until the one with the count, ten seconds later; what comes while all are taken is counted together. And it has
 * NOTES_RECORDS_MAX records, long ones for several: after these all is counted together, and told every ten minutes.
 *
 * The counts of all records of an event are the number of what was added. One that auditd did not take is counted on; if only its answer was
 * lost, it is counted twice. Only what is under way when the process ends may be missing.
 */

#include "audit/notes.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ipc/ipc.h"
#include "util/json.h"
#include "util/log.h"
#include "util/text.h"

#define FLAG_USEC (10ULL * 1000 * 1000)
#define TICK_USEC (1000ULL * 1000)

enum { FLAGS_MAX = 32, DETAILS_MAX = 16, RECORD_SIZE = 1024, VERDICT_SIZE = 16 };

typedef struct Note {
        char *key;         /* owned; NULL for what is counted together */
        json_t *data;      /* ref; NULL: this place is free */
        json_t *details;   /* ref; of what is only counted so far, [text, count] each; NULL: none */
        uint64_t until_usec, count; /* count: since the last record */
} Note;

/* One event, with git's verdict if it has one: each has places and a budget of its own, so that none hides another. */
typedef struct Kind {
        const char *event;      /* static; NULL: none yet */
        char verdict[VERDICT_SIZE]; /* or "" */
        uint64_t n_records;     /* so far, long ones for several */
        Note notes[NOTES_MAX], overflow;
} Kind;

/* A record on its way. */
typedef struct Telling {
        Notes *notes;           /* borrowed */
        Kind *kind;             /* borrowed */
        struct Telling *next, **prev;
        uint64_t count;
} Telling;

struct Notes {
        AuditClient *audit; /* borrowed */
        const char *run;    /* borrowed */
        sd_event_source *timer; /* owned */
        uint64_t window_usec, spent_usec;
        Kind kinds[NOTES_KINDS_MAX + 1]; /* the last is never used */
        Telling *tellings;      /* owned */
        bool waits;             /* for each record, at the end … */
        bool mute;              /* … until one was not taken, or it took too long */
        uint64_t last_usec;     /* when that is */
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

static void count_together(Notes *n, Kind *kind, uint64_t count);

static bool is_spent(const Kind *kind) {
        return kind->n_records >= NOTES_RECORDS_MAX;
}

static void arm(Notes *n) {
        if (sd_event_source_get_enabled(n->timer, NULL) > 0)
                return;
        (void) sd_event_source_set_time_relative(n->timer, n->window_usec < TICK_USEC ? n->window_usec : TICK_USEC);
        (void) sd_event_source_set_enabled(n->timer, SD_EVENT_ONESHOT);
}

static Telling *telling_free(Telling *t) {
        *t->prev = t->next;
        if (t->next)
                t->next->prev = t->prev;
        free(t);
        return NULL;
}

/* What was not taken goes on being counted; whether it was written all the same, nobody knows. */
static void notes_on_recorded(int r, void *userdata) {
        Telling *t = userdata;

        if (r < 0)
                count_together(t->notes, t->kind, t->count);
        (void) telling_free(t);
}

static int append(Notes *n, Kind *kind, json_t *data, uint64_t count) {
        Telling *t;
        int r;

        if (n->waits)
                return audit_append_sync_until(NULL, kind->event, n->run, data, n->last_usec);
        t = malloc(sizeof(*t));
        if (!t) {
                json_decref(data);
                return -ENOMEM;
        }
        *t = (Telling) { .notes = n, .kind = kind, .next = n->tellings, .prev = &n->tellings, .count = count };
        if (t->next)
                t->next->prev = &t->next;
        n->tellings = t;
        r = audit_append(n->audit, kind->event, n->run, NULL, NULL, data, notes_on_recorded, t);
        if (r < 0)
                (void) telling_free(t);
        return r;
}

static void record(Notes *n, Kind *kind, const json_t *about, uint64_t count) {
        json_t *data;
        int r;

        n->mute = n->mute || (n->waits && time_monotonic() >= n->last_usec);
        data = n->mute ? NULL : json_copy((json_t *) about);
        r = n->mute ? -ENOTCONN : -ENOMEM;

        if (data && json_object_set_new(data, "count", json_integer((json_int_t) count)) < 0) {
                json_decref(data);
                data = NULL;
        }
        if (data) {
                kind->n_records += 1 + json_dumpb(data, NULL, 0, JSON_COMPACT) / RECORD_SIZE;
                r = append(n, kind, data, count);
        }
        if (r >= 0)
                return;
        log_error_errno(r, "%s (×%llu): cannot be recorded", kind->event, (unsigned long long) count);
        if (n->waits)
                n->mute = true;
        else
                count_together(n, kind, count);
}

static json_t *describe_overflow(const Kind *kind) {
        bool spent = is_spent(kind);
        json_t *data = json_pack("{s:s, s:s, s:s, s:s, s:s*}", "name", "-", "rule", "overflow", "reason", spent ? "record-budget" : "overflow", "detail",
                                 spent ? "too many records of this run; counted together" : "too many different ones; counted together", "verdict",
                                 kind->verdict[0] ? kind->verdict : NULL);

        /* what its text needs */
        if (data && strcmp(kind->event, "credential.misuse") == 0)
                (void) json_object_set_new(data, "credential", json_string("-"));
        if (data && kind->verdict[0])
                (void) json_object_set_new(data, "repository", json_string("-"));
        return data;
}

/* Is there a place where they are counted together? Else it is made. */
static bool open_overflow(Notes *n, Kind *kind) {
        if (kind->overflow.data)
                return true;
        kind->overflow = (Note) { .data = describe_overflow(kind), .until_usec = time_boottime() + (is_spent(kind) ? n->spent_usec : n->window_usec) };
        if (!kind->overflow.data)
                log_oom();
        arm(n);
        return kind->overflow.data;
}

static void count_together(Notes *n, Kind *kind, uint64_t count) {
        if (open_overflow(n, kind))
                kind->overflow.count += count;
}

/* Also of these the first is told at once. */
static void add_to_overflow(Notes *n, Kind *kind) {
        bool first = !kind->overflow.data;

        if (!open_overflow(n, kind))
                return;
        if (first)
                record(n, kind, kind->overflow.data, 1);
        else
                kind->overflow.count++;
}

/* The "detail" of one more that is alike; what there is no room for is counted alone. */
static void note_detail(Note *note, json_t *detail) {
        if (!detail)
                return;
        if (!note->details)
                note->details = json_array();
        for (size_t i = 0; i < json_array_size(note->details); i++) {
                json_t *one = json_array_get(note->details, i);

                if (json_equal(json_array_get(one, 0), detail)) {
                        (void) json_array_set_new(one, 1, json_integer(json_integer_value(json_array_get(one, 1)) + 1));
                        return;
                }
        }
        if (json_array_size(note->details) < DETAILS_MAX)
                (void) json_array_append_new(note->details, json_pack("[O, i]", detail, 1));
}

/* As egressd does it: "details" unless all were about what the first was, and how many of them it does not have. */
static void describe_details(const Note *note) {
        json_int_t unlisted = (json_int_t) note->count;

        for (size_t i = 0; i < json_array_size(note->details); i++)
                unlisted -= json_integer_value(json_array_get(json_array_get(note->details, i), 1));
        if (json_array_size(note->details) > 1 ||
            !json_equal(json_array_get(json_array_get(note->details, 0), 0), json_object_get(note->data, "detail")))
                (void) json_object_set(note->data, "details", note->details);
        if (unlisted > 0)
                (void) json_object_set_new(note->data, "unlisted", json_integer(unlisted));
}

static void note_close(Notes *n, Kind *kind, Note *note) {
        Note ended = *note;

        if (!ended.data)
                return;
        *note = (Note) {};
        if (ended.count > 0 && note != &kind->overflow && is_spent(kind))
                count_together(n, kind, ended.count);
        else if (ended.count > 0) {
                if (ended.details)
                        describe_details(&ended);
                record(n, kind, ended.data, ended.count);
        }
        json_unref(ended.data);
        json_unref(ended.details);
        free(ended.key);
}

/* Those that ended by then. True: others are left. */
static bool close_ended(Notes *n, Kind *kind, uint64_t now) {
        bool any = false;

        for (size_t i = 0; i < NOTES_MAX; i++) {
                if (kind->notes[i].until_usec <= now)
                        note_close(n, kind, &kind->notes[i]);
                any = any || kind->notes[i].data;
        }
        if (kind->overflow.until_usec <= now)
                note_close(n, kind, &kind->overflow);
        return any || kind->overflow.data;
}

static int notes_on_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        Notes *n = userdata;
        bool any = false;

        for (size_t i = 0; i < NOTES_KINDS_MAX && n->kinds[i].event; i++)
                any = close_ended(n, &n->kinds[i], time_boottime()) || any;
        flag_next(n);
        if (any || json_array_size(n->flags) > 0)
                arm(n);
        return 0;
}

static bool is_misuse(const Kind *kind) {
        return strcmp(kind->event, "credential.misuse") == 0;
}

/* What matters most first. */
static void flush(Notes *n, bool wait, uint64_t until_usec) {
        n->waits = wait;
        n->last_usec = until_usec;
        for (int misuse = 1; misuse >= 0; misuse--)
                for (size_t i = 0; i < NOTES_KINDS_MAX && n->kinds[i].event; i++)
                        if (is_misuse(&n->kinds[i]) == misuse)
                                (void) close_ended(n, &n->kinds[i], UINT64_MAX);
        n->waits = n->mute = false;
}

void notes_tell(Notes *n) {
        if (n)
                flush(n, false, 0);
}

void notes_tell_last(Notes *n, uint64_t until_usec) {
        if (n)
                flush(n, true, until_usec);
}

void notes_set_times(Notes *n, uint64_t window_usec, uint64_t spent_usec) {
        n->window_usec = window_usec;
        n->spent_usec = spent_usec;
        (void) sd_event_source_set_enabled(n->timer, SD_EVENT_OFF);
}

/* ---- start and end ---- */

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
        r = sd_event_add_time_relative(event, &n->timer, CLOCK_BOOTTIME, TICK_USEC, 0, notes_on_timer, n);
        if (r < 0)
                return r;
        notes_set_times(n, NOTES_WINDOW_USEC, NOTES_SPENT_USEC);
        *ret = TAKE_PTR(n);
        return 0;
}

static void note_forget(Note *note) {
        json_unref(note->data);
        json_unref(note->details);
        free(note->key);
}

Notes *notes_free(Notes *n) {
        if (!n)
                return NULL;
        n->timer = sd_event_source_disable_unref(n->timer);
        n->anchord = ipc_client_free(n->anchord);
        if (json_array_size(n->flags) > 0)
                log_warning("%zu misuses were not reported to anchord", json_array_size(n->flags));
        json_unref(n->flags);
        while (n->tellings)
                (void) telling_free(n->tellings);
        for (size_t i = 0; i < NOTES_KINDS_MAX; i++) {
                for (size_t k = 0; k < NOTES_MAX; k++)
                        note_forget(&n->kinds[i].notes[k]);
                note_forget(&n->kinds[i].overflow);
        }
        free(n);
        return NULL;
}

/* ---- adding ---- */

static Kind *kind_find(Notes *n, const char *event, const json_t *data) {
        const char *verdict = json_string_value(json_object_get(data, "verdict")) ?: "";
        Kind *kind = n->kinds;

        while (kind->event && (strcmp(kind->event, event) != 0 || strncmp(kind->verdict, verdict, VERDICT_SIZE - 1) != 0))
                kind++;
        assert(kind < n->kinds + NOTES_KINDS_MAX); /* which is more than there are events */
        if (!kind->event) {
                kind->event = event;
                (void) snprintf(kind->verdict, sizeof(kind->verdict), "%s", verdict);
        }
        return kind;
}

/* The note of that key; else a free place; NULL: there is none. */
static Note *note_find(Kind *kind, const char *key) {
        Note *place = NULL;

        for (size_t i = 0; i < NOTES_MAX; i++) {
                Note *note = &kind->notes[i];

                if (note->data && strcmp(note->key, key) == 0)
                        return note;
                if (!note->data && !place)
                        place = note;
        }
        return place;
}

static int note_open(Notes *n, Note *note, const char *key, json_t *data) {
        char *copy = strdup(key);

        if (!copy)
                return -ENOMEM;
        *note = (Note) { .key = copy, .data = json_incref(data), .until_usec = time_boottime() + n->window_usec };
        arm(n);
        return 0;
}

void notes_add(Notes *n, const char *event, const char *key, json_t *data) {
        _cleanup_json_ json_t *owned = data;
        Kind *kind = kind_find(n, event, data);
        Note *note = note_find(kind, key);

        if (note && note->data) {
                note->count++;
                note_detail(note, json_object_get(data, "detail"));
                return;
        }
        if (!note || is_spent(kind) || !data || note_open(n, note, key, data) < 0) {
                add_to_overflow(n, kind);
                return;
        }
        record(n, kind, data, 1);
        if (strcmp(event, "credential.misuse") == 0)
                flag(n, data);
}
