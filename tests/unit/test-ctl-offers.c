/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What both completions and the manual page offer is what the program takes: verbs, options, values, operands. */

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
#include "ctl/ctl.h"
#include "util/io.h"
#include "util/text.h"

#define BASH_FILE "rootfs-overlay/usr/share/bash-completion/completions/anchorctl"
#define ZSH_FILE "rootfs-overlay/usr/share/zsh/vendor-completions/_anchorctl"

static char *page, *zsh;

static int read_files(void **state) {
        return io_read_file(AT_FDCWD, "docs/man/anchorctl.1", 256 * 1024, &page, NULL) ?: io_read_file(AT_FDCWD, ZSH_FILE, 256 * 1024, &zsh, NULL);
}

static int forget_files(void **state) {
        free(page);
        free(zsh);
        return 0;
}

/* ---- lists of words, each with a blank before and behind it ---- */

static bool has_word(const char *list, const char *word) {
        _cleanup_free_ char *wanted = text_format(" %s ", word);

        return strstr(list, wanted);
}

static char *add_word(char *list, const char *word) {
        _cleanup_free_ char *before = list;

        return !before ? text_format(" %s ", word) : has_word(before, word) ? TAKE_PTR(before) : text_format("%s%s ", before, word);
}

static void assert_within(const char *what, const char *list, const char *of) {
        _cleanup_free_ char *copy = strdup(list ?: "");
        char *rest = copy;

        for (char *word; (word = strsep(&rest, " "));)
                if (*word && !has_word(of ?: "", word))
                        fail_msg("%s: \"%s\" is not among \"%s\"", what, word, of ?: "");
}

static void assert_same(const char *what, const char *a, const char *b) {
        assert_within(what, a, b);
        assert_within(what, b, a);
}

/* ---- the program ---- */

static CtlExit run(char **ret_out, const char *const *words) {
        char *argv[8] = { (char *) "anchorctl" }, *err = NULL;
        size_t out_size, err_size;
        Ctl ctl = { .api_path = "/nonexistent/api.sock" };
        CtlExit r;
        int n = 1;

        for (; words[n - 1]; n++)
                argv[n] = (char *) words[n - 1];
        ctl.out = open_memstream(ret_out, &out_size);
        ctl.err = open_memstream(&err, &err_size);
        r = ctl_run(&ctl, n, argv);
        (void) fclose(ctl.out);
        (void) fclose(ctl.err);
        free(err);
        return r;
}

/* " --all --state ": those of a verb, or those of all. */
static char *options_of(CtlVerb verb, bool global) {
        _cleanup_free_ char *text = NULL;
        char *list = NULL;
        size_t size;
        FILE *f = open_memstream(&text, &size);

        ctl_print_options(f, verb, global);
        assert_int_equal(fclose(f), 0);
        for (char *line = text; *line; line += strcspn(line, "\n") + 1) {
                _cleanup_free_ char *name = NULL;
                char *at = strstr(line, "--");

                name = strndup(at, strcspn(at, "= \n"));
                list = add_word(list, name);
        }
        return list ?: strdup(" ");
}

/* The first words of all verbs, or the second ones of those with that first one. */
static char *verbs_of(const char *first) {
        char *list = NULL;

        for (CtlVerb v = 0; v < _VERBS; v++) {
                const char *name = ctl_verbs[v].name, *space = strchr(name, ' ');
                _cleanup_free_ char *word = NULL;

                if (!first)
                        word = strndup(name, strcspn(name, " "));
                else if (space && strncmp(name, first, (size_t) (space - name)) == 0 && strlen(first) == (size_t) (space - name))
                        word = strdup(space + 1);
                if (word)
                        list = add_word(list, word);
        }
        return list;
}

/* ---- bash ---- */

/* What it offers for the last of the words ("list --sta"); an empty one is ''. The caller's. */
static char *bash(const char *words) {
        _cleanup_free_ char *command = NULL;
        char line[512], *list = NULL;
        FILE *f;

        /* one item and one run, and as bash splits words: at "=" */
        command = text_format("bash -c '. %s; anchorctl() { case $1 in list) echo \"iaaaaaaaaaaaa running x\";; "
                              "status) printf \"counts: none\\n            runs: rbbbbbbbbbbbb of iaaaaaaaaaaaa, work: running\\n\";; esac; }; "
                              "__anchorctl_policy_names() { echo a-${1%%s}; }; compopt() { :; }; "
                              "eval \"COMP_WORDS=(anchorctl $1)\"; COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _anchorctl; printf \"%%s\\n\" \"${COMPREPLY[@]}\"' "
                              "bash \"%s\" 2>&1", BASH_FILE, words);
        assert_non_null(command);
        f = popen(command, "re");
        assert_non_null(f);
        while (fgets(line, sizeof(line), f)) {
                line[strcspn(line, "\n")] = '\0';
                if (*line)
                        list = add_word(list, line);
        }
        assert_int_equal(pclose(f), 0);
        return list ?: strdup(" ");
}

static void assert_bash(const char *words, const char *expected) {
        _cleanup_free_ char *offered = bash(words);

        assert_same(words, offered, expected);
}

static void test_bash_verbs(void **state) {
        static const char *const groups[] = { "policy", "credential", "audit", "host" };
        _cleanup_free_ char *all = verbs_of(NULL), *help = add_word(verbs_of(NULL), "manual");

        assert_bash("''", all);
        assert_bash("help ''", help);
        assert_bash("help list ''", " ");
        for (size_t i = 0; i < ELEMENTSOF(groups); i++) {
                _cleanup_free_ char *words = text_format("%s ''", groups[i]), *of_help = text_format("help %s", words), *seconds = verbs_of(groups[i]);

                assert_bash(words, seconds);
                assert_bash(of_help, seconds);
        }
}

static void test_bash_options(void **state) {
        _cleanup_free_ char *global = options_of(VERB_LIST, true);

        for (CtlVerb v = 0; v < _VERBS; v++) {
                _cleanup_free_ char *words = text_format("%s --", ctl_verbs[v].name), *own = options_of(v, false), *all = text_format("%s%s", own, global);

                assert_bash(words, all);
        }
        assert_bash("--", global);
}

static void test_bash_operands(void **state) {
        static const struct {
                const char *words, *expected;
        } cases[] = {
                { "show ''", " iaaaaaaaaaaaa " },           { "show ix ''", " iaaaaaaaaaaaa " },
                { "logs ''", " iaaaaaaaaaaaa " },           { "logs ix ''", " " },
                { "logs --run = ''", " rbbbbbbbbbbbb " },   { "list --state = run", " running " },
                { "list --state = running,q", " running,queued " },
                { "list --state running,failed,mer", " running,failed,merged " },
                { "policy explain ''", " rbbbbbbbbbbbb iaaaaaaaaaaaa a-workflow " },
                { "policy explain a-workflow ''", " " },    { "policy explain --verify a-workflow ''", " " },
                { "policy log ''", " rbbbbbbbbbbbb iaaaaaaaaaaaa " }, { "policy allow ''", " rbbbbbbbbbbbb iaaaaaaaaaaaa " },
                { "policy deny ''", " rbbbbbbbbbbbb iaaaaaaaaaaaa " }, { "policy reload ''", " rbbbbbbbbbbbb iaaaaaaaaaaaa " },
                { "policy allow ix ''", " " },              { "policy log --directory = d ''", " rbbbbbbbbbbbb iaaaaaaaaaaaa " },
                { "credential rotate ''", " a-credential " }, { "credential rotate x ''", " " },
                { "submit --workflow = ''", " a-workflow " }, { "run --workflow exec -- ''", " " },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                assert_bash(cases[i].words, cases[i].expected);
}

/* Each value that is offered is taken: what comes after it fails only since there is no anchord. */
static void test_bash_values(void **state) {
        static const struct {
                const char *verb, *option;
                size_t n;
        } cases[] = { { "list", "--state", 19 }, { "cost", "--by", 5 }, { "list", "--json", 3 } };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                _cleanup_free_ char *words = text_format("%s %s = ''", cases[i].verb, cases[i].option), *offered = bash(words);
                char *rest = offered;
                size_t n = 0;

                for (char *word; (word = strsep(&rest, " "));) {
                        _cleanup_free_ char *option = text_format("%s=%s", cases[i].option, word), *out = NULL;

                        if (!*word)
                                continue;
                        n++;
                        if (run(&out, (const char *[]) { cases[i].verb, option, NULL }) != CTL_FAILED)
                                fail_msg("%s is offered for %s", option, cases[i].verb);
                        if (strcmp(cases[i].option, "--json") != 0 && !strstr(zsh, word))
                                fail_msg("%s is not in " ZSH_FILE, option);
                }
                assert_int_equal(n, cases[i].n);
        }
}

/* ---- help ---- */

static void test_help(void **state) {
        _cleanup_free_ char *first = verbs_of(NULL);
        char *rest = first;

        for (char *word; (word = strsep(&rest, " "));) {
                _cleanup_free_ char *out = NULL;

                if (*word && run(&out, (const char *[]) { "help", word, NULL }) != CTL_OK)
                        fail_msg("\"help %s\" is offered, and refused", word);
        }
        for (CtlVerb v = 0; v < _VERBS; v++) {
                _cleanup_free_ char *name = strdup(ctl_verbs[v].name), *out = NULL;
                char *second = strchr(name, ' ');

                if (!second)
                        continue;
                *second++ = '\0';
                assert_int_equal(run(&out, (const char *[]) { "help", name, second, NULL }), CTL_OK);
        }
}

/* ---- zsh, read as text ---- */

/* From the line behind "case $words[N] in" of that branch ("log", also of "log | allow") to its ";;", the caller's; NULL: none. */
static char *branch(const char *text, size_t indent, const char *word) {
        _cleanup_free_ char *end = text_format("\n%*s;;", (int) indent + 8, "");

        for (const char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
                _cleanup_free_ char *labels = NULL;
                const char *close;
                size_t n = strspn(line, " ");

                if (n != indent || strchr("'*$", line[n]))
                        continue;
                labels = text_format(" %.*s ", (int) strcspn(line + n, ")\n"), line + n);
                if (line[n + strlen(labels) - 2] != ')' || !has_word(labels, word))
                        continue;
                /* on one line, or to the end */
                if (line[n + strlen(labels) - 1] != '\n')
                        return strndup(line, (size_t) (strstr(line, " ;;") - line));
                close = strstr(line, end);
                return close ? strndup(line, (size_t) (close - line)) : NULL;
        }
        return NULL;
}

static char *options_in(const char *text) {
        char *list = NULL;

        for (const char *at = text; (at = strstr(at, "--"));) {
                size_t n = 2 + strspn(at + 2, "abcdefghijklmnopqrstuvwxyz-");
                _cleanup_free_ char *name = strndup(at, n);

                if (n > 2 && strchr("'{ ,", at[-1]) && strchr("=[}", at[n]))
                        list = add_word(list, name);
                at += n;
        }
        return list ?: strdup(" ");
}

static char *section(const char *begin) {
        const char *at = strstr(zsh, begin);

        assert_non_null(at);
        return strndup(at, (size_t) (strstr(at, "\n        )") - at) + 1);
}

static void test_zsh(void **state) {
        _cleanup_free_ char *verbs = section("        verbs=("), *submit = section("        submit=("), *global = section("        global=("),
                            *seconds = section("        seconds=("), *expected = options_of(VERB_LIST, true), *offered = options_in(global);
        const char *operand = strstr(zsh, "case $words[1] in");

        assert_same("zsh", offered, expected);
        for (CtlVerb v = 0; v < _VERBS; v++) {
                _cleanup_free_ char *name = strdup(ctl_verbs[v].name), *line = NULL, *outer = NULL, *inner = NULL, *text = NULL, *own = options_of(v, false), *own_zsh = NULL;
                char *second = strchr(name, ' ');

                if (second)
                        *second++ = '\0';
                line = text_format("%s:", name);
                if (!strstr(verbs, line))
                        fail_msg("%s is not in " ZSH_FILE, name);
                outer = branch(operand, 16, name);
                inner = outer && second ? branch(outer, 24, second) : NULL;
                if (second) {
                        _cleanup_free_ char *all = verbs_of(name), *listed = text_format("\n                %s '%.*s'\n", name, (int) strlen(all) - 2, all + 1);

                        if (!strstr(seconds, listed))
                                fail_msg("%s is not in " ZSH_FILE, listed);
                        if (!inner)
                                fail_msg("%s is not in " ZSH_FILE, ctl_verbs[v].name);
                }
                text = text_format("%s%s", (second ? inner : outer) ?: "", outer && strstr(outer, "$submit") ? submit : "");
                own_zsh = options_in(text);
                assert_same(ctl_verbs[v].name, own_zsh, own);
        }
}

/* ---- the manual page ---- */

/* " --all --hold " of the macros in text of that size. */
static char *options_of_page(const char *text, size_t size) {
        _cleanup_free_ char *copy = strndup(text, size);
        char *rest = copy, *list = NULL;
        bool flag = false;

        for (char *word; (word = strsep(&rest, " \n"));) {
                if (flag && word[0] == '-' && word[1]) {
                        _cleanup_free_ char *name = text_format("-%s", word);

                        list = add_word(list, name);
                }
                flag = strcmp(word, "Fl") == 0 || strcmp(word, ".Fl") == 0;
        }
        return list ?: strdup(" ");
}

static void test_page(void **state) {
        const char *section_at = strstr(page, "\n.Sh OPTIONS"), *section_end = strstr(page, "\n.Sh EXIT STATUS");
        _cleanup_free_ char *named = options_of_page(section_at, (size_t) (section_end - section_at)), *global = options_of(VERB_LIST, true), *whole = NULL,
                            *any = strdup(global), *anywhere = options_of_page(page, strlen(page)), *printed = NULL;
        size_t size;
        FILE *f;

        for (CtlVerb v = 0; v < _VERBS; v++) {
                _cleanup_free_ char *head = text_format("\n.It Ic %s", ctl_verbs[v].name), *own = options_of(v, false), *told = NULL, *taken = NULL, *before = any;

                any = text_format("%s%s", before, own);
                for (const char *at = page; (at = strstr(at, head)); at++) {
                        _cleanup_free_ char *of_head = NULL, *of_text = NULL, *said = told;
                        size_t n = strlen(head), line = strcspn(at + 1, "\n");
                        const char *end;

                        told = NULL;
                        if (at[n] != ' ' && at[n] != '\n') {
                                told = TAKE_PTR(said);
                                continue;
                        }
                        end = strstr(at + n, "\n.It ") ?: at + strlen(at);
                        of_head = options_of_page(at + 1, line);
                        taken = text_format("%s%s", own, global);
                        assert_within(ctl_verbs[v].name, of_head, taken);
                        free(taken);
                        taken = NULL;
                        of_text = options_of_page(at, (size_t) (end - at));
                        told = text_format("%s%s", said ?: "", of_text);
                }
                whole = text_format("%s%s", told ?: "", named);
                assert_within(ctl_verbs[v].name, own, whole);
                free(whole);
                whole = NULL;
        }
        assert_within("the page", anywhere, any);

        /* quotes do not nest */
        f = open_memstream(&printed, &size);
        assert_int_equal(manual_print(f, page, NULL, 1000), 0);
        assert_int_equal(fclose(f), 0);
        assert_null(strstr(printed, "''"));
        assert_non_null(strstr(printed, "('docker://REGISTRY/NAME', 'dir:FOLDER');"));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_bash_verbs),
                cmocka_unit_test(test_bash_options),
                cmocka_unit_test(test_bash_operands),
                cmocka_unit_test(test_bash_values),
                cmocka_unit_test(test_help),
                cmocka_unit_test(test_zsh),
                cmocka_unit_test(test_page),
        };

        return cmocka_run_group_tests(tests, read_files, forget_files);
}
