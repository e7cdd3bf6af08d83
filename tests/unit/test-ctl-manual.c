/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The manual page without man(1): every macro that it has is understood, every verb is in it. */

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ctl/ctl-manual.h"
#include "ctl/ctl-table.h"
#include "ctl/ctl.h"
#include "util/io.h"

static char *page;

static int read_page(void **state) {
        return io_read_file(AT_FDCWD, "docs/man/anchorctl.1", 256 * 1024, &page, NULL);
}

static int forget_page(void **state) {
        free(page);
        return 0;
}

/* The caller's. */
static char *print(const char *text, const char *verb, unsigned columns, int expected) {
        char *out = NULL;
        size_t size;
        FILE *f = open_memstream(&out, &size);

        assert_non_null(f);
        assert_int_equal(manual_print(f, text, verb, columns), expected);
        assert_int_equal(fclose(f), 0);
        return out;
}

static void assert_printed(const char *text, const char *expected) {
        _cleanup_free_ char *out = print(text, NULL, 40, 0);

        assert_string_equal(out, expected);
}

static void test_macros(void **state) {
        assert_printed("one\n.Sy two ,\nthree\n", "one two, three\n");
        assert_printed(".Op Fl -key Ns = Ns Ar FILE\n", "[--key=FILE]\n");
        assert_printed(".Ic a Oo Fl -b Ns = Ns Ar B Oc Op Fl - Ar C ...\n", "a [--b=B] [-- C ...]\n");
        assert_printed(".Fl w , Fl -workflow Ns = Ns Ar NAME\n", "-w, --workflow=NAME\n");
        assert_printed("a\n.Po Ql b ,\n.Ql c\n.Pc ;\nd\n", "a ('b', 'c'); d\n");
        assert_printed(".Pq Ql a b ,\n.Xr man 1 .\n", "('a b'), man(1).\n");
        assert_printed("(one of\n.Ql raw ) ,\nx\\ey \\[u2026]\n", "(one of 'raw'), x\\y …\n");
        assert_printed(".Nm\n.Nm anchorctl\n.Nd a thing\n", "anchorctl anchorctl - a thing\n");
        assert_printed("12345678 12345678 12345678 12345678 1234567\n", "12345678 12345678 12345678 12345678\n1234567\n");
        assert_printed(".Sh NAME\na\n.Pp\nb\n.Ss One\nc\n", "NAME\n    a\n\n    b\n\n  One\n    c\n");
        assert_printed(".Bl -tag\n.It Ic a\n.It Ic b Ar X\ntext\n.It Ic c\nmore\n.El\nend\n", "a\nb X\n        text\n\nc\n        more\nend\n");
        assert_printed(".Bl -tag -compact\n.It 0\nfine\n.It 1\nnot\n.El\n", "0\n        fine\n1\n        not\n");
        assert_printed("a\n.Bd -literal\n.x  y \"z\\e\n.Ed\nb\n.Dl c  d\n", "a\n    .x  y \"z\\\nb\n    c  d\n");
        assert_printed(".\\\" comment\n.Dd today\n", "");
}

static void test_whole_page(void **state) {
        static const char *const left[] = { " Ns ", " Ar ", " Oo ", " Oc", " Fl ", "\n.", "\\[", "\\e", "\n\n\n", " ," };
        _cleanup_free_ char *out = print(page, NULL, 100, 0);

        for (size_t i = 0; i < ELEMENTSOF(left); i++)
                if (strstr(out, left[i]))
                        fail_msg("\"%s\" in the page: %.80s", left[i], strstr(out, left[i]));
        assert_non_null(strstr(out, "\nEXIT STATUS\n    0\n            Done. A followed item came to in_review, or its command succeeded.\n"));
        assert_non_null(strstr(out, "        anchorctl run --workflow exec -- uname -a\n"));
        for (const char *line = out; *line; line += strcspn(line, "\n") + 1) {
                _cleanup_free_ char *one = strndup(line, strcspn(line, "\n"));

                assert_true(text_width(one, SIZE_MAX, NULL) <= 100);
        }
}

static void test_verbs(void **state) {
        _cleanup_free_ char *deny = print(page, "policy deny", 0, 0), *none = print(page, "policy den", 0, -ENOENT);

        assert_string_equal(none, "");
        assert_int_equal(strncmp(deny, "Adds a rule to the policy of one run", 36), 0);
        assert_null(strstr(deny, "Lets the workflow's policy"));
        for (CtlVerb v = 0; v < _VERBS; v++) {
                _cleanup_free_ char *out = print(page, ctl_verbs[v].name, 0, 0);

                if (strlen(out) < 20)
                        fail_msg("the page says nothing of %s", ctl_verbs[v].name);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_macros),
                cmocka_unit_test(test_whole_page),
                cmocka_unit_test(test_verbs),
        };

        return cmocka_run_group_tests(tests, read_page, forget_page);
}
