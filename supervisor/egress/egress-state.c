/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The database (egress.db):
 *
 *   meta(key, value)                          boot: the boot id that everything below belongs to
 *   run(id, workflow, stage, egress, digest, records, bounds)
 *                                             egress: the policy's name, NULL for none; records: about how many the audit log has of it; bounds: JSON, as
 *                                             atop policy-reach.c
 *   digest_(run, number, digest)              of every policy that it had, in their order; the last one holds
 *   name(run, number, name, pattern)          number n is 198.18.0.1 + n; pattern: the wildcard that admitted it
 *   grant_(id, run, unit, cgroup, name, port, rule, addresses)
 *                                             addresses: as text, between spaces
 *   close_(key, run, actor, data)             the record of an end that the audit log does not have yet, in place of its grant: egress-closes.c
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

#include "egress/egress-state-private.h"
#include "egress/frozen-policy.h"
#include "util/io.h"
#include "util/json.h"
#include "util/log.h"
#include "util/sqlite.h"

enum { SCHEMA_VERSION = 3 };

static const char schema[] =
        "CREATE TABLE IF NOT EXISTS meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;"
        "CREATE TABLE IF NOT EXISTS run(id TEXT PRIMARY KEY, workflow TEXT NOT NULL, stage TEXT NOT NULL,"
        " egress TEXT, digest TEXT NOT NULL, records INTEGER NOT NULL DEFAULT 0, bounds TEXT NOT NULL) STRICT;"
        "CREATE TABLE IF NOT EXISTS digest_(run TEXT NOT NULL, number INTEGER NOT NULL, digest TEXT NOT NULL, PRIMARY KEY(run, number)) STRICT;"
        "CREATE TABLE IF NOT EXISTS name(run TEXT NOT NULL, number INTEGER NOT NULL, name TEXT NOT NULL, pattern TEXT,"
        " PRIMARY KEY(run, number), UNIQUE(run, name)) STRICT;"
        "CREATE TABLE IF NOT EXISTS grant_(id INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL, unit TEXT NOT NULL,"
        " cgroup INTEGER NOT NULL, name TEXT NOT NULL, port INTEGER NOT NULL, rule TEXT NOT NULL,"
        " addresses TEXT NOT NULL) STRICT;"
        "CREATE TABLE IF NOT EXISTS close_(key TEXT PRIMARY KEY, run TEXT NOT NULL, actor TEXT NOT NULL, data TEXT NOT NULL) STRICT;"
        "PRAGMA synchronous=NORMAL;";

/* Of a database that another version has left: it is of this boot only if egressd was replaced while the host runs, and then its runs have to go. */
static const char outdated[] =
        "DROP TABLE IF EXISTS meta; DROP TABLE IF EXISTS run; DROP TABLE IF EXISTS digest_; DROP TABLE IF EXISTS name; DROP TABLE IF EXISTS grant_; DROP TABLE IF EXISTS close_;";

/* ---- memory ---- */

static EgressRun *run_free(EgressRun *run) {
        if (!run)
                return NULL;

        egress_run_grants_done(run);
        egress_run_names_done(run);
        json_unref(run->digests);
        json_unref(run->bounds);
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
        run->digests = json_array();
        if (!run->workflow || !run->stage || !run->digests)
                return -ENOMEM;

        *ret = TAKE_PTR(run);
        return 0;
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
        r = db_exec(s->db, "DELETE FROM run; DELETE FROM digest_; DELETE FROM name; DELETE FROM grant_; DELETE FROM close_;");
        if (r < 0)
                return r;
        r = db_run(s->db, "INSERT OR REPLACE INTO meta(key, value) VALUES('boot', ?)", DB_ARGS(DB_TEXT(boot)));
        if (r < 0)
                return r;
        return db_commit(&guard);
}

static int load_digests(EgressState *s, EgressRun *run) {
        _cleanup_(db_stmt_donep) DbStmt *q = NULL;
        int r;

        r = db_query(s->db, &q, "SELECT digest FROM digest_ WHERE run = ? ORDER BY number", DB_ARGS(DB_TEXT(run->id)));
        if (r < 0)
                return r;
        while ((r = db_step(q)) > 0)
                if (json_array_append_new(run->digests, json_string(db_column_text(q, 0))) < 0)
                        return -ENOMEM;
        return r;
}

static int load_run(EgressState *s, DbStmt *q) {
        _cleanup_(run_freep) EgressRun *run = NULL;
        const char *egress = db_column_text(q, 3);
        int r;

        r = run_new(&run, db_column_text(q, 0), db_column_text(q, 1), db_column_text(q, 2), db_column_text(q, 4));
        if (r < 0)
                return r;
        run->n_records = run->n_records_saved = (uint64_t) db_column_int(q, 5);
        r = json_parse(db_column_text(q, 6), strlen(db_column_text(q, 6)), &run->bounds, NULL);
        if (r >= 0)
                r = load_digests(s, run);
        if (r >= 0)
                r = egress_run_load_names(s, run);
        if (r >= 0)
                r = egress_run_load_grants(s, run);
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

        r = db_query(s->db, &q, "SELECT id, workflow, stage, egress, digest, records, bounds FROM run", NULL);
        if (r < 0)
                return r;
        while ((r = db_step(q)) > 0) {
                r = load_run(s, q);
                if (r < 0)
                        return r;
        }
        return r;
}

static int forget_another_version(EgressState *s) {
        int64_t version;
        int r;

        r = db_get_int(s->db, "PRAGMA user_version", NULL, &version);
        if (r < 0 || version == SCHEMA_VERSION)
                return r;

        r = db_exec(s->db, outdated);
        return r < 0 ? r : db_exec(s->db, "PRAGMA user_version = 3");
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

int egress_state_open(EgressState **ret, const char *dir, const char *root) {
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
        r = forget_another_version(s);
        if (r >= 0)
                r = db_exec(s->db, schema);
        if (r < 0)
                return r;

        same = is_of_this_boot(s, boot);
        if (same < 0)
                return same;
        r = same ? load_runs(s) : forget_everything(s, boot);
        if (r >= 0)
                r = egress_state_load_latest_grant(s);
        if (r < 0)
                return r;

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

/* The policy of this workflow and stage, as the files have it now. *ret and *ret_name are borrowed from the set, which is the caller's; NULL: none. */
static int find_policy(const EgressState *s, const char *workflow, const char *stage, Policy **ret_set, const char **ret_name,
                       const EgressPolicy **ret, char **ret_reason) {
        _cleanup_(policy_freep) Policy *set = NULL;
        const char *reason = NULL, *name;
        const EgressPolicy *policy = NULL;
        const PolicyWorkflow *w;
        int r;

        r = policy_load(&set, s->root, NULL, NULL);
        if (r < 0)
                return r;
        w = policy_find_workflow(set, workflow, &reason);
        if (!w)
                return no_policy(ret_reason, reason);

        name = strcmp(stage, "verify") == 0 ? w->verify_egress : w->egress;
        if (name)
                policy = policy_find_egress(set, name, &reason);
        if (name && !policy)
                return no_policy(ret_reason, reason);

        *ret_set = TAKE_PTR(set);
        *ret_name = name;
        *ret = policy;
        return 0;
}

/* What is on disk is what holds. */
static int freeze(const EgressState *s, const char *run, const char *workflow, const char *stage, EgressFrozen *f) {
        _cleanup_(policy_freep) Policy *set = NULL;
        const EgressPolicy *policy;
        const char *name;
        int r;

        r = find_policy(s, workflow, stage, &set, &name, &policy, &f->reason);
        if (r == 0)
                r = strcmp(stage, "work") == 0 ? policy_workflow_bounds(set, policy_find_workflow(set, workflow, NULL), &f->bounds) : 0;
        if (r == 0 && !f->bounds)
                f->bounds = json_array();
        if (r != 0 || !policy)
                return r;

        f->egress = strdup(name);
        if (!f->egress)
                return -ENOMEM;
        (void) snprintf(f->digest, sizeof(f->digest), "%s", egress_policy_digest(policy));
        r = frozen_policy_write(s->dir, run, policy);
        return r < 0 ? r : frozen_policy_read(s->dir, run, f->digest, &f->policy);
}

void egress_state_freeze(const EgressState *s, const char *run, const char *workflow, const char *stage, EgressFrozen *ret) {
        *ret = (EgressFrozen) { .digest = "none" };
        ret->result = freeze(s, run, workflow, stage, ret);
        if (ret->result < 0)
                egress_state_unfreeze(s, run);
}

void egress_state_unfreeze(const EgressState *s, const char *run) {
        frozen_policy_remove(s->dir, run, NULL);
}

void egress_frozen_done(EgressFrozen *f) {
        egress_policy_free(f->policy);
        json_unref(f->bounds);
        free(f->egress);
        free(f->reason);
        *f = (EgressFrozen) {};
}

static int insert_digest(EgressState *s, const char *run, size_t number, const char *digest) {
        return db_run(s->db, "INSERT INTO digest_(run, number, digest) VALUES(?, ?, ?)", DB_ARGS(DB_TEXT(run), DB_INT(number), DB_TEXT(digest)));
}

static int insert_run(EgressState *s, EgressRun *run, const char *egress) {
        _cleanup_free_ char *bounds = json_canonical(run->bounds);
        _cleanup_rollback_ DbGuard guard = {};
        int r;

        if (!bounds || json_array_append_new(run->digests, json_string(run->digest)) < 0)
                return -ENOMEM;

        r = db_begin(s->db, &guard);
        if (r >= 0)
                r = db_run(s->db, "INSERT INTO run(id, workflow, stage, egress, digest, bounds) VALUES(?, ?, ?, ?, ?, ?)",
                           DB_ARGS(DB_TEXT(run->id), DB_TEXT(run->workflow), DB_TEXT(run->stage), DB_TEXT(egress), DB_TEXT(run->digest), DB_TEXT(bounds)));
        if (r >= 0)
                r = insert_digest(s, run->id, 0, run->digest);
        return r < 0 ? r : db_commit(&guard);
}

static int add_run(EgressState *s, const char *id, const char *workflow, const char *stage, EgressFrozen *frozen, EgressRun **ret) {
        _cleanup_(run_freep) EgressRun *run = NULL;
        int r;

        r = run_new(&run, id, workflow, stage, frozen->digest);
        if (r >= 0) {
                run->bounds = TAKE_PTR(frozen->bounds);
                r = insert_run(s, run, frozen->egress);
        }
        if (r < 0)
                return r;

        run->policy = TAKE_PTR(frozen->policy);
        run->next = s->runs;
        *ret = s->runs = TAKE_PTR(run);
        s->n_runs++;
        return 0;
}

int egress_state_register(EgressState *s, const char *run, const char *workflow, const char *stage, EgressFrozen *frozen, EgressRun **ret) {
        EgressRun *old = egress_state_find(s, run);
        int r;

        if (old) {
                if (strcmp(old->workflow, workflow) != 0 || strcmp(old->stage, stage) != 0)
                        return EGRESS_STATE_E_CONFLICT;
                *ret = old;
                return 0;
        }

        r = s->n_runs >= EGRESS_RUNS_MAX ? EGRESS_STATE_E_FULL : frozen->result;
        if (r == 0)
                r = add_run(s, run, workflow, stage, frozen, ret);
        if (r != 0)
                egress_state_unfreeze(s, run);
        return r;
}

int egress_state_write(const EgressState *s, const char *run, const EgressPolicy *policy) {
        return frozen_policy_write(s->dir, run, policy);
}

int egress_state_change(EgressState *s, EgressRun *run, EgressPolicy *policy, EgressPolicy **ret_old) {
        const char *digest = egress_policy_digest(policy);
        _cleanup_rollback_ DbGuard guard = {};
        int r;

        if (json_array_append_new(run->digests, json_string(digest)) < 0)
                return -ENOMEM;

        r = db_begin(s->db, &guard);
        if (r >= 0)
                r = db_run(s->db, "UPDATE run SET digest = ?, egress = coalesce(egress, '') WHERE id = ?", DB_ARGS(DB_TEXT(digest), DB_TEXT(run->id)));
        if (r >= 0)
                r = insert_digest(s, run->id, json_array_size(run->digests) - 1, digest);
        if (r >= 0)
                r = db_commit(&guard);
        if (r < 0) {
                (void) json_array_remove(run->digests, json_array_size(run->digests) - 1);
                return r;
        }

        *ret_old = run->policy;
        run->policy = policy;
        strcpy(run->digest, digest);
        frozen_policy_remove(s->dir, run->id, digest);
        return 0;
}

int egress_state_load_policy(const EgressState *s, const char *workflow, const char *stage, Policy **ret_set, const EgressPolicy **ret, char **ret_reason) {
        const char *name;

        return find_policy(s, workflow, stage, ret_set, &name, ret, ret_reason);
}

void egress_state_save_records(EgressState *s, EgressRun *run) {
        int r;

        if (run->n_records == run->n_records_saved)
                return;
        r = db_run(s->db, "UPDATE run SET records = ? WHERE id = ?", DB_ARGS(DB_INT(run->n_records), DB_TEXT(run->id)));
        if (r < 0)
                log_warning_errno(r, "run %s: the number of its records cannot be kept", run->id);
        else
                run->n_records_saved = run->n_records;
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
                r = db_run(s->db, "DELETE FROM digest_ WHERE run = ?", DB_ARGS(DB_TEXT(run)));
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
