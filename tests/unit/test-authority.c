/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Who may do what, by the groups that a peer connected with. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <grp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "api/authority.h"
#include "policy-tree.h"
#include "util/cleanup.h"

static Peer somebody(const char *group) {
        Peer p = { .roles = PEER_OTHER | PEER_OPERATOR, .uid = 1000, .gid = 4999, .pidfd = -1 };
        const struct group *found = group ? getgrnam(group) : NULL;

        if (group) {
                assert_non_null(found);
                p.groups = malloc(sizeof(gid_t));
                p.groups[0] = found->gr_gid;
                p.n_groups = 1;
        }
        return p;
}

/* What comes of it with that file: NULL if they may, else the reason. */
static char *check(const char *file, const char *act, const char *group, unsigned more_roles) {
        _cleanup_(peer_done) Peer peer = somebody(group);
        _cleanup_(tree_free) Tree t = {};
        char *reason = NULL;
        int r;

        tree_new(&t);
        if (file)
                tree_put(&t, "etc/anchorhold/authority.json", file);
        tree_load(&t);
        peer.roles |= more_roles;
        r = authority_check(t.policy, act, &peer, &reason);
        assert_int_equal(r, reason ? -EACCES : 0);
        return reason;
}

static void assert_denied(const char *file, const char *act, const char *group, const char *words) {
        _cleanup_free_ char *reason = check(file, act, group, 0), *root = NULL;

        assert_non_null(reason);
        if (!strstr(reason, words))
                fail_msg("\"%s\" is not in \"%s\"", words, reason);
        root = check(file, act, group, PEER_ROOT);
        assert_null(root);
}

#define FILE_OF(groups) "{\"submit\": {\"groups\": " groups "}, \"approve\": {\"groups\": [\"daemon\"]}}"

static void test_authority(void **state) {
        assert_null(check(FILE_OF("[\"adm\", \"tty\"]"), "submit", "tty", 0));
        assert_null(check(FILE_OF("[\"adm\", \"tty\"]"), "submit", "adm", 0));
        assert_denied(FILE_OF("[\"adm\", \"disk\", \"tty\"]"), "submit", "daemon", "only members of adm, disk or tty may submit");
        assert_denied(FILE_OF("[\"adm\", \"tty\"]"), "submit", NULL, "only members of adm or tty may submit");
        /* another act's groups do not count, nor does a group that is not there */
        assert_denied(FILE_OF("[\"adm\"]"), "submit", "daemon", "only members of adm");
        assert_null(check(FILE_OF("[\"adm\"]"), "approve", "daemon", 0));
        assert_denied(FILE_OF("[\"no-such-group\"]"), "submit", "adm", "no-such-group");
        /* nothing said is nobody */
        assert_denied(FILE_OF("[]"), "submit", "adm", "lists no group");
        assert_denied("{}", "submit", "adm", "lists no group");
        assert_denied(FILE_OF("[\"a b\"]"), "submit", "adm", "has a finding");
        assert_denied("{", "submit", "adm", "has a finding");
        assert_denied(NULL, "submit", "adm", "missing");
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_authority) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
