/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Follow and Logs. A follower is a call and an offset into the item's event file. The pump gives each a
 * bounded piece a turn and skips those whose connection still has output waiting; so a follower costs
 * one piece of memory, however slowly it reads, and misses nothing.
 */

#include <errno.h>
#include <string.h>

#include "api/manager-internal.h"
#include "util/json.h"
#include "util/log.h"

enum {
        PIECE_EVENTS = 64,
        PIECE_BYTES = 256 * 1024,
        SLOW_USEC = 20 * 1000, /* when to look again at a connection that is backed up */
};

struct Follower {
        Follower *next;
        IpcCall *call;             /* ref */
        EventReader reader;
        char item[ID_LENGTH + 1];
        char run[ID_LENGTH + 1];   /* "" for all */
        uint64_t from;
        bool follow;
};

static Follower *follower_free(Follower *f) {
        if (!f)
                return NULL;

        (void) ipc_call_unref(f->call);
        event_reader_done(&f->reader);
        free(f);
        return NULL;
}
DEFINE_CLEANUP(Follower *, follower_free)

typedef enum Pumped {
        PUMPED_IDLE, /* nothing more until something happens */
        PUMPED_MORE, /* there is more, now */
        PUMPED_SLOW, /* the reader is behind */
        PUMPED_DONE, /* answered, or gone */
} Pumped;

static bool wanted(const Follower *f, const json_t *event) {
        const char *run = json_string_value(json_object_get(event, "run"));

        if ((uint64_t) json_integer_value(json_object_get(event, "seq")) < f->from)
                return false;
        return f->run[0] == 0 || (run && strcmp(run, f->run) == 0);
}

static int answer_end(Manager *m, Follower *f, const LedgerItem *item) {
        char when[TIME_TEXT_SIZE];

        text_time(time_realtime(), when);
        return ipc_call_reply(f->call, json_pack("{s:{s:s, s:s, s:s, s:s?, s:s?}}", "event", "type", "end", "time", when,
                                                 "state", item_state_name(item->state), "reason", item->reason,
                                                 "run", item->run[0] ? item->run : NULL));
}

/* Everything that is in the file was sent. */
static Pumped at_end(Manager *m, Follower *f) {
        _cleanup_item_ LedgerItem item = {};
        int r;

        r = ledger_get(m->ledger, f->item, &item);
        if (r != 0) {
                (void) ipc_call_refuse(f->call, "Unavailable", "the item cannot be read");
                return PUMPED_DONE;
        }
        /* exec items pass through in_review on their way to closed, still worked on by a flow */
        if (f->follow && (!item_state_is_resting(item.state) || flow_find_item(m, f->item)))
                return PUMPED_IDLE;

        (void) answer_end(m, f, &item);
        return PUMPED_DONE;
}

static Pumped pump_one(Manager *m, Follower *f) {
        uint64_t start = f->reader.offset;
        int r;

        /* Of the piece before. Asked between two events it would always be so: what was queued is written by the loop. */
        if (ipc_call_is_backed_up(f->call))
                return PUMPED_SLOW;

        for (unsigned n = 0; n < PIECE_EVENTS && f->reader.offset - start < PIECE_BYTES; n++) {
                _cleanup_json_ json_t *event = NULL;

                if (!ipc_call_is_live(f->call))
                        return PUMPED_DONE;

                r = event_reader_next(&f->reader, &event);
                if (r < 0) {
                        (void) ipc_call_refuse(f->call, "Unavailable", "the events of this item cannot be read: %s", strerror(-r));
                        return PUMPED_DONE;
                }
                if (r == 0)
                        return at_end(m, f);
                if (!wanted(f, event))
                        continue;

                r = ipc_call_notify(f->call, json_pack("{s:O}", "event", event));
                if (r < 0)
                        return PUMPED_DONE;
        }

        return PUMPED_MORE;
}

static int on_pump(sd_event_source *source, uint64_t usec, void *userdata) {
        Manager *m = userdata;
        bool more = false, slow = false;

        for (Follower **p = &m->followers; *p;) {
                Follower *f = *p;
                Pumped pumped = pump_one(m, f);

                if (pumped == PUMPED_DONE) {
                        *p = f->next;
                        m->n_followers--;
                        (void) follower_free(f);
                        continue;
                }
                more |= pumped == PUMPED_MORE;
                slow |= pumped == PUMPED_SLOW;
                p = &f->next;
        }

        if (more)
                followers_wake(m);
        else if (slow && sd_event_source_set_time_relative(m->pump, SLOW_USEC) >= 0)
                (void) sd_event_source_set_enabled(m->pump, SD_EVENT_ONESHOT);
        return 0;
}

void followers_wake(Manager *m) {
        int r;

        if (!m->followers)
                return;

        if (m->pump) {
                r = sd_event_source_set_time(m->pump, 0);
                if (r >= 0)
                        r = sd_event_source_set_enabled(m->pump, SD_EVENT_ONESHOT);
        } else {
                r = sd_event_add_time(m->event, &m->pump, CLOCK_MONOTONIC, 0, 1, on_pump, m);
                if (r >= 0)
                        r = sd_event_source_set_priority(m->pump, SD_EVENT_PRIORITY_IDLE);
        }
        if (r < 0)
                (void) manager_fatal(m, r, "wake followers");
}

int follower_add(Manager *m, IpcCall *call, const char *item, const char *run, uint64_t from, bool follow) {
        _cleanup_(follower_freep) Follower *f = NULL;
        int fd;

        if (m->n_followers >= FOLLOWERS_MAX)
                return ipc_call_refuse(call, "Unavailable", "too many followers at once");

        f = calloc(1, sizeof(*f));
        if (!f)
                return -ENOMEM;
        *f = (Follower) { .reader.fd = -1, .from = from, .follow = follow };
        (void) snprintf(f->item, sizeof(f->item), "%s", item);
        (void) snprintf(f->run, sizeof(f->run), "%s", run ?: "");

        fd = store_open_file(m->store, item, STORE_EVENTS);
        if (fd < 0)
                return fd;
        event_reader_init(&f->reader, fd);
        f->call = ipc_call_ref(call);

        f->next = m->followers;
        m->followers = TAKE_PTR(f);
        m->n_followers++;
        followers_wake(m);
        return 0;
}

void followers_free(Manager *m) {
        while (m->followers) {
                Follower *f = m->followers;

                m->followers = f->next;
                (void) follower_free(f);
        }
        m->n_followers = 0;
}
