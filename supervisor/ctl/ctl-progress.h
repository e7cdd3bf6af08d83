/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* A sign of life while nothing else is printed: what the lines look like and when they are due. Pure. */

#include <stdbool.h>
#include <stdint.h>

enum {
        PROGRESS_TICK_USEC = 1000 * 1000,         /* who waits looks up so often */
        PROGRESS_LINE_USEC = 9 * 1000 * 1000,     /* between two lines where nothing can be redrawn: with a tick's delay ten seconds */
};

/* Nothing was said since silent_usec: is it time for a sign of life? `redraw`: the terminal takes a line back. */
bool progress_is_due(uint64_t silent_usec, bool redraw);

/* "… TEXT: 20 s", "… TEXT: 1 min 5 s"; escaped, the caller's, NULL when out of memory. */
char *progress_text(const char *text, uint64_t usec);

/* What takes a status line of that width back on a terminal that is now so wide; the cursor is then where the line
 * began. Terminals break a line that no longer fits when they get narrower, as readline assumes as well. The caller's. */
char *progress_erase(unsigned width, unsigned columns);

/* The text cut to the terminal, which keeps its last column free: there, some would already begin a new line.
 * The caller's; *ret_width are the columns that it takes. */
char *progress_fit(const char *text, unsigned columns, unsigned *ret_width);
