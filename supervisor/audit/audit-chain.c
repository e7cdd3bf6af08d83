/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Judging a log.
 *
 * Every entry with a field of ours is noted with its place in the log, its number and hashes, and what is wrong with it
 * alone. At the end the notes are sorted by number, then by place, and walked once; the first thing that is wrong is the
 * verdict:
 *
 *   - a number without any note: removed;
 *   - copies of one number that are not identical, or of another unit: forged. An entry that names no unit is
 *     believed only as a copy of one that does (journald could not look up a process that was killed at that moment; auditd
 *     then sends the record again);
 *   - a record that is malformed or does not give its hash: malformed, altered. One in which an export breaks off is malformed;
 *   - a PREV that is not the hash of the record before: altered;
 *   - a record whose last copy stands before the last copy of the one before: swapped. (auditd sends again from
 *     the first missing record on, so last copies are always in order.)
 *
 * Then the signed checkpoints: each that lies within the log must fit; the newest tells where the log began and how far it
 * went when it was signed. A log that begins later than the newest fitting checkpoint says was cut at its head, one that begins where it
 * says was vacuumed.
 *
 * Then the end, which no record tells: what auditd says that the journal keeps, the hash that somebody noted, and of an exported file the line that
 * closes it. A file without that line is good only as far as such a noted hash.
 */
#include "audit/audit-chain.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "audit/audit-api.h"
#include "audit/audit-event.h"
#include "util/json.h"
#include "util/text.h"

typedef struct Note {
        uint64_t seq, place;
        uint8_t prev[AUDIT_HASH_SIZE], hash[AUDIT_HASH_SIZE];
        const char *reason;      /* static; NULL: nothing is wrong with it alone */
        char time[TIME_TEXT_SIZE];
        uint8_t finding;         /* AuditFinding */
        bool attributed;
} Note;

typedef struct Signed {
        AuditCheckpoint checkpoint;
        uint64_t in_record;      /* 0: from outside the log */
} Signed;

struct AuditChain {
        Note *notes;             /* owned */
        size_t n_notes, notes_allocated;
        Signed *checkpoints;     /* owned */
        size_t n_checkpoints, checkpoints_allocated;
        AuditHead kept;
        const char *head;        /* borrowed; NULL: nobody noted one */
        AuditClosing closing;    /* records 0: there is none */
        bool exported;
};

int audit_chain_new(AuditChain **ret) {
        *ret = calloc(1, sizeof(**ret));
        return *ret ? 0 : -ENOMEM;
}

AuditChain *audit_chain_free(AuditChain *c) {
        if (c) {
                free(c->notes);
                free(c->checkpoints);
        }
        free(c);
        return NULL;
}

/* Room for one more; the array may move. */
static int grow(void *array, size_t size, size_t n, size_t *n_allocated) {
        void **p = array, *grown;
        size_t more = *n_allocated ? 2 * *n_allocated : 1024;

        if (n < *n_allocated)
                return 0;

        grown = reallocarray(*p, more, size);
        if (!grown)
                return -ENOMEM;
        *p = grown;
        *n_allocated = more;
        return 0;
}

static int chain_add_signed(AuditChain *c, const AuditCheckpoint *checkpoint, uint64_t in_record) {
        int r;

        r = grow(&c->checkpoints, sizeof(c->checkpoints[0]), c->n_checkpoints, &c->checkpoints_allocated);
        if (r < 0)
                return r;

        c->checkpoints[c->n_checkpoints++] = (Signed) { .checkpoint = *checkpoint, .in_record = in_record };
        return 0;
}

int audit_chain_add_checkpoint(AuditChain *c, const AuditCheckpoint *checkpoint) {
        return chain_add_signed(c, checkpoint, 0);
}

void audit_chain_set_kept(AuditChain *c, const AuditHead *kept) {
        c->kept = *kept;
}

void audit_chain_set_closing(AuditChain *c, const AuditClosing *closing) {
        c->exported = true;
        c->closing = closing ? *closing : (AuditClosing) {};
}

void audit_chain_set_head(AuditChain *c, const char *hash) {
        c->head = hash;
}

/* audit.checkpoint carries the line that was signed. One that does not is no checkpoint, whatever it is. */
static int chain_add_inner(AuditChain *c, const AuditRecord *r) {
        _cleanup_json_ json_t *data = NULL;
        AuditCheckpoint checkpoint;
        const char *line;

        if (json_parse(r->value[AUDIT_DATA], strlen(r->value[AUDIT_DATA]), &data, NULL) < 0)
                return 0;
        line = json_string_value(json_object_get(data, "line"));
        if (!line || audit_checkpoint_parse(line, strlen(line), &checkpoint) < 0)
                return 0;

        return chain_add_signed(c, &checkpoint, r->seq);
}

/* What is wrong with this entry alone. */
static int judge_alone(AuditRecord *r, const char *unit, Note *note) {
        const AuditEvent *event;
        int k;

        k = audit_record_check(r, &note->reason);
        if (k < 0)
                return k;

        if (unit && strcmp(unit, AUDIT_UNIT) != 0) {
                note->finding = AUDIT_FORGED;
                note->reason = "it was written by another unit than " AUDIT_UNIT;
        } else if (k == AUDIT_CHECK_MALFORMED)
                note->finding = AUDIT_MALFORMED;
        else if (k == AUDIT_CHECK_HASH)
                note->finding = AUDIT_ALTERED;
        else {
                event = audit_event_find(r->value[AUDIT_EVENT]);
                if (event && strcmp(event->message_id, r->value[AUDIT_MESSAGE_ID]) != 0) {
                        note->finding = AUDIT_MALFORMED;
                        note->reason = "its MESSAGE_ID is another event's";
                }
        }

        return 0;
}

/* One that has not even a number is named by its place. */
static uint64_t number_by_place(const AuditChain *c, uint64_t seq) {
        return seq == 0 && c->n_notes > 0 ? c->notes[c->n_notes - 1].seq + 1 : seq;
}

static int chain_add_note(AuditChain *c, const Note *note) {
        int r;

        r = grow(&c->notes, sizeof(c->notes[0]), c->n_notes, &c->notes_allocated);
        if (r < 0)
                return r;
        c->notes[c->n_notes++] = *note;
        return 0;
}

int audit_chain_break_off(AuditChain *c, AuditRecord *r, uint64_t *ret_seq) {
        Note note = { .place = c->n_notes, .finding = AUDIT_MALFORMED };
        int k;

        k = audit_record_check(r, &note.reason);
        if (k < 0)
                return k;
        note.reason = "the export cannot be read on from within it";
        note.seq = number_by_place(c, r->seq);
        *ret_seq = note.seq;
        return note.seq > 0 ? chain_add_note(c, &note) : 0;
}

int audit_chain_add(AuditChain *c, AuditRecord *r, const char *unit) {
        Note note = { .place = c->n_notes, .attributed = unit };
        int k;

        if (!r->ours)
                return 0;

        k = judge_alone(r, unit, &note);
        if (k < 0)
                return k;

        note.seq = r->seq;
        memcpy(note.prev, r->prev, AUDIT_HASH_SIZE);
        memcpy(note.hash, r->hash, AUDIT_HASH_SIZE);
        if (note.finding == AUDIT_GOOD) {
                memcpy(note.time, r->value[AUDIT_TIME], TIME_TEXT_SIZE);
                if (strcmp(r->value[AUDIT_EVENT], "audit.checkpoint") == 0) {
                        k = chain_add_inner(c, r);
                        if (k < 0)
                                return k;
                }
        } else
                note.seq = number_by_place(c, note.seq);

        return chain_add_note(c, &note);
}

static int compare_notes(const void *a, const void *b) {
        const Note *x = a, *y = b;

        if (x->seq != y->seq)
                return x->seq < y->seq ? -1 : 1;
        return x->place < y->place ? -1 : x->place > y->place;
}

__attribute__((__format__(__printf__, 4, 5)))
static int report_finding(AuditVerifyReport *r, AuditFinding finding, uint64_t seq, const char *format, ...) {
        va_list ap;
        int n;

        va_start(ap, format);
        free(r->reason);
        n = vasprintf(&r->reason, format, ap);
        va_end(ap);
        if (n < 0) {
                r->reason = NULL;
                return -ENOMEM;
        }

        r->finding = finding;
        r->seq = seq;
        return 1;
}

#define N(seq) ((unsigned long long) (seq))

/*
 * All copies of one number, notes[i] … notes[end - 1]: is there one good record among them, and are all the same? 1 after a
 * finding; else *ret is the last copy.
 */
static int judge_copies(AuditVerifyReport *r, Note *notes, size_t i, size_t end, Note **ret) {
        Note *good = NULL;

        for (size_t k = i; k < end; k++) {
                if (notes[k].finding != AUDIT_GOOD)
                        return report_finding(r, notes[k].finding, notes[k].seq, "Record %llu: %s.", N(notes[k].seq), notes[k].reason);
                if (notes[k].attributed && !good)
                        good = &notes[k];
        }
        if (!good)
                return report_finding(r, AUDIT_FORGED, notes[i].seq, "Record %llu: the entry does not say which unit wrote it.", N(notes[i].seq));

        for (size_t k = i; k < end; k++)
                if (memcmp(notes[k].hash, good->hash, AUDIT_HASH_SIZE) != 0)
                        return report_finding(r, AUDIT_FORGED, notes[k].seq, "Record %llu: there are two different records of that number.", N(notes[k].seq));

        r->resent += end - i - 1;
        *ret = &notes[end - 1];
        return 0;
}

static int judge_step(AuditVerifyReport *r, const Note *last, const Note *now) {
        if (now->seq != last->seq + 1)
                return report_finding(r, AUDIT_REMOVED, last->seq + 1,
                                      now->seq == last->seq + 2 ? "Record %llu is missing." : "Records from %llu to %llu are missing.",
                                      N(last->seq + 1), N(now->seq - 1));
        if (memcmp(now->prev, last->hash, AUDIT_HASH_SIZE) != 0)
                return report_finding(r, AUDIT_ALTERED, now->seq, "Record %llu does not follow from record %llu: one of them was replaced.",
                                      N(now->seq), N(last->seq));
        if (now->place < last->place)
                return report_finding(r, AUDIT_SWAPPED, now->seq, "Record %llu stands before record %llu.", N(now->seq), N(last->seq));
        return 0;
}

/* Walks the sorted notes. On return they hold, from 0 to r->records - 1, the last copy of each good record. */
static int judge_notes(AuditChain *c, AuditVerifyReport *r) {
        static const uint8_t zeros[AUDIT_HASH_SIZE];
        size_t n = 0, end;
        int k;

        qsort(c->notes, c->n_notes, sizeof(c->notes[0]), compare_notes);
        for (size_t i = 0; i < c->n_notes; i = end) {
                Note *now = NULL;

                for (end = i + 1; end < c->n_notes && c->notes[end].seq == c->notes[i].seq;)
                        end++;

                k = judge_copies(r, c->notes, i, end, &now);
                assert(k != 0 || now);
                if (k == 0 && n > 0)
                        k = judge_step(r, &c->notes[n - 1], now);
                if (k == 0 && n == 0 && now->seq == 1 && memcmp(now->prev, zeros, AUDIT_HASH_SIZE) != 0)
                        k = report_finding(r, AUDIT_ALTERED, 1, "Record 1 claims to follow another one.");
                if (k != 0)
                        return k;

                if (n == 0) {
                        r->first_seq = now->seq;
                        memcpy(r->first_time, now->time, TIME_TEXT_SIZE);
                }
                r->last_seq = now->seq;
                memcpy(r->last_time, now->time, TIME_TEXT_SIZE);
                c->notes[n++] = *now;
                r->records = n;
        }

        r->vacuumed = r->first_seq > 1;
        return 0;
}

static int judge_checkpoint(AuditChain *c, const AuditKey *key, const Signed *s, AuditVerifyReport *r) {
        const AuditCheckpoint *p = &s->checkpoint;
        int k;

        k = audit_checkpoint_verify(key, p);
        if (k < 0)
                return k;
        if (k == 0)
                return report_finding(r, AUDIT_CHECKPOINT, p->head.seq, "The checkpoint of record %llu, %s, is not signed with this key.",
                                      N(p->head.seq), p->time);
        if (p->head.seq < r->first_seq)
                return 0;
        if (p->head.seq > r->last_seq && r->closed && strcmp(p->time, r->closed_time) >= 0)
                return 0; /* the log went on after the export */
        if (p->head.seq > r->last_seq)
                return report_finding(r, AUDIT_CUT, r->last_seq + 1, "The log ends at record %llu, but record %llu was signed at %s.",
                                      N(r->last_seq), N(p->head.seq), p->time);
        if (memcmp(c->notes[p->head.seq - r->first_seq].hash, p->head.hash, AUDIT_HASH_SIZE) != 0)
                return report_finding(r, AUDIT_ALTERED, p->head.seq, "Record %llu has not the hash that was signed at %s: the log was written anew.",
                                      N(p->head.seq), p->time);

        r->checkpoints++;
        if (p->head.seq > r->signed_seq)
                r->signed_seq = p->head.seq;
        return 0;
}

static int judge_checkpoints(AuditChain *c, const AuditKey *key, AuditVerifyReport *r) {
        const AuditCheckpoint *newest = NULL;
        int k;

        for (size_t i = 0; i < c->n_checkpoints; i++) {
                const AuditCheckpoint *p = &c->checkpoints[i].checkpoint;

                k = judge_checkpoint(c, key, &c->checkpoints[i], r);
                if (k != 0)
                        return k;
                /* of the same record: what was vacuumed stays so */
                if (!newest || p->head.seq > newest->head.seq || (p->head.seq == newest->head.seq && p->first_seq > newest->first_seq))
                        newest = p;
        }

        r->checkpoints_checked = c->n_checkpoints > 0;
        if (newest && r->first_seq > newest->first_seq)
                return report_finding(r, AUDIT_REMOVED, newest->first_seq, "The log begins with record %llu, but at %s it began with record %llu.",
                                      N(r->first_seq), newest->time, N(newest->first_seq));
        return 0;
}

/* Does auditd's head follow from what is there? */
static int judge_kept(AuditChain *c, AuditVerifyReport *r) {
        const AuditHead *kept = &c->kept;

        r->head_asked = kept->seq > 0;
        if (kept->seq > r->last_seq)
                return report_finding(r, AUDIT_CUT, r->last_seq + 1, "The log ends at record %llu, but auditd had read back record %llu.", N(r->last_seq),
                                      N(kept->seq));
        if (kept->seq >= r->first_seq && kept->seq > 0 && memcmp(c->notes[kept->seq - r->first_seq].hash, kept->hash, AUDIT_HASH_SIZE) != 0)
                return report_finding(r, AUDIT_ALTERED, kept->seq, "Record %llu has not the hash that auditd wrote: the log was written anew.", N(kept->seq));
        return 0;
}

static int judge_head(AuditChain *c, AuditVerifyReport *r) {
        char hash[HEX_SHA256_SIZE];

        for (size_t i = r->records; i-- > 0;) {
                text_hex(c->notes[i].hash, AUDIT_HASH_SIZE, hash);
                if (strncmp(hash, c->head, strlen(c->head)) == 0) {
                        r->head_seq = c->notes[i].seq;
                        return 0;
                }
        }

        return report_finding(r, AUDIT_CUT, r->last_seq + 1, "No record has the hash %s: the log ends at record %llu, before that one, or is another log.", c->head,
                              N(r->last_seq));
}

/* Before the checkpoints, for it says until when they count. */
static int judge_closing(AuditChain *c, const AuditKey *key, AuditVerifyReport *r) {
        const AuditClosing *e = &c->closing;
        int k;

        if (!c->exported || e->records == 0)
                return 0;
        k = key ? audit_closing_verify(key, e) : 1;
        if (k < 0)
                return k;
        if (k == 0)
                return report_finding(r, AUDIT_CHECKPOINT, 0, "The closing line, of %s, is not signed with this key.", e->time);
        if (e->first_seq < r->first_seq)
                return report_finding(r, AUDIT_REMOVED, e->first_seq, "The file begins with record %llu, but its closing line says that it began with record %llu.",
                                      N(r->first_seq), N(e->first_seq));
        if (e->head.seq > r->last_seq)
                return report_finding(r, AUDIT_CUT, r->last_seq + 1, "The file ends at record %llu, but its closing line names record %llu as the last.",
                                      N(r->last_seq), N(e->head.seq));
        if (e->head.seq < r->last_seq)
                return report_finding(r, AUDIT_FORGED, e->head.seq + 1, "The closing line names record %llu as the last.", N(e->head.seq));
        if (memcmp(c->notes[r->records - 1].hash, e->head.hash, AUDIT_HASH_SIZE) != 0)
                return report_finding(r, AUDIT_ALTERED, r->last_seq, "Record %llu has not the hash that the closing line names.", N(r->last_seq));
        if (e->first_seq != r->first_seq || e->records != c->n_notes)
                return report_finding(r, AUDIT_CUT, 0, "The closing line counts %llu entries from record %llu on, but %llu from record %llu on are there.",
                                      N(e->records), N(e->first_seq), N(c->n_notes), N(r->first_seq));

        r->closed = true;
        r->closing_checked = key;
        memcpy(r->closed_time, e->time, TIME_TEXT_SIZE);
        return 0;
}

static int judge_ends(AuditChain *c, const AuditKey *key, AuditVerifyReport *r) {
        int k;

        k = judge_closing(c, key, r);
        if (k == 0 && key)
                k = judge_checkpoints(c, key, r);
        if (k == 0)
                k = judge_kept(c, r);
        if (k == 0 && c->head)
                k = judge_head(c, r);
        if (k == 0 && c->exported && !r->closed && !c->head)
                k = report_finding(r, AUDIT_UNCLOSED, 0, "The file ends without its closing line: records at its end, after record %llu, may be missing.",
                                   N(r->last_seq));
        return k;
}

int audit_chain_judge(AuditChain *c, const AuditKey *key, AuditVerifyReport *ret) {
        AuditVerifyReport r = { .reason = strdup("") };
        int k;

        if (!r.reason)
                return -ENOMEM;

        if (c->n_notes == 0)
                k = c->n_checkpoints > 0 || c->kept.seq > 0 || c->exported || c->head ? report_finding(&r, AUDIT_EMPTY, 0, "There is no record at all.") : 0;
        else {
                k = judge_notes(c, &r);
                if (r.records > 0)
                        text_hex(c->notes[r.records - 1].hash, AUDIT_HASH_SIZE, r.last_hash);
                if (k == 0)
                        k = judge_ends(c, key, &r);
        }
        if (k < 0) {
                audit_verify_report_done(&r);
                return k;
        }

        *ret = r;
        return 0;
}
