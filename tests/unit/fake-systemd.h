/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * For tests: PID 1 and the bus in front of it, as far as api/units.c asks them, on a socket of their own in the test's event
 * loop. It keeps a table of units, does what it is told with them at once, tells of every change, and writes down
 * what it was told.
 */

#include <fnmatch.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-bus.h>
#include <systemd/sd-event.h>
#include <unistd.h>

#include "own-world.h"
#include "util/cleanup.h"

#define SYSTEMD_NAME "org.freedesktop.systemd1"
#define SYSTEMD_MANAGER "/org/freedesktop/systemd1", SYSTEMD_NAME ".Manager"

typedef struct FakeUnit {
        char name[80];
        char active[16];
        bool sticky; /* stops only when it is killed */
        unsigned job; /* queued for it; 0: none */
        uint64_t active_monotonic, active_realtime; /* when it became so */
} FakeUnit;

typedef struct FakeSystemd {
        sd_event *event;          /* borrowed */
        sd_event_source *listen;  /* owned */
        sd_bus *bus;              /* owned; the latest client */
        FakeUnit units[1024];
        size_t n_units;
        unsigned n_calls, n_jobs, n_lists;
        unsigned n_destructive;   /* so many starts are refused as destructive */
        const char *start_error;  /* D-Bus error for starts, or NULL */
        bool list_fails;          /* it does not say which units there are */
        bool list_holds;          /* who asks for that waits for fake_let_lists_go() */
        sd_bus_message *held_lists[16]; /* refs */
        size_t n_held_lists;
        bool silent;              /* of starts it says nothing, and does nothing */
        bool holds;               /* who asks about a unit waits for fake_let_go() */
        sd_bus_message *held[16]; /* refs */
        size_t n_held;
        const char *start_result; /* of the job; NULL: "done" */
        const char *listener[3];  /* what the proxy's socket unit becomes, one after the other, before what is started */
        const char *start_needs;  /* "anchor-net": this unit of the run fails in its first step before that; NULL: none does */
        char *log;                /* owned; "StartUnit NAME\n"… */
} FakeSystemd;

static inline FakeUnit *fake_unit_find(FakeSystemd *s, const char *name) {
        for (size_t i = 0; i < s->n_units; i++)
                if (strcmp(s->units[i].name, name) == 0)
                        return &s->units[i];
        return NULL;
}

/* Sets a unit's state without telling anybody; "" forgets it. */
static inline FakeUnit *fake_unit_set(FakeSystemd *s, const char *name, const char *active) {
        FakeUnit *u = fake_unit_find(s, name);

        if (active[0] == 0) {
                if (u)
                        *u = s->units[--s->n_units];
                return NULL;
        }
        if (!u) {
                assert_true(s->n_units < ELEMENTSOF(s->units));
                u = &s->units[s->n_units++];
                *u = (FakeUnit) {};
                (void) snprintf(u->name, sizeof(u->name), "%s", name);
        }
        (void) snprintf(u->active, sizeof(u->active), "%s", active);
        return u;
}

static inline unsigned fake_told(const FakeSystemd *s, const char *what) {
        unsigned n = 0;

        for (const char *p = s->log; p && (p = strstr(p, what)); p += strlen(what))
                n++;
        return n;
}

static inline void fake_signal_properties(FakeSystemd *s, const char *unit, const char *interface, const char *name, const char *text,
                                          const char *result, int code, int status) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL;
        _cleanup_free_ char *path = NULL;

        assert_true(sd_bus_path_encode("/org/freedesktop/systemd1/unit", unit, &path) >= 0);
        assert_true(sd_bus_message_new_signal(s->bus, &m, path, "org.freedesktop.DBus.Properties", "PropertiesChanged") >= 0);
        if (name)
                assert_true(sd_bus_message_append(m, "sa{sv}as", interface, 2, name, "s", text, "StateChangeTimestamp", "t", 5ULL, 0) >= 0);
        else
                assert_true(sd_bus_message_append(m, "sa{sv}as", interface, 3, "Result", "s", result, "ExecMainCode", "i", code,
                                                  "ExecMainStatus", "i", status, 0) >= 0);
        assert_true(sd_bus_message_set_sender(m, SYSTEMD_NAME) >= 0);
        (void) sd_bus_send(s->bus, m, NULL); /* whoever asked may be gone */
}

/* A service ended: first how, then its state, as systemd tells it. result NULL: only the state. */
static inline void fake_unit_changed(FakeSystemd *s, const char *name, const char *active, const char *result, int code, int status) {
        char unit[80];

        (void) snprintf(unit, sizeof(unit), "%s", name); /* which may be in the table's row that now becomes another's */
        (void) fake_unit_set(s, unit, strcmp(active, "inactive") == 0 ? "" : active);
        if (!s->bus)
                return;
        if (result)
                fake_signal_properties(s, unit, SYSTEMD_NAME ".Service", NULL, NULL, result, code, status);
        fake_signal_properties(s, unit, SYSTEMD_NAME ".Unit", "ActiveState", active, NULL, 0, 0);
}

static inline void fake_signal_job_new(FakeSystemd *s, unsigned job, const char *unit) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL;
        char path[64];

        (void) snprintf(path, sizeof(path), "/org/freedesktop/systemd1/job/%u", job);
        assert_true(sd_bus_message_new_signal(s->bus, &m, SYSTEMD_MANAGER, "JobNew") >= 0);
        assert_true(sd_bus_message_append(m, "uos", job, path, unit) >= 0);
        assert_true(sd_bus_message_set_sender(m, SYSTEMD_NAME) >= 0);
        (void) sd_bus_send(s->bus, m, NULL); /* whoever asked may be gone */
}

static inline void fake_signal_job(FakeSystemd *s, unsigned job, const char *unit, const char *result) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL;
        char path[64];

        (void) snprintf(path, sizeof(path), "/org/freedesktop/systemd1/job/%u", job);
        assert_true(sd_bus_message_new_signal(s->bus, &m, SYSTEMD_MANAGER, "JobRemoved") >= 0);
        assert_true(sd_bus_message_append(m, "uoss", job, path, unit, result) >= 0);
        assert_true(sd_bus_message_set_sender(m, SYSTEMD_NAME) >= 0);
        (void) sd_bus_send(s->bus, m, NULL); /* whoever asked may be gone */
}

static inline void fake_stop(FakeSystemd *s, const char *unit, bool kill) {
        char run[16];

        if (sscanf(unit, "anchorhold-runs-%13[0-9a-z].slice", run) == 1) {
                for (size_t i = s->n_units; i-- > 0;)
                        if (strstr(s->units[i].name, run) && strstr(s->units[i].name, ".service") && !s->units[i].sticky)
                                fake_unit_changed(s, s->units[i].name, "inactive", NULL, 0, 0);
                (void) fake_unit_set(s, unit, "");
        } else {
                FakeUnit *u = fake_unit_find(s, unit);

                if (u && (kill || !u->sticky))
                        fake_unit_changed(s, unit, "inactive", NULL, 0, 0);
        }
}

static inline int fake_reply_job(FakeSystemd *s, sd_bus_message *m, const char *unit, const char *result) {
        unsigned job = ++s->n_jobs;
        char path[64];

        (void) snprintf(path, sizeof(path), "/org/freedesktop/systemd1/job/%u", job);
        (void) sd_bus_reply_method_return(m, "o", path);
        fake_signal_job(s, job, unit, result);
        return 1;
}

static inline int fake_list(FakeSystemd *s, sd_bus_message *m) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        const char *patterns[4] = {};
        size_t n = 0;

        s->n_lists++;
        if (s->list_fails)
                return sd_bus_reply_method_errorf(m, "org.freedesktop.DBus.Error.NoMemory", "no");
        assert_true(sd_bus_message_skip(m, "as") >= 0);
        assert_true(sd_bus_message_enter_container(m, 'a', "s") >= 0);
        while (n < ELEMENTSOF(patterns) && sd_bus_message_read(m, "s", &patterns[n]) > 0)
                n++;

        assert_true(sd_bus_message_new_method_return(m, &reply) >= 0);
        assert_true(sd_bus_message_open_container(reply, 'a', "(ssssssouso)") >= 0);
        for (size_t i = 0; i < s->n_units; i++)
                for (size_t k = 0; k < n; k++)
                        if (fnmatch(patterns[k], s->units[i].name, 0) == 0) {
                                assert_true(sd_bus_message_append(reply, "(ssssssouso)", s->units[i].name, "", "loaded", s->units[i].active, "sub",
                                                                  "", "/", 0U, "", "/") >= 0);
                                break;
                        }
        assert_true(sd_bus_message_close_container(reply) >= 0);
        (void) sd_bus_send(s->bus, reply, NULL);
        return 1;
}

static inline void fake_let_lists_go(FakeSystemd *s) {
        s->list_holds = false;
        for (size_t i = 0; i < s->n_held_lists; i++) {
                (void) fake_list(s, s->held_lists[i]);
                (void) sd_bus_message_unref(s->held_lists[i]);
        }
        s->n_held_lists = 0;
}

static inline int fake_start(FakeSystemd *s, sd_bus_message *m, const char *unit) {
        if (s->silent)
                return 1;
        if (s->n_destructive > 0) {
                s->n_destructive--;
                return sd_bus_reply_method_errorf(m, SYSTEMD_NAME ".TransactionIsDestructive", "a stop is queued");
        }
        if (s->start_error)
                return sd_bus_reply_method_errorf(m, s->start_error, "no");
        for (unsigned i = 0; i < ELEMENTSOF(s->listener) && s->listener[i]; i++) {
                char listener[80];

                (void) snprintf(listener, sizeof(listener), "anchor-proxy%.14s.socket", strchr(unit, '@') ?: "");
                fake_unit_changed(s, listener, s->listener[i], NULL, 0, 0);
        }
        if (strchr(unit, '@')) {
                char slice[80];

                (void) snprintf(slice, sizeof(slice), "anchorhold-runs-%.13s.slice", strchr(unit, '@') + 1);
                (void) fake_unit_set(s, slice, "active");
        }
        if (!s->start_result)
                fake_unit_changed(s, unit, "active", NULL, 0, 0);
        if (s->start_needs) {
                char needed[80];

                (void) snprintf(needed, sizeof(needed), "%s%s", s->start_needs, strchr(unit, '@') ?: "");
                fake_unit_changed(s, needed, "failed", "exit-code", 0, 0);
        }
        return fake_reply_job(s, m, unit, s->start_result ?: "done");
}

/* What is not loaded is inactive, as systemd has it. */
static inline int fake_get_all(FakeSystemd *s, sd_bus_message *m) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        _cleanup_free_ char *name = NULL;
        const FakeUnit *u;

        assert_true(sd_bus_path_decode(sd_bus_message_get_path(m), "/org/freedesktop/systemd1/unit", &name) > 0);
        u = fake_unit_find(s, name);
        assert_true(sd_bus_message_new_method_return(m, &reply) >= 0);
        assert_true(sd_bus_message_append(reply, "a{sv}", 5, "Id", "s", name, "ActiveState", "s", u ? u->active : "inactive",
                                          "Job", "(uo)", u ? u->job : 0, u && u->job > 0 ? "/org/freedesktop/systemd1/job/7" : "/",
                                          "ActiveEnterTimestampMonotonic", "t", u ? u->active_monotonic : 0,
                                          "ActiveEnterTimestamp", "t", u ? u->active_realtime : 0) >= 0);
        (void) sd_bus_send(s->bus, reply, NULL);
        return 1;
}

static inline void fake_let_go(FakeSystemd *s) {
        s->holds = false;
        for (size_t i = 0; i < s->n_held; i++) {
                (void) fake_get_all(s, s->held[i]);
                (void) sd_bus_message_unref(s->held[i]);
        }
        s->n_held = 0;
}

static inline int fake_on_message(sd_bus_message *m, void *userdata, sd_bus_error *error) {
        FakeSystemd *s = userdata;
        const char *member = sd_bus_message_get_member(m), *unit = "";
        int32_t signal_number = 0;
        char *more;

        if (sd_bus_message_is_method_call(m, "org.freedesktop.DBus", "Hello"))
                return sd_bus_reply_method_return(m, "s", ":1.1");
        if (sd_bus_message_is_method_call(m, "org.freedesktop.DBus", NULL))
                return sd_bus_reply_method_return(m, "");
        if (sd_bus_message_is_method_call(m, "org.freedesktop.DBus.Properties", "GetAll")) {
                if (!s->holds)
                        return fake_get_all(s, m);
                assert_true(s->n_held < ELEMENTSOF(s->held));
                s->held[s->n_held++] = sd_bus_message_ref(m);
                return 1;
        }
        if (!sd_bus_message_is_method_call(m, SYSTEMD_NAME ".Manager", NULL))
                return 0;

        if (strcmp(member, "ListUnitsByPatterns") == 0) {
                if (!s->list_holds)
                        return fake_list(s, m);
                assert_true(s->n_held_lists < ELEMENTSOF(s->held_lists));
                s->held_lists[s->n_held_lists++] = sd_bus_message_ref(m);
                return 1;
        }
        if (sd_bus_message_has_signature(m, "ssi"))
                assert_true(sd_bus_message_read(m, "ssi", &unit, NULL, &signal_number) > 0);
        else if (sd_bus_message_has_signature(m, "ss") || sd_bus_message_has_signature(m, "s"))
                assert_true(sd_bus_message_read(m, "s", &unit) > 0);
        assert_true(asprintf(&more, "%s%s %s\n", s->log ?: "", member, unit) > 0);
        free(s->log);
        s->log = more;
        s->n_calls++;

        if (strcmp(member, "StartUnit") == 0)
                return fake_start(s, m, unit);
        if (strcmp(member, "StopUnit") == 0) {
                if (!fake_unit_find(s, unit) && !strstr(unit, ".slice"))
                        return sd_bus_reply_method_errorf(m, SYSTEMD_NAME ".NoSuchUnit", "not loaded");
                fake_stop(s, unit, false);
                return fake_reply_job(s, m, unit, "done");
        }
        if (strcmp(member, "KillUnit") == 0 && signal_number == SIGKILL)
                fake_stop(s, unit, true);
        if (strcmp(member, "ResetFailedUnit") == 0)
                (void) fake_unit_set(s, unit, "");
        return sd_bus_reply_method_return(m, "");
}

static inline int fake_on_connection(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        FakeSystemd *s = userdata;
        sd_id128_t id = SD_ID128_MAKE(11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11);
        int client = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        assert_true(client >= 0);
        s->bus = sd_bus_close_unref(s->bus);
        assert_true(sd_bus_new(&s->bus) >= 0);
        assert_true(sd_bus_set_fd(s->bus, client, client) >= 0);
        assert_true(sd_bus_set_server(s->bus, true, id) >= 0);
        assert_true(sd_bus_start(s->bus) >= 0);
        assert_true(sd_bus_attach_event(s->bus, s->event, SD_EVENT_PRIORITY_NORMAL) >= 0);
        return sd_bus_add_filter(s->bus, NULL, fake_on_message, s);
}

/* From now on this is what sd_bus_open_system() reaches. */
static inline void fake_systemd_start(FakeSystemd *s, sd_event *event, const char *path) {
        _cleanup_free_ char *address = NULL;
        int fd = own_world_listen(path);

        *s = (FakeSystemd) { .event = event };
        assert_true(sd_event_add_io(event, &s->listen, fd, EPOLLIN, fake_on_connection, s) >= 0);
        assert_true(sd_event_source_set_io_fd_own(s->listen, true) >= 0);
        assert_true(asprintf(&address, "unix:path=%s", path) > 0);
        assert_int_equal(setenv("DBUS_SYSTEM_BUS_ADDRESS", address, 1), 0);
}

static inline void fake_systemd_hang_up(FakeSystemd *s) {
        s->bus = sd_bus_close_unref(s->bus);
}

static inline void fake_systemd_stop(FakeSystemd *s) {
        for (size_t i = 0; i < s->n_held; i++)
                (void) sd_bus_message_unref(s->held[i]);
        for (size_t i = 0; i < s->n_held_lists; i++)
                (void) sd_bus_message_unref(s->held_lists[i]);
        if (s->bus)
                sd_bus_detach_event(s->bus);
        fake_systemd_hang_up(s);
        s->listen = sd_event_source_disable_unref(s->listen);
        free(s->log);
        s->log = NULL;
}
