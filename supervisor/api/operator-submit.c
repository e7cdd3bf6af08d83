/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Submit: what was given is checked against workflow, template and seed, the seed is copied and made durable,
 * then the item comes into being. A crash before that leaves a folder without an item, which the next start
 * removes; a crash after it an item in `submitted`, which the next start queues.
 */

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/authority.h"
#include "api/operator-internal.h"
#include "api/spec.h"
#include "util/json.h"
#include "util/log.h"

enum { SEED_HEAD_SIZE = 64 * 1024 };

typedef struct Submitting {
        Manager *manager; /* borrowed */
        IpcCall *call;    /* ref */
        char item[ID_LENGTH + 1];
        json_t *params;   /* owned */
        char *workflow_digest, *template_name, *template_digest, *agent, *command, *options; /* owned */
        int64_t max_attempts;
        bool repository;
} Submitting;

static Submitting *submitting_free(Submitting *s) {
        if (!s)
                return NULL;

        (void) ipc_call_unref(s->call);
        (void) json_unref(s->params);
        free(s->workflow_digest);
        free(s->template_name);
        free(s->template_digest);
        free(s->agent);
        free(s->command);
        free(s->options);
        free(s);
        return NULL;
}
DEFINE_CLEANUP(Submitting *, submitting_free)

static const char *reason_of(int r) {
        switch (r) {
        case -EFBIG:
                return "the seed bundle is larger than the workflow allows";
        case -EMEDIUMTYPE:
                return "the seed bundle must be a regular file";
        default:
                return strerror(-r);
        }
}

/* The seed is on disk (or none is needed): the item comes into being. */
static void submit_complete(Submitting *submitting, int error) {
        _cleanup_(submitting_freep) Submitting *s = submitting;
        _cleanup_item_ LedgerItem duplicate = {};
        Manager *m = s->manager;
        char actor[64];
        int r;

        if (error < 0) {
                (void) store_remove(m->store, s->item, NULL);
                (void) ipc_call_error(s->call, error == -EFBIG || error == -EMEDIUMTYPE ? "BadInput" : "Unavailable",
                                      json_pack("{s:s, s:s}", "pointer", "/", "reason", reason_of(error)));
                return;
        }

        r = ledger_submit(m->ledger, &(LedgerSubmission) {
                        .id = s->item,
                        .requester = peer_name(ipc_call_peer(s->call), actor),
                        .source = operator_get(s->params, "source"),
                        .workflow = operator_get(s->params, "workflow"),
                        .workflow_digest = s->workflow_digest,
                        .repository = s->repository ? operator_get(s->params, "repo") ?: "unnamed" : NULL,
                        .base = operator_get(s->params, "base"),
                        .task = operator_get(s->params, "task"),
                        .command = s->command,
                        .options = s->options,
                        .template_name = s->template_name,
                        .template_digest = s->template_digest,
                        .agent = s->agent,
                        .max_attempts = s->max_attempts,
                });
        if (r < 0) {
                (void) ipc_call_refuse(s->call, "Unavailable", "the ledger cannot be written");
                (void) manager_fatal(m, r, "submit an item");
                return;
        }

        if (r == 0) {
                (void) manager_transition(m, &(LedgerChange) { .item = s->item, .revision = 1, .to = ITEM_QUEUED, .actor = "anchord" });
        } else {
                (void) ledger_get(m->ledger, s->item, &duplicate);
                manager_tell(m, s->item);
                manager_close_log(m, s->item);
        }
        outbox_kick(m);
        (void) ipc_call_reply(s->call, json_pack("{s:s, s:s*, s:s*}", "item", s->item, "state", r == 0 ? NULL : "duplicate", "reason", duplicate.reason));
}

static void on_seed_stored(int r, void *userdata) {
        submit_complete(userdata, r);
}

static uint64_t seed_size(int fd) {
        struct stat st;

        return fstat(fd, &st) < 0 ? 0 : (uint64_t) st.st_size;
}

/* NULL if the descriptor begins like the seed that it should be. */
static const char *check_seed(int fd, const char *base) {
        _cleanup_free_ char *head = NULL;
        struct stat st;
        ssize_t n;

        if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
                return "the seed bundle must be a regular file";
        head = malloc(SEED_HEAD_SIZE);
        if (!head)
                return "out of memory";
        n = pread(fd, head, SEED_HEAD_SIZE, 0);
        return n < 0 ? "the seed bundle cannot be read" : spec_check_seed(head, (size_t) n, base);
}

/* Why the workflow cannot be used: unknown, or its file (or one that it names) has a finding. */
static int refuse_workflow(IpcCall *call, Manager *m, const char *name, const char *reason) {
        _cleanup_free_ char *tail = text_format("workflows/%s.json", name);
        const PolicyFinding *found = NULL;
        bool exists = false;
        size_t length;

        if (!tail)
                return -ENOMEM;
        length = strlen(tail);
        for (size_t i = 0; i < m->n_findings && !found; i++) {
                size_t n = strlen(m->findings[i].file);

                if (n >= length && strcmp(m->findings[i].file + n - length, tail) == 0)
                        found = &m->findings[i];
        }
        exists = found || (reason && !strstr(reason, "no workflow of that name"));
        if (!exists)
                return ipc_call_error(call, "NoSuchWorkflow", json_pack("{s:s}", "workflow", name));

        return ipc_call_error(call, "BadInput", json_pack("{s:s, s:s, s:s}", "file", found ? found->file : tail,
                                                          "pointer", found && found->pointer ? found->pointer : "",
                                                          "reason", found ? found->reason : reason));
}

static int fill_from_policy(Submitting *s, const PolicyWorkflow *w, const json_t *harness, const json_t *manifest) {
        const char *agent = spec_agent(harness);
        json_t *command = json_object_get(s->params, "command"), *options = json_object_get(s->params, "options");

        s->repository = w->repository;
        s->max_attempts = (int64_t) w->attempts;
        s->workflow_digest = strdup(w->digest);
        s->template_name = strdup(w->template_name);
        s->template_digest = strdup(json_string_value(json_object_get(manifest, "digest")));
        s->agent = agent ? strdup(agent) : NULL;
        s->command = json_is_array(command) ? json_canonical(command) : NULL;
        s->options = json_is_object(options) ? json_canonical(options) : NULL;

        return !s->workflow_digest || !s->template_name || !s->template_digest || (agent && !s->agent) ? -ENOMEM : 0;
}

/* False: the call was answered. */
static bool may_submit(Manager *m, IpcCall *call) {
        _cleanup_free_ char *reason = NULL;
        char name[64];
        int r;

        r = authority_check(m->policy, "submit", ipc_call_peer(call), &reason);
        if (r >= 0)
                return true;

        log_notice("%s may not submit: %s", peer_name(ipc_call_peer(call), name), reason ?: strerror(-r));
        (void) ipc_call_refuse(call, r == -EACCES ? "Denied" : "Unavailable", "%s", reason ?: strerror(-r));
        return false;
}

/* Finds the workflow and what it names. NULL: the call was answered. */
static const PolicyWorkflow *find_workflow(Manager *m, IpcCall *call, const char *name, const json_t **ret_harness, json_t **ret_manifest) {
        const PolicyWorkflow *w;
        const char *reason = NULL;
        _cleanup_free_ char *why = NULL;
        const json_t *harness = NULL;
        const char *agent;

        if (!name || !text_is_name(name)) {
                (void) operator_bad_input(call, "/workflow", "not the name of a workflow");
                return NULL;
        }
        if (!may_submit(m, call))
                return NULL;
        w = policy_find_workflow(m->policy, name, &reason);
        if (!w) {
                (void) refuse_workflow(call, m, name, reason);
                return NULL;
        }
        if (w->harness && !(harness = policy_find_harness(m->policy, w->harness, &reason))) {
                (void) refuse_workflow(call, m, name, reason);
                return NULL;
        }
        if (template_load(w->template_name, ret_manifest, &why) < 0) {
                (void) ipc_call_refuse(call, "Unavailable", "%s", why ?: "the template cannot be read");
                return NULL;
        }
        agent = spec_agent(harness);
        if (agent && !template_has_agent(w->template_name, agent)) {
                (void) ipc_call_refuse(call, "Unavailable", "template %s has no image of agent %s", w->template_name, agent);
                return NULL;
        }

        *ret_harness = harness;
        return w;
}

/* Does what was given fit the workflow? 0, negative errno, or 1: it does not, and the call was answered. */
static int check_submission(IpcCall *call, json_t *params, const PolicyWorkflow *w, const json_t *harness, int fd) {
        const json_t *upstream = json_object_get(json_object_get(params, "options"), "upstream");
        const char *reason, *pointer = "/";
        Submission given = {
                .task = operator_get(params, "task"),
                .repo = operator_get(params, "repo"),
                .base = operator_get(params, "base"),
                .source = operator_get(params, "source"),
                .command = json_is_array(json_object_get(params, "command")) ? json_object_get(params, "command") : NULL,
                .has_bundle = fd >= 0,
        };
        int r;

        reason = spec_check_submission(w, &given);
        if (!reason && ((given.repo && strlen(given.repo) > 4096) || (given.source && strlen(given.source) > 512)))
                reason = "repo or source is too long";
        if (!reason && w->repository)
                reason = check_seed(fd, given.base);
        if (!reason && upstream && !policy_is_repository(json_string_value(upstream))) {
                pointer = "/options/upstream";
                reason = "must be OWNER/NAME: the repository as the git host calls it";
        }
        if (!reason) {
                r = spec_check_frames(&(SpecInput) { .workflow = w, .harness = harness, .task = given.task, .command = given.command },
                                      &pointer, &reason);
                if (r < 0)
                        return r;
        }
        if (reason) {
                r = operator_bad_input(call, pointer, reason);
                return r < 0 ? r : 1;
        }

        return 0;
}

static int submit(Manager *m, IpcCall *call, json_t *params) {
        _cleanup_(submitting_freep) Submitting *s = NULL;
        _cleanup_json_ json_t *manifest = NULL;
        _cleanup_fd_ int fd = -1;
        const json_t *harness = NULL;
        const PolicyWorkflow *w;
        int r;

        w = find_workflow(m, call, operator_get(params, "workflow"), &harness, &manifest);
        if (!w)
                return 0;

        fd = ipc_call_take_fd(call, 0);
        r = check_submission(call, params, w, harness, fd);
        if (r != 0)
                return r < 0 ? r : 0;
        if (w->repository && !space_holds(m, seed_size(fd)))
                return ipc_call_refuse(call, "Unavailable", "there is no room for the seed bundle: %llu of %llu MiB are free, and %llu are kept in reserve",
                                       (unsigned long long) m->space.free >> 20, (unsigned long long) m->space.total >> 20,
                                       (unsigned long long) m->space.reserve >> 20);

        s = calloc(1, sizeof(*s));
        if (!s)
                return -ENOMEM;
        *s = (Submitting) { .manager = m, .call = ipc_call_ref(call), .params = json_incref(params) };
        r = fill_from_policy(s, w, harness, manifest);
        if (r >= 0)
                r = text_make_id('i', s->item);
        if (r < 0)
                return r;

        if (!w->repository) {
                submit_complete(TAKE_PTR(s), 0);
                return 0;
        }

        r = store_copy(m->store, s->item, STORE_SEED, TAKE_FD(fd), w->bundle_bytes, on_seed_stored, s);
        if (r < 0) {
                submit_complete(TAKE_PTR(s), r);
                return 0;
        }
        (void) TAKE_PTR(s);
        return 0;
}

/* A submission that waits for policy to be read. */
typedef struct Asked {
        Manager *manager; /* borrowed */
        IpcCall *call;    /* ref */
        json_t *params;   /* ref */
} Asked;

static void on_policy(int r, void *userdata) {
        Asked *a = userdata;

        if (r < 0)
                (void) ipc_call_refuse(a->call, "Unavailable", "policy cannot be loaded");
        else {
                r = submit(a->manager, a->call, a->params);
                if (r < 0 && ipc_call_is_live(a->call))
                        (void) ipc_call_refuse(a->call, "Unavailable", "%s", strerror(-r));
        }
        (void) ipc_call_unref(a->call);
        json_decref(a->params);
        free(a);
}

int operator_on_submit(IpcCall *call, json_t *params, void *userdata) {
        Manager *m = userdata;
        int64_t waiting;
        Asked *a;
        int r;

        if (!m->settled)
                return operator_wait(m, call, params, operator_on_submit);
        r = ledger_outbox_count(m->ledger, &waiting);
        if (r < 0)
                return manager_fatal(m, r, "count the audit outbox");
        if (waiting > OUTBOX_MAX)
                return ipc_call_refuse(call, "Unavailable", "auditd does not take events; see systemctl status anchor-auditd");

        a = malloc(sizeof(*a));
        if (!a)
                return -ENOMEM;
        *a = (Asked) { .manager = m, .call = ipc_call_ref(call), .params = json_incref(params) };
        r = manager_read_policy(m, on_policy, a);
        if (r < 0)
                on_policy(r, a);
        return 0;
}
