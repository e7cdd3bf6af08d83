/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The database (egress.db):
 *
 *   meta(key, value)                          boot: the boot id that everything below belongs to
 *   run(id, workflow, stage, egress, digest)  egress: the policy's name, NULL for none
 *   name(run, number, name, pattern)          number n is 198.18.0.1 + n; pattern: the wildcard that admitted it
 *   grant_(id, run, unit, cgroup, name, port, rule)
 *
 * Runs do not outlive the host, so nothing has to survive a loss of power: synchronous=NORMAL, and another boot id
 * empties all tables. It has to survive SIGKILL of egressd, which every commit does.
 *
 * A row is written before memory changes, so that what was answered once is never forgotten.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "egress/egress-state.h"
#include "egress/frozen-policy.h"
#include "util/io.h"
#include "util/log.h"
#include "util/sqlite.h"

typedef struct EgressName {
        char *name;     /* owned */
        char *pattern;  /* owned; NULL if an exact rule admits it */
} EgressName;

struct EgressState {
        Db *db;            /* owned */
        char *dir, *root;  /* owned */
        EgressRun *runs;   /* owned */
        size_t n_runs;
};

static const char schema[] =
        "CREATE TABLE IF NOT EXISTS meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;"
        "CREATE TABLE IF NOT EXISTS run(id TEXT PRIMARY KEY, workflow TEXT NOT NULL, stage TEXT NOT NULL,"
        " egress TEXT, digest TEXT NOT NULL) STRICT;"
        "CREATE TABLE IF NOT EXISTS name(run TEXT NOT NULL, number INTEGER NOT NULL, name TEXT NOT NULL, pattern TEXT,"
        " PRIMARY KEY(run, number), UNIQUE(run, name)) STRICT;"
        "CREATE TABLE IF NOT EXISTS grant_(id INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL, unit TEXT NOT NULL,"
        " cgroup INTEGER NOT NULL, name TEXT NOT NULL, port INTEGER NOT NULL, rule TEXT NOT NULL) STRICT;"
        "PRAGMA synchronous=NORMAL;";

/* ---- memory ---- */

static EgressGrant *grant_free(EgressGrant *g) {
        if (!g)
                return NULL;

        free(g->unit);
        free(g->name);
        free(g->rule);
        free(g);
        return NULL;
}
DEFINE_CLEANUP(EgressGrant *, grant_free)

static EgressRun *run_free(EgressRun *run) {
        if (!run)
                return NULL;

        while (run->grants) {
                EgressGrant *g = run->grants;

                run->grants = g->next;
                (void) grant_free(g);
        }
        for (size_t i = 0; i < run->n_names; i++) {
                free(run->names[i].name);
                free(run->names[i].pattern);
        }
        free(run->names);
        egress_policy_free(run->policy);
        free(run->workflow);
        free(run->stage);
        free(run);
        return NULL;
}
DEFINE_CLEANUP(EgressRun *, run_free)

static int run_new(EgressRun **ret, const char *id, const char *workflow, const char *stage, const char *digest) {
        _cleanup_(run_freep) EgressRun *run = NULL;

        run = calloc(1, sizeof(*run));
        if (!run)
                return -ENOMEM;

        (void) snprintf(run->id, sizeof(run->id), "%s", id);
        (void) snprintf(run->digest, sizeof(run->digest), "%s", digest);
        run->workflow = strdup(workflow);
        run->stage = strdup(stage);
        if (!run->workflow || !run->stage)
                return -ENOMEM;

        *ret = TAKE_PTR(run);
        return 0;
}

static int remember_name(EgressRun *run, const char *name, const char *pattern) {
        EgressName n;

        if (run->n_names == run->n_names_allocated) {
                size_t wanted = run->n_names_allocated ? run->n_names_allocated * 2 : 16;
                EgressName *names;

                names = reallocarray(run->names, wanted, sizeof(*names));
                if (!names)
                        return -ENOMEM;
                run->names = names;
                run->n_names_allocated = wanted;
        }

        n = (EgressName) { .name = strdup(name), .pattern = pattern ? strdup(pattern) : NULL };
        if (!n.name || (pattern && !n.pattern)) {
                free(n.name);
                free(n.pattern);
                return -ENOMEM;
        }
        run->names[run->n_names++] = n;
        return 0;
}

static int grant_new(EgressGrant **ret, EgressRun *run, const char *unit, uint64_t cgroup, const char *name, uint16_t port, const char *rule) {
        _cleanup_(grant_freep) EgressGrant *g = NULL;

        g = calloc(1, sizeof(*g));
        if (!g)
                return -ENOMEM;

        g->run = run;
        g->cgroup = cgroup;
        g->port = port;
        g->unit = strdup(unit);
        g->name = strdup(name);
        g->rule = strdup(rule);
        if (!g->unit || !g->name || !g->rule)
                return -ENOMEM;

        *ret = TAKE_PTR(g);
        return 0;
}

static void run_link_grant(EgressRun *run, EgressGrant *g) {
        g->next = run->grants;
        run->grants = g;
        run->n_grants++;
}

/* ---- opening ---- */

static int read_boot_id(char **ret) {
        size_t size;
        int r;

        r = io_read_file(AT_FDCWD, "/proc/sys/kernel/random/boot_id", 128, ret, &size);
        if (r < 0)
                return r;
        (*ret)[strcspn(*ret, "\n")] = '\0';
        return 0;
}

static int forget_everything(EgressState *s, const char *boot) {
        _cleanup_(db_stmt_donep) DbStmt *q = NULL;
        _cleanup_rollback_ DbGuard guard = {};
        int r;

        r = db_query(s->db, &q, "SELECT id FROM run", NULL);
        if (r < 0)
                return r;
        while ((r = db_step(q)) > 0)
                frozen_policy_remove(s->dir, db_column_text(q, 0), NULL);
        if (r < 0)
                return r;
        q = db_stmt_done(q);

        r = db_begin(s->db, &guard);
        if (r < 0)
                return r;
        r = db_exec(s->db, "DELETE FROM run; DELETE FROM name; DELETE FROM grant_;");
        if (r < 0)
                return r;
        r = db_run(s->db, "INSERT OR REPLACE INTO meta(key, value) VALUES('boot', ?)", DB_ARGS(DB_TEXT(boot)));
        if (r < 0)
                return r;
        return db_commit(&guard);
}

static int load_names(EgressState *s, EgressRun *run) {
        _cleanup_(db_stmt_donep) DbStmt *q = NULL;
        int r;

        r = db_query(s->db, &q, "SELECT number, name, pattern FROM name WHERE run = ? ORDER BY number", DB_ARGS(DB_TEXT(run->id)));
        if (r < 0)
                return r;
        while ((r = db_step(q)) > 0) {
                if (db_column_int(q, 0) != (int64_t) run->n_names)
                        return -EUCLEAN;
                r = remember_name(run, db_column_text(q, 1), db_column_text(q, 2));
                if (r < 0)
                        return r;
        }
        return r;
}

static int load_grants(EgressState *s, EgressRun *run) {
        _cleanup_(db_stmt_donep) DbStmt *q = NULL;
        int r;

        r = db_query(s->db, &q, "SELECT id, unit, cgroup, name, port, rule FROM grant_ WHERE run = ?", DB_ARGS(DB_TEXT(run->id)));
        if (r < 0)
                return r;
        while ((r = db_step(q)) > 0) {
                EgressGrant *g;

                r = grant_new(&g, run, db_column_text(q, 1), (uint64_t) db_column_int(q, 2), db_column_text(q, 3),
                              (uint16_t) db_column_int(q, 4), db_column_text(q, 5));
                if (r < 0)
                        return r;
                g->id = (uint64_t) db_column_int(q, 0);
                run_link_grant(run, g);
        }
        return r;
}

static int load_run(EgressState *s, DbStmt *q) {
        _cleanup_(run_freep) EgressRun *run = NULL;
        const char *egress = db_column_text(q, 3);
        int r;

        r = run_new(&run, db_column_text(q, 0), db_column_text(q, 1), db_column_text(q, 2), db_column_text(q, 4));
        if (r < 0)
                return r;
        r = load_names(s, run);
        if (r < 0)
                return r;
        r = load_grants(s, run);
        if (r < 0)
                return r;

        r = egress ? frozen_policy_read(s->dir, run->id, run->digest, &run->policy) : 0;
        if (r == -ENOMEM)
                return r;
        if (r < 0) {
                log_error_errno(r, "run %s: its frozen egress policy %s cannot be used any more; everything is denied", run->id, egress);
                run->lost = true;
        }

        run->next = s->runs;
        s->runs = TAKE_PTR(run);
        s->n_runs++;
        return 0;
}

static int load_runs(EgressState *s) {
        _cleanup_(db_stmt_donep) DbStmt *q = NULL;
        int r;

        r = db_query(s->db, &q, "SELECT id, workflow, stage, egress, digest FROM run", NULL);
        if (r < 0)
                return r;
        while ((r = db_step(q)) > 0) {
                r = load_run(s, q);
                if (r < 0)
                        return r;
        }
        return r;
}

static int is_of_this_boot(EgressState *s, const char *boot) {
        _cleanup_(db_stmt_donep) DbStmt *q = NULL;
        int r;

        r = db_query(s->db, &q, "SELECT value FROM meta WHERE key = 'boot'", NULL);
        if (r < 0)
                return r;
        r = db_step(q);
        if (r <= 0)
                return r;
        return strcmp(db_column_text(q, 0), boot) == 0;
}

int egress_state_open(EgressState **ret, const char *dir, const char *root, bool *ret_fresh) {
        _cleanup_(egress_state_freep) EgressState *s = NULL;
        _cleanup_free_ char *path = NULL, *boot = NULL;
        int r, same;

        s = calloc(1, sizeof(*s));
        if (!s)
                return -ENOMEM;

        s->dir = strdup(dir);
        s->root = strdup(root);
        path = text_format("%s/egress.db", dir);
        if (!s->dir || !s->root || !path)
                return -ENOMEM;

        r = read_boot_id(&boot);
        if (r < 0)
                return r;
        r = db_open(&s->db, path);
        if (r < 0)
                return r;
        r = db_exec(s->db, schema);
        if (r < 0)
                return r;

        same = is_of_this_boot(s, boot);
        if (same < 0)
                return same;
        r = same ? load_runs(s) : forget_everything(s, boot);
        if (r < 0)
                return r;

        *ret_fresh = !same;
        *ret = TAKE_PTR(s);
        return 0;
}

EgressState *egress_state_free(EgressState *s) {
        if (!s)
                return NULL;

        while (s->runs) {
                EgressRun *run = s->runs;

                s->runs = run->next;
                (void) run_free(run);
        }
        db_close(s->db);
        free(s->dir);
        free(s->root);
        free(s);
        return NULL;
}

/* ---- runs ---- */

EgressRun *egress_state_find(EgressState *s, const char *run) {
        for (EgressRun *i = s->runs; i; i = i->next)
                if (strcmp(i->id, run) == 0)
                        return i;
        return NULL;
}

EgressRun *egress_state_runs(EgressState *s) {
        return s->runs;
}

size_t egress_state_count(const EgressState *s) {
        return s->n_runs;
}

static int no_policy(char **ret_reason, const char *reason) {
        *ret_reason = strdup(reason ?: "it does not load");
        return *ret_reason ? EGRESS_STATE_E_NO_POLICY : -ENOMEM;
}

/* Finds the policy that holds for this workflow and stage, and writes it down as the run's. ret_egress (its name) is the caller's, NULL for none. */
static int freeze(EgressState *s, const char *run, const char *workflow, const char *stage, char **ret_egress,
                  char ret_digest[static HEX_SHA256_SIZE], char **ret_reason) {
        _cleanup_(policy_freep) Policy *set = NULL;
        const char *reason = NULL, *name;
        const PolicyWorkflow *w;
        const EgressPolicy *policy;
        int r;

        r = policy_load(&set, s->root, NULL, NULL);
        if (r < 0)
                return r;
        w = policy_find_workflow(set, workflow, &reason);
        if (!w)
                return no_policy(ret_reason, reason);

        name = strcmp(stage, "verify") == 0 ? w->verify_egress : w->egress;
        if (!name) {
                *ret_egress = NULL;
                strcpy(ret_digest, "none");
                return 0;
        }

        policy = policy_find_egress(set, name, &reason);
        if (!policy)
                return no_policy(ret_reason, reason);
        r = frozen_policy_write(s->dir, run, policy);
        if (r < 0)
                return r;
        (void) snprintf(ret_digest, HEX_SHA256_SIZE, "%s", egress_policy_digest(policy));
        *ret_egress = strdup(name);
        return *ret_egress ? 0 : -ENOMEM;
}

int egress_state_register(EgressState *s, const char *run, const char *workflow, const char *stage,
                          EgressRun **ret, char **ret_reason) {
        _cleanup_(run_freep) EgressRun *new = NULL;
        _cleanup_free_ char *egress = NULL;
        char digest[HEX_SHA256_SIZE] = "";
        EgressRun *old;
        int r;

        old = egress_state_find(s, run);
        if (old) {
                if (strcmp(old->workflow, workflow) != 0 || strcmp(old->stage, stage) != 0)
                        return EGRESS_STATE_E_CONFLICT;
                *ret = old;
                return 0;
        }
        if (s->n_runs >= EGRESS_RUNS_MAX)
                return EGRESS_STATE_E_FULL;

        r = freeze(s, run, workflow, stage, &egress, digest, ret_reason);
        if (r != 0)
                return r;

        /* what is on disk is what holds */
        r = run_new(&new, run, workflow, stage, digest);
        if (r >= 0 && egress)
                r = frozen_policy_read(s->dir, run, digest, &new->policy);
        if (r >= 0)
                r = db_run(s->db, "INSERT INTO run(id, workflow, stage, egress, digest) VALUES(?, ?, ?, ?, ?)",
                           DB_ARGS(DB_TEXT(run), DB_TEXT(workflow), DB_TEXT(stage), DB_TEXT(egress), DB_TEXT(digest)));
        if (r < 0) {
                frozen_policy_remove(s->dir, run, NULL);
                return r;
        }

        new->next = s->runs;
        *ret = s->runs = TAKE_PTR(new);
        s->n_runs++;
        return 0;
}

static int delete_run(EgressState *s, const char *run) {
        _cleanup_rollback_ DbGuard guard = {};
        int r;

        frozen_policy_remove(s->dir, run, NULL);
        r = db_begin(s->db, &guard);
        if (r < 0)
                return r;
        r = db_run(s->db, "DELETE FROM run WHERE id = ?", DB_ARGS(DB_TEXT(run)));
        if (r >= 0)
                r = db_run(s->db, "DELETE FROM name WHERE run = ?", DB_ARGS(DB_TEXT(run)));
        if (r >= 0)
                r = db_run(s->db, "DELETE FROM grant_ WHERE run = ?", DB_ARGS(DB_TEXT(run)));
        return r < 0 ? r : db_commit(&guard);
}

void egress_state_release(EgressState *s, EgressRun *run) {
        EgressRun **at = &s->runs;
        int r;

        r = delete_run(s, run->id);
        if (r < 0)
                log_warning_errno(r, "run %s: cannot be deleted from the database; the next boot will", run->id);

        while (*at != run)
                at = &(*at)->next;
        *at = run->next;
        s->n_runs--;
        (void) run_free(run);
}

/* ---- names ---- */

static size_t count_pattern(const EgressRun *run, const char *pattern) {
        size_t n = 0;

        for (size_t i = 0; i < run->n_names; i++)
                n += run->names[i].pattern && strcmp(run->names[i].pattern, pattern) == 0;
        return n;
}

int egress_run_admit_name(EgressState *s, EgressRun *run, const char *name, uint32_t *ret_address, bool *ret_new) {
        const char *pattern = NULL;
        unsigned budget;
        int r;

        for (size_t i = 0; i < run->n_names; i++)
                if (strcmp(run->names[i].name, name) == 0) {
                        *ret_address = SYNTHETIC_NETWORK + 1 + (uint32_t) i;
                        *ret_new = false;
                        return 0;
                }

        if (run->n_names >= RUN_NAMES_MAX)
                return EGRESS_STATE_E_NAMES;
        budget = egress_policy_name_budget(run->policy, name, &pattern);
        if (budget > 0 && count_pattern(run, pattern) >= budget)
                return EGRESS_STATE_E_BUDGET;
        if (budget == 0)
                pattern = NULL;

        r = db_run(s->db, "INSERT INTO name(run, number, name, pattern) VALUES(?, ?, ?, ?)",
                   DB_ARGS(DB_TEXT(run->id), DB_INT(run->n_names), DB_TEXT(name), DB_TEXT(pattern)));
        if (r < 0)
                return r;
        r = remember_name(run, name, pattern);
        if (r < 0) {
                (void) db_run(s->db, "DELETE FROM name WHERE run = ? AND number = ?", DB_ARGS(DB_TEXT(run->id), DB_INT(run->n_names)));
                return r;
        }

        *ret_address = SYNTHETIC_NETWORK + (uint32_t) run->n_names;
        *ret_new = true;
        return 0;
}

const char *egress_run_name_of(const EgressRun *run, const Address *address) {
        uint32_t v = 0;

        if (address->family != AF_INET)
                return NULL;

        for (size_t i = 0; i < 4; i++)
                v = v << 8 | address->bytes[i];
        if ((v & SYNTHETIC_MASK) != SYNTHETIC_NETWORK)
                return NULL;

        v -= SYNTHETIC_NETWORK;
        return v >= 1 && v <= run->n_names ? run->names[v - 1].name : NULL;
}

size_t egress_run_count_names(const EgressRun *run) {
        return run->n_names;
}

/* ---- grants ---- */

int egress_run_add_grant(EgressState *s, EgressRun *run, const char *unit, uint64_t cgroup, const char *name, uint16_t port,
                         const char *rule, const uint64_t *fence, size_t n_fence, EgressGrant **ret) {
        _cleanup_(grant_freep) EgressGrant *g = NULL;
        int r;

        if (run->n_grants >= RUN_GRANTS_MAX || n_fence > GRANT_ADDRESSES_MAX)
                return -ENOSPC;

        r = grant_new(&g, run, unit, cgroup, name, port, rule);
        if (r < 0)
                return r;
        memcpy(g->fence, fence, n_fence * sizeof(*fence));
        g->n_fence = n_fence;

        r = db_run(s->db, "INSERT INTO grant_(run, unit, cgroup, name, port, rule) VALUES(?, ?, ?, ?, ?, ?)",
                   DB_ARGS(DB_TEXT(run->id), DB_TEXT(unit), DB_INT(cgroup), DB_TEXT(name), DB_INT(port), DB_TEXT(rule)));
        if (r < 0)
                return r;

        g->id = (uint64_t) db_last_id(s->db);
        *ret = g;
        run_link_grant(run, TAKE_PTR(g));
        return 0;
}

EgressGrant *egress_run_find_grant(EgressRun *run, uint64_t id, uint64_t cgroup) {
        for (EgressGrant *g = run->grants; g; g = g->next)
                if (g->id == id && g->cgroup == cgroup)
                        return g;
        return NULL;
}

void egress_run_remove_grant(EgressState *s, EgressGrant *grant) {
        EgressGrant **at = &grant->run->grants;
        int r;

        r = db_run(s->db, "DELETE FROM grant_ WHERE id = ?", DB_ARGS(DB_INT(grant->id)));
        if (r < 0)
                log_warning_errno(r, "grant %lu: cannot be deleted from the database", (unsigned long) grant->id);

        while (*at != grant)
                at = &(*at)->next;
        *at = grant->next;
        grant->run->n_grants--;
        (void) grant_free(grant);
}
