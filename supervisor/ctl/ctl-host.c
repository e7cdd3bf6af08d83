/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* status, doctor, version: this host. */

#include <errno.h>
#include <string.h>
#include <systemd/sd-bus.h>

#include "ctl/ctl-table.h"
#include "ctl/ctl.h"
#include "policy/policy.h"
#include "util/io.h"
#include "util/json.h"
#include "util/text.h"
#include "util/version.h"

CtlExit ctl_verb_version(Ctl *ctl) {
        if (ctl->o.json != CTL_JSON_OFF) {
                _cleanup_json_ json_t *j = json_pack("{s:s}", "version", ANCHORHOLD_VERSION);

                return ctl_print_json(ctl, j);
        }

        (void) fprintf(ctl->out, "anchorhold %s\n", ANCHORHOLD_VERSION);
        return CTL_OK;
}

/* ---- status ---- */

/* A value on one line, escaped. */
static char *value_text(const json_t *value) {
        _cleanup_free_ char *raw = NULL;

        if (json_is_string(value))
                return text_escape(json_string_value(value), json_string_length(value), false);
        if (json_is_boolean(value))
                return strdup(json_is_true(value) ? "yes" : "no");
        if (json_is_null(value))
                return strdup("-");

        raw = json_dumps(value, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_ENCODE_ANY);
        return raw ? text_escape(raw, strlen(raw), false) : NULL;
}

static void status_line(Ctl *ctl, const char *key, const json_t *value) {
        _cleanup_free_ char *text = value_text(value), *safe = text_escape(key, strlen(key), false);

        (void) fprintf(ctl->out, "%16s: %s\n", safe ?: "?", text ?: "?");
}

CtlExit ctl_verb_status(Ctl *ctl) {
        _cleanup_json_ json_t *reply = NULL;
        const json_t *status;
        const char *key;
        json_t *value;
        CtlExit r;

        r = ctl_call(ctl, "show the status", "Status", json_object(), NULL, 0, &reply, NULL, 0);
        if (r != CTL_OK)
                return r;

        status = json_object_get(reply, "status") ?: reply;
        if (ctl->o.json != CTL_JSON_OFF)
                return ctl_print_json(ctl, status);

        json_object_foreach((json_t *) status, key, value) {
                const char *inner;
                json_t *v;

                if (!json_is_object(value) || json_object_size(value) == 0) {
                        status_line(ctl, key, value);
                        continue;
                }
                json_object_foreach(value, inner, v) {
                        _cleanup_free_ char *both = text_format("%s %s", key, inner);

                        status_line(ctl, both ?: inner, v);
                }
        }
        return CTL_OK;
}

/* ---- doctor ---- */

typedef enum Health { GOOD, WARNING, BAD } Health;

typedef struct Doctor {
        Ctl *ctl;
        json_t *findings; /* ref */
        size_t n_bad, n_warnings;
} Doctor;

static void doctor_say(Doctor *d, Health health, const char *check, const char *text, const char *advice) {
        static const char *const names[] = { [GOOD] = "good", [WARNING] = "warning", [BAD] = "bad" };
        static const char *const colours[] = { [GOOD] = "\033[32m", [WARNING] = "\033[33m", [BAD] = "\033[31m" };
        _cleanup_free_ char *safe = text_escape(text, strlen(text), false);
        bool colour = d->ctl->out_tty;

        d->n_bad += health == BAD;
        d->n_warnings += health == WARNING;

        if (d->ctl->o.json != CTL_JSON_OFF) {
                (void) json_array_append_new(d->findings, json_pack("{s:s, s:s, s:s, s:s?}", "check", check, "health", names[health],
                                                                    "text", safe ?: "", "advice", advice));
                return;
        }
        if (d->ctl->o.quiet && health == GOOD)
                return;
        (void) fprintf(d->ctl->out, "%s%-8s%s %-12s %s\n", colour ? colours[health] : "", names[health], colour ? "\033[0m" : "",
                       check, safe ?: "");
        if (advice && health != GOOD)
                (void) fprintf(d->ctl->out, "%21s  %s\n", "", advice);
}

static void check_units(Doctor *d) {
        static const char *const units[] = {
                "anchorhold.target", "anchor-bpf.service", "anchord.socket", "anchor-auditd.socket", "anchor-egressd.socket",
                "anchor-secretd.socket",
        };
        sd_bus *bus = NULL;
        size_t n_bad = 0;
        int r;

        r = sd_bus_open_system(&bus);
        if (r < 0) {
                doctor_say(d, WARNING, "units", "the system bus cannot be reached", "systemctl status dbus.socket");
                return;
        }

        for (size_t i = 0; i < ELEMENTSOF(units); i++) {
                _cleanup_free_ char *state = NULL, *path = NULL, *text = NULL;

                r = sd_bus_path_encode("/org/freedesktop/systemd1/unit", units[i], &path);
                if (r >= 0)
                        r = sd_bus_get_property_string(bus, "org.freedesktop.systemd1", path, "org.freedesktop.systemd1.Unit",
                                                       "ActiveState", NULL, &state);
                if (r >= 0 && strcmp(state, "active") == 0)
                        continue;
                n_bad++;
                text = text_format("%s is %s", units[i], r < 0 ? strerror(-r) : state);
                doctor_say(d, BAD, "units", text ?: units[i], "systemctl status UNIT says why; systemctl start anchorhold.target starts all");
        }
        if (n_bad == 0)
                doctor_say(d, GOOD, "units", "sockets, fence and target are active", NULL);
        sd_bus_flush_close_unref(bus);
}

static void check_policy(Doctor *d) {
        PolicyFinding *findings = NULL;
        size_t n = 0;
        Policy *p = NULL;
        int r;

        r = policy_load(&p, "", &findings, &n);
        if (r < 0) {
                doctor_say(d, BAD, "policy", strerror(-r), "anchorctl policy check");
        } else if (n > 0) {
                _cleanup_free_ char *text = text_format("%zu finding%s, the first: %s: %s: %s", n, n == 1 ? "" : "s", findings[0].file,
                                                        findings[0].pointer, findings[0].reason);

                doctor_say(d, BAD, "policy", text ?: "findings", "anchorctl policy check prints them all");
        } else {
                doctor_say(d, GOOD, "policy", "every file loads", NULL);
        }
        policy_findings_free(findings, n);
        policy_free(p);
}

static void check_enforcers(Doctor *d, const json_t *status) {
        const json_t *enforcers = json_object_get(status, "enforcers");
        const char *name;
        json_t *value;

        json_object_foreach((json_t *) enforcers, name, value) {
                _cleanup_free_ char *state = value_text(value), *text = NULL;
                bool good = state && strcmp(state, "ok") == 0;

                text = text_format("%s: %s", name, state ?: "?");
                doctor_say(d, good ? GOOD : BAD, "enforcers", text ?: name, "no run starts without it; journalctl says why");
        }
}

static void check_accelerator(Doctor *d, const json_t *status) {
        const json_t *accelerator = json_object_get(status, "accelerator");
        const char *accel = ctl_string(accelerator, "accel"), *reason = ctl_string(accelerator, "reason"),
                   *configured = ctl_string(accelerator, "configured");
        _cleanup_free_ char *text = NULL;

        if (!accel) {
                doctor_say(d, WARNING, "accelerator", "KVM has not been tried yet", "systemctl start anchor-accel.service");
                return;
        }
        if (strcmp(accel, "kvm") == 0 || (configured && strcmp(configured, accel) == 0)) {
                doctor_say(d, GOOD, "accelerator", accel, NULL);
                return;
        }

        text = text_format("%s, without KVM%s%s", accel, reason ? ": " : "", reason ?: "");
        doctor_say(d, WARNING, "accelerator", text ?: accel,
                   "microVMs are emulated and slow; \"accel\": \"tcg\" in /etc/anchorhold/host.json says that this is meant");
}

static void check_anchord(Doctor *d) {
        _cleanup_json_ json_t *reply = NULL;
        const json_t *status, *hold, *templates;
        CtlExit r;

        r = ctl_call(d->ctl, "ask anchord", "Status", json_object(), NULL, 0, &reply, NULL, 0);
        if (r != CTL_OK) {
                doctor_say(d, BAD, "anchord", "does not answer", "systemctl status anchord.socket anchord.service");
                return;
        }
        doctor_say(d, GOOD, "anchord", "answers", NULL);

        status = json_object_get(reply, "status") ?: reply;
        check_enforcers(d, status);
        check_accelerator(d, status);

        hold = json_object_get(status, "hold");
        if (json_is_true(hold) || json_is_true(json_object_get(hold, "active")))
                doctor_say(d, WARNING, "hold", "no run starts", "anchorctl release");

        templates = json_object_get(status, "templates");
        if (templates && json_array_size(templates) + json_object_size(templates) == 0)
                doctor_say(d, BAD, "templates", "there is none", "the image should bring /usr/lib/anchorhold/templates");
}

CtlExit ctl_verb_doctor(Ctl *ctl) {
        _cleanup_json_ json_t *findings = json_array();
        Doctor d = { .ctl = ctl, .findings = findings };

        check_units(&d);
        check_policy(&d);
        check_anchord(&d);

        if (ctl->o.json != CTL_JSON_OFF)
                (void) ctl_print_json(ctl, findings);
        else if (d.n_bad > 0)
                ctl_note(ctl, "%zu thing%s keep%s runs from starting.", d.n_bad, d.n_bad == 1 ? "" : "s", d.n_bad == 1 ? "s" : "");
        else
                ctl_note(ctl, "Runs can start%s.", d.n_warnings > 0 ? ", with the warnings above" : "");
        return d.n_bad > 0 ? CTL_FAILED : CTL_OK;
}
