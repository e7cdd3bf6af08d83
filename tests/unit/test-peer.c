/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "ipc/peer-role.h"
#include "util/cgroup.h"
#include "util/cleanup.h"

#define RUN "r3k9x0a1b2c3d"
#define ITEM "i3k9x0a1b2c3d"
#define RUNS "/anchorhold.slice/anchorhold-runs.slice/anchorhold-runs-"

static const struct {
        const char *cgroup;
        const char *unit;
        PeerUnit kind;
        PeerRole role;
        const char *run;
} cases[] = {
        { "/anchorhold.slice/anchord.service",                         "anchord.service", PEER_UNIT_OURS, PEER_ANCHORD, "" },
        { "/anchorhold.slice/anchor-auditd.service/sub",               "anchor-auditd.service", PEER_UNIT_OURS, PEER_AUDITD, "" },
        { RUNS RUN ".slice/anchor-net@" RUN ".service",                "anchor-net@" RUN ".service", PEER_UNIT_OURS, PEER_NET, RUN },
        { RUNS RUN ".slice/anchor-netlog@" RUN ".service",                "anchor-netlog@" RUN ".service", PEER_UNIT_OURS, PEER_NETLOG, RUN },
        { RUNS RUN ".slice/anchor-check@" RUN ".service",                "anchor-check@" RUN ".service", PEER_UNIT_OURS, PEER_CHECK, RUN },
        { RUNS RUN ".slice/anchor-proxy@" RUN ".service",              "anchor-proxy@" RUN ".service", PEER_UNIT_OURS, PEER_PROXY, RUN },
        { RUNS ITEM ".slice/anchor-publish@" ITEM ".service",          "anchor-publish@" ITEM ".service", PEER_UNIT_OURS, PEER_PUBLISH, ITEM },

        /* the right name in the wrong place */
        { "/system.slice/anchord.service",                             "anchord.service", PEER_UNIT_MISPLACED, 0, "" },
        { "/anchorhold.slice/x.slice/anchord.service",                 "anchord.service", PEER_UNIT_MISPLACED, 0, "" },
        { "/anchorhold.slice/anchor-net@" RUN ".service",              "anchor-net@" RUN ".service", PEER_UNIT_MISPLACED, 0, "" },
        { "/anchorhold.slice/anchor-proxy@" RUN ".service",            "anchor-proxy@" RUN ".service", PEER_UNIT_MISPLACED, 0, "" },
        { RUNS "r000000000000.slice/anchor-proxy@" RUN ".service",     "anchor-proxy@" RUN ".service", PEER_UNIT_MISPLACED, 0, "" },
        { RUNS "r3.slice/anchor-proxy@r3.service",                     "anchor-proxy@r3.service", PEER_UNIT_MISPLACED, 0, "" },
        { RUNS ITEM ".slice/anchor-run@" ITEM ".service",              "anchor-run@" ITEM ".service", PEER_UNIT_MISPLACED, 0, "" },
        { "/anchorhold.slice/anchor-bpf.service",                      "anchor-bpf.service", PEER_UNIT_MISPLACED, 0, "" },
        { RUNS RUN ".slice/anchor-proxy@" RUN ".socket",               "anchor-proxy@" RUN ".socket", PEER_UNIT_MISPLACED, 0, "" },

        /* names that somebody else chose */
        { "/user.slice/user-1000.slice/user@1000.service/anchorhold.slice/anchord.service", "user@1000.service", PEER_UNIT_FOREIGN, 0, "" },
        { "/system.slice/ssh.service/anchorhold.slice/anchord.service", "ssh.service", PEER_UNIT_FOREIGN, 0, "" },
        { "/user.slice/user-0.slice/session-1.scope",                  "session-1.scope", PEER_UNIT_FOREIGN, 0, "" },
        { "/init.scope",                                               "init.scope", PEER_UNIT_FOREIGN, 0, "" },
};

static void test_classify(void **state) {
        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                char unit[256] = "", run[ID_LENGTH + 1] = "";
                PeerRole role = 0;

                assert_true(peer_unit_of_cgroup(cases[i].cgroup, unit));
                assert_string_equal(unit, cases[i].unit);
                assert_int_equal(peer_classify(unit, cases[i].cgroup, &role, run), cases[i].kind);
                assert_int_equal(role, cases[i].role);
                assert_string_equal(run, cases[i].run);
        }
}

static void test_no_unit(void **state) {
        static const char *const none[] = { "/", "", "/anchorhold.slice", "/docker/0123", "/a.slice//b.service", "x/anchord.service" };
        char unit[256];

        for (size_t i = 0; i < ELEMENTSOF(none); i++)
                assert_false(peer_unit_of_cgroup(none[i], unit));
}

/* The kernel's answers, about ourselves. */
static void test_socket(void **state) {
        _cleanup_(peer_done) Peer p = PEER_NULL;
        _cleanup_fd_ int root = cgroup_open_root(), nowhere = open("/dev/null", O_RDONLY | O_CLOEXEC);
        struct group *own;
        char buffer[64];
        int pair[2];

        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        assert_int_equal(peer_from_socket(pair[0], root, &p), 0);
        assert_int_equal(p.pid, getpid());
        assert_int_equal(p.uid, getuid());
        assert_true(p.pidfd >= 0);
        assert_true(p.roles & PEER_OTHER);
        assert_false(p.roles & (PEER_ANCHORD | PEER_AUDITD | PEER_RUN));
        assert_true(!!(p.roles & PEER_ROOT) == (getuid() == 0));
        assert_non_null(strstr(peer_name(&p, buffer), "uid "));
        assert_true((p.cgroup_id != 0) == (root >= 0));

        /* whose cgroup is not to be found is nobody */
        assert_int_equal(peer_from_socket(pair[0], nowhere, &(Peer) {}), -ENOTDIR);

        /* by its own group, by a supplementary one, by none */
        own = getgrgid(getgid());
        assert_non_null(own);
        assert_true(peer_is_in_group(&p, own->gr_name));
        assert_false(peer_is_in_group(&p, "no-such-group"));
        p.gid = 65534;
        p.n_groups = 0;
        assert_false(peer_is_in_group(&p, own->gr_name));
        free(p.groups);
        p.groups = malloc(sizeof(gid_t));
        p.groups[0] = getgid();
        p.n_groups = 1;
        assert_true(peer_is_in_group(&p, own->gr_name));
        (void) close(pair[0]);
        (void) close(pair[1]);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_classify),
                cmocka_unit_test(test_no_unit),
                cmocka_unit_test(test_socket),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
