/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * One connection to the system bus, one table of calls under way. A start is done when its job is: the
 * method call's answer names the job, the signal JobRemoved ends it. The signal can come before the
 * answer is read only in theory (both are on one ordered connection, the answer first), so that a job is looked
 * up by its path alone.
 *
 * A call that is forgotten stays in the table until its answer arrives, without its callback; so the
 * owner of a callback can go away at any time after units_forget().
 *
 * When the bus goes away anchord cannot know any more what runs: it ends, is started anew, and settles
 * everything from the ledger and the unit list.
 */

#include <errno.h>
#include <string.h>

#include "api/units-internal.h"
#include "util/log.h"
#include "util/text.h"

enum {
        CALLS_MAX = 1024,
        CALL_TIMEOUT_USEC = 25 * 1000 * 1000,
        SINCE_TIMEOUT_USEC = 5 * 1000 * 1000, /* somebody waits for that with what happened */
};

/* ---- calls under way ---- */

static UnitsCall *call_free(UnitsCall *c) {
        if (!c)
                return NULL;

        for (UnitsCall **p = &c->units->calls; *p; p = &(*p)->next)
                if (*p == c) {
                        *p = c->next;
                        c->units->n_calls--;
                        break;
                }

        sd_bus_slot_unref(c->slot);
        sd_event_source_disable_unref(c->timer);
        free(c->unit);
        free(c->job);
        free(c);
        return NULL;
}
DEFINE_CLEANUP(UnitsCall *, call_free)

static int call_new(Units *u, const char *verb, const char *unit, void *userdata, UnitsCall **ret) {
        _cleanup_(call_freep) UnitsCall *c = NULL;

        if (u->n_calls >= CALLS_MAX)
                return -EBUSY;

        c = calloc(1, sizeof(*c));
        if (!c)
                return -ENOMEM;
        *c = (UnitsCall) { .units = u, .verb = verb, .userdata = userdata, .next = u->calls };
        u->calls = c;
        u->n_calls++;

        c->unit = strdup(unit);
        if (!c->unit)
                return -ENOMEM;

        *ret = TAKE_PTR(c);
        return 0;
}

/* The call is freed first, since the callback may do anything. */
void units_call_end(UnitsCall *c, int r, const char *result) {
        UnitsDone done = c->done;
        void *userdata = c->userdata;

        if (r < 0)
                log_line(done ? LOG_DEBUG : LOG_WARNING, "cannot %s %s: %s", c->verb, c->unit, result);
        (void) call_free(c);
        if (done)
                done(r, result, userdata);
}

void units_forget(Units *u, void *userdata) {
        for (UnitsCall *c = u->calls; c; c = c->next)
                if (c->userdata == userdata) {
                        c->done = NULL;
                        c->listed = NULL;
                        c->since = NULL;
                }
}

/* ---- requests ---- */

static int on_answer(sd_bus_message *m, void *userdata, sd_bus_error *ignored) {
        UnitsCall *c = userdata;
        const sd_bus_error *error = sd_bus_message_get_error(m);
        const char *job;

        if (error) {
                int r = -sd_bus_message_get_errno(m);

                /* what is not loaded is already stopped, dead and reset */
                if (sd_bus_error_has_name(error, "org.freedesktop.systemd1.NoSuchUnit") && strcmp(c->verb, "start") != 0)
                        units_call_end(c, 0, "done");
                else if (sd_bus_error_has_name(error, "org.freedesktop.systemd1.TransactionIsDestructive"))
                        units_call_end(c, -EBUSY, error->message ?: error->name);
                else
                        units_call_end(c, r < 0 ? r : -EIO, error->message ?: error->name);
                return 0;
        }

        if (sd_bus_message_has_signature(m, "o") && sd_bus_message_read(m, "o", &job) > 0) {
                c->job = strdup(job);
                if (!c->job)
                        units_call_end(c, -ENOMEM, "out of memory");
                return 0; /* JobRemoved ends it */
        }

        units_call_end(c, 0, "done");
        return 0;
}

static int send_call(Units *u, const char *verb, const char *member, const char *unit, UnitsDone done, void *userdata,
                     const char *signature, const char *argument, int number) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL;
        _cleanup_(call_freep) UnitsCall *c = NULL;
        int r;

        r = call_new(u, verb, unit, userdata, &c);
        if (r < 0)
                return r;
        c->done = done;

        r = sd_bus_message_new_method_call(u->bus, &m, SYSTEMD, MANAGER_PATH, MANAGER, member);
        if (r < 0)
                return r;
        r = sd_bus_message_append(m, "s", unit);
        if (r >= 0 && argument)
                r = sd_bus_message_append(m, "s", argument);
        if (r >= 0 && strcmp(signature, "ssi") == 0)
                r = sd_bus_message_append(m, "i", number);
        if (r < 0)
                return r;

        r = sd_bus_call_async(u->bus, &c->slot, m, on_answer, c, CALL_TIMEOUT_USEC);
        if (r < 0)
                return r;

        c = NULL;
        return 0;
}

/*
 * Was the same asked and not yet answered? polkit is asked about each call, so that an answer may take longer than a
 * list of units; who looks at the list and asks anew each time would use up the replies that the bus allows to be pending.
 */
static bool is_asked(const Units *u, const char *verb, const char *unit) {
        for (const UnitsCall *c = u->calls; c; c = c->next)
                if (!c->job && strcmp(c->verb, verb) == 0 && strcmp(c->unit, unit) == 0)
                        return true;
        return false;
}

int units_start(Units *u, const char *unit, UnitsDone done, void *userdata) {
        return send_call(u, "start", "StartUnit", unit, done, userdata, "ss", "replace", 0);
}

int units_stop(Units *u, const char *unit) {
        if (is_asked(u, "stop", unit))
                return 0;
        return send_call(u, "stop", "StopUnit", unit, NULL, NULL, "ss", "replace-irreversibly", 0);
}

int units_kill(Units *u, const char *unit, int signal_number) {
        return send_call(u, "kill", "KillUnit", unit, NULL, NULL, "ssi", "all", signal_number);
}

int units_reset_failed(Units *u, const char *unit) {
        if (is_asked(u, "reset", unit))
                return 0;
        return send_call(u, "reset", "ResetFailedUnit", unit, NULL, NULL, "s", NULL, 0);
}

/* ---- questions ---- */

/* All of them or an error: a unit that is not in the list is taken for one that is not there. On failure *ret is the caller's as well. */
static int read_units(sd_bus_message *m, UnitState **ret, size_t *ret_n) {
        size_t n = 0, room = 0;
        int r;

        r = sd_bus_message_enter_container(m, 'a', "(ssssssouso)");
        if (r < 0)
                return r;

        for (;;) {
                UnitState s = {};
                uint32_t job = 0;

                r = sd_bus_message_read(m, "(ssssssouso)", &s.name, NULL, NULL, &s.active, &s.sub, NULL, NULL, &job, NULL, NULL);
                if (r < 0)
                        return r;
                if (r == 0)
                        break;
                s.job = job != 0;
                if (n == room) {
                        UnitState *more = reallocarray(*ret, room ? 2 * room : 128, sizeof(*more));

                        if (!more)
                                return -ENOMEM;
                        *ret = more;
                        room = room ? 2 * room : 128;
                }
                (*ret)[n++] = s;
        }

        *ret_n = n;
        return 0;
}

static int on_list(sd_bus_message *m, void *userdata, sd_bus_error *ignored) {
        UnitsCall *c = userdata;
        UnitsListed listed = c->listed;
        void *listed_userdata = c->userdata;
        const sd_bus_error *error = sd_bus_message_get_error(m);
        _cleanup_free_ UnitState *units = NULL;
        size_t n = 0;
        int r;

        (void) call_free(c);

        if (error) {
                log_line(LOG_WARNING, "systemd does not list units: %s", error->message ?: error->name);
                r = -EIO;
        } else
                r = read_units(m, &units, &n);
        if (listed)
                listed(r, units, n, listed_userdata);
        return 0;
}

int units_list(Units *u, const char *const *patterns, UnitsListed listed, void *userdata) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL;
        _cleanup_(call_freep) UnitsCall *c = NULL;
        int r;

        r = call_new(u, "list", patterns[0], userdata, &c);
        if (r < 0)
                return r;
        c->listed = listed;

        r = sd_bus_message_new_method_call(u->bus, &m, SYSTEMD, MANAGER_PATH, MANAGER, "ListUnitsByPatterns");
        if (r < 0)
                return r;
        r = sd_bus_message_append(m, "as", 0);
        if (r >= 0)
                r = sd_bus_message_append_strv(m, (char **) patterns);
        if (r < 0)
                return r;

        r = sd_bus_call_async(u->bus, &c->slot, m, on_list, c, CALL_TIMEOUT_USEC);
        if (r < 0)
                return r;

        c = NULL;
        return 0;
}

static int read_since(sd_bus_message *m, UnitSince *ret) {
        const char *name, *active;
        uint32_t job;
        int r;

        r = sd_bus_message_enter_container(m, 'a', "{sv}");
        if (r < 0)
                return r;

        while ((r = sd_bus_message_enter_container(m, 'e', "sv")) > 0) {
                r = sd_bus_message_read(m, "s", &name);
                if (r < 0)
                        return r;

                if (strcmp(name, "ActiveState") == 0) {
                        r = sd_bus_message_read(m, "v", "s", &active);
                        if (r >= 0)
                                (void) snprintf(ret->active, sizeof(ret->active), "%s", active);
                } else if (strcmp(name, "Job") == 0) {
                        r = sd_bus_message_read(m, "v", "(uo)", &job, NULL);
                        ret->job = r >= 0 && job != 0;
                } else if (strcmp(name, "ActiveEnterTimestampMonotonic") == 0)
                        r = sd_bus_message_read(m, "v", "t", &ret->active_monotonic);
                else if (strcmp(name, "ActiveEnterTimestamp") == 0)
                        r = sd_bus_message_read(m, "v", "t", &ret->active_realtime);
                else
                        r = sd_bus_message_skip(m, "v");
                if (r >= 0)
                        r = sd_bus_message_exit_container(m);
                if (r < 0)
                        return r;
        }
        return r < 0 ? r : ret->active[0] ? 0 : -EBADMSG;
}

static int on_since(sd_bus_message *m, void *userdata, sd_bus_error *ignored) {
        UnitsCall *c = userdata;
        UnitsSince done = c->since;
        void *done_userdata = c->userdata;
        UnitSince since = {};
        int r;

        r = sd_bus_message_is_method_error(m, NULL) ? -EIO : read_since(m, &since);
        if (r < 0)
                log_line(LOG_WARNING, "systemd does not say how %s is", c->unit);
        (void) call_free(c);
        if (done)
                done(r, &since, done_userdata);
        return 0;
}

static int send_since(UnitsCall *c) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL;
        _cleanup_free_ char *path = NULL;
        int r;

        r = sd_bus_path_encode(UNIT_PATH, c->unit, &path);
        if (r < 0)
                return r;
        r = sd_bus_message_new_method_call(c->units->bus, &m, SYSTEMD, path, "org.freedesktop.DBus.Properties", "GetAll");
        if (r >= 0)
                r = sd_bus_message_append(m, "s", SYSTEMD ".Unit");
        if (r >= 0)
                r = sd_bus_call_async(c->units->bus, &c->slot, m, on_since, c, SINCE_TIMEOUT_USEC);
        return r;
}

static int on_since_due(sd_event_source *source, uint64_t usec, void *userdata) {
        UnitsCall *c = userdata;
        UnitsSince done = c->since;
        void *done_userdata = c->userdata;
        int r;

        r = send_since(c);
        if (r >= 0)
                return 0;
        (void) call_free(c);
        if (done)
                done(r, &(UnitSince) {}, done_userdata);
        return 0;
}

int units_since(Units *u, const char *unit, uint64_t delay_usec, UnitsSince done, void *userdata) {
        _cleanup_(call_freep) UnitsCall *c = NULL;
        int r;

        r = call_new(u, "ask about", unit, userdata, &c);
        if (r < 0)
                return r;
        if (delay_usec > 0)
                r = sd_event_add_time_relative(u->event, &c->timer, CLOCK_MONOTONIC, delay_usec, 1, on_since_due, c);
        else
                r = send_since(c);
        if (r < 0)
                return r;

        c->since = done;
        c = NULL;
        return 0;
}

int units_new(Units **ret, sd_event *event, UnitsChanged changed, UnitsJob job, void (*lost)(void *userdata), void *userdata) {
        _cleanup_(units_freep) Units *u = NULL;
        int r;

        u = calloc(1, sizeof(*u));
        if (!u)
                return -ENOMEM;
        *u = (Units) { .event = sd_event_ref(event), .changed = changed, .job = job, .lost = lost, .userdata = userdata };

        r = sd_bus_open_system(&u->bus);
        if (r < 0)
                return r;
        r = sd_bus_attach_event(u->bus, event, SD_EVENT_PRIORITY_NORMAL);
        if (r < 0)
                return r;
        r = units_subscribe(u);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(u);
        return 0;
}

Units *units_free(Units *u) {
        if (!u)
                return NULL;

        while (u->calls) {
                UnitsSince since = u->calls->since;
                void *userdata = u->calls->userdata;

                (void) call_free(u->calls);
                if (since)
                        since(-ECANCELED, &(UnitSince) {}, userdata);
        }
        if (u->bus)
                sd_bus_detach_event(u->bus);
        /* flushing a connection that is not there yet would wait for the bus, which may never answer */
        u->bus = u->bus && sd_bus_is_ready(u->bus) > 0 ? sd_bus_flush_close_unref(u->bus) : sd_bus_close_unref(u->bus);
        sd_event_unref(u->event);
        free(u);
        return NULL;
}

bool unit_name_run(const char *unit, const char *prefix, char ret[static 14]) {
        const char *at = strchr(unit, '@'), *dot = at ? strchr(at, '.') : NULL;

        if (!at || !dot || dot - at - 1 != ID_LENGTH || strncmp(unit, "anchor-", 7) != 0)
                return false;
        if (prefix && (strlen(prefix) != (size_t) (at - unit) || strncmp(unit, prefix, strlen(prefix)) != 0))
                return false;

        memcpy(ret, at + 1, ID_LENGTH);
        ret[ID_LENGTH] = 0;
        return text_is_id('r', ret);
}
