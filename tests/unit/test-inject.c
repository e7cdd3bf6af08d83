/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* A whole inject between stand-ins: how it gets the values that secretd has now. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "inject/inject.h"
#include "ipc/ipc.h"
#include "own-world.h"
#include "secret/bundle-api.h"
#include "util/io.h"
#include "util/json.h"

#define RUN "r0123456789ab"
#define SECRETD "/run/secretd.sock"
#define BUNDLE "/run/bundle"

typedef struct World {
        sd_event *event;
        IpcServer *secretd;
        Inject *inject;
        unsigned n_bad;   /* so many answers cannot be taken */
        unsigned n_values, n_watches, n_early;
        IpcCall *watch;
} World;

static void make_bundle(char **ret, size_t *ret_size) {
        _cleanup_(run_secrets_freep) RunSecrets *s = NULL;
        json_t *rule = json_pack("{s:[s], s:[i], s:[{s:s}]}", "hosts", "api.example.org", "ports", 443, "places", "header", "x-api-key");

        assert_int_equal(run_secrets_new(&s, RUN, "i0123456789ab", "code-fix", "work", time_realtime() + 3600000000ULL, 1), 0);
        assert_int_equal(run_secrets_set_credential(s, 0, "model", "sk-sentinel", rule, NULL), 0);
        assert_int_equal(secret_new(&s->credentials[0].secret, "sk-the-real-one", 15), 0);
        assert_int_equal(bundle_format(s, BUNDLE_WITH_SECRETS, ret, ret_size), 0);
        json_decref(rule);
}

static int on_values(IpcCall *call, json_t *params, void *userdata) {
        char path[] = "/run/values-XXXXXX", *data;
        World *w = userdata;
        size_t size;
        int fd = mkstemp(path);

        w->n_early += w->n_values < w->n_bad && w->n_watches > 0;
        make_bundle(&data, &size);
        if (w->n_values++ < w->n_bad)
                size /= 2;
        assert_int_equal(io_write_full(fd, data, size), 0);
        secret_erase(data, size);
        assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
        assert_true(ipc_call_push_fd(call, fd) >= 0);
        (void) unlink(path);
        return ipc_call_reply(call, NULL);
}

static int on_watch(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;

        w->n_watches++;
        w->n_early += w->n_values <= w->n_bad;
        ipc_call_unref(w->watch);
        w->watch = ipc_call_ref(call);
        return ipc_call_notify(call, json_pack("{s:[]}", "revoked"));
}

static const IpcMethod methods[] = {
        { "io.anchorhold.Secret.Values", PEER_ROOT, on_values },
        { "io.anchorhold.Secret.Watch", PEER_ROOT, on_watch },
        {},
};

static int set_up(void **state) {
        static const char *const paths[] = { "/run/inject.sock" };
        const InjectPaths where = { .bundle = BUNDLE, .egress = "/run/no-egressd.sock", .run_api = "/run/no-anchord.sock", .secret_api = SECRETD };
        World *w = calloc(1, sizeof(*w));
        size_t size;
        char *data;

        own_world_reserve(1);
        assert_int_equal(sd_event_new(&w->event), 0);
        assert_int_equal(ipc_server_new(&w->secretd, w->event, methods, w), 0);
        assert_true(ipc_server_listen_fd(w->secretd, own_world_listen(SECRETD)) >= 0);
        make_bundle(&data, &size);
        assert_int_equal(io_write_file_atomic(AT_FDCWD, BUNDLE, data, size, 0600), 0);
        secret_erase(data, size);
        own_world_pass(paths, 1, "inject");
        assert_int_equal(inject_new(&w->inject, w->event, RUN, &where), 0);
        *state = w;
        return 0;
}

static int tear_down(void **state) {
        World *w = *state;

        inject_free(w->inject);
        ipc_call_unref(w->watch);
        ipc_server_free(w->secretd);
        sd_event_unref(w->event);
        free(w);
        return 0;
}

static void test_values_taken(void **state) {
        World *w = *state;

        UNTIL(w->event, w->n_watches > 0);
        assert_int_equal(w->n_values, 1);
}

/* To watch is to say that what secretd has is in use: "anchorctl credential rotate" returns on that. */
static void test_values_not_taken(void **state) {
        World *w = *state;

        w->n_bad = 2;
        UNTIL(w->event, w->n_watches > 0);
        assert_int_equal(w->n_early, 0);
        assert_int_equal(w->n_values, 3);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_values_taken, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_values_not_taken, set_up, tear_down),
        };

        own_world_enter(0);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
