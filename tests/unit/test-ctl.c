/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* anchorctl as a whole against a small anchord of our own: usage, statuses, what it files and lists. What its output is made of is test-ctl-format's. */

#include "ctl-server.h"

static void test_usage(void **state) {
        assert_int_equal(CTL(NULL), CTL_USAGE);
        assert_has(fixture.err, "A verb is missing");
        assert_int_equal(CTL(S("frobnicate")), CTL_USAGE);
        assert_has(fixture.err, "no verb \"frobnicate\"");
        assert_int_equal(CTL(S("frobnicate"), S("x")), CTL_USAGE);
        assert_has(fixture.err, "no verb \"frobnicate\".");
        assert_int_equal(CTL(S("policy")), CTL_USAGE);
        assert_has(fixture.err, "check, explain, test, import, log, allow, deny, reload, accept.");
        assert_int_equal(CTL(S("audit")), CTL_USAGE);
        assert_has(fixture.err, "one of: export, verify.");
        assert_int_equal(CTL(S("help"), S("policy"), S("nothing")), CTL_USAGE);
        assert_has(fixture.err, "check, explain,");
        assert_int_equal(CTL(S("policy"), S("nothing")), CTL_USAGE);
        assert_has(fixture.err, "policy nothing");
        assert_int_equal(CTL(S("list"), S("--nothing")), CTL_USAGE);
        assert_has(fixture.err, "no option --nothing");
        assert_int_equal(CTL(S("list"), S("-x")), CTL_USAGE);
        assert_has(fixture.err, "no option -x");
        assert_int_equal(CTL(S("list"), S("--repo=x")), CTL_USAGE);
        assert_has(fixture.err, "\"list\" has no option --repo");
        assert_has(fixture.err, "anchorctl list --help");
        assert_int_equal(CTL(S("list"), S("--limit")), CTL_USAGE);
        assert_has(fixture.err, "--limit needs a value");
        assert_int_equal(CTL(S("list"), S("--all=yes")), CTL_USAGE);
        assert_has(fixture.err, "--all takes no value");
        assert_int_equal(CTL(S("list"), S("--limit=0")), CTL_USAGE);
        assert_int_equal(CTL(S("list"), S("--limit=-1")), CTL_USAGE);
        assert_int_equal(CTL(S("list"), S("--json=xml")), CTL_USAGE);
        assert_int_equal(CTL(S("list"), S("--state=sleeping")), CTL_USAGE);
        assert_int_equal(CTL(S("list"), S("--all"), S("--state=queued")), CTL_USAGE);
        assert_int_equal(CTL(S("show")), CTL_USAGE);
        assert_int_equal(CTL(S("show"), S("x")), CTL_USAGE);
        assert_has(fixture.err, "is no item");
        assert_int_equal(CTL(S("logs"), S(ITEM), S(ITEM)), CTL_USAGE);
        assert_int_equal(CTL(S("stop")), CTL_USAGE);
        assert_int_equal(CTL(S("stop"), S("--hold"), S(ITEM)), CTL_USAGE);
        assert_int_equal(CTL(S("stop"), S("--all"), S(ITEM)), CTL_USAGE);
        assert_int_equal(CTL(S("submit"), S("--task=x")), CTL_USAGE);
        assert_has(fixture.err, "--workflow= is missing");
        assert_int_equal(CTL(S("submit"), S("--workflow=x"), S("--")), CTL_USAGE);
        assert_int_equal(CTL(S("submit"), S("--workflow=x"), S("--base=HEAD")), CTL_USAGE);
        assert_int_equal(CTL(S("submit"), S("--workflow=x"), S("--task=a"), S("--task-file=b")), CTL_USAGE);
        assert_int_equal(CTL(S("submit"), S("--workflow=x"), S("--workflow=y")), CTL_USAGE);
        assert_int_equal(CTL(S("host"), S("drain"), S("--within=soon")), CTL_USAGE);
        assert_has(fixture.err, "takes a time");
        assert_int_equal(CTL(S("host"), S("drain"), S("now")), CTL_USAGE);
        assert_int_equal(CTL(S("host"), S("undrain"), S("--within=1s")), CTL_USAGE);
        assert_int_equal(CTL(S("host")), CTL_USAGE);
        assert_has(fixture.err, "drain, undrain");
        assert_int_equal(CTL(S("policy"), S("log"), S("x")), CTL_USAGE);
        assert_int_equal(CTL(S("policy"), S("explain"), S("x"), S("host")), CTL_USAGE);
        assert_int_equal(CTL(S("policy"), S("explain"), S("x"), S("host:0")), CTL_USAGE);
        assert_int_equal(CTL(S("policy"), S("explain"), S("x"), S("192.0.2.1.1:443")), CTL_USAGE);
        assert_has(fixture.err, "is no host name");
        assert_has(fixture.err, "anchorctl policy explain --help");
        assert_int_equal(CTL(S("policy"), S("log"), S("--follow"), S(ITEM)), CTL_USAGE);
        assert_int_equal(CTL(S("policy"), S("log"), S("--follow"), S("--suggest"), S(RUN)), CTL_USAGE);
}

static void test_help(void **state) {
        assert_int_equal(CTL(S("--help")), CTL_OK);
        for (CtlVerb v = 0; v < _VERBS; v++) {
                char name[32], *space;

                assert_has(fixture.out, ctl_verbs[v].name);
                (void) snprintf(name, sizeof(name), "%s", ctl_verbs[v].name);
                space = strchr(name, ' ');
                if (space)
                        *space = '\0';
                /* operands do not matter with --help */
                if (space)
                        assert_int_equal(CTL(name, space + 1, S("-h")), CTL_OK);
                else
                        assert_int_equal(CTL(name, S("-h")), CTL_OK);
                assert_has(fixture.out, ctl_verbs[v].summary);
                assert_int_equal(CTL(S("--help")), CTL_OK);
        }
        assert_int_equal(CTL(S("help"), S("policy"), S("log")), CTL_OK);
        assert_has(fixture.out, "--blocked");
        assert_int_equal(CTL(S("help"), S("policy")), CTL_OK);
        assert_has(fixture.out, "anchorctl policy VERB");
        assert_has(fixture.out, "  policy log RUN|ITEM ");
        assert_lacks(fixture.out, "\n  host ");
        assert_int_equal(CTL(S("policy"), S("--help")), CTL_OK);
        assert_has(fixture.out, "anchorctl policy VERB");
        assert_int_equal(CTL(S("help"), S("nothing")), CTL_USAGE);
        assert_int_equal(CTL(S("--version")), CTL_OK);
        assert_has(fixture.out, "anchorhold ");
}

/* Options on either side of the verb, and what follows "--". */
static void test_submit(void **state) {
        _cleanup_free_ char *text = NULL;

        assert_int_equal(CTL(S("-w"), S("echo"), S("submit"), S("--task"), S("do it"), S("--"), S("ls"), S("--task"), S("--")), CTL_OK);
        assert_string_equal(fixture.out, ITEM "\n");
        assert_int_equal(io_read_file(AT_FDCWD, fixture.dump, 4096, &text, &(size_t) {}), 0);
        assert_string_equal(text, "{\"command\":[\"ls\",\"--task\",\"--\"],\"options\":{},\"task\":\"do it\",\"workflow\":\"echo\"}");

        assert_int_equal(CTL(S("submit"), S("--workflow=echo"), S("--json=short")), CTL_OK);
        assert_string_equal(fixture.out, "{\"item\":\"" ITEM "\"}\n");

        assert_int_equal(CTL(S("submit"), S("--workflow=echo"), S("--task-file=/nonexistent/x")), CTL_NOT_FOUND);
        assert_int_equal(CTL(S("submit"), S("--workflow=echo"), S("--task=\xff")), CTL_USAGE);
        assert_has(fixture.err, "UTF-8");
}

static void test_exit_codes(void **state) {
        assert_int_equal(CTL(S("submit"), S("--workflow=nothing")), CTL_NOT_FOUND);
        assert_has(fixture.err, "there is no workflow \"nothing\"");
        assert_int_equal(CTL(S("submit"), S("--workflow=broken")), CTL_REFUSED);
        assert_has(fixture.err, "/etc/x.json: /a: bad\\x1b[2J");
        assert_int_equal(CTL(S("submit"), S("--workflow=unfit")), CTL_USAGE);
        assert_int_equal(CTL(S("submit"), S("--workflow=hold")), CTL_CONFLICT);
        assert_int_equal(CTL(S("submit"), S("--workflow=denied")), CTL_REFUSED);
        assert_int_equal(CTL(S("submit"), S("--workflow=twice"), S("--source=x")), CTL_CONFLICT);
        assert_string_equal(fixture.out, ITEM "\n");
        assert_has(fixture.err, ITEM " is a duplicate, and nothing is done for it: item " ITEM_FAILS " with\\x1b.");
        assert_int_equal(CTL(S("submit"), S("--workflow=twice"), S("--source=x"), S("--json=short")), CTL_CONFLICT);
        assert_has(fixture.out, "\"duplicate\":\"item " ITEM_FAILS);
        assert_int_equal(CTL(S("show"), S(ITEM_FAILS)), CTL_NOT_FOUND);
        assert_int_equal(CTL(S("release")), CTL_REFUSED);
        assert_has(fixture.err, "anchorhold-operators");

        assert_int_equal(ctl_exit_of_state("in_review", NULL), CTL_OK);
        assert_int_equal(ctl_exit_of_state("closed", "nothing to review"), CTL_OK);
        assert_int_equal(ctl_exit_of_state("failed", NULL), CTL_FAILED);
        assert_int_equal(ctl_exit_of_state("exhausted", NULL), CTL_FAILED);
        assert_int_equal(ctl_exit_of_state("exhausted", "over budget: $5"), CTL_OVER_BUDGET);
        assert_int_equal(ctl_exit_of_state("cancelled", NULL), CTL_FAILED);
        assert_int_equal(ctl_exit_of_state("rejected", NULL), CTL_REFUSED);
        assert_int_equal(ctl_exit_of_state("duplicate", NULL), CTL_CONFLICT);
        assert_int_equal(ctl_exit_of_state("", NULL), CTL_FAILED);

        (void) unlink(fixture.path);
        assert_int_equal(CTL(S("status")), CTL_FAILED);
        assert_has(fixture.err, "systemctl start anchord.socket");
        assert_int_equal(CTL(S("stop"), S("--all")), CTL_FAILED);
        assert_has(fixture.err, "anchorhold-runs.slice");
        assert_int_equal(CTL(S("logs"), S("-f"), S(ITEM)), CTL_FAILED);
        assert_has(fixture.err, "anchord.socket is not running");
}

/* What a user who is not root gets: the exit status, if `text` is said, or 255. */
static int as_nobody(char **argv, const char *text) {
        pid_t pid = fork();
        int status = -1;

        if (pid == 0) {
                CtlExit r;

                if (setresgid(65534, 65534, 65534) < 0 || setresuid(65534, 65534, 65534) < 0)
                        _exit(255);
                r = run_ctl(argv, (Ctl) {});
                if (!strstr(fixture.err, text) && !strstr(fixture.out, text))
                        (void) dprintf(STDERR_FILENO, "%s: %s\n", argv[1], fixture.err);
                else
                        _exit((int) r);
                _exit(255);
        }
        assert_true(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status));
        return WEXITSTATUS(status);
}

#define AS_NOBODY(text, ...) as_nobody((char *[]) { (char *) "anchorctl", __VA_ARGS__, NULL }, text)

/* "Permission denied" is the same status wherever it comes from, and what is not there another. */
static void test_file_statuses(void **state) {
        static const char *const parts[] = { "shut", "unreadable/.git", "bare/objects" };
        _cleanup_free_ char *shut = text_format("%s/shut", fixture.folder), *inside = text_format("%s/x", shut), *file = text_format("%s/file", fixture.folder),
                            *missing = text_format("%s/none", fixture.folder), *below = text_format("%s/none", file), *from = NULL;
        const char *const denied[] = { inside, file }, *const absent[] = { missing, below };

        if (getuid() != 0)
                fail_msg("this test is root's");
        assert_return_code(chmod(fixture.folder, 0755), errno);
        shell("cd '%s' && mkdir shut && echo x >shut/x && " GIT_AS "init -q unreadable && " GIT_AS "init -q --bare bare && echo x >file && chmod 000 file", fixture.folder);
        for (size_t i = 0; i < ELEMENTSOF(parts); i++)
                shell("chmod 700 '%s/%s'", fixture.folder, parts[i]);

        for (unsigned k = 0; k < 2; k++)
                for (size_t i = 0; i < ELEMENTSOF(denied); i++) {
                        const char *path = (k == 0 ? denied : absent)[i], *said = k > 0 ? "o" : "ermission denied";
                        int expected = k == 0 ? CTL_REFUSED : CTL_NOT_FOUND;

                        assert_int_equal(AS_NOBODY(said, S("submit"), S("--workflow=echo"), S("--task-file"), S(path)), expected);
                        assert_int_equal(AS_NOBODY(said, S("submit"), S("--workflow=code"), S("--repo"), S(path)), expected);
                        assert_int_equal(AS_NOBODY(said, S("policy"), S("check"), S(path)), k == 0 ? CTL_REFUSED : CTL_FAILED);
                        assert_int_equal(AS_NOBODY(said, S("policy"), S("check"), S(path), S("-j")), k == 0 ? CTL_REFUSED : CTL_FAILED);
                        assert_int_equal(AS_NOBODY(said, S("policy"), S("test"), S(path), S("/dev/null")), expected);
                        assert_int_equal(AS_NOBODY(said, S("policy"), S("import"), S(path)), expected);
                        assert_int_equal(AS_NOBODY(said, S("policy"), S("check"), S("--root"), S(path)), expected);
                        assert_int_equal(AS_NOBODY(said, S("audit"), S("verify"), S("--file"), S(path)), expected);
                }
        for (size_t i = 0; i < ELEMENTSOF(parts); i++) {
                free(from);
                from = text_format("--repo=%s/%.*s", fixture.folder, (int) strcspn(parts[i], "/"), parts[i]);
                assert_int_equal(AS_NOBODY("ermission denied", S("submit"), S("--workflow=code"), from), CTL_REFUSED);
        }

        free(from);
        from = text_format("--bundle=%s/x", missing);
        assert_int_equal(CTL(S("result"), S(ITEM), from), CTL_NOT_FOUND);
}

static void test_cost(void **state) {
        assert_int_equal(CTL(S("cost"), S(ITEM)), CTL_OK);
        assert_has(fixture.out, "ATTEMPT");
        assert_has(fixture.out, RUN);
        assert_has(fixture.out, "34,567");
        assert_has(fixture.out, "$1.25 in 1,200 calls, 1 of them estimated.");
        assert_null(strchr(fixture.out, 033));
        assert_int_equal(CTL(S("cost"), S("--by=day"), S("--since=1970-01-02"), S("--json=short")), CTL_OK);
        assert_has(fixture.out, "\"since\":86400000000");
        assert_int_equal(CTL(S("cost"), S("--by=day"), S("--since=1970-01-01T00:00:01Z"), S("--no-legend")), CTL_OK);
        assert_has(fixture.out, "2026-01-31");
        assert_null(strstr(fixture.out, "DAY"));
        assert_int_equal(CTL(S("cost"), S("--by=day")), CTL_OK);
        assert_has(fixture.out, "$0.00 in 0 calls.");
        assert_int_equal(CTL(S("cost"), S("--since=7d"), S("--by=workflow")), CTL_OK);
        assert_int_equal(CTL(S("cost"), S("--by=hour")), CTL_USAGE);
        assert_has(fixture.err, "day or model");
        assert_int_equal(CTL(S("cost"), S("--since=yesterday")), CTL_USAGE);
        assert_int_equal(CTL(S("cost"), S("x")), CTL_USAGE);
        assert_int_equal(CTL(S("list"), S("--by=day")), CTL_USAGE);
}

static void test_list_and_show(void **state) {
        assert_int_equal(CTL(S("list")), CTL_OK);
        assert_has(fixture.out, ITEM "  running  code-fix");
        assert_has(fixture.out, "$0.0042  Fix \\x1b[31mthe\\x0a test");
        assert_has(fixture.out, "2 items listed.");
        assert_int_equal(CTL(S("list"), S("--no-legend")), CTL_OK);
        assert_null(strstr(fixture.out, "listed"));
        assert_null(strstr(fixture.out, "WORKFLOW"));
        assert_int_equal(CTL(S("list"), S("--state=queued"), S("-j")), CTL_OK);
        assert_string_equal(fixture.out, "[]\n");

        /* each reason why nothing starts, and no other line for the item than one */
        assert_int_equal(CTL(S("list"), S("--state=submitted")), CTL_OK);
        assert_has(fixture.out, "\nNo run starts: auditd: lost");
        assert_has(fixture.out, "\nNo run starts: on hold: stopped by root (uid 0); \"anchorctl release\" ends that.\n");
        assert_int_equal(CTL(S("list"), S("--state=submitted"), S("--no-legend")), CTL_OK);
        assert_ptr_equal(strchr(fixture.out, '\n'), fixture.out + strlen(fixture.out) - 1);

        /* more than anchord tells at once */
        assert_int_equal(CTL(S("list"), S("--state=merged")), CTL_OK);
        assert_has(fixture.out, "i000000000001  merged");
        assert_has(fixture.out, "i000000001200  merged");
        assert_has(fixture.out, "1200 items listed.");
        assert_int_equal(CTL(S("list"), S("--state=merged"), S("--limit=700")), CTL_OK);
        assert_null(strstr(fixture.out, "i000000000701"));
        assert_has(fixture.out, "700 items listed.");

        assert_int_equal(CTL(S("show"), S(ITEM)), CTL_OK);
        assert_has(fixture.out, ITEM " in_review\n");
        assert_has(fixture.out, "3min 20s");
        assert_null(strchr(fixture.out, '\033'));
        assert_has(fixture.out, "   Requester: root (uid 0)\n");
        assert_has(fixture.out, "\nEvidence\n         Run: " RUN "\n      Commit: abcdef\n        Fact: checks: ok\n     Seen by: guest\n");
        assert_has(fixture.out, "    Reported: exit_status: 0\n");
        assert_has(fixture.out, "    Reported: guest kernel: 6.12\\x1b[31m\n");
        assert_has(fixture.out, "      Policy: " RUN ": d1, d2\n");
        assert_has(fixture.out, "     Further: anew: true\n");
        assert_null(strchr(strstr(fixture.out, "Evidence"), '{'));
        assert_int_equal(CTL(S("show"), S(ITEM), S("--json=short")), CTL_OK);
        assert_has(fixture.out, "\"requester\":\"uid 0\"");
        assert_has(fixture.out, "\"reported\":{\"");
        assert_null(strchr(fixture.out, '\033'));

        assert_int_equal(CTL(S("status")), CTL_OK);
        assert_has(fixture.out, "enforcers auditd: lost");
        assert_has(fixture.out, "space free: 74.7G\n");
        assert_has(fixture.out, "space reserve: 0B\n");
        assert_has(fixture.out, "hold_reason: stopped by root (uid 0)\n");
        assert_has(fixture.out, "counts: none\n");
        assert_has(fixture.out, "templates: none\n");
        assert_has(fixture.out, "runs: raaaaaaaaaaaa of " ITEM ", work: running\n");
        assert_int_equal(CTL(S("doctor")), CTL_FAILED);
        assert_has(fixture.out, "auditd: lost");
        assert_has(fixture.out, "tcg, without KVM: no hello");
        assert_has(fixture.out, "anchorctl release");

        set("free", true);
        (void) CTL(S("doctor"));
        assert_has(fixture.out, "warning  accelerator  kvm, but the guest that tried it answered after 10.0 s, and a boot has 15 s\n");
        set("patient", true);
        (void) CTL(S("doctor"));
        assert_has(fixture.out, "good     accelerator  kvm\n");
        set("patient", false);
        set("free", false);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_usage, setup, teardown),
                cmocka_unit_test_setup_teardown(test_help, setup, teardown),
                cmocka_unit_test_setup_teardown(test_submit, setup, teardown),
                cmocka_unit_test_setup_teardown(test_exit_codes, setup, teardown),
                cmocka_unit_test_setup_teardown(test_file_statuses, setup, teardown),
                cmocka_unit_test_setup_teardown(test_list_and_show, setup, teardown),
                cmocka_unit_test_setup_teardown(test_cost, setup, teardown),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
