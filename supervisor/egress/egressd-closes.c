/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * conn.close on its way to the audit log: every grant that is in the log has its end there. A grant is forgotten when its connection is over; its record stays here until
 * auditd has acknowledged it.
 *
 *   awaited   egressd ended the connection itself; for a moment its owner may say what went over it
 *   waits     for its turn: of one run a few are under way at a time
 *   sent
 *   refused   auditd was gone, slow, or full: it is sent again when auditd answers a ping, and until then no further ones of that run are begun
 *
 * Without auditd nothing is granted, so that what gathers here was open before. If it is more than CLOSES_MAX of one run, the rest is counted, and
 * one record says how many; so it does of those that auditd will never take as they are. This process says once that auditd does not take them, and once that it has them all.
 *
 * A record that auditd wrote without our hearing of it is recognised by its key when it is sent again. What is not under way is in the database, in place of the grant that it is the end of,
 * and when this process is stopped the rest is as well: the next life sends it. Lost is what was under way when this process was killed, and had not been waiting before. While the disk
 * takes nothing, one warning says so, and each beat tries once more.
 */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "egress/egressd-private.h"
#include "util/json.h"
#include "util/log.h"

enum {
        CLOSES_MAX = 1024,             /* more connections than a proxy and an inject have */
        SENT_MAX = 32,
        AWAITED_USEC = 2 * 1000 * 1000,
};

typedef enum CloseState { CLOSE_AWAITED,
                          CLOSE_WAITS,
                          CLOSE_SENT,
                          CLOSE_REFUSED,
                          _CLOSE_STATE_MAX } CloseState;

typedef struct Close Close;

/* Those of one run, which may be gone by now. There is one only while it has any. */
struct CloseQueue {
        Egressd *egressd;        /* borrowed */
        CloseQueue *next, **prev;
        char run[ID_LENGTH + 1];
        Close *first, **end;     /* owned; in the order in which they came */
        size_t n[_CLOSE_STATE_MAX]; /* how many are in that state */
        bool to_keep;            /* some may have to be written down */
};

struct Close {
        CloseQueue *queue;    /* borrowed */
        Close *next, **prev;
        CloseState state;
        char *actor;          /* owned; or NULL */
        json_t *data;         /* ref */
        char key[48];         /* of this record alone */
        bool kept;            /* in the database, under that key */
        bool behind;          /* it was refused, and counts in n_closes_behind */
        bool changed;         /* and what is there is not all that is known by now */
        uint64_t n_lost;      /* 0: it is of one connection, or of some that are named in it */

        /* while it is awaited */
        json_t *grants;       /* ref; of which nobody has said anything yet */
        uint64_t cgroup, until_usec, bytes_in, bytes_out;
};

static Close *close_free(Close *c) {
        if (!c)
                return NULL;

        if (c->prev) {
                *c->prev = c->next;
                if (c->next)
                        c->next->prev = c->prev;
                else
                        c->queue->end = c->prev;
                c->queue->n[c->state]--;
                c->queue->egressd->n_closes_behind -= c->behind;
        }
        json_unref(c->data);
        json_unref(c->grants);
        free(c->actor);
        free(c);
        return NULL;
}
DEFINE_CLEANUP(Close *, close_free)

static CloseQueue *queue_free(CloseQueue *q) {
        if (!q)
                return NULL;

        while (q->first)
                (void) close_free(q->first);
        *q->prev = q->next;
        if (q->next)
                q->next->prev = q->prev;
        free(q);
        return NULL;
}

static CloseQueue *queue_find(const Egressd *e, const char *run) {
        CloseQueue *q = e->closes;

        while (q && strcmp(q->run, run) != 0)
                q = q->next;
        return q;
}

/* NULL: no memory. */
static CloseQueue *queue_get(Egressd *e, const char *run) {
        CloseQueue *q = queue_find(e, run);

        if (q)
                return q;
        q = calloc(1, sizeof(*q));
        if (!q)
                return NULL;
        *q = (CloseQueue) { .egressd = e, .next = e->closes, .prev = &e->closes, .end = &q->first };
        (void) snprintf(q->run, sizeof(q->run), "%s", run);
        if (q->next)
                q->next->prev = &q->next;
        e->closes = q;
        return q;
}

static size_t queue_length(const CloseQueue *q) {
        size_t n = 0;

        for (CloseState s = 0; s < _CLOSE_STATE_MAX; s++)
                n += q->n[s];
        return n;
}

static void close_set_state(Close *c, CloseState state) {
        c->queue->n[c->state]--;
        c->queue->n[state]++;
        c->state = state;
}

static bool is_to_keep(const Close *c, bool sent) {
        return (!c->kept || c->changed) && (sent || c->state != CLOSE_SENT);
}

/* What is not under way is to be on disk; `sent`: and what is. Failing that, it is here as long as this process is. */
static int keep(CloseQueue *q, bool sent) {
        _cleanup_free_ EgressClose *closes = calloc(queue_length(q) + 1, sizeof(*closes));
        size_t n = 0;
        int r;

        if (!closes)
                return -ENOMEM;
        for (const Close *c = q->first; c; c = c->next)
                if (is_to_keep(c, sent))
                        closes[n++] = (EgressClose) { .key = c->key, .run = q->run, .actor = c->actor, .data = c->data };
        r = n > 0 ? egress_state_keep_closes(q->egressd->state, closes, n) : 0;
        if (r < 0)
                return r;

        for (Close *c = q->first; c; c = c->next)
                if (is_to_keep(c, sent)) {
                        c->kept = true;
                        c->changed = false;
                }
        q->to_keep = false;
        return 0;
}

static void keep_waiting(CloseQueue *q) {
        int r;

        if (q->egressd->closes_unkept || !q->to_keep || q->n[CLOSE_SENT] == queue_length(q))
                return;
        r = keep(q, false);
        if (r < 0)
                log_warning_errno(r, "run %s: ends of connections that are not recorded yet cannot be written down; should egressd be killed now, they are lost", q->run);
        q->egressd->closes_unkept = r < 0;
}

static void keep_again(Egressd *e) {
        if (!e->closes_unkept)
                return;
        for (CloseQueue *q = e->closes; q; q = q->next)
                if (q->to_keep && keep(q, false) < 0)
                        return;
        e->closes_unkept = false;
        log_notice("ends of connections that are not recorded yet are written down again");
}

static void drop(Close *c) {
        Egressd *e = c->queue->egressd;
        int r;

        if (!c->kept)
                return;
        r = egress_state_drop_close(e->state, c->key);
        if (r < 0 && !e->closes_undropped) /* it would be sent again under its key, which auditd knows */
                log_warning_errno(r, "run %s: ends of connections that are recorded cannot be deleted from the database", c->queue->run);
        e->closes_undropped = r < 0;
        c->kept = false;
}

static void close_name(Close *c) {
        Egressd *e = c->queue->egressd;

        (void) snprintf(c->key, sizeof(c->key), "%s/%llu", e->life, (unsigned long long) ++e->n_closes);
}

/* Takes data over. */
static int close_new(Close **ret, CloseQueue *q, const char *actor, json_t *data) {
        _cleanup_(close_freep) Close *c = calloc(1, sizeof(*c));

        if (!c || !data) {
                json_decref(data);
                return -ENOMEM;
        }
        *c = (Close) { .queue = q, .state = CLOSE_WAITS, .data = data };
        close_name(c);
        if (actor && !(c->actor = strdup(actor)))
                return -ENOMEM;

        c->prev = q->end;
        *c->prev = c;
        q->end = &c->next;
        q->n[c->state]++;
        q->to_keep = true;
        *ret = TAKE_PTR(c);
        return 0;
}

/* ---- those of which only the number is known ---- */

static json_t *lost_data(uint64_t n) {
        return json_pack("{s:s, s:i, s:s, s:s, s:I}", "name", "-", "port", 0, "rule", "overflow", "reason", "log-lost", "count", (json_int_t) n);
}

/* Is it the first one? */
static bool lose(CloseQueue *q, uint64_t n) {
        Close *c = q->first;
        json_t *data;

        while (c && (c->n_lost == 0 || c->state == CLOSE_SENT))
                c = c->next;
        if (!c) {
                if (close_new(&c, q, NULL, lost_data(n)) < 0)
                        log_oom();
                else
                        c->n_lost = n;
                return true;
        }
        data = lost_data(c->n_lost + n);
        if (!data) {
                log_oom();
                return false;
        }
        drop(c);
        json_decref(c->data);
        c->data = data;
        c->n_lost += n;
        close_name(c); /* it says something else now */
        q->to_keep = true;
        return false;
}

static uint64_t stands_for(const json_t *data) {
        json_int_t n = json_integer_value(json_object_get(data, "count"));

        return n > 0 ? (uint64_t) n : 1;
}

/* ---- sending ---- */

static void pump(CloseQueue *q);

/* auditd is away, slow or full, or there is no memory: it is sent again. The client says nothing of it. */
static void refused(Close *c, int r) {
        Egressd *e = c->queue->egressd;

        if (!c->behind && e->n_closes_behind++ == 0)
                log_warning_errno(r, "run %s: the end of a connection cannot be recorded, and waits until the audit log answers, as do further ones", c->queue->run);
        c->behind = true;
}

/* Why, audit-client.c says: auditd's words come with the answer. */
static void refused_for_good(Close *c) {
        Egressd *e = c->queue->egressd;

        if (!e->closes_barred)
                log_error("run %s: the audit log will never take %s", c->queue->run,
                                c->n_lost > 0 ? "the number of some ends of connections" : "the end of a connection as it is; such ends are counted");
        e->closes_barred = true;
        if (c->n_lost == 0)
                (void) lose(c->queue, stands_for(c->data));
}

static void on_told(int r, void *userdata) {
        Close *c = userdata;
        CloseQueue *q = c->queue;
        Egressd *e = q->egressd;
        bool never = r == -EINVAL || r == -EACCES; /* is it taken, as it is */
        bool was_behind = c->behind;

        close_set_state(c, CLOSE_REFUSED);
        q->to_keep = true;
        if (r >= 0)
                e->closes_barred = false;
        else if (never)
                refused_for_good(c);
        else
                refused(c, r);
        if (r >= 0 || never) {
                drop(c);
                (void) close_free(c);
        }
        if (was_behind && e->n_closes_behind == 0)
                log_notice("the audit log answers again: of the ends of connections that it had not taken none is left");
        pump(q);
        egressd_end_if_told(e);
}

static void send_close(Close *c) {
        CloseQueue *q = c->queue;
        int r;

        r = audit_append_once(q->egressd->audit, c->key, "conn.close", q->run, NULL, c->actor, json_incref(c->data), on_told, c);
        if (r < 0)
                refused(c, r);
        close_set_state(c, r < 0 ? CLOSE_REFUSED : CLOSE_SENT);
}

/* What waits, as much as may be under way. The queue is gone if nothing is left in it. */
static void pump(CloseQueue *q) {
        for (Close *c = q->first; c && q->n[CLOSE_WAITS] > 0 && q->n[CLOSE_REFUSED] == 0 && q->n[CLOSE_SENT] < SENT_MAX; c = c->next)
                if (c->state == CLOSE_WAITS)
                        send_close(c);
        keep_waiting(q);
        if (!q->first)
                (void) queue_free(q);
}

void egressd_closes_tell_again(Egressd *e) {
        for (CloseQueue *q = e->closes, *next; q; q = next) {
                next = q->next;
                for (Close *c = q->first; c && q->n[CLOSE_REFUSED] > 0; c = c->next)
                        if (c->state == CLOSE_REFUSED)
                                close_set_state(c, CLOSE_WAITS);
                pump(q);
        }
}

/* ---- ends ---- */

/* Takes data over. NULL: there is no room, which is noted. */
static Close *add(CloseQueue *q, const char *actor, json_t *data) {
        uint64_t n = stands_for(data);
        int r = -ENOBUFS;
        Close *c;

        if (queue_length(q) >= CLOSES_MAX)
                json_decref(data);
        else
                r = close_new(&c, q, actor, data);
        if (r >= 0)
                return c;
        if (lose(q, n))
                log_warning_errno(r, "run %s: the end of a connection cannot be kept until the audit log takes it, and is counted, as are further ones", q->run);
        return NULL;
}

/* The queue of a run that has one record more. NULL: there is none, and the data are gone. */
static CloseQueue *begin(Egressd *e, EgressRun *run, json_t *data) {
        CloseQueue *q = queue_get(e, run->id);

        run->n_records++;
        if (!q) {
                log_oom();
                json_decref(data);
        }
        return q;
}

void egressd_close(Egressd *e, EgressRun *run, const char *actor, json_t *data) {
        CloseQueue *q = begin(e, run, data);

        if (!q)
                return;
        (void) add(q, actor, data);
        pump(q);
}

void egressd_close_awaited(Egressd *e, EgressRun *run, const char *actor, uint64_t cgroup, json_t *data) {
        const json_t *others = json_object_get(data, "others");
        CloseQueue *q = begin(e, run, data);
        Close *c;

        if (!q)
                return;
        c = add(q, actor, data);
        if (!c) {
                pump(q);
                return;
        }
        c->grants = json_array();
        if (json_array_append(c->grants, json_object_get(data, "grant")) < 0 || (others && json_array_extend(c->grants, (json_t *) others) < 0)) {
                pump(q); /* without a word of its owner, then */
                return;
        }
        c->cgroup = cgroup;
        c->until_usec = time_boottime() + AWAITED_USEC;
        close_set_state(c, CLOSE_AWAITED);
        keep_waiting(q);
}

void egressd_close_told(Egressd *e, const Peer *peer, uint64_t grant, uint64_t bytes_in, uint64_t bytes_out, uint64_t duration_usec) {
        CloseQueue *q = queue_find(e, peer->run);

        for (Close *c = q && q->n[CLOSE_AWAITED] > 0 ? q->first : NULL; c; c = c->next) {
                size_t i = 0;

                if (c->state != CLOSE_AWAITED || c->cgroup != peer->cgroup_id)
                        continue;
                while (i < json_array_size(c->grants) && (uint64_t) json_integer_value(json_array_get(c->grants, i)) != grant)
                        i++;
                if (i == json_array_size(c->grants))
                        continue;

                (void) json_array_remove(c->grants, i);
                c->changed = q->to_keep = true;
                c->bytes_in += bytes_in;
                c->bytes_out += bytes_out;
                (void) json_object_set_new(c->data, "bytes_in", json_integer((json_int_t) c->bytes_in));
                (void) json_object_set_new(c->data, "bytes_out", json_integer((json_int_t) c->bytes_out));
                if (!json_object_get(c->data, "others"))
                        (void) json_object_set_new(c->data, "duration_us", json_integer((json_int_t) duration_usec));
                if (json_array_size(c->grants) == 0) {
                        close_set_state(c, CLOSE_WAITS);
                        pump(q);
                }
                return;
        }
}

static void complete(CloseQueue *q, uint64_t now) {
        if (q->n[CLOSE_AWAITED] == 0)
                return;
        for (Close *c = q->first; c; c = c->next)
                if (c->state == CLOSE_AWAITED && c->until_usec <= now)
                        close_set_state(c, CLOSE_WAITS);
        pump(q);
}

void egressd_closes_tick(Egressd *e) {
        uint64_t now = time_boottime();

        keep_again(e);
        for (CloseQueue *q = e->closes, *next; q; q = next) {
                next = q->next;
                complete(q, now);
        }
}

void egressd_closes_flush(Egressd *e, const char *run) {
        for (CloseQueue *q = e->closes, *next; q; q = next) {
                next = q->next;
                if (!run || strcmp(q->run, run) == 0)
                        complete(q, UINT64_MAX);
        }
}

/* What waits does so behind one that is, or behind one that was refused. */
bool egressd_closes_under_way(const Egressd *e) {
        const CloseQueue *q = e->closes;

        while (q && q->n[CLOSE_SENT] == 0)
                q = q->next;
        return q;
}

static int on_kept(const EgressClose *kept, void *userdata) {
        const char *reason = json_string_value(json_object_get(kept->data, "reason"));
        CloseQueue *q = queue_get(userdata, kept->run);
        Close *c;
        int r;

        r = q ? close_new(&c, q, kept->actor, json_incref(kept->data)) : -ENOMEM;
        if (r < 0)
                return r;
        (void) snprintf(c->key, sizeof(c->key), "%s", kept->key);
        c->kept = true;
        c->n_lost = reason && strcmp(reason, "log-lost") == 0 ? stands_for(c->data) : 0;
        return 0;
}

int egressd_load_closes(Egressd *e) {
        int r;

        r = egress_state_load_closes(e->state, on_kept, e);
        egressd_closes_tell_again(e);
        return r;
}

/* Nothing is lost while the log answers: what is under way is there as well, under its key. */
void egressd_closes_keep(Egressd *e) {
        for (CloseQueue *q = e->closes; q; q = q->next) {
                int r = keep(q, true);

                if (r < 0) {
                        log_error_errno(r, "run %s: ends of connections that are not recorded yet cannot be written down, and may be lost", q->run);
                        return;
                }
        }
}

void egressd_closes_done(Egressd *e) {
        while (e->closes)
                (void) queue_free(e->closes);
}
