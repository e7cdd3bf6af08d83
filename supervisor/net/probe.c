/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The control of the agreement check is a grant, so whoever makes it can write to the map of grants. That is a power over all
 * runs, and it must not be with anybody who reads what a run could have had a hand in: the run's namespace, answers of daemons, other
 * units' files. Hence two processes.
 *
 *   anchor-probe@RUN   may write grants; no capability, a user of its own; reads nothing but errno of its own connect()s, two time stamps
 *                      in maps, and this host's addresses; writes a file
 *   anchor-check@RUN   enters namespaces, asks egressd, judges, ends the run; no bpf(), no map
 *
 * Nothing goes from the second to the first. The first that dies takes the second with it (BindsTo=), and the second takes an old
 * result of the first for a failed check.
 */

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <systemd/sd-daemon.h>

#include "net/probe.h"
#include "util/io.h"
#include "util/json.h"
#include "util/log.h"
#include "util/text.h"

#define ROUND_USEC (3 * 1000 * 1000ULL)
#define OLD_USEC (15 * 1000 * 1000ULL)
#define RESULT_MAX 8192

struct Probe {
        sd_event_source *timer; /* ref */
        char *path;             /* owned */
        bool ready;
};

char *probe_once(void) {
        _cleanup_json_ json_t *result = NULL;
        CheckTable table = {};

        (void) check_cgroup(&table);
        result = json_pack("{s:I, s:o, s:s}", "at", (json_int_t) time_boottime(), "probes", check_to_json(&table), "reason", table.reason);
        return result ? json_dumps(result, JSON_COMPACT) : NULL;
}

static int ask(Probe *p) {
        _cleanup_free_ char *text = probe_once();
        int r;

        r = text ? io_write_file_atomic(AT_FDCWD, p->path, text, strlen(text), 0644) : -ENOMEM;
        if (r < 0)
                return log_error_errno(r, "cannot write %s", p->path);
        if (!p->ready)
                (void) sd_notify(0, "READY=1\nSTATUS=asking every three seconds");
        p->ready = true;
        return 0;
}

static int on_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        int r;

        r = ask(userdata);
        if (r >= 0)
                r = sd_event_source_set_time_relative(s, ROUND_USEC);
        if (r >= 0)
                r = sd_event_source_set_enabled(s, SD_EVENT_ONESHOT);
        return r < 0 ? sd_event_exit(sd_event_source_get_event(s), r) : 0;
}

int probe_new(Probe **ret, sd_event *event, const char *folder) {
        _cleanup_(probe_freep) Probe *p = NULL;
        int r;

        p = calloc(1, sizeof(*p));
        if (!p)
                return -ENOMEM;
        p->path = text_format("%s/" PROBE_FILE, folder);
        if (!p->path)
                return -ENOMEM;
        r = sd_event_add_time_relative(event, &p->timer, CLOCK_BOOTTIME, 0, 100 * 1000, on_timer, p);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(p);
        return 0;
}

Probe *probe_free(Probe *p) {
        if (!p)
                return NULL;
        sd_event_source_disable_unref(p->timer);
        free(p->path);
        free(p);
        return NULL;
}

int probe_read(const char *path, CheckTable *t) {
        _cleanup_json_ json_t *result = NULL;
        _cleanup_free_ char *text = NULL;
        uint64_t now = time_boottime();
        const json_t *at;
        size_t size;
        int r;

        r = io_read_file(AT_FDCWD, path, RESULT_MAX, &text, &size);
        if (r >= 0)
                r = json_parse(text, size, &result, NULL);
        if (r < 0)
                return check_fail(t, r, "what the cgroup's programs say cannot be read");

        at = json_object_get(result, "at");
        if (!json_is_integer(at) || json_integer_value(at) < 0 || (uint64_t) json_integer_value(at) > now ||
            now - (uint64_t) json_integer_value(at) > OLD_USEC)
                return check_fail(t, -ESTALE, "the cgroup's programs have not been asked for fifteen seconds");

        r = check_from_json(t, CHECK_CGROUP, json_object_get(result, "probes"), json_string_value(json_object_get(result, "reason")));
        return r < 0 ? check_fail(t, r, "what the cgroup's programs say is not understood") : 0;
}
