/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * io.anchorhold.Run and the credential `vm`: what the units of a run may ask and tell. The run's id is the
 * peer's, from the kernel, and never a parameter; the roles are in the table at the end. Everything that comes in
 * was influenced by a guest: it is bounded here, kept as data, and decides nothing but this run's own end (run-endings.c).
 */

#include <errno.h>
#include <string.h>

#include "api/run-api-internal.h"
#include "api/spec.h"
#include "ledger/ledger-budget.h"
#include "ledger/usage-limits.h"
#include "util/json.h"
#include "util/log.h"

enum {
        OUTPUT_CALL_MAX = 48 * 1024 * 4, /* 48 KiB, each byte escaped */
        FACTS_MAX = 256 * 1024,
        FACTS_DEPTH_MAX = 32,              /* varlink carries four times that, and facts are shown within something else */
        EVENTS_MAX_BYTES = 8 * 1024 * 1024, /* of one run */
        CALL_MAX = 64,
        CALLS_MAX = 200 * 1000, /* model calls of one run that are told apart */
        EVENT_COST = 1024,                 /* of each beside its data: rows, lines, records */
};

Flow *run_api_flow(Manager *m, IpcCall *call) {
        return flow_find_run(m, ipc_call_peer(call)->run);
}

int run_api_no_run(IpcCall *call) {
        return ipc_call_error(call, "NoSuchRun", NULL);
}

char *run_api_bounded(const char *s, size_t max) {
        size_t n = s ? strlen(s) : 0;

        return text_escape(s ?: "", n < max ? n : max, true);
}

static bool is_shallow(const json_t *j, unsigned depth) {
        const char *key;
        json_t *value;
        size_t i;

        if (depth == 0)
                return false;
        json_array_foreach(j, i, value)
                if (!is_shallow(value, depth - 1))
                        return false;
        json_object_foreach((json_t *) j, key, value)
                if (!is_shallow(value, depth - 1))
                        return false;
        return true;
}

int run_api_measure(const json_t *facts, size_t *ret_size) {
        _cleanup_free_ char *text = NULL;

        if (!is_shallow(facts, FACTS_DEPTH_MAX))
                return -EFBIG;
        text = json_canonical(facts);
        if (!text)
                return -ENOMEM;
        *ret_size = strlen(text);
        return *ret_size > FACTS_MAX ? -EFBIG : 0;
}

/* ---- asking ---- */

static int push_file(IpcCall *call, Manager *m, const char *item, const char *name) {
        int fd, r;

        fd = store_open_file(m->store, item, name);
        if (fd < 0)
                return fd;
        r = ipc_call_push_fd(call, fd);
        if (r < 0)
                (void) fd_close(fd);
        return r;
}

static int on_get_spec(IpcCall *call, json_t *params, void *userdata) {
        Manager *m = userdata;
        Flow *f = run_api_flow(m, call);
        json_t *spec = f ? flow_spec(f) : NULL;
        int r;

        if (!f || !flow_accepts_run(f) || !spec)
                return run_api_no_run(call);

        if (json_is_object(json_object_get(spec, "repository"))) {
                r = push_file(call, m, flow_item(f), strcmp(flow_stage(f), "verify") == 0 ? STORE_CHECKED : STORE_SEED);
                if (r < 0)
                        return r;
        }
        return ipc_call_reply(call, json_pack("{s:O}", "spec", spec));
}

static int on_get_import(IpcCall *call, json_t *params, void *userdata) {
        Manager *m = userdata;
        Flow *f = run_api_flow(m, call);
        int r;

        if (!f || !flow_accepts_import(f))
                return run_api_no_run(call);

        r = push_file(call, m, flow_item(f), STORE_SEED);
        if (r >= 0)
                r = push_file(call, m, flow_item(f), STORE_RESULT);
        if (r < 0)
                return r;

        return ipc_call_reply(call, json_pack("{s:s, s:s, s:{s:I, s:I}}", "base", flow_base(f), "ref", REF_RESULT,
                                              "limits", "bundle_bytes", (json_int_t) flow_limit_bundle(f), "diff_bytes", (json_int_t) STORE_DIFF_MAX));
}

int run_api_credential(const Peer *peer, const char *id, char **ret_blob, size_t *ret_size, void *userdata) {
        Manager *m = userdata;
        Flow *f = flow_find_run(m, peer->run);
        char *blob;

        if (!(peer->roles & PEER_VM) || strcmp(id, "vm") != 0 || !f || !flow_accepts_run(f) || !flow_vm_spec(f))
                return -EACCES;

        blob = json_canonical(flow_vm_spec(f));
        if (!blob)
                return -ENOMEM;
        *ret_blob = blob;
        *ret_size = strlen(blob);
        return 0;
}

void run_api_credential_denied(const Peer *peer, const char *claimed, const char *reason, void *userdata) {
        _cleanup_free_ char *text = text_escape(claimed ?: "", claimed ? strlen(claimed) : 0, false);

        log_warning("spec.sock: refused uid %u, which claims to be \"%s\": %s", peer ? (unsigned) peer->uid : 0U, text ?: "", reason);
}

/* ---- telling ---- */

static json_t *step_event(Flow *f, const char *phase, json_t *data) {
        return json_pack("{s:s, s:s, s:s, s:s, s:s?, s:O?, s:s?}", "run", flow_run(f), "stage", flow_stage(f), "phase", phase,
                         "name", run_api_get(data, "name") ?: run_api_get(data, "step") ?: "", "kind", run_api_get(data, "kind"),
                         "status", json_object_get(data, "status"), "reason", run_api_get(data, "reason"));
}

/* What the ledger keeps of an event: once, however often it is said. */
static int record_event(Manager *m, Flow *f, const char *kind, const char *text, int64_t number) {
        _cleanup_json_ json_t *data = json_pack("{s:s}", "reason", text);
        LedgerTold told = {};
        int r;

        if (!data)
                return -ENOMEM;
        if (strcmp(kind, "booting") == 0)
                told.boot = true;
        else {
                told.note = kind;
                told.text = text;
                if (strcmp(kind, "boot-retry") == 0) {
                        told.event = "run.boot_retry";
                        told.data = data;
                }
        }

        r = ledger_run_tell(m->ledger, flow_run(f), number, &told);
        if (r < 0 || r == LEDGER_E_DUPLICATE)
                return r;
        if (told.note)
                log_notice("%s: %s: %s", flow_item(f), kind, text);
        manager_tell(m, flow_item(f));
        outbox_kick(m);
        return 0;
}

/* The number that anchor-run gave this call, counting up from 1; 0: none. One that was not answered comes again with the same. */
static int64_t number_of(const json_t *params) {
        int64_t number = json_integer_value(json_object_get(params, "seq"));

        return number > 0 ? number : 0;
}

/* Puts an event of a run into its item's log, unless this very call has done so already: anchord may have died before it answered. */
static void tell_once(Manager *m, Flow *f, EventLog *log, int64_t number, const char *type, json_t *data) {
        if (number > 0 && (event_log_last_call(log, flow_run(f)) >= number || (data && json_object_set_new(data, "call", json_integer(number)) < 0)))
                json_decref(data);
        else
                manager_event(m, flow_item(f), type, data);
}

/* As with output: over the limit it is said once, and the rest is dropped. */
static bool may_tell(Manager *m, Flow *f, size_t size) {
        uint64_t told = flow_count_events(f, size + EVENT_COST);

        if (told > EVENTS_MAX_BYTES && told - size - EVENT_COST <= EVENTS_MAX_BYTES)
                manager_note(m, flow_item(f), flow_run(f), "event.limit", "the run told of more than is kept; the rest is not");
        return told <= EVENTS_MAX_BYTES;
}

static int on_event(IpcCall *call, json_t *params, void *userdata) {
        Manager *m = userdata;
        Flow *f = run_api_flow(m, call);
        const char *kind = run_api_get(params, "kind");
        json_t *data = json_object_get(params, "data");
        _cleanup_free_ char *text = NULL;
        EventLog *log;
        size_t size = 0;
        bool trouble;
        int r;

        if (!f || !flow_accepts_run(f))
                return run_api_no_run(call);
        if (!kind || !text_is_name(kind))
                return run_api_bad_input(call, "/kind", "not a name");
        if (!json_is_object(data))
                return run_api_bad_input(call, "/data", "not an object");

        r = run_api_measure(data, &size);
        if (r == -EFBIG)
                return run_api_bad_input(call, "/data", "too large");
        if (r < 0)
                return r;
        if (!may_tell(m, f, size))
                return ipc_call_reply(call, NULL);

        log = manager_log(m, flow_item(f));
        if (!log)
                return -EIO;
        if (strcmp(kind, "step-started") == 0 || strcmp(kind, "step-finished") == 0) {
                tell_once(m, f, log, number_of(params), "step", step_event(f, kind + strlen("step-"), data));
                return ipc_call_reply(call, NULL);
        }

        text = run_api_bounded(run_api_get(data, "text") ?: run_api_get(data, "reason") ?: kind, RUN_API_REASON_MAX);
        if (!text)
                return -ENOMEM;
        /* trouble, and how often it booted, stay in the ledger; the rest is only part of the story */
        trouble = strcmp(kind, "boot-retry") == 0 || strcmp(kind, "guest-error") == 0;
        if (trouble || strcmp(kind, "booting") == 0) {
                r = record_event(m, f, kind, text, number_of(params));
                if (r < 0)
                        return manager_fatal(m, r, "record what a run tells");
        }
        if (!trouble)
                tell_once(m, f, log, number_of(params), "note",
                          json_pack("{s:s, s:s, s:s, s:s, s:O}", "run", flow_run(f), "stage", flow_stage(f), "kind", kind, "text", text, "data", data));
        return ipc_call_reply(call, NULL);
}

static bool is_stream(const char *s) {
        static const char *const streams[] = { "stdout", "stderr", "agent", "agent-raw", "check", "console" };

        for (size_t i = 0; s && i < ELEMENTSOF(streams); i++)
                if (strcmp(s, streams[i]) == 0)
                        return true;
        return false;
}

static int on_output(IpcCall *call, json_t *params, void *userdata) {
        Manager *m = userdata;
        Flow *f = run_api_flow(m, call);
        const char *stream = run_api_get(params, "stream"), *step = run_api_get(params, "step"), *data = run_api_get(params, "data");
        EventLog *log;
        uint64_t size;

        if (!f || !flow_accepts_run(f))
                return run_api_no_run(call);
        if (!is_stream(stream))
                return run_api_bad_input(call, "/stream", "no such stream");
        if (!step || strlen(step) > 64 || !data || strlen(data) > OUTPUT_CALL_MAX)
                return run_api_bad_input(call, "/data", "missing or too large");

        log = manager_log(m, flow_item(f));
        if (!log)
                return -EIO;

        /* Over the limit: said once, dropped from then on. The guest goes on; its flow control never waits for a disk. */
        size = event_log_output_size(log, flow_run(f));
        if (size < flow_limit_output(f)) {
                tell_once(m, f, log, number_of(params), "output", json_pack("{s:s, s:s, s:s, s:s, s:s}", "run", flow_run(f), "stage", flow_stage(f),
                                                                   "stream", stream, "step", step, "data", data));
                if (event_log_output_size(log, flow_run(f)) >= flow_limit_output(f))
                        manager_note(m, flow_item(f), flow_run(f), "output.limit", "the run wrote more than its workflow's limit; the rest is not kept");
        }
        return ipc_call_reply(call, NULL);
}

/* A row for each call is kept for ever; one inject must not fill the disk with them. 0: one too many, and said so. */
static int may_count(Manager *m, Flow *f) {
        int64_t calls;
        int r;

        r = ledger_count_calls(m->ledger, flow_run(f), &calls);
        if (r < 0)
                return manager_fatal(m, r, "count model calls");
        if (calls < CALLS_MAX)
                return 1;
        if (flow_take_flag(f))
                manager_note(m, flow_item(f), flow_run(f), "usage.limit", "the run reports more than %d model calls; the rest is not counted", CALLS_MAX);
        return 0;
}

static int on_add_usage(IpcCall *call, json_t *params, void *userdata) {
        Manager *m = userdata;
        Flow *f = run_api_flow(m, call);
        _cleanup_free_ char *model = NULL, *provider = NULL, *price = NULL, *version = NULL;
        LedgerUsage u = { .call = run_api_get(params, "call") };
        const struct {
                const char *key;
                int64_t *to, max;
        } numbers[] = {
                { "input_tokens", &u.input_tokens, USAGE_TOKENS_MAX },
                { "output_tokens", &u.output_tokens, USAGE_TOKENS_MAX },
                { "cache_read_tokens", &u.cache_read_tokens, USAGE_TOKENS_MAX },
                { "cache_write_tokens", &u.cache_write_tokens, USAGE_TOKENS_MAX },
                { "cost_microusd", &u.cost_microusd, USAGE_COST_MAX },
                { "status", &u.status, 999 },
                { "latency_us", &u.latency_us, 1LL << 40 },
        };
        int r;

        if (!f)
                return run_api_no_run(call);
        if (!u.call || !*u.call || strlen(u.call) > CALL_MAX)
                return run_api_bad_input(call, "/call", "1 to 64 characters");
        for (size_t i = 0; i < ELEMENTSOF(numbers); i++) {
                *numbers[i].to = json_integer_value(json_object_get(params, numbers[i].key));
                if (*numbers[i].to < 0 || *numbers[i].to > numbers[i].max)
                        return run_api_bad_input(call, "/", "a number out of range");
        }

        provider = run_api_bounded(run_api_get(params, "provider"), 64);
        model = run_api_bounded(run_api_get(params, "model"), 128);
        price = run_api_bounded(run_api_get(params, "price"), 16);
        version = run_api_bounded(run_api_get(params, "prices_version"), 64);
        if (!provider || !model || !price || !version)
                return -ENOMEM;
        u.provider = provider;
        u.model = model;
        u.price = price;
        u.prices_version = version;
        u.estimated = json_is_true(json_object_get(params, "estimated"));

        r = may_count(m, f);
        if (r <= 0)
                return r < 0 ? r : ipc_call_reply(call, NULL);
        r = ledger_add_usage(m->ledger, flow_run(f), &u);
        if (r < 0)
                return manager_fatal(m, r, "record usage");
        return ipc_call_reply(call, NULL);
}

/* ---- the rest ---- */

/* From inject or the proxy: a sentinel was blocked on its way to where it does not belong. It is on record in the audit log already; here the run gets its flag. */
static int on_misuse(IpcCall *call, json_t *params, void *userdata) {
        const char *credential = run_api_get(params, "credential"), *name = run_api_get(params, "name"), *where = run_api_get(params, "where");
        Manager *m = userdata;
        Flow *f = run_api_flow(m, call);

        if (!f || !flow_accepts_run(f))
                return run_api_no_run(call);
        if (!text_is_name(credential) || !name || strlen(name) > 253 || !where || strlen(where) > 256)
                return run_api_bad_input(call, "/", "credential, name and where: missing or too large");

        if (flow_take_flag(f))
                manager_note(m, flow_item(f), flow_run(f), "credential.misuse", "the sentinel of credential %s was blocked on its way to %s (%s)", credential, name, where);
        return ipc_call_reply(call, NULL);
}

const IpcMethod run_methods[] = {
        { "io.anchorhold.Run.GetSpec", PEER_RUN, on_get_spec },
        { "io.anchorhold.Run.GetImport", PEER_IMPORT, on_get_import },
        { "io.anchorhold.Run.Event", PEER_RUN, on_event },
        { "io.anchorhold.Run.Output", PEER_RUN, on_output },
        { "io.anchorhold.Run.Finish", PEER_RUN, run_api_on_finish },
        { "io.anchorhold.Run.Mismatch", PEER_CHECK, run_api_on_mismatch },
        { "io.anchorhold.Run.Misuse", PEER_INJECT | PEER_PROXY, on_misuse },
        { "io.anchorhold.Run.Imported", PEER_IMPORT, run_api_on_imported },
        { "io.anchorhold.Run.AddUsage", PEER_INJECT, on_add_usage },
        { "io.anchorhold.Run.GetBudget", PEER_INJECT, flow_api_get_budget },
        { "io.anchorhold.Run.Reserve", PEER_INJECT, flow_api_reserve },
        { "io.anchorhold.Run.Unreserve", PEER_INJECT, flow_api_unreserve },
        { "io.anchorhold.Run.OverBudget", PEER_INJECT, flow_api_over_budget },
        {},
};
