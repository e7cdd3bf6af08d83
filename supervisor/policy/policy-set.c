/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A policy set in memory: its objects, what was found wrong with them, and asking for them. Reading the files that
 * it is made from is policy-load.c's.
 */

#include <errno.h>
#include <string.h>

#include "policy/policy-internal.h"
#include "util/json-position.h"
#include "util/json.h"

/* ---- objects and findings ---- */

PolicyObject *policy_object_free(PolicyObject *o) {
        if (!o)
                return NULL;

        egress_policy_free(o->egress);
        json_unref(o->document);
        free(o->text);
        free(o->steps);
        free(o->verify);
        free(o->reason);
        free(o->label);
        free(o->file);
        free(o->name);
        free(o);
        return NULL;
}

int policy_object_new(PolicyObject **ret, const char *folder, const char *name, const char *file) {
        _cleanup_(policy_object_freep) PolicyObject *o = NULL;

        o = calloc(1, sizeof(*o));
        if (!o)
                return -ENOMEM;

        o->name = strdup(name);
        o->file = strdup(file);
        o->label = folder ? text_format("%s/%s.json", folder, name) : text_format("%s.json", name);
        if (!o->name || !o->file || !o->label)
                return -ENOMEM;

        *ret = TAKE_PTR(o);
        return 0;
}

static bool grow_findings(Policy *p, PolicyFinding **list, size_t n, const char *file, const char *pointer, const char *reason, unsigned line) {
        PolicyFinding *grown;

        grown = reallocarray(*list, n + 1, sizeof(*grown));
        if (!grown) {
                p->out_of_memory = true;
                return false;
        }
        *list = grown;

        grown[n] = (PolicyFinding) {
                .file = strdup(file),
                .pointer = strdup(pointer),
                .reason = strdup(reason),
                .line = line,
        };
        if (!grown[n].file || !grown[n].pointer || !grown[n].reason)
                p->out_of_memory = true;
        return true;
}

void policy_add_file_finding(Policy *p, const char *file, const char *pointer, const char *reason, unsigned line) {
        if (p->n_findings < POLICY_FINDINGS_MAX && grow_findings(p, &p->findings, p->n_findings, file, pointer, reason, line))
                p->n_findings++;
}

/* Each look walks the text: a large file with many findings has lines for the first ones only. */
static unsigned find_line(const PolicyObject *o, const char *pointer, size_t n_before) {
        unsigned line;

        /* a finding about the whole file either says where, or is about no place in it */
        if (*pointer == '\0' || !o->text || o->text_size * (n_before + 1) > POLICY_LINES_SCAN_MAX || json_position(o->text, o->text_size, pointer, &line) < 0)
                return 0;
        return line;
}

void policy_add_finding(Policy *p, PolicyObject *o, const char *pointer, const char *reason) {
        unsigned line = find_line(o, pointer, p->n_findings);

        policy_add_file_finding(p, o->file, pointer, reason, line);

        if (!o->reason) {
                o->reason = line > 0 ? text_format("%s:%u: %s%s%s", o->file, line, pointer, *pointer ? ": " : "", reason)
                                     : text_format("%s: %s%s%s", o->file, pointer, *pointer ? ": " : "", reason);
                if (!o->reason)
                        p->out_of_memory = true;
        }
}

void policy_add_warning(Policy *p, const PolicyObject *o, const char *pointer, const char *reason) {
        if (p->n_warnings < POLICY_FINDINGS_MAX &&
            grow_findings(p, &p->warnings, p->n_warnings, o->file, pointer, reason, find_line(o, pointer, p->n_warnings)))
                p->n_warnings++;
}

void policy_object_taint(Policy *p, PolicyObject *o, const PolicyObject *cause) {
        if (o->reason)
                return;

        o->reason = strdup(cause->reason);
        if (!o->reason)
                p->out_of_memory = true;
}

void policy_findings_free(PolicyFinding *findings, size_t n) {
        for (size_t i = 0; i < n; i++) {
                free(findings[i].file);
                free(findings[i].pointer);
                free(findings[i].reason);
        }
        free(findings);
}

/* ---- finding objects ---- */

int policy_compare_objects(const void *a, const void *b) {
        return strcmp((*(PolicyObject *const *) a)->name, (*(PolicyObject *const *) b)->name);
}

PolicyObject *policy_find_unsorted(const Policy *p, PolicyKind kind, const char *name) {
        for (size_t i = 0; i < p->n_objects[kind]; i++)
                if (strcmp(p->objects[kind][i]->name, name) == 0)
                        return p->objects[kind][i];
        return NULL;
}

PolicyObject *policy_object_find(const Policy *p, PolicyKind kind, const char *name) {
        PolicyObject key = { .name = (char *) name }, *pkey = &key, **found;

        if (p->n_objects[kind] == 0)
                return NULL;

        found = bsearch(&pkey, p->objects[kind], p->n_objects[kind], sizeof(*p->objects[kind]), policy_compare_objects);
        return found ? *found : NULL;
}

/* ---- the set ---- */

int policy_digest_set(Policy *p) {
        _cleanup_json_ json_t *all = NULL;

        all = json_object();
        if (!all)
                return -ENOMEM;

        for (size_t k = 0; k < _POLICY_KINDS; k++)
                for (size_t i = 0; i < p->n_objects[k]; i++) {
                        PolicyObject *o = p->objects[k][i];

                        if (!o->reason && json_object_set(all, o->label, o->document) < 0)
                                return -ENOMEM;
                }
        if (p->host_file && !p->host_file->reason && json_object_set(all, p->host_file->label, p->host_file->document) < 0)
                return -ENOMEM;
        if (p->authority && !p->authority->reason && json_object_set(all, p->authority->label, p->authority->document) < 0)
                return -ENOMEM;

        return json_digest(all, p->digest);
}

int policy_new(Policy **ret) {
        _cleanup_(policy_freep) Policy *p = NULL;

        p = calloc(1, sizeof(*p));
        if (!p)
                return -ENOMEM;

        p->empty_array = json_array();
        if (!p->empty_array)
                return -ENOMEM;
        p->host = (HostConfig) {
                .accel = "auto",
                .resolvers = p->empty_array,
                .networks = p->empty_array,
                .max_runs = 3,
        };
        policy_budget_init(&p->host.budget);
        policy_space_init(&p->host.space);

        *ret = TAKE_PTR(p);
        return 0;
}

size_t policy_warnings(const Policy *p, const PolicyFinding **ret) {
        *ret = p->warnings;
        return p->n_warnings;
}

int policy_new_scratch(Policy **ret, json_t *document, PolicyObject **ret_object) {
        _cleanup_(policy_freep) Policy *p = NULL;
        int r;

        r = policy_new(&p) ?: policy_object_new(&p->host_file, NULL, "", "");
        if (r < 0)
                return r;

        p->host_file->document = json_incref(document);
        *ret_object = p->host_file;
        *ret = TAKE_PTR(p);
        return 0;
}

Policy *policy_free(Policy *p) {
        if (!p)
                return NULL;

        for (size_t k = 0; k < _POLICY_KINDS; k++) {
                for (size_t i = 0; i < p->n_objects[k]; i++)
                        policy_object_free(p->objects[k][i]);
                free(p->objects[k]);
                free(p->names[k]);
        }
        policy_object_free(p->host_file);
        policy_object_free(p->authority);
        json_unref(p->empty_array);
        policy_findings_free(p->findings, p->n_findings);
        policy_findings_free(p->warnings, p->n_warnings);
        free(p);
        return NULL;
}

/* ---- asking ---- */

static const PolicyObject *find_usable(const Policy *p, PolicyKind kind, const char *name, const char *missing,
                                       const char **ret_reason) {
        const PolicyObject *o;
        const char *reason;

        o = name ? policy_object_find(p, kind, name) : NULL;
        reason = o ? o->reason : missing;
        if (ret_reason)
                *ret_reason = reason;
        return reason ? NULL : o;
}

const PolicyWorkflow *policy_find_workflow(const Policy *p, const char *name, const char **ret_reason) {
        const PolicyObject *o = find_usable(p, POLICY_WORKFLOWS, name, "no workflow of that name", ret_reason);

        return o ? &o->workflow : NULL;
}

const char *policy_file_of_workflow(const Policy *p, const char *name) {
        const PolicyObject *o = policy_object_find(p, POLICY_WORKFLOWS, name);

        return o ? o->file : NULL;
}

const EgressPolicy *policy_find_egress(const Policy *p, const char *name, const char **ret_reason) {
        const PolicyObject *o = find_usable(p, POLICY_EGRESS, name, "no egress policy of that name", ret_reason);

        return o ? o->egress : NULL;
}

const PolicyCredential *policy_find_credential(const Policy *p, const char *name, const char **ret_reason) {
        const PolicyObject *o = find_usable(p, POLICY_CREDENTIALS, name, "no credential of that name", ret_reason);

        return o ? &o->credential : NULL;
}

const json_t *policy_find_harness(const Policy *p, const char *name, const char **ret_reason) {
        const PolicyObject *o = find_usable(p, POLICY_HARNESS, name, "no harness of that name", ret_reason);

        return o ? o->document : NULL;
}

const json_t *policy_find_provider(const Policy *p, const char *name, const char **ret_reason) {
        const PolicyObject *o = find_usable(p, POLICY_PROVIDERS, name, "no provider of that name", ret_reason);

        return o ? o->document : NULL;
}

size_t policy_list(const Policy *p, const char *kind, const char *const **ret_names) {
        for (size_t k = 0; k < _POLICY_KINDS; k++)
                if (strcmp(policy_kind_folder((PolicyKind) k), kind) == 0) {
                        *ret_names = p->names[k];
                        return p->n_objects[k];
                }

        *ret_names = NULL;
        return 0;
}

const json_t *policy_authority(const Policy *p) {
        return p->authority && !p->authority->reason ? p->authority->document : NULL;
}

const char *policy_digest(const Policy *p) {
        return p->digest;
}

const HostConfig *policy_host(const Policy *p) {
        return &p->host;
}

const char *policy_host_reason(const Policy *p) {
        return p->host_file ? p->host_file->reason : NULL;
}
