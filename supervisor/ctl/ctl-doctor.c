/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* doctor: can runs start on this host, and is everything that confines them in force? */

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <systemd/sd-bus.h>
#include <unistd.h>

#include "audit/audit-api.h"
#include "ctl/ctl-table.h"
#include "ctl/ctl.h"
#include "net/warden.h"
#include "policy/policy.h"
#include "secret/credential-store.h"
#include "util/io.h"
#include "util/json.h"
#include "util/text.h"

typedef enum Health {
        GOOD,
        WARNING,
        BAD,     /* it keeps runs from starting, or from being confined */
        UNKNOWN, /* this user may not ask */
} Health;

typedef struct Doctor {
        Ctl *ctl;
        json_t *findings; /* ref */
        json_t *space;    /* owned; what anchord says of it, NULL: nothing */
        size_t n_bad, n_warnings, n_unknown;
} Doctor;

static void doctor_say(Doctor *d, Health health, const char *check, const char *text, const char *advice) {
        static const char *const names[] = { [GOOD] = "good", [WARNING] = "warning", [BAD] = "bad", [UNKNOWN] = "unknown" };
        static const char *const colours[] = { [GOOD] = "\033[32m", [WARNING] = "\033[33m", [BAD] = "\033[31m", [UNKNOWN] = "\033[33m" };
        _cleanup_free_ char *safe = text_escape(text, strlen(text), false);
        bool colour = d->ctl->out_tty;

        d->n_bad += health == BAD;
        d->n_warnings += health == WARNING;
        d->n_unknown += health == UNKNOWN;

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

#define OPERATORS "root and members of the group anchorhold-operators may ask"

static bool is_denied(int r) {
        return r == -EACCES || r == -EPERM;
}

static void check_units(Doctor *d) {
        static const char *const units[] = {
                "anchorhold.target", "anchor-bpf.service", "anchor-warden.service", "anchord.socket", "anchor-auditd.socket", "anchor-egressd.socket",
                "anchor-secretd.socket",
        };
        sd_bus *bus = NULL;
        size_t n_bad = 0;
        int r;

        r = sd_bus_open_system(&bus);
        if (r < 0) {
                doctor_say(d, is_denied(r) ? UNKNOWN : BAD, "units", "the system bus cannot be reached", "systemctl status dbus.socket");
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

/* Of the tokens of GitHub, those that a person or an app was given. */
static bool is_git_token(const char *prefix) {
        static const char *const prefixes[] = { "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_" };

        for (size_t i = 0; prefix && i < ELEMENTSOF(prefixes); i++)
                if (strncmp(prefix, prefixes[i], strlen(prefixes[i])) == 0)
                        return true;
        return false;
}

/* A static token of a git host does, but is the lesser choice. */
static void check_tokens(Doctor *d, const Policy *p) {
        const char *const *names;
        size_t n = policy_list(p, "credentials", &names);

        for (size_t i = 0; i < n; i++) {
                const PolicyCredential *c = policy_find_credential(p, names[i], NULL);
                _cleanup_free_ char *path = text_format(CREDENTIAL_FOLDER "/%s", names[i]), *text = NULL;

                if (!c || strcmp(c->kind, "static") != 0 || !is_git_token(c->prefix) || !path || access(path, F_OK) < 0)
                        continue;
                text = text_format("%s is a static token: the same for every run and repository, until its issuer ends it", names[i]);
                doctor_say(d, WARNING, "credential", text ?: names[i], "the kind \"github-app\" mints one for each run, see credentials.md");
        }
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
        if (r >= 0)
                check_tokens(d, p);
        policy_findings_free(findings, n);
        policy_free(p);
}

static void check_enforcers(Doctor *d, const json_t *status) {
        const json_t *enforcers = json_object_get(status, "enforcers");
        const char *name;
        json_t *value;

        json_object_foreach((json_t *) enforcers, name, value) {
                _cleanup_free_ char *state = ctl_value_text(value), *text = NULL;
                bool good = state && strcmp(state, "ok") == 0;

                text = text_format("%s: %s", name, state ?: "?");
                doctor_say(d, good ? GOOD : BAD, "enforcers", text ?: name, "no run starts without it; journalctl says why");
        }
}

/* A boot that takes most of its time on a quiet host takes more than that on a busy one. */
static bool boots_slowly(Doctor *d, const json_t *accelerator) {
        json_int_t took_ms = json_integer_value(json_object_get(accelerator, "probe_ms")),
                   timeout_s = json_integer_value(json_object_get(accelerator, "boot_timeout_s"));
        _cleanup_free_ char *text = NULL;

        if (timeout_s <= 0 || took_ms * 3 <= timeout_s * 1000 * 2)
                return false;
        text = text_format("kvm, but the guest that tried it answered after %.1f s, and a boot has %lld s", (double) took_ms / 1000, (long long) timeout_s);
        doctor_say(d, WARNING, "accelerator", text ?: "kvm", "\"boot_timeout\" in /etc/anchorhold/host.json gives it more, up to 2min");
        return true;
}

static void check_accelerator(Doctor *d, const json_t *status) {
        const json_t *accelerator = json_object_get(status, "accelerator");
        const char *accel = ctl_string(accelerator, "accel"), *reason = ctl_string(accelerator, "reason"),
                   *configured = ctl_string(accelerator, "configured");
        _cleanup_free_ char *text = NULL;

        if (!accel) {
                doctor_say(d, WARNING, "accelerator", "KVM has not been tried yet",
                           "journalctl -u anchor-accel.service says why; systemctl reset-failed anchor-accel.service, then systemctl start anchor-accel.service");
                return;
        }
        if (strcmp(accel, "kvm") == 0 && boots_slowly(d, accelerator))
                return;
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
        if (r == CTL_REFUSED) {
                doctor_say(d, UNKNOWN, "anchord", "this user may not ask it", OPERATORS);
                return;
        }
        if (r != CTL_OK) {
                doctor_say(d, BAD, "anchord", "does not answer", "systemctl status anchord.socket anchord.service");
                return;
        }
        doctor_say(d, GOOD, "anchord", "answers", NULL);

        status = json_object_get(reply, "status") ?: reply;
        check_enforcers(d, status);
        check_accelerator(d, status);
        d->space = json_incref(json_object_get(status, "space"));

        if (ctl_string(status, "host_problem"))
                doctor_say(d, BAD, "host.json", ctl_string(status, "host_problem"), "no run starts and nothing is pruned until it is mended: anchorctl policy check");

        hold = json_object_get(status, "hold");
        if (json_is_true(hold) || json_is_true(json_object_get(hold, "active")))
                doctor_say(d, BAD, "hold", "no run starts", "anchorctl release");

        if (json_is_object(json_object_get(status, "drain")))
                doctor_say(d, BAD, "drain", "no run starts", "anchorctl host undrain");

        if (json_is_true(json_object_get(json_object_get(status, "site_policy"), "waits")))
                doctor_say(d, BAD, "site policy", "it is another one since the host went back to another deployment: no run starts",
                           "look at /etc/anchorhold, then anchorctl policy accept");

        templates = json_object_get(status, "templates");
        if (templates && json_array_size(templates) + json_object_size(templates) == 0)
                doctor_say(d, BAD, "templates", "there is none", "the image should bring /usr/lib/anchorhold/templates");
}

/* ---- the fence ---- */

#define DOCTOR_UNIT "anchor-doctor.service"
#define DOCTOR_ANSWER "/run/anchorhold/doctor.json"
#define STATE_FILE_MAX (64 * 1024)
#define UNIT_WAIT_USEC (30 * 1000 * 1000ULL)

static json_t *read_state(const char *path) {
        _cleanup_free_ char *text = NULL;
        json_t *state = NULL;
        size_t size;

        if (io_read_file(AT_FDCWD, path, STATE_FILE_MAX, &text, &size) < 0 || json_parse(text, size, &state, NULL) < 0)
                return NULL;
        return state;
}

/* May units of the host send that are none of ours? */
static void check_strict(Doctor *d, const json_t *state) {
        const json_t *strict = json_object_get(state, "strict"), *dropped = json_object_get(strict, "dropped");
        const char *problem = ctl_string(strict, "problem");
        bool on = json_is_true(json_object_get(strict, "on"));
        _cleanup_free_ char *text = NULL;

        if (!strict)
                return;
        if (problem && *problem) {
                text = text_format("stays %s, whatever host.json says now: %s", on ? "on" : "as it was", problem);
                doctor_say(d, WARNING, "strict", text ?: problem, "anchorctl policy check; it holds again two seconds after the file is mended");
        } else if (!on) {
                doctor_say(d, GOOD, "strict", "off: every unit of the host may send", NULL);
        } else if (json_array_size(dropped) > 0) {
                text = text_format("on, and packets of %s were dropped%s", json_string_value(json_array_get(dropped, 0)) ?: "?",
                                   json_array_size(dropped) > 1 ? ", and of others" : "");
                doctor_say(d, WARNING, "strict", text ?: "on", "if it may send, list it under \"strict\" in /etc/anchorhold/host.json; all are in " WARDEN_STATE);
        } else {
                text = text_format("on: of the host's units %zu may send", json_array_size(json_object_get(strict, "units")));
                doctor_say(d, GOOD, "strict", text ?: "on", NULL);
        }
}

static void check_fence(Doctor *d) {
        _cleanup_json_ json_t *state = read_state(WARDEN_STATE);
        const char *reason = ctl_string(state, "reason");

        if (!state)
                doctor_say(d, BAD, "fence", "anchor-warden has not said yet whether the eBPF programs are in force", "systemctl status anchor-warden.service");
        else if (!json_is_true(json_object_get(state, "ok")))
                doctor_say(d, BAD, "fence", reason ?: "not in force", "no run has egress; look who took it away, then: systemctl restart anchor-bpf.service");
        else
                doctor_say(d, GOOD, "fence", "eBPF programs are pinned, on the runs' slice and at every device (tcx)", NULL);
        check_strict(d, state);
}

typedef struct Job {
        char path[128];
        bool done;
        char result[32];
} Job;

static int on_job_removed(sd_bus_message *m, void *userdata, sd_bus_error *error) {
        const char *path, *unit, *result;
        Job *job = userdata;
        uint32_t id;

        if (sd_bus_message_read(m, "uoss", &id, &path, &unit, &result) < 0 || strcmp(unit, DOCTOR_UNIT) != 0)
                return 0;
        job->done = true;
        text_fit(result, job->result, sizeof(job->result));
        return 0;
}

/* Starts the unit that asks all layers, and waits for its end. */
static int run_doctor_unit(sd_bus *bus, char ret_result[static 32]) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        Job job = {};
        uint64_t end;
        int r;

        r = sd_bus_match_signal(bus, NULL, "org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager", "JobRemoved",
                                on_job_removed, &job);
        if (r < 0)
                return r;
        r = sd_bus_call_method(bus, "org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager", "Subscribe", NULL, NULL, NULL);
        if (r < 0)
                return r;
        r = sd_bus_call_method(bus, "org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager", "StartUnit", NULL, &reply,
                               "ss", DOCTOR_UNIT, "replace");
        if (r < 0)
                return r;

        end = time_monotonic() + UNIT_WAIT_USEC;
        while (!job.done && time_monotonic() < end) {
                r = sd_bus_process(bus, NULL);
                if (r == 0)
                        r = sd_bus_wait(bus, 200 * 1000);
                if (r < 0)
                        return r;
        }
        text_fit(job.done ? job.result : "timeout", ret_result, 32);
        return 0;
}

static void show_table(Doctor *d, const json_t *answer) {
        const json_t *probe;
        size_t i;

        if (d->ctl->o.json != CTL_JSON_OFF || d->ctl->o.quiet)
                return;
        json_array_foreach(json_object_get(answer, "probes"), i, probe)
                (void) fprintf(d->ctl->out, "%21s  %-14s %-16s %s\n", "", ctl_string(probe, "layer") ?: "?", ctl_string(probe, "probe") ?: "?",
                               ctl_string(probe, "result") ?: "?");
}

/* Either is a refusal; but who is dropped waits for a timeout of its own, and whoever wonders why finds it here. */
static void check_frames(Doctor *d, const json_t *answer) {
        const json_t *answers = json_object_get(answer, "answers_frames");

        if (json_is_boolean(answers))
                doctor_say(d, GOOD, "frames", json_is_true(answers) ? "what a guest sends by IPv6 or under another address is refused at once"
                                                                    : "what a guest sends by IPv6 or under another address is dropped in silence: this kernel cannot answer it", NULL);
}

static void check_agreement(Doctor *d) {
        _cleanup_json_ json_t *answer = NULL;
        _cleanup_free_ char *text = NULL;
        char result[32] = "";
        sd_bus *bus = NULL;
        const char *reason;
        int r;

        r = sd_bus_open_system(&bus);
        if (r >= 0)
                r = run_doctor_unit(bus, result);
        sd_bus_flush_close_unref(bus);
        if (r < 0) {
                text = text_format("cannot ask the enforcers: %s", strerror(-r));
                doctor_say(d, is_denied(r) ? UNKNOWN : WARNING, "agreement", text ?: "cannot ask the enforcers", "operators and root may: systemctl start " DOCTOR_UNIT);
                return;
        }

        answer = read_state(DOCTOR_ANSWER);
        reason = ctl_string(answer, "reason");
        if (!answer || (strcmp(result, "done") != 0 && json_is_true(json_object_get(answer, "agree")))) {
                doctor_say(d, BAD, "agreement", "the check did not get as far as an answer", "systemctl status " DOCTOR_UNIT);
                return;
        }
        if (json_is_true(json_object_get(answer, "agree")))
                doctor_say(d, GOOD, "agreement", "guest network, cgroup and policy deny and allow the same", NULL);
        else
                doctor_say(d, BAD, "agreement", reason ?: "enforcement.mismatch", "enforcement.mismatch: every run is stopped by this; see systemctl status " DOCTOR_UNIT);
        show_table(d, answer);
        check_frames(d, answer);
}

/* ---- the host ---- */

#define CGROUP2_MAGIC 0x63677270

/* Is the word in this list, as the kernel separates one? */
static bool lists(const char *list, const char *word) {
        for (size_t n; *list; list += n + (list[n] != '\0')) {
                n = strcspn(list, ",\n");
                if (n == strlen(word) && memcmp(list, word, n) == 0)
                        return true;
        }
        return false;
}

static void check_kernel(Doctor *d) {
        _cleanup_free_ char *lsm = NULL, *controllers = NULL;
        struct statfs fs;

        if (statfs("/sys/fs/cgroup", &fs) < 0 || fs.f_type != CGROUP2_MAGIC) {
                doctor_say(d, BAD, "cgroup2", "/sys/fs/cgroup is not cgroup2", "boot with systemd.unified_cgroup_hierarchy=1");
        } else if (io_read_file(AT_FDCWD, "/sys/fs/cgroup/cgroup.controllers", 4096, &controllers, NULL) >= 0 &&
                   (!strstr(controllers, "memory") || !strstr(controllers, "pids"))) {
                doctor_say(d, GOOD, "cgroup2", "the unified tree is there", NULL);
                doctor_say(d, WARNING, "limits", "no memory or pids controller: limits of runs are not enforced", "they are bound to cgroup v1, or this is a container");
        } else {
                doctor_say(d, GOOD, "cgroup2", "the unified tree, with memory and pids", NULL);
        }

        /* Nothing of ours relies on it; whoever hardens a host further wants to know. */
        if (io_read_file(AT_FDCWD, "/sys/kernel/security/lsm", 4096, &lsm, NULL) < 0)
                doctor_say(d, GOOD, "bpf-lsm", "unknown (securityfs is not mounted); not relied on", NULL);
        else
                doctor_say(d, GOOD, "bpf-lsm", lists(lsm, "bpf") ? "active; not relied on" : "not active; not relied on", NULL);
}

/* anchord knows its reserve; if it does not answer, what is free is all that can be said. */
static void check_disk(Doctor *d) {
        static const char path[] = "/var/lib/anchorhold", advice[] = "anchorctl prune --dry-run shows what could go; \"space\" in /etc/anchorhold/host.json says how much is kept";
        const char *reason = ctl_string(d->space, "reason");
        _cleanup_free_ char *text = NULL;
        struct statvfs fs;
        uint64_t mib, reserve;

        if (reason && json_is_true(json_object_get(d->space, "low"))) {
                doctor_say(d, BAD, "disk", reason, advice);
                return;
        }
        if (statvfs(path, &fs) < 0 && is_denied(-errno)) {
                doctor_say(d, UNKNOWN, "disk", strerror(errno), OPERATORS);
                return;
        }
        if (statvfs(path, &fs) < 0) {
                doctor_say(d, BAD, "disk", strerror(errno), "/var/lib/anchorhold must be there: systemd-tmpfiles --create");
                return;
        }
        mib = (uint64_t) fs.f_bavail * fs.f_frsize / (1024 * 1024);
        reserve = (uint64_t) json_integer_value(json_object_get(d->space, "reserve")) / (1024 * 1024);
        text = d->space ? text_format("%llu MiB free in %s, %llu of them in reserve", (unsigned long long) mib, path, (unsigned long long) reserve)
                        : text_format("%llu MiB free in %s", (unsigned long long) mib, path);
        doctor_say(d, mib < 256 ? BAD : mib < 4096 || mib < 2 * reserve ? WARNING : GOOD, "disk", text ?: path, advice);
}

static void check_audit(Doctor *d) {
        _cleanup_(ipc_client_freep) IpcClient *client = NULL;
        _cleanup_json_ json_t *reply = NULL;
        _cleanup_free_ char *error = NULL, *text = NULL;
        json_int_t seq, kept;
        int r;

        r = ipc_client_new(&client, NULL, AUDIT_API_SOCKET);
        if (r >= 0)
                r = ipc_client_call(client, "io.anchorhold.Audit.Head", NULL, NULL, 0, 3 * 1000 * 1000ULL, &reply, &error, NULL, 0);
        if (r < 0) {
                text = text_format("auditd does not say where its chain ends: %s", error ?: strerror(-r));
                if (is_denied(r) || ipc_error_is(error, "PermissionDenied"))
                        doctor_say(d, UNKNOWN, "audit", "this user may not ask auditd", OPERATORS);
                else
                        doctor_say(d, BAD, "audit", text ?: "auditd does not answer", "systemctl status anchor-auditd.service");
                return;
        }

        seq = json_integer_value(json_object_get(reply, "seq"));
        kept = json_integer_value(json_object_get(reply, "kept_seq"));
        text = text_format("head %lld (%.16s…), %lld kept by the journal", (long long) seq, ctl_string(reply, "hash") ?: "", (long long) kept);
        doctor_say(d, seq - kept > 1000 ? WARNING : GOOD, "audit", text ?: "the chain's head is known", "the journal takes no records: journalctl --namespace=anchorhold, disk space");
}

static void check_resolver(Doctor *d) {
        _cleanup_free_ char *conf = NULL, *text = NULL;
        PolicyFinding *findings = NULL;
        size_t n_findings = 0, n = 0;
        Policy *p = NULL;

        if (policy_load(&p, "", &findings, &n_findings) >= 0)
                n = json_array_size(policy_host(p)->resolvers);
        policy_findings_free(findings, n_findings);
        policy_free(p);

        if (n > 0) {
                text = text_format("%zu in host.json", n);
                doctor_say(d, GOOD, "resolver", text ?: "in host.json", NULL);
                return;
        }
        if (io_read_file(AT_FDCWD, "/etc/resolv.conf", STATE_FILE_MAX, &conf, NULL) >= 0 && strstr(conf, "nameserver"))
                doctor_say(d, GOOD, "resolver", "that of /etc/resolv.conf", NULL);
        else
                doctor_say(d, WARNING, "resolver", "there is none: no name that a policy allows can be resolved", "\"resolvers\" in /etc/anchorhold/host.json, or /etc/resolv.conf");
}

CtlExit ctl_verb_doctor(Ctl *ctl) {
        _cleanup_json_ json_t *findings = json_array();
        Doctor d = { .ctl = ctl, .findings = findings };

        check_units(&d);
        check_policy(&d);
        check_anchord(&d);
        check_fence(&d);
        check_agreement(&d);
        check_audit(&d);
        check_kernel(&d);
        check_resolver(&d);
        check_disk(&d);

        json_decref(d.space);
        if (ctl->o.json != CTL_JSON_OFF)
                (void) ctl_print_json(ctl, findings);
        else if (d.n_bad > 0)
                ctl_note(ctl, "%zu thing%s keep%s runs from starting.", d.n_bad, d.n_bad == 1 ? "" : "s", d.n_bad == 1 ? "s" : "");
        else if (d.n_unknown > 0)
                ctl_note(ctl, "Whether runs can start is not known: " OPERATORS " for the rest.");
        else
                ctl_note(ctl, "Runs can start%s.", d.n_warnings > 0 ? ", with the warnings above" : "");
        return d.n_bad > 0 ? CTL_FAILED : d.n_unknown > 0 ? CTL_REFUSED : CTL_OK;
}
