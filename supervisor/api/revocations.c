/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Tokens of runs that are over (secretd's list, see its Outstanding) are brought back by a unit of the run that they were minted for, since
 * only such a unit has a way out, and one that is fenced: the run is registered with egressd anew, anchor-inject@RUN.service is started,
 * finds in its bundle that it is there for that alone, and ends; what is left of the run's units is stopped, and the run released. One run after the other, whatever ended it: it was finished,
 * stopped, or lost with its host. What could not be brought back is tried again at each sweep, until secretd drops it from the list as expired.
 *
 *   ASKING       secretd says which run
 *   REGISTERING  egressd knows it
 *   STARTING     systemd starts the unit, for half a minute
 *   RUNNING      until the unit has ended, for half a minute
 *   CLEANING     until nothing of the run is left
 *   RELEASING    egressd forgets it; until it has said so
 *
 * Nothing of it is in the ledger. At a crash the next life stops the unit as a stray, and begins again; the run's name is in a file until it is
 * released, so that egressd does not keep it for ever.
 */

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "api/manager-internal.h"
#include "util/io.h"
#include "util/json.h"
#include "util/log.h"

#define ANSWER_USEC (15 * USEC_PER_SEC)
#define START_USEC (30 * USEC_PER_SEC)
#define RUNNING_USEC (30 * USEC_PER_SEC)
#define AGAIN_USEC (2 * USEC_PER_SEC)
#define CLEANING_USEC (10 * USEC_PER_SEC)
#define LOOK_USEC (200 * 1000)

typedef enum RevocationState { REVOKE_IDLE, REVOKE_ASKING, REVOKE_REGISTERING, REVOKE_STARTING, REVOKE_RUNNING, REVOKE_CLEANING, REVOKE_RELEASING } RevocationState;

struct Revocation {
        Manager *manager; /* borrowed */
        RevocationState state;
        char run[ID_LENGTH + 1], last[ID_LENGTH + 1]; /* under way; the one before it in this round, "": none */
        uint64_t since;   /* CLOCK_MONOTONIC; of STARTING, RUNNING and CLEANING */
        bool listing;
        sd_event_source *timer; /* owned */
};

static void clean(Revocation *v);
static void release(Revocation *v);

bool revocation_has(const Manager *m, const char *run) {
        return m->revocation && m->revocation->state > REVOKE_ASKING && strcmp(m->revocation->run, run) == 0;
}

static void unit_of(const Revocation *v, const char *format, char ret[static 64]) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        (void) snprintf(ret, 64, format, v->run);
#pragma GCC diagnostic pop
}

/* ---- RELEASING ---- */

static int revocation_on_again(sd_event_source *source, uint64_t usec, void *userdata) {
        release(userdata);
        return 0;
}

/* Its name stays in the file, and no other run takes its place, until egressd knows it no more. */
static void release_again(Revocation *v) {
        int r;

        v->timer = sd_event_source_disable_unref(v->timer);
        r = sd_event_add_time_relative(v->manager->event, &v->timer, CLOCK_MONOTONIC, AGAIN_USEC, 0, revocation_on_again, v);
        if (r < 0)
                (void) manager_fatal(v->manager, r, "release a run after its tokens");
}

static void on_released(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        Revocation *v = userdata;

        if (error) {
                log_warning("run %s: egressd did not release it after its tokens: %s", v->run, error);
                release_again(v);
                return;
        }
        (void) unlink(REVOKING_PATH);
        memcpy(v->last, v->run, sizeof(v->last));
        v->state = REVOKE_IDLE;
        revocations_kick(v->manager);
}

static void release(Revocation *v) {
        v->timer = sd_event_source_disable_unref(v->timer);
        v->state = REVOKE_RELEASING;
        if (ipc_client_call_async(v->manager->egress, "io.anchorhold.Egress.Release", json_pack("{s:s}", "run", v->run), NULL, 0, false, ANSWER_USEC,
                                  on_released, v) < 0)
                release_again(v);
}

/* ---- RUNNING, CLEANING: what of the run is there? ---- */

static void on_listed(int r, const UnitState *units, size_t n, void *userdata) {
        Revocation *v = userdata;
        char inject[64];
        size_t left = 0;
        bool runs = false;

        v->listing = false;
        unit_of(v, "anchor-inject@%s.service", inject);
        for (size_t i = 0; r >= 0 && i < n; i++) {
                bool is_over = strcmp(units[i].active, "inactive") == 0 || strcmp(units[i].active, "failed") == 0;

                runs = runs || (!is_over && strcmp(units[i].name, inject) == 0);
                left += !is_over || units[i].job;
                if (v->state == REVOKE_CLEANING && strcmp(units[i].active, "failed") == 0)
                        (void) units_reset_failed(v->manager->units, units[i].name);
        }
        if (r < 0)
                return;
        if (v->state == REVOKE_RUNNING && !runs)
                clean(v);
        else if (v->state == REVOKE_CLEANING && left == 0)
                release(v);
}

static int revocation_on_look(sd_event_source *source, uint64_t usec, void *userdata) {
        Revocation *v = userdata;
        uint64_t passed = time_monotonic() - v->since;
        char units[64], slice[64];
        const char *const patterns[] = { units, slice, NULL };

        (void) sd_event_source_set_time_relative(source, LOOK_USEC);
        (void) sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
        if (v->state == REVOKE_STARTING) {
                if (passed > v->manager->revocation_start_usec) {
                        log_warning("run %s: anchor-inject@ does not start for its tokens within half a minute", v->run);
                        units_forget(v->manager->units, v); /* whatever comes of it is not about what follows */
                        v->listing = false;
                        clean(v);
                }
                return 0;
        }
        if (v->state == REVOKE_RUNNING && passed > RUNNING_USEC) {
                log_warning("run %s: its tokens are not all revoked within half a minute", v->run);
                clean(v);
                return 0;
        }
        if (v->state == REVOKE_CLEANING && passed > CLEANING_USEC) {
                release(v);
                return 0;
        }
        unit_of(v, "anchor-*@%s.*", units);
        unit_of(v, "anchorhold-runs-%s.slice", slice);
        if (!v->listing && units_list(v->manager->units, patterns, on_listed, v) >= 0)
                v->listing = true;
        return 0;
}

static void look_from_now(Revocation *v, RevocationState state) {
        int r;

        v->state = state;
        v->since = time_monotonic();
        v->timer = sd_event_source_disable_unref(v->timer);
        r = sd_event_add_time_relative(v->manager->event, &v->timer, CLOCK_MONOTONIC, LOOK_USEC / 4, 0, revocation_on_look, v);
        if (r < 0)
                (void) manager_fatal(v->manager, r, "watch a revocation");
}

static void clean(Revocation *v) {
        static const char *const parts[] = { "anchor-inject@%s.socket", "anchorhold-runs-%s.slice", "anchor-net@%s.service" };
        char unit[64];

        for (size_t i = 0; i < ELEMENTSOF(parts); i++) {
                unit_of(v, parts[i], unit);
                (void) units_stop(v->manager->units, unit);
        }
        look_from_now(v, REVOKE_CLEANING);
}

/* ---- STARTING, REGISTERING ---- */

static void on_started(int r, const char *result, void *userdata) {
        Revocation *v = userdata;

        if (v->state != REVOKE_STARTING)
                return;
        if (r < 0 || strcmp(result, "done") != 0) {
                log_warning("run %s: anchor-inject@ does not start for its tokens: %s", v->run, result);
                clean(v);
                return;
        }
        look_from_now(v, REVOKE_RUNNING);
}

static void on_registered(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        Revocation *v = userdata;
        char unit[64];

        if (error) {
                log_warning("run %s: its tokens cannot be revoked: egressd: %s", v->run, json_string_value(json_object_get(params, "reason")) ?: error);
                release(v);
                return;
        }
        look_from_now(v, REVOKE_STARTING);
        unit_of(v, "anchor-inject@%s.service", unit);
        if (units_start(v->manager->units, unit, on_started, v) < 0)
                release(v);
}

/* ---- ASKING ---- */

/* The next run of this round that nothing else is done with. */
static const json_t *choose(Revocation *v, const json_t *runs) {
        const json_t *best = NULL;

        for (size_t i = 0; i < json_array_size(runs); i++) {
                const json_t *entry = json_array_get(runs, i);
                const char *run = json_string_value(json_object_get(entry, "run")), *workflow = json_string_value(json_object_get(entry, "workflow"));

                if (!text_is_id('r', run) || !text_is_name(workflow) || strcmp(run, v->last) <= 0 || flow_find_run(v->manager, run))
                        continue;
                if (!best || strcmp(run, json_string_value(json_object_get(best, "run"))) < 0)
                        best = entry;
        }
        return best;
}

static void on_outstanding(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        Revocation *v = userdata;
        const json_t *entry = error ? NULL : choose(v, json_object_get(params, "runs"));
        int r;

        v->state = REVOKE_IDLE;
        if (!entry) {
                v->last[0] = '\0'; /* the next sweep begins a new round */
                return;
        }
        (void) snprintf(v->run, sizeof(v->run), "%s", json_string_value(json_object_get(entry, "run")));
        r = io_write_file_atomic(AT_FDCWD, REVOKING_PATH, v->run, strlen(v->run), 0600);
        if (r < 0) {
                log_error_errno(r, "cannot write %s", REVOKING_PATH);
                return;
        }
        r = ipc_client_call_async(v->manager->egress, "io.anchorhold.Egress.Register",
                                  json_pack("{s:s, s:O, s:s}", "run", v->run, "workflow", json_object_get(entry, "workflow"), "stage", "work"), NULL, 0,
                                  false, ANSWER_USEC, on_registered, v);
        if (r >= 0)
                v->state = REVOKE_REGISTERING;
}

void revocations_kick(Manager *m) {
        Revocation *v = m->revocation;

        if (!v || v->state != REVOKE_IDLE || !enforcers_ok(m, NULL))
                return;
        if (ipc_client_call_async(m->secret, "io.anchorhold.Secret.Outstanding", json_object(), NULL, 0, false, ANSWER_USEC, on_outstanding, v) >= 0)
                v->state = REVOKE_ASKING;
}

/* ---- start and end ---- */

int revocations_start(Manager *m) {
        _cleanup_free_ char *left = NULL;
        size_t size;

        m->revocation = malloc(sizeof(*m->revocation));
        if (!m->revocation)
                return -ENOMEM;
        *m->revocation = (Revocation) { .manager = m };
        m->revocation_start_usec = START_USEC;
        if (io_read_file(AT_FDCWD, REVOKING_PATH, 64, &left, &size) < 0 || !text_is_id('r', left))
                return 0;
        if (flow_find_run(m, left)) {
                (void) unlink(REVOKING_PATH);
                return 0;
        }
        memcpy(m->revocation->run, left, ID_LENGTH + 1);
        clean(m->revocation);
        return 0;
}

void revocations_free(Manager *m) {
        if (!m->revocation)
                return;
        m->revocation->timer = sd_event_source_disable_unref(m->revocation->timer);
        free(m->revocation);
        m->revocation = NULL;
}
