/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What a run needs before its units start, and what must be undone after: the specs, and the registrations with egressd and
 * secretd. An answer finds its flow by the run's id, so that one that comes too late finds nothing. */

#include <errno.h>
#include <string.h>

#include "api/flow-internal.h"
#include "util/json.h"
#include "util/log.h"

enum { CA_GRACE_S = 900 };

#define REGISTER_TIMEOUT_USEC (15 * USEC_PER_SEC)
#define RELEASE_TIMEOUT_USEC (5 * USEC_PER_SEC)

/* ---- specs ---- */

static const char *keep_reason(const char *format, const char *a, const char *b) {
        static char reason[512];

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        (void) snprintf(reason, sizeof(reason), format, a, b);
#pragma GCC diagnostic pop
        return reason;
}

static const char *prepare_accel(Flow *f) {
        Accel accel;

        if (accel_read(policy_host(f->manager->policy)->accel, &accel) < 0)
                return keep_reason("the host's configuration asks for KVM, which does not work here: %s%s", accel.reason, "");

        f->tcg = accel.tcg;
        f->tcg_fallback = accel.fallback;
        (void) snprintf(f->accel_reason, sizeof(f->accel_reason), "%s", accel.reason);
        return NULL;
}

static const char *make_specs(Flow *f, const PolicyWorkflow *w, const json_t *harness, const json_t *manifest) {
        _cleanup_json_ json_t *command = NULL;
        SpecInput in = {
                .run = f->run,
                .item = f->item.id,
                .verify = f->stage == STAGE_VERIFY,
                .attempt = f->item.attempt,
                .workflow = w,
                .harness = harness,
                .task = f->item.task,
                .base = f->stage == STAGE_VERIFY ? f->commit : f->item.base,
                .tcg = f->tcg,
        };
        json_t *spec = NULL, *vm_spec = NULL;

        if (f->item.command && json_parse(f->item.command, strlen(f->item.command), &command, NULL) < 0)
                return "the item's command cannot be read";
        in.command = command;

        if (spec_make_run(&in, &spec) < 0 || spec_make_vm(&in, manifest, &vm_spec) < 0) {
                (void) json_unref(spec);
                return "the run's specification cannot be made from its workflow";
        }

        (void) json_unref(f->spec);
        (void) json_unref(f->vm_spec);
        f->spec = spec;
        f->vm_spec = vm_spec;
        return NULL;
}

/* Templates come with the image, so another digest is another image's. What was leased just now is worked on with this one's; what an earlier life
 * began, or the verification of what was made with the other, is not. */
static const char *check_template(Flow *f, const char *name, const char *digest, bool fresh) {
        int r;

        if (strcmp(digest, f->item.template_digest) == 0)
                return NULL;
        if (!fresh)
                return keep_reason("template %s is not what it was when the item was leased; submit it again%s", name, "");
        log_notice("item %s: template %s is %.16s by now, not %.16s", f->item.id, name, digest, f->item.template_digest);
        r = ledger_item_rebind(f->manager->ledger, &f->item, digest);
        if (r < 0)
                (void) manager_fatal(f->manager, r, "bind an item to another template");
        return r == 0 ? NULL : "the item cannot be bound to another template";
}

const char *flow_prepare(Flow *f, bool fresh) {
        Manager *m = f->manager;
        _cleanup_json_ json_t *manifest = NULL;
        _cleanup_free_ char *why = NULL;
        const PolicyWorkflow *w;
        const json_t *harness = NULL;
        const char *reason = NULL;

        if (fresh && policy_host_reason(m->policy)) {
                f->requeue = true; /* it was leased by what the file said before */
                return keep_reason("host.json cannot be used: %s%s", policy_host_reason(m->policy), "");
        }
        w = policy_find_workflow(m->policy, f->item.workflow, &reason);
        if (!w)
                return keep_reason("workflow %s: %s", f->item.workflow, reason ?: "not usable");
        if (strcmp(w->digest, f->item.workflow_digest) != 0)
                return keep_reason("workflow %s is not what it was when the item was submitted (or something that it names changed); submit it again%s",
                                   f->item.workflow, "");
        if (w->harness) {
                harness = policy_find_harness(m->policy, w->harness, &reason);
                if (!harness)
                        return keep_reason("harness %s: %s", w->harness, reason ?: "not usable");
        }

        if (template_load(w->template_name, &manifest, &why) < 0)
                return keep_reason("%s%s", why ?: "the template cannot be read", "");
        reason = check_template(f, w->template_name, json_string_value(json_object_get(manifest, "digest")), fresh);
        if (reason)
                return reason;

        f->run_s = w->run_s;
        f->output_bytes = w->output_bytes;
        f->bundle_bytes = w->bundle_bytes;
        f->has_verify = w->n_verify > 0;
        flow_set_budget(f, w);
        reason = prepare_accel(f);
        return reason ?: make_specs(f, w, harness, manifest);
}

/* ---- registrations ---- */

enum { ASKS_MAX = 5 };

typedef struct Ask {
        Manager *manager; /* borrowed */
        char run[ID_LENGTH + 1];
        bool release, egress;
        json_t *params;   /* ref */
        unsigned n;       /* how often it was asked */
} Ask;

static Ask *ask_free(Ask *a) {
        if (!a)
                return NULL;
        json_unref(a->params);
        free(a);
        return NULL;
}
DEFINE_CLEANUP(Ask *, ask_free)

static int ask_send(Ask *a);

void flow_note_policies(Manager *m, const char *run, const json_t *digests) {
        int r;

        if (json_array_size(digests) == 0)
                return; /* released before, or never registered */
        r = ledger_run_set_policies(m->ledger, run, digests);
        if (r < 0)
                (void) manager_fatal(m, r, "record a run's policies");
}

static void on_answer(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        _cleanup_(ask_freep) Ask *ask = userdata;
        Flow *f = flow_find_run(ask->manager, ask->run);
        const char *digest;

        /* The daemon starts anew, secretd with every change of a credential. Its socket is systemd's: who asks again waits for it, and for
         * the same run the answer is the same. */
        if (error && strcmp(error, "io.anchorhold.Disconnected") == 0 && f && ask->n < ASKS_MAX && ask_send(ask) >= 0) {
                TAKE_PTR(ask);
                return;
        }

        if (ask->release && ask->egress && !error)
                flow_note_policies(ask->manager, ask->run, json_object_get(params, "digests"));
        if (!f)
                return;

        if (ask->release) {
                if (error) {
                        log_warning("run %s: %s did not release it: %s", ask->run, ask->egress ? "egressd" : "secretd", error);
                        f->unclean = true;
                }
                if (f->state == FLOW_RELEASING && --f->pending == 0)
                        flow_on_released(f);
                return;
        }

        digest = json_string_value(json_object_get(params, "digest"));
        if (!error && ask->egress && digest)
                (void) snprintf(f->egress_digest, sizeof(f->egress_digest), "%s", digest);
        flow_on_registered(f, error, json_string_value(json_object_get(params, "reason")));
}

static int ask_send(Ask *a) {
        a->n++;
        return ipc_client_call_async(a->egress ? a->manager->egress : a->manager->secret,
                                     a->egress ? (a->release ? "io.anchorhold.Egress.Release" : "io.anchorhold.Egress.Register")
                                               : (a->release ? "io.anchorhold.Secret.Release" : "io.anchorhold.Secret.Register"),
                                     json_incref(a->params), NULL, 0, false, a->release ? RELEASE_TIMEOUT_USEC : REGISTER_TIMEOUT_USEC, on_answer, a);
}

static int ask(Flow *f, bool egress, bool release, json_t *params) {
        _cleanup_(ask_freep) Ask *a = NULL;
        int r;

        if (!params)
                return -ENOMEM;
        a = malloc(sizeof(*a));
        if (!a) {
                json_decref(params);
                return -ENOMEM;
        }
        *a = (Ask) { .manager = f->manager, .egress = egress, .release = release, .params = params };
        memcpy(a->run, f->run, sizeof(a->run));

        r = ask_send(a);
        if (r < 0)
                return r;

        TAKE_PTR(a);
        f->pending++;
        return 0;
}

/* The item's repository as the git host calls it; NULL: none was named. The caller's. */
static char *upstream(const LedgerItem *item) {
        _cleanup_json_ json_t *options = NULL;
        const char *text;

        if (!item->options || json_parse(item->options, strlen(item->options), &options, NULL) < 0)
                return NULL;
        text = json_string_value(json_object_get(options, "upstream"));
        return text ? strdup(text) : NULL;
}

int flow_register(Flow *f) {
        _cleanup_free_ char *repository = upstream(&f->item);
        const char *stage = f->stage == STAGE_VERIFY ? "verify" : "work";
        uint64_t expires = time_realtime() + (f->run_s + CA_GRACE_S) * USEC_PER_SEC;
        int r;

        f->pending = 0;
        r = ask(f, true, false, json_pack("{s:s, s:s, s:s}", "run", f->run, "workflow", f->item.workflow, "stage", stage));
        if (r < 0)
                return r;

        return ask(f, false, false, json_pack("{s:s, s:s, s:s, s:I, s:s, s:s*}", "run", f->run, "workflow", f->item.workflow, "item", f->item.id,
                                              "expires_usec", (json_int_t) expires, "stage", stage, "repository", repository));
}

int flow_release(Flow *f) {
        int r;

        f->pending = 0;
        r = ask(f, true, true, json_pack("{s:s}", "run", f->run));
        if (r < 0)
                return r;

        return ask(f, false, true, json_pack("{s:s}", "run", f->run));
}
