/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* anchorctl beside work that goes on: an item that is followed or stopped, what keeps it waiting, its result; the seed of a run, and a drain. */

#include "ctl-server.h"
#include "ctl/ctl-drain.h"

static void test_follow(void **state) {
        assert_int_equal(CTL(S("run"), S("--workflow=echo")), CTL_OK);
        assert_string_equal(fixture.out, "hello \\x1b]0;x\\x07\n");
        assert_has(fixture.err, "12:34:56 running\n");
        assert_has(fixture.err, "oops\n");
        assert_has(fixture.err, "step exec: exit status 3");
        assert_has(fixture.err, "booting: boots 1, accel tcg\\x1b\n");

        assert_int_equal(CTL(S("run"), S("--workflow=fails"), S("-q")), CTL_FAILED);
        assert_string_equal(fixture.err, "oops\n");

        assert_int_equal(CTL(S("run"), S("--workflow=fails")), CTL_FAILED);
        assert_has(fixture.err, "exhausted: stopped by root (uid 0)\n");

        assert_int_equal(CTL(S("logs"), S(ITEM), S("--json=short")), CTL_OK);
        assert_has(fixture.out, "\"seq\":2");
        assert_int_equal(CTL(S("logs"), S(ITEM), S("--run=rbbbbbbbbbbbb"), S("-q")), CTL_OK);
        assert_string_equal(fixture.out, "");

        /* Ctrl-C leaves the run alone */
        assert_int_equal(CTL(S("logs"), S("-f"), S(ITEM_HANGS)), CTL_INTERRUPTED);
        assert_has(fixture.err, "anchorctl stop " ITEM_HANGS);

        /* anchord dies in the middle: we go on behind what we had */
        if (CTL(S("logs"), S("-f"), S(ITEM_DROPS)) != CTL_OK)
                fail_msg("%s", fixture.err);
        assert_string_equal(fixture.out, "one\nhello \\x1b]0;x\\x07\n");
        assert_has(fixture.err, "anchord went away");
}

static FILE *full(bool buffered) {
        FILE *f = fopen("/dev/full", "we");

        assert_non_null(f);
        if (!buffered)
                setbuf(f, NULL); /* as standard error */
        return f;
}

/* Whatever verb writes: output that went nowhere is no success, and is said once. */
static void test_lost_output(void **state) {
        static const char *const calls[][6] = {
                { "run", "--workflow=echo" }, { "run", "--workflow=echo", "--json=short" }, { "run", "--workflow=echo", "-q" },
                { "submit", "--workflow=echo" }, { "submit", "--workflow=echo", "-j" },
                { "list" }, { "list", "-j" }, { "list", "--state=merged" }, { "show", ITEM }, { "show", ITEM, "-j" }, { "cost" }, { "cost", "-j" },
                { "logs", ITEM }, { "logs", ITEM, "-j" }, { "logs", "-f", ITEM }, { "logs", "-f", "-j", ITEM }, { "logs", "-f", ITEM_DROPS },
                { "result", ITEM }, { "result", ITEM, "-j" }, { "result", ITEM, "--diff" }, { "stop", "--all", "-j" },
                { "policy", "check", "srt.json" }, { "policy", "import", "srt.json" }, { "credential", "list" },
                { "status" }, { "status", "-j" }, { "doctor" }, { "doctor", "-j" }, { "version" }, { "version", "-j" }, { "--version" },
                { "help" }, { "help", "list" }, { "--help" }, { "list", "--help" },
        };
        _cleanup_free_ char *settings = text_format("%s/srt.json", fixture.folder);

        assert_int_equal(io_write_file_atomic(AT_FDCWD, settings, "{\"a\": 1}", 8, 0600), 0);
        for (size_t i = 0; i < ELEMENTSOF(calls); i++) {
                char *a[6] = {}, *argv[8] = { S("anchorctl") };
                const char *said;
                CtlExit good;

                for (size_t k = 0; calls[i][k]; k++)
                        a[k] = argv[k + 1] = strcmp(calls[i][k], "srt.json") == 0 ? settings : S(calls[i][k]);
                good = run_ctl(argv, (Ctl) {});
                if (!*fixture.out || strstr(fixture.err, "Cannot write"))
                        fail_msg("%s %s: nothing on standard output, or: %s", a[0], a[1] ?: "", fixture.err);

                if (run_ctl(argv, (Ctl) { .out = full(true) }) != (good == CTL_OK ? CTL_FAILED : good))
                        fail_msg("%s %s: that its output is lost is no failure", a[0], a[1] ?: "");
                said = strstr(fixture.err, "Cannot write: No space left on device\n");
                if (!said || strstr(said + 1, "Cannot write"))
                        fail_msg("%s %s says of its lost output: %s", a[0], a[1] ?: "", fixture.err);
        }

        /* what a program wrote to standard error is output as well; what is only told is not */
        assert_int_equal(CTL_INTO(NULL, full(false), S("run"), S("--workflow=echo")), CTL_FAILED);
        assert_int_equal(CTL_INTO(NULL, full(false), S("stop"), S("--all")), CTL_OK);
}

static void test_stop(void **state) {
        assert_int_equal(CTL(S("stop"), S(ITEM), S(ITEM_FAILS)), CTL_OK);
        assert_int_equal(CTL(S("stop"), S("--all"), S("--hold")), CTL_OK);
        assert_has(fixture.err, "1 item stopped. No run starts");
        assert_int_equal(CTL(S("stop"), S("--all"), S("--hold"), S("--json=short")), CTL_OK);
        assert_string_equal(fixture.out, "{\"stopped\":[\"" ITEM "\"]}\n");
}

/* That runs start again is said when nothing else is in the way, and otherwise what is. */
static void test_what_keeps_runs(void **state) {
        static const struct {
                const char *words[3], *ended, *again;
        } calls[] = {
                { { "release" }, "The hold is released.", "Runs start again." },
                { { "host", "undrain" }, "The drain is ended.", "Items are leased again." },
        };

        set("operator", true);
        for (size_t i = 0; i < ELEMENTSOF(calls); i++) {
                assert_int_equal(CTL(S(calls[i].words[0]), S(calls[i].words[1])), CTL_OK);
                assert_has(fixture.err, calls[i].ended);
                assert_has(fixture.err, "\nNo run starts: on hold: stopped by root (uid 0); \"anchorctl release\" ends that.\n");
                assert_has(fixture.err, "\nNo run starts: auditd: lost.\n");
                assert_lacks(fixture.err, "again.");
                set("free", true);
                assert_int_equal(CTL(S(calls[i].words[0]), S(calls[i].words[1])), CTL_OK);
                assert_int_equal(strncmp(fixture.err, calls[i].again, strlen(calls[i].again)), 0);
                assert_lacks(fixture.err, "No run");
                set("free", false);
        }

        set("moved", true);
        assert_int_equal(CTL(S("policy"), S("accept")), CTL_OK);
        assert_has(fixture.err, "in place of d1.\nNo run starts: the policy in /etc/anchorhold");
        set("moved", false);

        /* doctor agrees with itself, and does not take a closed door for an empty house */
        assert_int_equal(CTL(S("doctor"), S("--json=short")), CTL_FAILED);
        assert_has(fixture.out, "{\"check\":\"hold\",\"health\":\"bad\"");
        set("stranger", true);
        assert_int_equal(CTL(S("doctor")), CTL_FAILED);
        assert_has(fixture.out, "unknown  anchord      this user may not ask it");
        assert_lacks(fixture.out, "does not answer");
}

/* A verification that waits is a reason if it has the place of a run; the control is that one of the others has it, or there is another place. */
static void test_verification_has_the_place(void **state) {
        static const char says[] = "\nNo run starts: 1 of the 2 runs that this host has, as many as it may, is a verification that cannot begin yet; their items' notes say for what.\n";

        set("verifying", true);
        assert_int_equal(CTL(S("list"), S("--state=submitted")), CTL_OK);
        assert_has(fixture.out, says);
        set("free", true);
        assert_int_equal(CTL(S("list"), S("--state=submitted")), CTL_OK);
        assert_lacks(fixture.out, "No run starts");
        set("free", false);
        set("verifying", false);
        set("full", true);
        assert_int_equal(CTL(S("list"), S("--state=submitted")), CTL_OK);
        assert_lacks(fixture.out, "No run starts");
        set("full", false);
}

/* Who follows what is queued is told why it does not start, once. */
static void test_queued(void **state) {
        const char *said;

        assert_int_equal(CTL(S("run"), S("--workflow=waits")), CTL_OK);
        said = strstr(fixture.err, "\nNo run starts: on hold: stopped by root (uid 0); \"anchorctl release\" ends that.\n");
        assert_non_null(said);
        assert_null(strstr(said + 1, "\nNo run starts: on hold"));

        set("free", true);
        assert_int_equal(CTL(S("run"), S("--workflow=waits")), CTL_OK);
        assert_lacks(fixture.err, "No run starts");
}

/* A wait of more than a second: a status line that is taken back on a terminal, nothing yet anywhere else. */
static void test_progress(void **state) {
        const char *line, *gone;

        assert_int_equal(CTL_REDRAW(S("stop"), S(ITEM_SLOW)), CTL_OK);
        line = strstr(fixture.err, "\u2026 Stopping " ITEM_SLOW ": 1 s");
        assert_non_null(line);
        gone = strstr(line, "\r\033[K");
        assert_non_null(gone);
        assert_string_equal(gone, "\r\033[K"); /* and nothing behind it */
        assert_string_equal(fixture.out, "");

        assert_int_equal(CTL_REDRAW(S("stop"), S("-q"), S(ITEM_SLOW)), CTL_OK);
        assert_string_equal(fixture.err, "");
        assert_int_equal(CTL(S("stop"), S(ITEM_SLOW)), CTL_OK);
        assert_string_equal(fixture.err, "");
        assert_int_equal(CTL_REDRAW(S("stop"), S(ITEM)), CTL_OK);
        assert_string_equal(fixture.err, ""); /* quick things need none */
}

static void test_result(void **state) {
        _cleanup_free_ char *path = text_format("--bundle=%s/bundle", fixture.folder), *data = NULL;
        size_t size;

        assert_int_equal(CTL(S("result"), S(ITEM), S("--diff")), CTL_OK);
        assert_string_equal(fixture.out, "+a\033[2Jb\n"); /* to a pipe: as it is */
        assert_int_equal(CTL_TTY(S("result"), S(ITEM), S("--diff"), S("--no-pager")), CTL_OK);
        assert_string_equal(fixture.out, "+a\\x1b[2Jb\n");
        assert_int_equal(CTL(S("result"), S(ITEM), path), CTL_OK);
        assert_int_equal(io_read_file(AT_FDCWD, path + strlen("--bundle="), 100, &data, &size), 0);
        assert_int_equal(size, 8);
        assert_int_equal(CTL_TTY(S("result"), S(ITEM), S("--bundle=-"), S("--no-pager")), CTL_USAGE);
        assert_int_equal(CTL(S("result"), S(ITEM)), CTL_OK);
        assert_has(fixture.out, "in_review");
}

/* ---- seed bundle ---- */

static void test_seed(void **state) {
        _cleanup_free_ char *repo = text_format("%s/repo:x", fixture.folder), *option = text_format("--repo=%s", repo),
                            *sub = text_format("--repo=%s/deep", repo), *bare = text_format("--repo=%s/bare.git", fixture.folder),
                            *folder = text_format("--repo=%s", fixture.folder), *missing = text_format("--repo=%s/none", fixture.folder),
                            *shallow = text_format("--repo=%s/shallow", fixture.folder), *path = NULL;

        assert_int_equal(CTL(S("submit"), S("--workflow=code"), missing), CTL_NOT_FOUND);
        assert_int_equal(CTL(S("submit"), S("--workflow=code"), folder), CTL_NOT_FOUND);
        assert_has(fixture.err, "not a git repository");

        shell(GIT_AS "init -q '%s' && mkdir '%s/deep'", repo, repo);
        assert_int_equal(CTL(S("submit"), S("--workflow=code"), option), CTL_NOT_FOUND);
        assert_has(fixture.err, "There is no commit in");

        shell("cd '%s' && echo one >a && " GIT_AS "add a && " GIT_AS "commit -qm one && " GIT_AS "tag -m t v1 && echo two >a && "
              GIT_AS "commit -qam two", repo);
        /* what must not run, and what must not matter */
        shell("cd '%s' && git config core.fsmonitor 'touch %s/ran; false' && git config core.pager 'touch %s/ran' && "
              "git config uploadpack.packObjectsHook 'touch %s/ran' && git config pack.packSizeLimit 1", repo, fixture.folder, fixture.folder,
              fixture.folder);
        assert_int_equal(CTL(S("submit"), S("--workflow=code"), option, S("--base=v2")), CTL_NOT_FOUND);
        assert_has(fixture.err, "There is no commit \"v2\"");
        assert_int_equal(CTL(S("submit"), S("--workflow=code"), option, S("--base=--help")), CTL_USAGE);
        assert_int_equal(CTL(S("submit"), S("--workflow=code"), option, S("--base=HEAD:a")), CTL_NOT_FOUND);
        assert_int_equal(CTL(S("submit"), S("--workflow=code"), option, S("--base=0123456789012345678901234567890123456789")), CTL_NOT_FOUND);

        assert_int_equal(CTL(S("submit"), S("--workflow=code"), option, S("--base=v1")), CTL_OK);
        assert_string_equal(fixture.err, "");
        shell("cd '%s' && test \"$(git bundle list-heads '%s')\" = \"$(git rev-parse v1^{}) refs/anchorhold/base\" && "
              "git init -q --bare '%s/out.git' && git -C '%s/out.git' fetch -q '%s' refs/anchorhold/base && "
              "git -C '%s/out.git' fsck --strict", repo, fixture.dump, fixture.folder, fixture.folder, fixture.dump, fixture.folder);
        assert_int_equal(CTL(S("submit"), S("--workflow=code"), sub), CTL_OK);
        shell("cd '%s' && git bundle list-heads '%s' | grep -q $(git rev-parse HEAD)", repo, fixture.dump);
        assert_int_equal(access("ran", F_OK), -1);
        shell("test ! -e '%s/ran'", fixture.folder);

        /* a bare one, a linked worktree, a repository of somebody else, another object format, a shallow one */
        shell("git clone -q --bare '%s' '%s/bare.git' && git -C '%s' worktree add -q '%s/tree'", repo, fixture.folder, repo, fixture.folder);
        assert_int_equal(CTL(S("submit"), S("--workflow=code"), bare), CTL_OK);
        free(bare);
        bare = text_format("--repo=%s/tree", fixture.folder);
        assert_int_equal(CTL(S("submit"), S("--workflow=code"), bare), CTL_OK);
        if (getuid() == 0)
                shell("chown -R 65534:65534 '%s'", repo);
        assert_int_equal(CTL(S("submit"), S("--workflow=code"), option), CTL_OK);
        shell("chown -R %u '%s'", getuid(), repo);

        shell("git clone -q --depth 1 'file://%s' '%s/shallow' 2>/dev/null", repo, fixture.folder);
        assert_int_equal(CTL(S("submit"), S("--workflow=code"), shallow), CTL_FAILED);
        assert_has(fixture.err, "is shallow");

        shell("rm -rf '%s/shallow' && " GIT_AS "init -q --object-format=sha256 '%s/shallow' && cd '%s/shallow' && "
              GIT_AS "commit -q --allow-empty -m x", fixture.folder, fixture.folder, fixture.folder);
        assert_int_equal(CTL(S("submit"), S("--workflow=code"), shallow), CTL_OK);
        shell("cd '%s/shallow' && git bundle list-heads '%s' | grep -Eq '^[0-9a-f]{64} refs/anchorhold/base$'", fixture.folder, fixture.dump);

        /* no place for the bundle is no missing git; a missing git is one */
        assert_int_equal(setenv("TMPDIR", "/nonexistent", 1), 0);
        assert_int_equal(CTL(S("submit"), S("--workflow=code"), option), CTL_FAILED);
        assert_has(fixture.err, "Cannot make a folder in /nonexistent, ");
        assert_lacks(fixture.err, "git");
        assert_int_equal(unsetenv("TMPDIR"), 0);
        path = strdup(getenv("PATH"));
        assert_int_equal(setenv("PATH", "/nonexistent", 1), 0);
        assert_int_equal(CTL(S("submit"), S("--workflow=code"), option), CTL_FAILED);
        assert_has(fixture.err, "Cannot run git: ");
        assert_int_equal(setenv("PATH", path, 1), 0);

        shell("test -z \"$(find /tmp -maxdepth 1 -name 'anchorctl-*' ! -path '%s' -newer '%s')\"", fixture.folder, fixture.path);
}

static CtlExit comes_about(Ctl *ctl) {
        return CTL_OK;
}

/* The reboot: does anything run now? */
static CtlExit finds_none(Ctl *ctl) {
        _cleanup_json_ json_t *status = NULL;

        assert_int_equal(ctl_call(ctl, "ask", "Status", json_object(), NULL, 0, &status, NULL, 0), CTL_OK);
        return json_is_true(json_object_get(status, "ready")) && json_array_size(json_object_get(status, "runs")) == 0 ? CTL_OK : CTL_FAILED;
}

static CtlExit is_refused(Ctl *ctl) {
        ctl_error(ctl, "refused");
        return CTL_FAILED;
}

/* What the host is drained for afterwards, or NULL; err is then in the fixture. */
static char *after_drain_for(const char *reason, CtlExit (*then)(Ctl *ctl), CtlExit expected) {
        _cleanup_json_ json_t *status = NULL;
        const char *left;
        size_t err_size;
        Ctl ctl = { .api_path = fixture.path };

        free(fixture.err);
        ctl.out = ctl.err = open_memstream(&fixture.err, &err_size);
        assert_int_equal(ctl_drain_for(&ctl, 1, reason, then), expected);
        assert_int_equal(ctl_call(&ctl, "ask", "Status", json_object(), NULL, 0, &status, NULL, 0), CTL_OK);
        (void) fclose(ctl.err);
        left = ctl_string(json_object_get(status, "drain"), "reason");
        return left ? strdup(left) : NULL;
}

static char *after_signal(const char *reason) {
        sigset_t signals, mask;
        char *left;

        (void) sigemptyset(&signals);
        (void) sigaddset(&signals, SIGTERM);
        assert_return_code(sigprocmask(SIG_BLOCK, &signals, &mask), errno);
        assert_return_code(raise(SIGTERM), errno);
        left = after_drain_for(reason, comes_about, CTL_FAILED);
        assert_return_code(sigprocmask(SIG_SETMASK, &mask, NULL), errno); /* kills, if nobody took it */
        return left;
}

static void test_drain_for(void **state) {
        _cleanup_free_ char *reboots = NULL, *over = NULL, *refused = NULL, *stopped = NULL, *theirs = NULL, *before = NULL;

        reboots = after_drain_for("upgrade", comes_about, CTL_OK);
        assert_string_equal(reboots, "upgrade");

        /* anchord is started anew meanwhile: that it lists no run says nothing */
        over = after_drain_for("over a restart", finds_none, CTL_OK);
        assert_string_equal(over, "over a restart");

        /* one that was there before stays, whatever comes of this */
        before = after_drain_for("rollback", is_refused, CTL_FAILED);
        assert_string_equal(before, "rollback");
        assert_int_equal(CTL(S("host"), S("undrain")), CTL_OK);

        refused = after_drain_for("upgrade", is_refused, CTL_FAILED);
        assert_null(refused);
        assert_has(fixture.err, "is ended.\nNo run starts: auditd: lost.\n");
        assert_lacks(fixture.err, "again");
        set("free", true);
        refused = after_drain_for("upgrade", is_refused, CTL_FAILED);
        assert_null(refused);
        assert_has(fixture.err, "is ended.\nItems are leased again.\n");
        set("free", false);

        /* as the unit that takes too long is, or a person does */
        stopped = after_signal("long");
        assert_null(stopped);
        assert_has(fixture.err, "Told to end");

        theirs = after_drain_for("nobody", is_refused, CTL_FAILED);
        assert_string_equal(theirs, "another");
        assert_int_equal(CTL(S("host"), S("undrain")), CTL_OK);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_drain_for, setup, teardown),
                cmocka_unit_test_setup_teardown(test_follow, setup, teardown),
                cmocka_unit_test_setup_teardown(test_lost_output, setup, teardown),
                cmocka_unit_test_setup_teardown(test_stop, setup, teardown),
                cmocka_unit_test_setup_teardown(test_what_keeps_runs, setup, teardown),
                cmocka_unit_test_setup_teardown(test_verification_has_the_place, setup, teardown),
                cmocka_unit_test_setup_teardown(test_queued, setup, teardown),
                cmocka_unit_test_setup_teardown(test_progress, setup, teardown),
                cmocka_unit_test_setup_teardown(test_result, setup, teardown),
                cmocka_unit_test_setup_teardown(test_seed, setup, teardown),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
