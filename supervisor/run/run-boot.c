/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Booting, with one retry.
 *
 * The VM is already on its way when this process begins; if it has ended, connecting to the channel's socket starts it again. So a boot is counted by
 * connections. If it ends before it said hello, or says nothing
 * in time, that is reported, and one more boot is tried: a VM that hangs is told to quit through QMP first,
 * and its console's last 64 KiB go to the run's output. QMP is asked only while the VM still holds the channel:
 * connecting to QMP's socket after the VM's end would start the next one.
 */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "run/run-private.h"
#include "util/io.h"
#include "util/json.h"
#include "util/log.h"
#include "util/text.h"

enum {
        BOOTS_MAX = 2,
        QMP_USEC = 3 * 1000 * 1000,
        QUIT_USEC = 5 * 1000 * 1000,
};

static void boot_retry(Run *r);

int run_boot_connect(Run *r) {
        int fd = io_connect_unix(r->channel);

        if (fd < 0)
                return log_error_errno(fd, "run %s: cannot connect to %s (anchor-vm@.socket)", r->id, r->channel);

        r->channel_fd = fd;
        r->boots++;
        r->boot_started = time_monotonic();
        return 0;
}

/* The guest's own words about itself, short and printable. */
static void set_guest(Run *r, const json_t *hello) {
        static const char *const keys[] = { "boot_id", "kernel", "version" };

        json_decref(r->guest);
        r->guest = json_object();
        for (size_t i = 0; r->guest && i < ELEMENTSOF(keys); i++) {
                const char *value = json_string_value(json_object_get(hello, keys[i]));
                _cleanup_free_ char *text = value ? text_escape(value, strnlen(value, 64), false) : NULL;

                if (text)
                        (void) json_object_set_new(r->guest, keys[i], json_string(text));
        }
}

static void boot_on_ready(GuestClient *c, json_t *hello, void *userdata) {
        _cleanup_free_ char *text = NULL;
        Run *r = userdata;

        if (r->rebooting)
                return; /* too late: it was told to quit */

        r->boot_timer = sd_event_source_disable_unref(r->boot_timer);
        r->boot_usec = time_monotonic() - r->boot_started;
        set_guest(r, hello);

        text = text_format("kernel %s after %llu ms", json_string_value(json_object_get(r->guest, "kernel")) ?: "unknown",
                           (unsigned long long) r->boot_usec / 1000);
        run_record_told(r, &r->told_record, "run.guest",
                        json_pack("{s:s, s:s*, s:O*, s:i}", "kind", "booted", "text", text, "guest", r->guest, "boots", (int) r->boots));
        run_event(r, "booted", json_pack("{s:s*, s:O*, s:I, s:i}", "text", text, "guest", r->guest,
                                         "boot_ms", (json_int_t) (r->boot_usec / 1000), "boots", (int) r->boots));
        run_advance(r, STAGE_CA_FILE);
}

static void boot_on_lost(GuestClient *c, GuestLoss loss, const char *detail, void *userdata) {
        Run *r = userdata;

        r->lost = true;
        r->loss = loss;
        text_fit(detail, r->loss_detail, sizeof(r->loss_detail));
        run_schedule(r);
}

static const GuestClientHandler client_handler = {
        .ready = boot_on_ready,
        .lost = boot_on_lost,
};

/* ---- a boot that hangs ---- */

static void boot_report(Run *r) {
        run_event(r, "boot-retry", json_pack("{s:s, s:i, s:b}", "reason", r->boot_reason, "boots", (int) r->boots,
                                             "again", r->boots < BOOTS_MAX));
        log_warning("run %s: boot %u failed: %s", r->id, r->boots, r->boot_reason);
}

static int boot_on_quit_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        Run *r = userdata;

        run_end(r, "error", "the microVM did not boot (%s) and does not quit", r->boot_reason);
        return 0;
}

static void boot_on_console(QmpClient *c, int k, json_t *result, void *userdata) {
        const char *text = k >= 0 ? json_string_value(result) : NULL;
        Run *r = userdata;

        if (text && *text && r->output)
                (void) run_output_text(r->output, "console", "boot", text);
}

static void boot_quit(Run *r) {
        int k;

        r->rebooting = true;
        r->boot_timer = sd_event_source_disable_unref(r->boot_timer);
        r->qmp = qmp_client_free(r->qmp);
        k = qmp_client_new(&r->qmp, r->event, r->qmp_path);
        if (k >= 0)
                k = qmp_client_call(r->qmp, "ringbuf-read", json_pack("{s:s, s:i}", "device", "console", "size", 65536),
                                    QMP_USEC, boot_on_console, r);
        if (k >= 0)
                k = qmp_client_call(r->qmp, "quit", NULL, 0, NULL, NULL);
        if (k >= 0)
                k = sd_event_add_time_relative(r->event, &r->boot_timer, CLOCK_MONOTONIC, QUIT_USEC, 0, boot_on_quit_timer, r);
        if (k < 0)
                run_end(r, "error", "the microVM did not boot (%s) and cannot be told to quit: %s", r->boot_reason, strerror(-k));
}

static int boot_on_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        Run *r = userdata;

        (void) snprintf(r->boot_reason, sizeof(r->boot_reason), "no hello from the guest within %llu s",
                        (unsigned long long) r->spec.boot_s);
        boot_report(r);
        boot_quit(r);
        return 0;
}

/* The VM has ended before it said hello. */
void run_boot_lost(Run *r) {
        if (!r->rebooting) {
                text_fit(r->loss_detail, r->boot_reason, sizeof(r->boot_reason));
                boot_report(r);
        }

        boot_retry(r);
}

static void boot_retry(Run *r) {
        int k;

        r->qmp = qmp_client_free(r->qmp);
        r->client = guest_client_free(r->client);
        r->lost = r->rebooting = false;
        r->boot_timer = sd_event_source_disable_unref(r->boot_timer);

        if (r->boots >= BOOTS_MAX)
                return run_end(r, "error", "the microVM did not boot: %s", r->boot_reason);

        k = run_boot_connect(r);
        if (k < 0)
                return run_end(r, "error", "the microVM did not boot: %s (anchor-vm@%s.service says why)", r->boot_reason, r->id);

        run_boot_greet(r);
}

static json_t *make_hello(Run *r) {
        return json_pack("{s:i, s:s, s:s*, s:O*}", "protocol", CHANNEL_VERSION, "hostname", r->id,
                         "agent", r->spec.agent, "network", r->spec.network);
}

void run_boot_greet(Run *r) {
        _cleanup_json_ json_t *hello = make_hello(r);
        int k;

        run_event(r, "booting", json_pack("{s:s, s:i}", "text", "the microVM boots", "boots", (int) r->boots));

        k = hello ? guest_client_new(&r->client, r->event, r->channel_fd, hello, &client_handler, r) : -ENOMEM;
        if (k >= 0) {
                r->channel_fd = -1;
                k = sd_event_add_time_relative(r->event, &r->boot_timer, CLOCK_MONOTONIC, r->spec.boot_s * 1000000, 0,
                                               boot_on_timer, r);
        }
        if (k < 0)
                run_end(r, "error", "cannot speak to the microVM: %s", strerror(-k));
}
