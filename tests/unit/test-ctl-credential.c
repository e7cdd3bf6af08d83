/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Whom "anchorctl credential rotate" waits for, between a played secretd and a systemctl of the test's. */

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ctl/ctl-credential.h"
#include "ipc/ipc.h"
#include "own-world.h"
#include "util/io.h"
#include "util/json.h"

#define RUN "r0123456789ab"
#define SECRETD "/run/anchorhold/secret-api.sock"

/* As the real one: of a state that was not asked for, no unit is listed. */
#define SYSTEMCTL                                              \
        "#!/bin/sh\n"                                          \
        "[ \"$1\" = list-units ] || exit 0\n"                   \
        "state=$(cat /run/state)\n"                            \
        "for a; do case $a in --state=*) states=,${a#--state=}, ;; esac; done\n" \
        "case $states in *,$state,*) echo \"anchor-inject@" RUN ".service loaded $state\" ;; esac\n"

typedef struct World {
        sd_event *event;
        IpcServer *secretd;
        pthread_t thread;
        CtlExit exit;
        size_t n_runs;
        char *err; /* owned */
        volatile bool over;
        bool watched;
        unsigned n_lists;
} World;

static void put(const char *path, const char *text, mode_t mode) {
        assert_int_equal(io_write_file_atomic(AT_FDCWD, path, text, strlen(text), mode), 0);
}

static int on_list(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;

        /* by the third question it has taken the value */
        if (++w->n_lists == 3) {
                put("/run/state", "active", 0644);
                w->watched = true;
        }
        return ipc_call_reply(call, json_pack("{s:[{s:s, s:[s], s:b}]}", "runs", "run", RUN, "credentials", "model", "watched", (int) w->watched));
}

static const IpcMethod methods[] = { { "io.anchorhold.Secret.List", PEER_ROOT, on_list }, {} };

static void *tell(void *userdata) {
        World *w = userdata;
        size_t size;
        Ctl ctl = { .out = stderr, .err = open_memstream(&w->err, &size) };

        w->exit = ctl_credential_tell(&ctl, "model", &w->n_runs);
        (void) fclose(ctl.err);
        w->over = true;
        return NULL;
}

static void wait_in(const char *inject_state, World *w) {
        *w = (World) {};
        put("/run/state", inject_state, 0644);
        assert_int_equal(sd_event_new(&w->event), 0);
        assert_int_equal(ipc_server_new(&w->secretd, w->event, methods, w), 0);
        assert_true(ipc_server_listen_fd(w->secretd, own_world_listen(SECRETD)) >= 0);
        assert_int_equal(pthread_create(&w->thread, NULL, tell, w), 0);
        UNTIL(w->event, w->over);
        assert_int_equal(pthread_join(w->thread, NULL), 0);
        assert_string_equal(w->err, "");
        assert_int_equal(w->exit, CTL_OK);
        assert_int_equal(w->n_runs, 1);
        ipc_server_free(w->secretd);
        sd_event_unref(w->event);
        free(w->err);
}

/* One that starts may have been given what secretd had before. */
static void test_waits(void **state) {
        static const char *const states[] = { "active", "activating" };

        for (size_t i = 0; i < ELEMENTSOF(states); i++) {
                World w;

                wait_in(states[i], &w);
                assert_int_equal(w.n_lists, 3);
        }
}

/* One that is not there gets what there is when it starts. */
static void test_does_not_wait(void **state) {
        World w;

        wait_in("inactive", &w);
        assert_int_equal(w.n_lists, 1);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_waits),
                cmocka_unit_test(test_does_not_wait),
        };

        own_world_enter(0);
        own_world_cover("/usr/bin");
        put("/usr/bin/systemctl", SYSTEMCTL, 0755);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
