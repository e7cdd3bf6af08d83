/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The sign of life.
 *
 * On a terminal it is one status line, there from the first second of silence on, drawn anew every second and taken
 * back before anything else is printed: ctl_progress_done() comes before every other line. Its width is asked for each
 * time, so that a resized terminal gets a line that fits. Where nothing can be taken back (a pipe, a file, TERM=dumb) it
 * is a line of its own before ten seconds of silence are full. It goes to standard error only, whatever standard output is;
 * not with --quiet, and not while a pager has the terminal.
 *
 * One activity is the outermost: what is done within it (the calls of "stop --all") does not start its clock anew.
 */

#include "ctl/ctl-progress.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>

#include "ctl/ctl-table.h"
#include "ctl/ctl.h"
#include "util/text.h"

enum {
        COLUMNS_MAX = 500,
        SLACK_USEC = 300 * 1000, /* of the timers that lead here */
};

/* ---- pure ---- */

bool progress_is_due(uint64_t silent_usec, bool redraw) {
        return silent_usec + SLACK_USEC >= (uint64_t) (redraw ? PROGRESS_TICK_USEC : PROGRESS_LINE_USEC);
}

char *progress_text(const char *text, uint64_t usec) {
        _cleanup_free_ char *safe = text_escape(text, strlen(text), false);
        uint64_t seconds = usec / 1000000;

        if (!safe)
                return NULL;
        if (seconds < 60)
                return text_format("\u2026 %s: %" PRIu64 " s", safe, seconds);
        if (seconds < 3600)
                return text_format("\u2026 %s: %" PRIu64 " min %" PRIu64 " s", safe, seconds / 60, seconds % 60);
        return text_format("\u2026 %s: %" PRIu64 " h %" PRIu64 " min", safe, seconds / 3600, seconds / 60 % 60);
}

char *progress_erase(unsigned width, unsigned columns) {
        unsigned rows = width > 0 && columns > 0 ? (width - 1) / columns : 0;

        return rows > 0 ? text_format("\r\033[%uA\033[J", rows) : strdup("\r\033[K");
}

char *progress_fit(const char *text, unsigned columns, unsigned *ret_width) {
        size_t limit = columns > 1 ? (columns < COLUMNS_MAX ? columns : COLUMNS_MAX) - 1 : 1, width, bytes;

        width = text_width(text, SIZE_MAX, &bytes);
        if (width > limit) {
                width = text_width(text, limit - 1, &bytes);
                *ret_width = (unsigned) width + 1;
                return text_format("%.*s\u2026", (int) bytes, text);
        }

        *ret_width = (unsigned) width;
        return strdup(text);
}

/* ---- on the error stream ---- */

unsigned ctl_terminal_columns(FILE *f) {
        struct winsize size = {};

        if (ioctl(fileno(f), TIOCGWINSZ, &size) < 0 || size.ws_col == 0)
                return 80;
        return size.ws_col;
}

static void erase(Ctl *ctl) {
        _cleanup_free_ char *sequence = progress_erase(ctl->progress.width, ctl_terminal_columns(ctl->err));

        if (sequence)
                (void) fputs(sequence, ctl->err);
        ctl->progress.shown = false;
}

static void draw(Ctl *ctl, const char *text) {
        _cleanup_free_ char *fitting = NULL;

        if (ctl->progress.shown)
                erase(ctl);
        ctl_flush(ctl, ctl->out);
        fitting = progress_fit(text, ctl_terminal_columns(ctl->err), &ctl->progress.width);
        if (fitting)
                (void) fputs(fitting, ctl->err);
        (void) fflush(ctl->err);
        ctl->progress.shown = true;
        ctl->progress.drawn_usec = time_monotonic();
}

void ctl_progress(Ctl *ctl, const char *format, ...) {
        _cleanup_free_ char *what = NULL, *text = NULL;
        uint64_t now = time_monotonic(), last = ctl->progress.shown ? ctl->progress.drawn_usec : ctl->progress.said_usec;
        va_list ap;
        int n;

        if (ctl->o.quiet || ctl->pager > 0)
                return;
        if (!progress_is_due(now - last, ctl->err_redraw))
                return;

        va_start(ap, format);
        n = vasprintf(&what, format, ap);
        va_end(ap);
        if (n < 0) {
                what = NULL;
                return;
        }
        text = progress_text(what, now - ctl->progress.since_usec);
        if (!text)
                return;

        if (ctl->err_redraw) {
                draw(ctl, text);
                return;
        }
        ctl_flush(ctl, ctl->out);
        (void) fprintf(ctl->err, "%s\n", text);
        (void) fflush(ctl->err);
        ctl->progress.said_usec = now;
}

void ctl_progress_done(Ctl *ctl) {
        if (ctl->progress.shown) {
                erase(ctl);
                (void) fflush(ctl->err);
        }
        ctl->progress.said_usec = time_monotonic();
}

uint64_t ctl_progress_silence(const Ctl *ctl) {
        return time_monotonic() - ctl->progress.said_usec;
}

void ctl_progress_since(Ctl *ctl, uint64_t usec) {
        ctl->progress.since_usec = usec;
}

bool ctl_activity_begin(Ctl *ctl, const char *what) {
        if (ctl->progress.activity)
                return false;

        ctl->progress.activity = what;
        ctl->progress.since_usec = ctl->progress.said_usec = time_monotonic();
        return true;
}

void ctl_activity_goes_on(void *ctl_userdata) {
        Ctl *ctl = ctl_userdata;

        if (ctl->progress.activity)
                ctl_progress(ctl, "%s", ctl->progress.activity);
}

void ctl_activity_end(Ctl *ctl, bool begun) {
        if (!begun)
                return;

        ctl_progress_done(ctl);
        ctl->progress.activity = NULL;
}
