/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What a run needs before its units start, and what must be undone after: the plan (flow-plan.c), and the registrations with egressd and
 * secretd. An answer finds its flow by the run's id, so that one that comes too late finds nothing, and a registration's by the number of the try as well. */

#include <errno.h>
#include <string.h>

#include "api/flow-internal.h"
#include "util/json.h"
#include "util/log.h"

enum { CA_GRACE_S = 900 };

#define REGISTER_TIMEOUT_USEC (15 * USEC_PER_SEC)
#define RELEASE_TIMEOUT_USEC (5 * USEC_PER_SEC)

/* ---- the plan ---- */

static const char *keep_reason(const char *format, const char *a, const char *b) {
        static char reason[512];

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        (void) snprintf(reason, sizeof(reason), format, a, b);
#pragma GCC diagnostic pop
        return reason;
}

/* Templates come with the image, so another digest is another image's. What was leased just now is worked on with this one's. */
static const char *bind_template(Flow *f, const char *name, const char *digest) {
        int r;

        if (strcmp(digest, f->item.template_digest) == 0)
                return NULL;
        log_notice("item %s: template %s is %.16s by now, not %.16s", f->item.id, name, digest, f->item.template_digest);
        r = ledger_item_rebind(f->manager->ledger, &f->item, digest);
        if (r < 0)
                (void) manager_fatal(f->manager, r, "bind an item to another template");
        return r == 0 ? NULL : "the item cannot be bound to another template";
}

/* From policy, template and host as they are now. fresh: the item was leased just now, and must be what it was when it was submitted. */
static const char *make_plan(Flow *f, bool fresh) {
        Manager *m = f->manager;
        _cleanup_json_ json_t *manifest = NULL;
        _cleanup_free_ char *why = NULL;
        const PolicyWorkflow *w;
        const json_t *harness = NULL;
        const char *reason = NULL;
        Accel accel;

        w = policy_find_workflow(m->policy, f->item.workflow, &reason);
        if (!w)
                return keep_reason("workflow %s: %s", f->item.workflow, reason ?: "not usable");
        if (fresh && strcmp(w->digest, f->item.workflow_digest) != 0)
                return keep_reason("workflow %s is not what it was when the item was submitted (or something that it names changed); submit it again%s",
                                   f->item.workflow, "");
        if (w->harness) {
                harness = policy_find_harness(m->policy, w->harness, &reason);
                if (!harness)
                        return keep_reason("harness %s: %s", w->harness, reason ?: "not usable");
        }

        if (template_load(w->template_name, &manifest, &why) < 0)
                return keep_reason("%s%s", why ?: "the template cannot be read", "");
        reason = fresh ? bind_template(f, w->template_name, json_string_value(json_object_get(manifest, "digest"))) : NULL;
        if (reason)
                return reason;
        if (accel_read(policy_host(m->policy)->accel, &accel) < 0)
                return keep_reason("the host's configuration asks for KVM, which does not work here: %s%s", accel.reason, "");
        return flow_plan_make(f, w, harness, manifest, &accel);
}

const char *flow_prepare(Flow *f) {
        Manager *m = f->manager;
        _cleanup_free_ char *text = NULL;
        const char *reason;
        int r;

        if (policy_host_reason(m->policy)) {
                f->requeue = true; /* it was leased by what the file said before */
                return keep_reason("host.json cannot be used: %s%s", policy_host_reason(m->policy), "");
        }
        reason = make_plan(f, true);
        if (reason)
                return reason;
        text = json_canonical(f->plan);
        r = text ? ledger_freeze(m->ledger, f->item.token, text) : -ENOMEM;
        if (r < 0)
                (void) manager_fatal(m, r, "keep what a run is made from");
        return r == 0 ? flow_plan_take(f) : "what the run is made from cannot be kept";
}

const char *flow_prepare_again(Flow *f) {
        Manager *m = f->manager;
        _cleanup_free_ char *text = NULL;
        const char *reason;
        int r;

        if (!f->plan) {
                r = ledger_frozen(m->ledger, f->item.token, &text);
                if (r == 0)
                        r = json_parse(text, strlen(text), &f->plan, NULL);
                if (r < 0) {
                        (void) manager_fatal(m, r, "read what a run is made from");
                        return "what the run is made from cannot be read";
                }
        }
        if (!f->plan) {
                reason = make_plan(f, false); /* it was leased by an anchord that kept none */
                if (reason)
                        return reason;
        }
        return flow_plan_take(f);
}

/* ---- registrations ---- */

enum { ASKS_MAX = 5 };

struct FlowAsk {
        FlowAsk *next;
        Manager *manager; /* borrowed */
        char run[ID_LENGTH + 1];
        bool release, egress;
        json_t *params;   /* ref */
        unsigned try;     /* of a registration: which of its flow's */
        unsigned n;       /* how often it was asked */
};

static FlowAsk *ask_free(FlowAsk *a) {
        if (!a)
                return NULL;
        for (FlowAsk **p = &a->manager->flow_asks; *p; p = &(*p)->next)
                if (*p == a) {
                        *p = a->next;
                        break;
                }
        json_unref(a->params);
        free(a);
        return NULL;
}
DEFINE_CLEANUP(FlowAsk *, ask_free)

void flow_asks_free(Manager *m) {
        while (m->flow_asks)
                (void) ask_free(m->flow_asks);
}

static int ask_send(FlowAsk *a);

void flow_note_policies(Manager *m, const char *run, const json_t *digests) {
        int r;

        if (json_array_size(digests) == 0)
                return; /* released before, or never registered */
        r = ledger_run_set_policies(m->ledger, run, digests);
        if (r < 0)
                (void) manager_fatal(m, r, "record a run's policies");
}

static void on_answer(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        _cleanup_(ask_freep) FlowAsk *ask = userdata;
        Flow *f = flow_find_run(ask->manager, ask->run);
        const char *digest;

        if (f && !ask->release && ask->try != f->register_try)
                return; /* it was given up, and begun anew */

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

static int ask_send(FlowAsk *a) {
        a->n++;
        return ipc_client_call_async(a->egress ? a->manager->egress : a->manager->secret,
                                     a->egress ? (a->release ? "io.anchorhold.Egress.Release" : "io.anchorhold.Egress.Register")
                                               : (a->release ? "io.anchorhold.Secret.Release" : "io.anchorhold.Secret.Register"),
                                     json_incref(a->params), NULL, 0, false, a->release ? RELEASE_TIMEOUT_USEC : REGISTER_TIMEOUT_USEC, on_answer, a);
}

static int ask(Flow *f, bool egress, bool release, json_t *params) {
        _cleanup_(ask_freep) FlowAsk *a = NULL;
        int r;

        if (!params)
                return -ENOMEM;
        a = malloc(sizeof(*a));
        if (!a) {
                json_decref(params);
                return -ENOMEM;
        }
        *a = (FlowAsk) { .next = f->manager->flow_asks, .manager = f->manager, .egress = egress, .release = release, .try = f->register_try, .params = params };
        memcpy(a->run, f->run, sizeof(a->run));
        f->manager->flow_asks = a;

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

/* With secretd the first try counts, and another word while it works on that is a conflict: so this is computed once, for the wait as well. */
static uint64_t expiry(Flow *f) {
        uint64_t wait_usec = f->stage == STAGE_VERIFY ? f->manager->register_wait_usec : 0;

        if (f->expires == 0)
                f->expires = time_realtime() + wait_usec + (f->run_s + CA_GRACE_S) * USEC_PER_SEC;
        return f->expires;
}

int flow_register(Flow *f) {
        _cleanup_free_ char *repository = upstream(&f->item);
        const char *stage = f->stage == STAGE_VERIFY ? "verify" : "work";
        int r;

        f->pending = 0;
        f->register_try++;
        r = ask(f, true, false, json_pack("{s:s, s:s, s:s}", "run", f->run, "workflow", f->item.workflow, "stage", stage));
        if (r < 0)
                return r;

        return ask(f, false, false, json_pack("{s:s, s:s, s:s, s:I, s:s, s:s*}", "run", f->run, "workflow", f->item.workflow, "item", f->item.id,
                                              "expires_usec", (json_int_t) expiry(f), "stage", stage, "repository", repository));
}

int flow_release(Flow *f) {
        int r;

        f->pending = 0;
        r = ask(f, true, true, json_pack("{s:s}", "run", f->run));
        if (r < 0)
                return r;

        return ask(f, false, true, json_pack("{s:s}", "run", f->run));
}
