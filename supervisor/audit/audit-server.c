/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * auditd.
 *
 *     Append ─▶ pending ─▶ one commit for all that came together ─▶ answers ─▶ queue ─▶ journal ─▶ kept
 *
 * A handler (audit-server-request.c) only checks and puts the event into `pending`; a source of lower priority commits what the sockets
 * brought in this turn of the loop in one transaction (group commit) and answers. The commit blocks the loop for one fsync:
 * that is the whole of the service, and what arrives meanwhile is the next group. audit-queue.c gets the committed records into
 * the journal; what is known to be kept there leaves the outbox with the next commit, or half a second later.
 *
 * One run does not hold up another, nor fill the log for all: each unit of a run has a share of it (audit-share.c).
 *
 * Fails closed. An Append or Ping is refused when the commit fails, when the outbox is at its bound, and when the journal has
 * taken nothing for STALL_USEC although records wait. After an I/O error of the outbox the daemon exits: what is
 * on disk must be read anew, and a second fsync would prove nothing. A client that got no answer does not know whether its record
 * exists; it must not act, and a record of an action that did not happen is harmless. One that gave a key asks again with the same, also after we
 * were started anew in between, and is told of the record that there is (audit-request.c).
 *
 * At start: the outbox and the last record in the journal are compared. The journal behind: its missing records are
 * in the outbox and are sent again. The outbox behind (lost, or set back with the file system): the chain goes on after the journal's
 * last record, and audit.started says so. Both at the same number with different hashes: one of them was tampered with, and
 * auditd refuses to start.
 */
#include "audit/audit-server-private.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "audit/audit-api.h"
#include "audit/audit-event.h"
#include "audit/audit-journal.h"
#include "audit/audit-request.h"
#include "util/json.h"
#include "util/log.h"

enum {
        GROUP_MAX = 256,                         /* records in one transaction */
        DROP_USEC = 500 * 1000,
        CHECKPOINT_USEC = 60 * 1000 * 1000,
        TIMER_ACCURACY_USEC = 100 * 1000,
        CONNECTIONS_MAX = 2048,
        CONNECTIONS_PER_UID_MAX = AUDIT_SHARE_HELD_MAX, /* a client has nine (audit-client.c); root is several */
        MESSAGE_MAX = 512 * 1024,                /* ten times what a record may have */
};

Pending *audit_pending_free(Pending *p) {
        if (!p)
                return NULL;

        audit_share_end(p->share, p->reserved);
        audit_record_done(&p->record);
        (void) ipc_call_unref(p->call);
        free(p);
        return NULL;
}
/* ---- into pending ---- */

void audit_server_enqueue(AuditServer *s, Pending *p) {
        *s->pending_end = p;
        s->pending_end = &p->next;
        s->n_pending++;
        s->pending_bytes += p->size;
        if (sd_event_source_set_enabled(s->commit, SD_EVENT_ONESHOT) < 0)
                (void) sd_event_exit(s->event, -ENOMEM);
}

int audit_server_append_own(AuditServer *s, const char *name, const char *run, json_t *data) {
        _cleanup_json_ json_t *owned = data;
        _cleanup_(audit_pending_freep) Pending *p = calloc(1, sizeof(*p));
        _cleanup_(audit_request_done) AuditRequest q = {};
        int r;

        if (!owned || !p)
                return -ENOMEM;

        q.event = audit_event_find(name);
        q.run = run;
        q.actor = AUDIT_UNIT;
        q.data = owned;
        q.canonical = json_canonical(owned);
        if (!q.canonical)
                return -ENOMEM;

        r = audit_request_fill(&q, s->boot, AUDIT_UNIT, &p->record);
        if (r < 0)
                return r;

        audit_server_enqueue(s, TAKE_PTR(p));
        return 0;
}

static json_t *head_json(const AuditHead *head, const AuditHead *kept) {
        char hash[HEX_SHA256_SIZE], kept_hash[HEX_SHA256_SIZE];

        text_hex(head->hash, AUDIT_HASH_SIZE, hash);
        text_hex(kept->hash, AUDIT_HASH_SIZE, kept_hash);
        return json_pack("{s:I, s:s, s:I, s:I, s:s}", "seq", (json_int_t) head->seq, "hash", hash, "count", (json_int_t) head->seq,
                         "kept_seq", (json_int_t) kept->seq, "kept_hash", kept_hash);
}

/* Signs what the journal keeps, if there is more than at the last checkpoint, or (vacuumed) if it begins later now. 1 if it did. */
static int server_sign(AuditServer *s, bool vacuumed, AuditCheckpoint *ret) {
        uint64_t first;
        int r;

        if (s->kept.seq == 0 || (!vacuumed && s->kept.seq == s->signed_head.seq))
                return 0;

        r = audit_journal_first(s->journal_dir, s->journal_unit, &first);
        if (r >= 0 && vacuumed && (first == 0 || first == s->signed_first))
                return 0;
        if (r >= 0 && first == 0)
                r = -ENODATA;
        if (r >= 0)
                r = audit_checkpoint_sign(s->key, &s->kept, first, ret);
        if (r >= 0)
                r = audit_checkpoint_store(s->state_fd, ret);
        if (r < 0)
                return log_error_errno(r, "Cannot write a checkpoint");

        s->signed_head = s->kept;
        s->signed_first = first;
        return 1;
}

static int on_head(IpcCall *call, json_t *params, void *userdata) {
        AuditServer *s = userdata;
        AuditCheckpoint c;

        /* whoever verifies asks first: what journald vacuumed since the last checkpoint is no finding */
        (void) server_sign(s, true, &c);
        return ipc_call_reply(call, head_json(audit_outbox_head(s->outbox), &s->kept));
}

void audit_server_on_gone(const Peer *peer, void *userdata) {
        AuditServer *s = userdata;

        audit_shares_drop_gone(s->shares);
}

const IpcMethod audit_server_methods[] = {
        { AUDIT_INTERFACE ".Append", AUDIT_DAEMON_ROLES | AUDIT_RUN_ROLES | PEER_OPERATOR,             audit_server_on_append },
        { AUDIT_INTERFACE ".Ping",   AUDIT_DAEMON_ROLES | AUDIT_RUN_ROLES | PEER_OPERATOR | PEER_ROOT, audit_server_on_ping   },
        { AUDIT_INTERFACE ".Head",   PEER_ANCHORD | PEER_OPERATOR | PEER_ROOT,             on_head                },
        {}
};

/* ---- commit ---- */

/* The first n of pending, as a list of their own. */
static Pending *server_take_group(AuditServer *s) {
        Pending *group = s->pending, **p = &s->pending;
        size_t n = 0;

        while (*p && n < GROUP_MAX) {
                s->pending_bytes -= (*p)->size;
                p = &(*p)->next;
                n++;
        }
        s->pending = *p;
        *p = NULL;
        s->n_pending -= n;
        if (!s->pending)
                s->pending_end = &s->pending;
        return group;
}

/* One of a group, inside the transaction. */
static int server_write(AuditServer *s, Pending *p) {
        int r;

        if (p->ping)
                return audit_outbox_touch(s->outbox);
        if (p->identity[0]) {
                r = audit_outbox_find_told(s->outbox, p->identity, &p->told);
                if (r != 0)
                        return r;
        }
        r = audit_outbox_append(s->outbox, &p->record);
        if (r >= 0 && p->share)
                r = audit_outbox_spend(s->outbox, p->record.value[AUDIT_SOURCE], p->weight);
        if (r < 0 || !p->identity[0])
                return r;
        return audit_outbox_tell(s->outbox, p->identity, p->record.value[AUDIT_SOURCE], p->share);
}

static int server_write_group(AuditServer *s, Pending *group) {
        int r;

        r = audit_outbox_begin(s->outbox);
        if (r < 0)
                return r;

        if (s->kept.seq > audit_outbox_kept(s->outbox)->seq)
                r = audit_outbox_drop(s->outbox, &s->kept);
        for (Pending *p = group; r >= 0 && p; p = p->next)
                r = server_write(s, p);
        if (r < 0) {
                audit_outbox_rollback(s->outbox);
                return r;
        }

        return audit_outbox_commit(s->outbox);
}

static int reply_head(IpcCall *call, const AuditHead *head) {
        char hash[HEX_SHA256_SIZE];

        text_hex(head->hash, AUDIT_HASH_SIZE, hash);
        return ipc_call_reply(call, json_pack("{s:I, s:s}", "seq", (json_int_t) head->seq, "hash", hash));
}

/* The record is durable: into the queue, and tell who waits. */
static int pending_accept(AuditServer *s, Pending *p) {
        _cleanup_free_ char *text = NULL;
        AuditHead head;
        size_t size;
        int r;

        if (p->ping)
                return ipc_call_reply(p->call, NULL);
        if (p->told.seq > 0)
                return reply_head(p->call, &p->told);

        p->reserved = 0;
        head.seq = p->record.seq;
        memcpy(head.hash, p->record.hash, AUDIT_HASH_SIZE);
        r = audit_record_text(&p->record, &text, &size);
        if (r >= 0)
                r = audit_queue_add(s->queue, &head, text, size, false);
        /* It is in the outbox but not in the queue: only a restart brings it into the journal. */
        if (r < 0)
                return sd_event_exit(s->event, r);

        if (p->call)
                (void) reply_head(p->call, &head);
        return 0;
}

static int server_on_commit(sd_event_source *source, void *userdata) {
        AuditServer *s = userdata;
        Pending *group = server_take_group(s);
        int r;

        r = server_write_group(s, group);
        if (r < 0)
                (void) log_error_errno(r, "Cannot write the outbox, so nothing is recorded and nobody may act");

        while (group) {
                _cleanup_(audit_pending_freep) Pending *p = group;

                group = p->next;
                if (r >= 0)
                        (void) pending_accept(s, p);
                else if (p->call)
                        (void) ipc_call_refuse(p->call, "Unavailable", "The outbox cannot be written: %s", strerror(-r));
        }

        if (r == -EIO || r == -EBADMSG)
                return sd_event_exit(s->event, r);
        if (s->pending)
                (void) sd_event_source_set_enabled(s->commit, SD_EVENT_ONESHOT);
        audit_queue_pump(s->queue);
        return 0;
}

/* ---- what the journal keeps ---- */

static void server_on_kept(const AuditHead *kept, void *userdata) {
        AuditServer *s = userdata;
        int enabled = SD_EVENT_OFF;

        s->kept = *kept;
        (void) sd_event_source_get_enabled(s->drop, &enabled);
        if (enabled == SD_EVENT_OFF && (sd_event_source_set_time_relative(s->drop, DROP_USEC) < 0 ||
                                        sd_event_source_set_enabled(s->drop, SD_EVENT_ONESHOT) < 0))
                log_error("Cannot set the timer for dropping records from the outbox.");
}

static void server_on_resent(uint64_t first, uint64_t last, void *userdata) {
        AuditServer *s = userdata;
        int r;

        log_notice("The journal has not got records %llu to %llu, sending them again.", (unsigned long long) first, (unsigned long long) last);
        r = audit_server_append_own(s, "audit.resent", NULL, json_pack("{s:I, s:I}", "first", (json_int_t) first, "last", (json_int_t) last));
        if (r < 0)
                (void) log_warning_errno(r, "Cannot write audit.resent");
}

/* Nothing was appended for a while: a transaction that only drops. */
static int server_on_drop(sd_event_source *source, uint64_t usec, void *userdata) {
        AuditServer *s = userdata;

        if (s->kept.seq > audit_outbox_kept(s->outbox)->seq)
                (void) sd_event_source_set_enabled(s->commit, SD_EVENT_ONESHOT);
        return 0;
}

static int server_on_checkpoint(sd_event_source *source, uint64_t usec, void *userdata) {
        AuditServer *s = userdata;
        AuditCheckpoint c = {};
        char line[AUDIT_CHECKPOINT_LINE_MAX];
        int r;

        /* the checkpoint's own event alone is no reason for the next one */
        if ((s->kept.seq > s->signed_head.seq + 1 && server_sign(s, false, &c) > 0) || server_sign(s, true, &c) > 0) {
                audit_checkpoint_line(&c, line);
                r = audit_server_append_own(s, "audit.checkpoint", NULL, json_pack("{s:I, s:s}", "seq", (json_int_t) c.head.seq, "line", line));
                if (r < 0)
                        (void) log_warning_errno(r, "Cannot write audit.checkpoint");
        }

        (void) sd_event_source_set_time_relative(s->checkpoint, CHECKPOINT_USEC);
        return sd_event_source_set_enabled(s->checkpoint, SD_EVENT_ONESHOT);
}

void audit_server_stop(AuditServer *s) {
        AuditCheckpoint c = {};

        (void) server_sign(s, false, &c);
}

/* ---- start ---- */

static int load_record(AuditRecord *record, const char *text, size_t size, void *userdata) {
        AuditServer *s = userdata;
        AuditHead head = { .seq = record->seq };

        memcpy(head.hash, record->hash, AUDIT_HASH_SIZE);
        return audit_queue_add(s->queue, &head, text, size, true);
}

/* Compares outbox and journal. *ret_recovered: how many records only the journal knew. */
static int server_reconcile(AuditServer *s, const AuditServerOptions *o, uint64_t *ret_recovered) {
        const AuditHead *head = audit_outbox_head(s->outbox);
        AuditHead last;
        int r;

        r = audit_journal_last(o->journal_dir, o->journal_unit, &last);
        if (r < 0)
                return log_error_errno(r, "Cannot read the journal in %s", o->journal_dir);

        *ret_recovered = 0;
        if (last.seq == head->seq && last.seq > 0 && memcmp(last.hash, head->hash, AUDIT_HASH_SIZE) != 0) {
                log_error("Outbox and journal disagree about record %llu: one of them was tampered with. Run `anchorctl audit verify`, "
                          "keep copies of both, then move the outbox away from %s to go on after the journal's last record.",
                          (unsigned long long) last.seq, o->state_dir);
                return -EUCLEAN;
        }
        if (last.seq <= head->seq)
                return 0;

        *ret_recovered = last.seq - head->seq;
        log_warning("The outbox ends at record %llu, the journal at %llu: going on after the journal's.",
                    (unsigned long long) head->seq, (unsigned long long) last.seq);
        r = audit_outbox_begin(s->outbox);
        if (r >= 0)
                r = audit_outbox_adopt(s->outbox, &last);
        if (r >= 0)
                r = audit_outbox_commit(s->outbox);
        return r < 0 ? log_error_errno(r, "Cannot write the outbox") : 0;
}

static int server_open_state(AuditServer *s, const AuditServerOptions *o) {
        _cleanup_free_ char *path = text_format("%s/" AUDIT_OUTBOX, o->state_dir);
        int r;

        if (!path)
                return log_oom();

        s->state_fd = open(o->state_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (s->state_fd < 0)
                return log_error_errno(-errno, "Cannot open %s", o->state_dir);

        r = audit_key_load_or_make(&s->key, s->state_fd);
        if (r < 0)
                return log_error_errno(r, "Cannot load or make the key in %s", o->state_dir);

        r = audit_outbox_open(&s->outbox, path);
        return r < 0 ? log_error_errno(r, "Cannot open %s", path) : 0;
}

static int server_add_sources(AuditServer *s) {
        int r;

        r = audit_shares_new(&s->shares, s->event);
        if (r >= 0)
                r = sd_event_add_defer(s->event, &s->commit, server_on_commit, s);
        if (r >= 0)
                r = sd_event_source_set_enabled(s->commit, SD_EVENT_OFF);
        /* after every socket that has something to say */
        if (r >= 0)
                r = sd_event_source_set_priority(s->commit, SD_EVENT_PRIORITY_NORMAL + 10);
        if (r >= 0)
                r = sd_event_add_time_relative(s->event, &s->drop, CLOCK_MONOTONIC, DROP_USEC, TIMER_ACCURACY_USEC, server_on_drop, s);
        if (r >= 0)
                r = sd_event_source_set_enabled(s->drop, SD_EVENT_OFF);
        if (r >= 0)
                r = sd_event_add_time_relative(s->event, &s->checkpoint, CLOCK_MONOTONIC, CHECKPOINT_USEC, TIMER_ACCURACY_USEC, server_on_checkpoint, s);
        return r;
}

static int server_start(AuditServer *s, const AuditServerOptions *o) {
        uint64_t recovered = 0, head_seq;
        sd_id128_t boot;
        int r;

        r = sd_id128_get_boot(&boot);
        if (r < 0)
                return log_error_errno(r, "Cannot read the boot id");
        (void) sd_id128_to_string(boot, s->boot);

        r = server_open_state(s, o);
        if (r < 0)
                return r;
        r = server_reconcile(s, o, &recovered);
        if (r < 0)
                return r;

        r = server_add_sources(s);
        if (r >= 0)
                r = audit_queue_new(&s->queue, s->event, o->journal_socket, o->journal_dir, o->journal_unit, server_on_kept, server_on_resent, s);
        if (r < 0)
                return log_error_errno(r, "Cannot start");
        r = audit_outbox_foreach(s->outbox, load_record, s);
        if (r < 0)
                return log_error_errno(r, "The outbox is damaged: keep a copy, then move it away to go on after the journal's last record");

        s->kept = *audit_outbox_kept(s->outbox);
        s->signed_head = s->kept;
        head_seq = audit_outbox_head(s->outbox)->seq;
        /* 0 is left out of the sentence, therefore null */
        r = audit_server_append_own(s, "audit.started", NULL,
                              json_pack("{s:I, s:o, s:o}", "head", (json_int_t) head_seq,
                                        "waiting", audit_queue_size(s->queue) ? json_integer((json_int_t) audit_queue_size(s->queue)) : json_null(),
                                        "recovered", recovered ? json_integer((json_int_t) recovered) : json_null()));
        if (r < 0)
                return log_error_errno(r, "Cannot write audit.started");

        audit_queue_pump(s->queue);
        r = ipc_server_new(&s->ipc, s->event, audit_server_methods, s);
        if (r < 0)
                return log_error_errno(r, "Cannot start the server");
        ipc_server_set_limits(s->ipc, CONNECTIONS_MAX, CONNECTIONS_PER_UID_MAX);
        ipc_server_set_message_max(s->ipc, MESSAGE_MAX);
        ipc_server_set_disconnect(s->ipc, audit_server_on_gone);
        ipc_server_set_no_fds(s->ipc);
        return 0;
}

int audit_server_new(AuditServer **ret, sd_event *event, const AuditServerOptions *options) {
        _cleanup_(audit_server_freep) AuditServer *s = NULL;
        int r;

        s = calloc(1, sizeof(*s));
        if (!s)
                return log_oom();
        s->event = sd_event_ref(event);
        s->state_fd = -1;
        s->pending_end = &s->pending;
        s->journal_dir = strdup(options->journal_dir);
        s->journal_unit = options->journal_unit ? strdup(options->journal_unit) : NULL;
        if (!s->journal_dir || (options->journal_unit && !s->journal_unit))
                return log_oom();

        r = server_start(s, options);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(s);
        return 0;
}

AuditServer *audit_server_free(AuditServer *s) {
        if (!s)
                return NULL;

        while (s->pending) {
                Pending *p = s->pending;

                s->pending = p->next;
                (void) audit_pending_free(p);
        }
        (void) audit_shares_free(s->shares);
        (void) ipc_server_free(s->ipc);
        (void) audit_queue_free(s->queue);
        (void) audit_outbox_free(s->outbox);
        (void) audit_key_free(s->key);
        (void) sd_event_source_disable_unref(s->commit);
        (void) sd_event_source_disable_unref(s->drop);
        (void) sd_event_source_disable_unref(s->checkpoint);
        (void) fd_close(s->state_fd);
        free(s->journal_dir);
        free(s->journal_unit);
        (void) sd_event_unref(s->event);
        free(s);
        return NULL;
}

int audit_server_listen_fd(AuditServer *s, int fd) {
        return ipc_server_listen_fd(s->ipc, fd);
}

int audit_server_listen_systemd(AuditServer *s, const char *fd_name) {
        return ipc_server_listen_systemd(s->ipc, fd_name);
}
