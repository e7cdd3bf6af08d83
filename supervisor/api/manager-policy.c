/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The policy as anchord has it: read at the start, and anew for each submission and each run. A large one takes a second to read and compile, so
 * after the start that happens in a thread (util/background.c), and whoever needs it fresh waits for it without holding up anybody.
 *
 *   waiting   for a reading that has not begun: what is being read just now may be older than their question
 *   reading   they get what the reading under way finds
 *
 * What is replaced is freed in a thread as well.
 */

#include <errno.h>
#include <string.h>

#include "api/manager-internal.h"
#include "util/json.h"
#include "util/log.h"

struct PolicyReader {
        PolicyReader *next;
        ManagerPolicyRead done;
        void *userdata;
};

struct PolicyReading {
        Manager *manager;        /* borrowed */
        int result;
        Policy *policy;          /* owned, as are the findings */
        PolicyFinding *findings;
        size_t n_findings;
        char site[HEX_SHA256_SIZE]; /* digest of the operator's folder */
};

static void read_all(PolicyReading *q) {
        q->result = policy_load(&q->policy, "", &q->findings, &q->n_findings);
        if (q->result >= 0)
                q->result = policy_site_digest(POLICY_OPERATOR_DIR, q->site);
}

static void reading_done(PolicyReading *q) {
        q->policy = policy_free(q->policy);
        policy_findings_free(q->findings, q->n_findings);
        q->findings = NULL;
        q->n_findings = 0;
}

static PolicyReading *reading_free(PolicyReading *q) {
        if (q)
                reading_done(q);
        free(q);
        return NULL;
}

static void record_policy(Manager *m) {
        const char *digest = policy_digest(m->policy);
        _cleanup_json_ json_t *data = NULL;
        int r;

        if (!digest || strcmp(digest, m->policy_digest) == 0)
                return;

        (void) snprintf(m->policy_digest, sizeof(m->policy_digest), "%s", digest);
        data = json_pack("{s:s, s:I}", "digest", digest, "findings", (json_int_t) m->n_findings);
        r = data ? ledger_outbox_put(m->ledger, "policy.loaded", NULL, NULL, NULL, data) : -ENOMEM;
        if (r < 0)
                (void) manager_fatal(m, r, "record the policy");

        for (size_t i = 0; i < m->n_findings; i++)
                log_warning("policy: %s: %s: %s", m->findings[i].file, m->findings[i].pointer, m->findings[i].reason);
}

/* From now on this is the policy; what was before is in `q`. */
static int take(Manager *m, PolicyReading *q) {
        const PolicyReading read = *q;

        if (q->result < 0)
                return log_error_errno(q->result, "cannot load policy");

        q->policy = m->policy;
        q->findings = m->findings;
        q->n_findings = m->n_findings;
        m->policy = read.policy;
        m->findings = read.findings;
        m->n_findings = read.n_findings;
        record_policy(m);
        return site_policy_see(m, q->site);
}

int manager_load_policy(Manager *m) {
        PolicyReading q = {};
        int r;

        read_all(&q);
        r = take(m, &q);
        reading_done(&q);
        return r;
}

/* ---- after the start ---- */

static void begin_reading(Manager *m);

static void work_read(void *userdata) {
        read_all(userdata);
}

static void work_drop(void *userdata) {
        reading_done(userdata);
}

static void on_dropped(int r, void *userdata) {
        PolicyReading *q = userdata;

        q->manager->policy_dropped = reading_free(q);
}

static void serve(PolicyReader **readers, int r) {
        PolicyReader *reader;

        /* who is told may make others go away */
        while ((reader = *readers)) {
                *readers = reader->next;
                reader->done(r, reader->userdata);
                free(reader);
        }
}

static void on_read(int r, void *userdata) {
        PolicyReading *q = userdata;
        Manager *m = q->manager;

        m->policy_reading = NULL;
        if (r < 0)
                q->result = r;
        r = take(m, q);
        /* at most one: a later reading waits behind it */
        m->policy_dropped = q;
        if (background_start(m->background, work_drop, on_dropped, q) < 0)
                m->policy_dropped = reading_free(q);

        serve(&m->policy_served, r);
        scheduler_kick(m); /* how many runs there may be is part of it */
        if (m->policy_waiting && !m->policy_reading)
                begin_reading(m);
}

static void begin_reading(Manager *m) {
        PolicyReading *q = calloc(1, sizeof(*q));
        int r;

        m->policy_served = TAKE_PTR(m->policy_waiting);
        if (q)
                q->manager = m;
        r = q ? background_start(m->background, work_read, on_read, q) : -ENOMEM;
        if (r >= 0) {
                m->policy_reading = q;
                return;
        }
        free(q);
        serve(&m->policy_served, r);
}

int manager_read_policy(Manager *m, ManagerPolicyRead done, void *userdata) {
        PolicyReader *reader = malloc(sizeof(*reader)), **p = &m->policy_waiting;

        if (!reader)
                return -ENOMEM;
        *reader = (PolicyReader) { .done = done, .userdata = userdata };
        while (*p)
                p = &(*p)->next;
        *p = reader;
        if (!m->policy_reading)
                begin_reading(m);
        return 0;
}

void manager_refresh_policy(Manager *m) {
        if (!m->policy_reading)
                begin_reading(m);
}

static void forget(PolicyReader **p, const void *userdata) {
        while (*p) {
                PolicyReader *reader = *p;

                if (reader->userdata == userdata) {
                        *p = reader->next;
                        free(reader);
                } else
                        p = &reader->next;
        }
}

void manager_forget_policy_reader(Manager *m, const void *userdata) {
        forget(&m->policy_served, userdata);
        forget(&m->policy_waiting, userdata);
}

void manager_policy_done(Manager *m) {
        m->background = background_free(m->background);
        m->policy_reading = reading_free(m->policy_reading);
        m->policy_dropped = reading_free(m->policy_dropped);
        serve(&m->policy_served, -ECANCELED);
        serve(&m->policy_waiting, -ECANCELED);
        m->policy = policy_free(m->policy);
        policy_findings_free(m->findings, m->n_findings);
}
