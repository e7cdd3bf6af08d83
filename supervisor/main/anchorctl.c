/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The operator's command: see supervisor/ctl/. */

#include <locale.h>

#include "ctl/ctl.h"

int main(int argc, char *argv[]) {
        (void) setlocale(LC_CTYPE, "");

        return ctl_main(argc, argv);
}
