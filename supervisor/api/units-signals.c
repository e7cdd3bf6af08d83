/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What systemd tells of itself: jobs that begin and end, units that change, and how a service ended. */

#include <inttypes.h>
#include <signal.h>
#include <string.h>

#include "api/units-internal.h"
#include "util/log.h"

static int on_job_removed(sd_bus_message *m, void *userdata, sd_bus_error *ignored) {
        Units *u = userdata;
        const char *job, *unit, *result;
        uint32_t id;

        if (sd_bus_message_read(m, "uoss", &id, &job, &unit, &result) < 0)
                return 0;

        if (strncmp(unit, "anchor", 6) == 0)
                u->job(unit, id, false, u->userdata);

        for (UnitsCall *c = u->calls; c; c = c->next)
                if (c->job && strcmp(c->job, job) == 0) {
                        units_call_end(c, strcmp(result, "done") == 0 ? 0 : -EPROTO, result);
                        return 0;
                }
        return 0;
}

static int on_job_new(sd_bus_message *m, void *userdata, sd_bus_error *ignored) {
        Units *u = userdata;
        const char *unit;
        uint32_t id;

        if (sd_bus_message_read(m, "uos", &id, NULL, &unit) >= 0 && strncmp(unit, "anchor", 6) == 0)
                u->job(unit, id, true, u->userdata);
        return 0;
}

typedef struct Properties {
        const char *active, *result;
        int32_t code, status; /* of the main process; code 0: there was none */
} Properties;

static int read_properties(sd_bus_message *m, Properties *ret) {
        const char *name;
        int r;

        r = sd_bus_message_enter_container(m, 'a', "{sv}");
        if (r < 0)
                return r;

        while ((r = sd_bus_message_enter_container(m, 'e', "sv")) > 0) {
                r = sd_bus_message_read(m, "s", &name);
                if (r < 0)
                        return r;

                if (strcmp(name, "ActiveState") == 0)
                        r = sd_bus_message_read(m, "v", "s", &ret->active);
                else if (strcmp(name, "Result") == 0)
                        r = sd_bus_message_read(m, "v", "s", &ret->result);
                else if (strcmp(name, "ExecMainCode") == 0)
                        r = sd_bus_message_read(m, "v", "i", &ret->code);
                else if (strcmp(name, "ExecMainStatus") == 0)
                        r = sd_bus_message_read(m, "v", "i", &ret->status);
                else
                        r = sd_bus_message_skip(m, "v");
                if (r < 0)
                        return r;

                r = sd_bus_message_exit_container(m);
                if (r < 0)
                        return r;
        }

        return r;
}

static void remember_why(Units *u, const char *unit, const Properties *p) {
        bool killed = p->code == CLD_KILLED || p->code == CLD_DUMPED;

        (void) snprintf(u->why_unit, sizeof(u->why_unit), "%s", unit);
        if (!p->result || strcmp(p->result, "success") == 0) {
                /* SIGTERM is as good as an exit, for systemd; and without a process nothing has ended */
                if (p->code == 0)
                        u->why_unit[0] = 0;
                else
                        (void) snprintf(u->why, sizeof(u->why), "%s %" PRIi32, killed ? "signal" : "exit status", p->status);
        } else if (strcmp(p->result, "signal") == 0 && !killed)
                (void) snprintf(u->why, sizeof(u->why), "killed in its first step");
        else if (strcmp(p->result, "exit-code") == 0 && p->code == 0)
                /* Not its program, but what comes before that: of anchor-net@, which has no credentials, only anchor-fence. */
                (void) snprintf(u->why, sizeof(u->why), "%s",
                                strncmp(unit, "anchor-net@", strlen("anchor-net@")) == 0
                                        ? UNITS_NOT_FENCED
                                        : "its first step failed, anchor-fence or its credentials");
        else if (strcmp(p->result, "exit-code") == 0)
                (void) snprintf(u->why, sizeof(u->why), "exit status %" PRIi32, p->status);
        else if (strcmp(p->result, "signal") == 0 || strcmp(p->result, "core-dump") == 0)
                (void) snprintf(u->why, sizeof(u->why), "signal %" PRIi32, p->status);
        else
                (void) snprintf(u->why, sizeof(u->why), "%s", p->result);
}

/* systemd sends a unit's properties of its type first (how a service ended), then those of every unit (its state). */
static int on_properties(sd_bus_message *m, void *userdata, sd_bus_error *ignored) {
        Units *u = userdata;
        _cleanup_free_ char *unit = NULL;
        Properties p = {};
        const char *interface;

        if (sd_bus_path_decode(sd_bus_message_get_path(m), UNIT_PATH, &unit) <= 0 || strncmp(unit, "anchor", 6) != 0)
                return 0;
        if (sd_bus_message_read(m, "s", &interface) < 0 || read_properties(m, &p) < 0)
                return 0;

        if (strcmp(interface, SYSTEMD ".Service") == 0)
                remember_why(u, unit, &p);
        else if (strcmp(interface, SYSTEMD ".Unit") == 0 && p.active)
                u->changed(unit, p.active, strcmp(unit, u->why_unit) == 0 ? u->why : NULL, u->userdata);
        return 0;
}

static int on_disconnected(sd_bus_message *m, void *userdata, sd_bus_error *ignored) {
        Units *u = userdata;

        u->lost(u->userdata);
        return 0;
}

static int on_subscribed(sd_bus_message *m, void *userdata, sd_bus_error *ignored) {
        Units *u = userdata;

        if (sd_bus_message_is_method_error(m, NULL)) {
                log_error("systemd refuses its signals: %s", sd_bus_message_get_error(m)->message);
                u->lost(u->userdata);
        }
        return 0;
}

int units_subscribe(Units *u) {
        int r;

        r = sd_bus_match_signal_async(u->bus, NULL, SYSTEMD, MANAGER_PATH, MANAGER, "JobRemoved", on_job_removed, NULL, u);
        if (r < 0)
                return r;
        r = sd_bus_match_signal_async(u->bus, NULL, SYSTEMD, MANAGER_PATH, MANAGER, "JobNew", on_job_new, NULL, u);
        if (r < 0)
                return r;

        r = sd_bus_add_match_async(u->bus, NULL,
                                   "type='signal',sender='" SYSTEMD "',interface='org.freedesktop.DBus.Properties',"
                                   "member='PropertiesChanged',path_namespace='" UNIT_PATH "'",
                                   on_properties, NULL, u);
        if (r < 0)
                return r;

        r = sd_bus_match_signal_async(u->bus, NULL, "org.freedesktop.DBus.Local", "/org/freedesktop/DBus/Local",
                                      "org.freedesktop.DBus.Local", "Disconnected", on_disconnected, NULL, u);
        if (r < 0)
                return r;

        return sd_bus_call_method_async(u->bus, NULL, SYSTEMD, MANAGER_PATH, MANAGER, "Subscribe", on_subscribed, u, NULL);
}
