/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The manual page as plain text, for an image without man(1). */

#include <stdio.h>

#define MANUAL_PATH "/usr/share/man/man1/anchorctl.1"

/* Prints the page, or, of it, what it says of a verb; columns 0: 80. -ENOENT: there is no such verb in it. */
int manual_print(FILE *f, const char *page, const char *verb, unsigned columns);
