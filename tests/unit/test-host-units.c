/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Which cgroups are listed units, over folders that stand for cgroups. */

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <cmocka.h>

#include "net/host-units.h"
#include "util/cleanup.h"

static char root[] = "/tmp/host-units-XXXXXX";
static int root_fd = -1;

static uint64_t make(const char *path) {
        struct stat st;

        assert_return_code(mkdirat(root_fd, path, 0755), errno);
        assert_return_code(fstatat(root_fd, path, &st, 0), errno);
        return st.st_ino;
}

static int set_up(void **state) {
        assert_non_null(mkdtemp(root));
        root_fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return root_fd < 0 ? -1 : 0;
}

static int tear_down(void **state) {
        char command[64];

        root_fd = fd_close(root_fd);
        (void) snprintf(command, sizeof(command), "rm -r %s", root);
        return system(command);
}

static void test_matches(void **state) {
        assert_true(host_unit_matches("ssh.service", "ssh.service"));
        assert_false(host_unit_matches("ssh.service", "ssh.socket"));
        assert_false(host_unit_matches("xssh.service", "ssh.service"));
        assert_true(host_unit_matches("getty@tty1.service", "getty@*.service"));
        assert_false(host_unit_matches("getty@.service", "getty@*.service"));   /* no instance */
        assert_false(host_unit_matches("getty@tty1.socket", "getty@*.service"));
        assert_false(host_unit_matches("sgetty@tty1.service", "getty@*.service"));
}

static size_t n_seen;

static void on_slice(int fd, void *userdata) {
        n_seen++;
}

static bool is_listed(const HostUnits *u, uint64_t id) {
        const HostUnit *unit = host_units_by_id(u, id);

        return unit && unit->listed;
}

static void test_find(void **state) {
        _cleanup_json_ json_t *patterns = json_pack("[s,s,s,s,s]", "ssh.service", "user.slice", "ssh@*.service", "cpu.service", "init.scope");
        uint64_t init, ssh, template, escaped, user, session, other, fake, nested, deep, run, runs;
        HostUnits units = {};

        init = make("init.scope");
        make("system.slice");
        ssh = make("system.slice/ssh.service");
        escaped = make("system.slice/_cpu.service");
        make("system.slice/system-ssh.slice");
        template = make("system.slice/system-ssh.slice/ssh@1.service");
        user = make("user.slice");
        session = make("user.slice/session-1.scope");
        other = make("system.slice/other.service");
        fake = make("system.slice/other.service/ssh.service");       /* whoever runs in other.service made it */
        nested = make("system.slice/other.service/made-up.slice");
        deep = make("system.slice/other.service/made-up.slice/ssh.service");
        make("anchorhold.slice");
        runs = make("anchorhold.slice/anchorhold-runs.slice");
        run = make("anchorhold.slice/anchorhold-runs.slice/ssh.service");
        make("no-unit");
        make("no-unit/ssh.service");
        assert_return_code(symlinkat("system.slice", root_fd, "link.slice"), errno);

        assert_int_equal(host_units_find(&units, root_fd, patterns, on_slice, NULL), 0);
        assert_int_equal(n_seen, 5); /* root, system, system-ssh, user, anchorhold */
        assert_true(is_listed(&units, init));
        assert_true(is_listed(&units, ssh));
        assert_true(is_listed(&units, escaped));
        assert_true(is_listed(&units, template));
        assert_true(is_listed(&units, user));
        assert_false(is_listed(&units, session)); /* the program finds the slice above it */
        assert_non_null(host_units_by_id(&units, session));
        assert_non_null(host_units_by_id(&units, other));
        assert_string_equal(host_units_by_id(&units, other)->name, "other.service");
        assert_false(is_listed(&units, other));
        assert_null(host_units_by_id(&units, fake));
        assert_null(host_units_by_id(&units, nested));
        assert_null(host_units_by_id(&units, deep));
        assert_non_null(host_units_by_id(&units, runs));
        assert_null(host_units_by_id(&units, run));
        host_units_done(&units);

        /* a list of nobody */
        assert_int_equal(host_units_find(&units, root_fd, NULL, NULL, NULL), 0);
        for (size_t i = 0; i < units.n; i++)
                assert_false(units.list[i].listed);
        host_units_done(&units);
}

static void test_depth(void **state) {
        char path[256] = "a.slice";
        HostUnits units = {};

        for (int i = 0; i < 17; i++) {
                make(path);
                strcat(path, "/a.slice");
        }
        assert_int_equal(host_units_find(&units, root_fd, NULL, NULL, NULL), -E2BIG);
        assert_null(units.list);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_matches),
                cmocka_unit_test(test_find),
                cmocka_unit_test(test_depth),
        };

        return cmocka_run_group_tests(tests, set_up, tear_down);
}
