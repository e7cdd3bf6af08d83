/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The file is the only truth: opening reads it once from the start for the next sequence number, how much output each run has
 * written and which of its calls was the last that left a line (`call`), and what of the ledger is told: the state as of which
 * `revision`, and its notes up to which `id` (a state says as `notes` how far they were told then). So what happens again after a crash is told once, and
 * what was in the ledger and not told is found. An anchord of before that wrote states without a revision: behind such a line nobody knows. Lines are whole or absent: a line is written
 * by one write(), and what has no newline at its end is cut off at opening. Output is not fsynced line by
 * line, since it is no evidence (that is in the audit log); the end of a run syncs it. A host that lost power may therefore
 * have left anything behind the last sync, zeros for example: the story ends there, and goes on.
 */

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/event-log.h"
#include "util/io.h"
#include "util/json.h"
#include "util/text.h"

enum { RUNS_MAX = 64 };

struct EventLog {
        int fd; /* owned */
        uint64_t seq;
        char last_state[32];
        int64_t revision, note;
        bool unnumbered;  /* the last state has no revision */
        struct LoggedRun {
                char id[ID_LENGTH + 1];
                uint64_t size;
                int64_t call;
        } runs[RUNS_MAX]; /* the latest ones, in turn */
        size_t n_runs;
};

static const struct LoggedRun *find_run(const EventLog *l, const char *run) {
        for (size_t i = 0; i < l->n_runs && i < RUNS_MAX; i++)
                if (strcmp(l->runs[i].id, run) == 0)
                        return l->runs + i;
        return NULL;
}

static void count_run(EventLog *l, const char *run, size_t output, int64_t call) {
        struct LoggedRun *known = (struct LoggedRun *) find_run(l, run);

        if (!known) {
                if (!text_is_id('r', run))
                        return;
                known = l->runs + l->n_runs++ % RUNS_MAX;
                *known = (struct LoggedRun) {};
                (void) snprintf(known->id, sizeof(known->id), "%s", run);
        }
        known->size += output;
        if (call > known->call)
                known->call = call;
}

static int64_t number(const json_t *event, const char *key) {
        return json_integer_value(json_object_get(event, key));
}

static void account_state(EventLog *l, const json_t *event, const char *state) {
        (void) snprintf(l->last_state, sizeof(l->last_state), "%s", state);
        l->unnumbered = number(event, "revision") <= 0;
        if (l->unnumbered)
                return;
        event_log_set_told(l, number(event, "revision"), number(event, "notes") > l->note ? number(event, "notes") : l->note);
}

static void account(EventLog *l, const json_t *event, size_t size) {
        const char *type = json_string_value(json_object_get(event, "type"));
        const char *run = json_string_value(json_object_get(event, "run"));
        const char *state = json_string_value(json_object_get(event, "state"));

        l->seq = (uint64_t) number(event, "seq");
        if (!type)
                return;
        if (state && strcmp(type, "state") == 0)
                account_state(l, event, state);
        if (strcmp(type, "note") == 0 && number(event, "id") > l->note)
                l->note = number(event, "id");
        if (run)
                count_run(l, run, strcmp(type, "output") == 0 ? size : 0, number(event, "call"));
}

static int replay(EventLog *l) {
        _cleanup_(event_reader_done) EventReader reader = { .fd = -1 };
        uint64_t before = 0;
        bool cut = false;
        int fd, r;

        fd = fcntl(l->fd, F_DUPFD_CLOEXEC, 3);
        if (fd < 0)
                return -errno;
        event_reader_init(&reader, fd);

        for (;;) {
                _cleanup_json_ json_t *event = NULL;

                r = event_reader_next(&reader, &event);
                if (r == -EINVAL || r == -EUCLEAN || (r > 0 && !json_is_object(event))) {
                        reader.offset = before;
                        cut = true;
                        break;
                }
                if (r < 0)
                        return r;
                if (r == 0)
                        break;
                account(l, event, (size_t) (reader.offset - before));
                before = reader.offset;
        }

        if (ftruncate(l->fd, (off_t) reader.offset) < 0)
                return -errno;
        return cut ? EVENT_LOG_E_CUT : 0;
}

int event_log_open(EventLog **ret, int dir_fd, const char *name) {
        _cleanup_(event_log_closep) EventLog *l = NULL;
        int r;

        l = calloc(1, sizeof(*l));
        if (!l)
                return -ENOMEM;

        l->fd = openat(dir_fd, name, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (l->fd < 0)
                return -errno;

        r = replay(l);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(l);
        return r;
}

EventLog *event_log_close(EventLog *l) {
        if (!l)
                return NULL;

        l->fd = fd_close(l->fd);
        free(l);
        return NULL;
}

int event_log_append(EventLog *l, const char *type, json_t *data) {
        _cleanup_json_ json_t *event = data;
        _cleanup_free_ char *line = NULL;
        char when[TIME_TEXT_SIZE];
        size_t size;
        off_t end;
        int r;

        if (!event)
                return -ENOMEM;

        text_time(time_realtime(), when);
        if (json_object_set_new(event, "seq", json_integer((json_int_t) l->seq + 1)) < 0 ||
            json_object_set_new(event, "time", json_string(when)) < 0 ||
            json_object_set_new(event, "type", json_string(type)) < 0)
                return -ENOMEM;

        line = json_canonical(event);
        if (!line)
                return -ENOMEM;

        size = strlen(line);
        if (size + 1 > EVENT_LINE_MAX)
                return -EMSGSIZE;
        line[size] = '\n'; /* in place of the zero byte */

        end = lseek(l->fd, 0, SEEK_END);
        if (end < 0)
                return -errno;
        r = io_write_full(l->fd, line, size + 1);
        if (r < 0) /* leaves nothing of it: the next line would go on where a full disk cut this one off */
                return ftruncate(l->fd, end) < 0 ? -errno : r;

        account(l, event, size + 1);
        return 0;
}

int event_log_sync(EventLog *l) {
        return fdatasync(l->fd) < 0 ? -errno : 0;
}

const char *event_log_last_state(const EventLog *l) {
        return l->last_state;
}

uint64_t event_log_output_size(const EventLog *l, const char *run) {
        const struct LoggedRun *known = find_run(l, run);

        return known ? known->size : 0;
}

int64_t event_log_last_call(const EventLog *l, const char *run) {
        const struct LoggedRun *known = find_run(l, run);

        return known ? known->call : 0;
}

bool event_log_told(const EventLog *l, int64_t *ret_revision, int64_t *ret_note) {
        *ret_revision = l->revision;
        *ret_note = l->note;
        return !l->unnumbered;
}

void event_log_set_told(EventLog *l, int64_t revision, int64_t note) {
        l->revision = revision;
        l->note = note;
        l->unnumbered = false;
}

/* ---- reading ---- */

void event_reader_init(EventReader *r, int fd) {
        *r = (EventReader) { .fd = fd };
}

void event_reader_done(EventReader *r) {
        r->fd = fd_close(r->fd);
}

int event_reader_next(EventReader *r, json_t **ret) {
        _cleanup_free_ char *buffer = NULL;
        size_t size = 0, room = 4096;
        char *newline = NULL;
        int error;

        /* Lines are short as a rule: read a little, and more only while there is no end in sight. */
        for (;;) {
                char *bigger = realloc(buffer, room + 1);
                ssize_t n;

                if (!bigger)
                        return -ENOMEM;
                buffer = bigger;

                n = pread(r->fd, buffer + size, room - size, (off_t) (r->offset + size));
                if (n < 0)
                        return -errno;
                newline = memchr(buffer + size, '\n', (size_t) n);
                size += (size_t) n;
                if (newline)
                        break;
                if (n == 0 || size < room)
                        return 0; /* nothing more, or a line that is being written */
                if (room >= EVENT_LINE_MAX)
                        return -EUCLEAN;
                room *= 4;
        }

        error = json_parse(buffer, (size_t) (newline - buffer), ret, NULL);
        if (error < 0)
                return error;

        r->offset += (uint64_t) (newline - buffer) + 1;
        return 1;
}
