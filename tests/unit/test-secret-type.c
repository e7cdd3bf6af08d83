/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* That a secret is printed by accident does not compile. Asks the compiler that is at hand in the build root. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/cleanup.h"
#include "util/io.h"
#include "util/text.h"

static char folder[] = "/tmp/test-secret-type-XXXXXX";

static bool compiles(const char *compiler, const char *statement) {
        _cleanup_free_ char *program = NULL, *path = NULL, *command = NULL;

        program = text_format("#include <jansson.h>\n#include <stdio.h>\n#include <string.h>\n#include \"util/secret.h\"\n"
                              "#include \"util/log.h\"\n#include \"util/text.h\"\n"
                              "int f(const Secret *s);\nint f(const Secret *s) {\n"
                              "        SecretView v = secret_view(s);\n        char to[64];\n        json_t *j = json_object();\n"
                              "        %s\n        (void) to; (void) v;\n        return j != NULL;\n}\n", statement);
        path = text_format("%s/x.c", folder);
        assert_int_equal(io_write_file_atomic(AT_FDCWD, path, program, strlen(program), 0600), 0);
        command = text_format("%s -std=gnu17 -D_GNU_SOURCE -Isupervisor -Wall -Wextra -Wformat=2 -Werror -Wno-unused-parameter -fsyntax-only %s >/dev/null 2>&1",
                              compiler, path);
        return system(command) == 0;
}

static void test_does_not_compile(void **state) {
        static const char *const compilers[] = { "gcc", "clang" };
        static const char *const good[] = {
                "memcpy(to, v.bytes, v.size);",                 /* what a buffer does */
                "printf(\"%zu\", v.size);",
                "(void) json_object_set_new(j, \"size\", json_integer((json_int_t) v.size));",
                "printf(\"%s\", (const char *) v.bytes);",      /* on purpose: a cast says so */
        };
        static const char *const bad[] = {
                "printf(\"%s\", s);",
                "printf(\"%s\", v);",
                "printf(\"%s\", v.bytes);",
                "printf(\"%.*s\", (int) v.size, v.bytes);",
                "(void) snprintf(to, sizeof(to), \"%s\", v.bytes);",
                "log_info(\"%s\", v.bytes);",
                "free(text_format(\"%s\", v.bytes));",
                "puts(v.bytes);",
                "(void) fputs(s, stderr);",
                "(void) strlen(v.bytes);",
                "(void) strdup(v.bytes);",
                "(void) json_string(v.bytes);",
                "(void) json_stringn(v.bytes, v.size);",
                "(void) json_object_set_new(j, \"x\", json_string(s));",
                "(void) json_object_set_new(j, v.bytes, json_null());",
                "(void) json_object_set(j, \"x\", s);",
                "const char *p = v.bytes; (void) p;",
                "(void) v.bytes[0];",
                "(void) *s;",
        };

        for (size_t k = 0; k < ELEMENTSOF(compilers); k++) {
                for (size_t i = 0; i < ELEMENTSOF(good); i++)
                        if (!compiles(compilers[k], good[i]))
                                fail_msg("%s refuses %s", compilers[k], good[i]);
                for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                        if (compiles(compilers[k], bad[i]))
                                fail_msg("%s takes %s", compilers[k], bad[i]);
        }
}

static int make_folder(void **state) {
        return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
        _cleanup_free_ char *path = text_format("%s/x.c", folder);

        (void) unlink(path);
        return rmdir(folder);
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_does_not_compile) };

        return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
