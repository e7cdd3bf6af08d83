/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A record is read back from the journal, and what holds it is fsynced, before it leaves the list and the outbox. The journal's entries are the test's
 * (sd_journal_* below), its files are real ones, and fsync() is the test's as well: it says what it is asked for, can be held, and can fail.
 */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cmocka.h>

#include "audit/audit-api.h"
#include "audit/audit-journal.h"
#include "audit/audit-outbox.h"
#include "audit/audit-queue.h"
#include "audit/audit-server.h"
#include "own-world.h"

#define UNIT "anchor-auditd.service"

/* ---- the journal ---- */

typedef struct Kept {
        uint64_t seq;
        char hash[2 * AUDIT_HASH_SIZE + 1];
        const char *unit;
} Kept;

struct sd_journal {
        uint64_t seq; /* which entries match; 0: all */
        const char *unit;
        size_t at;    /* one more than the entry's index */
        char data[128];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Kept kept_entries[16];
static size_t n_kept_entries;
static char journal_dir[64];

int sd_journal_open_directory(sd_journal **ret, const char *path, int flags) {
        assert_string_equal(path, journal_dir);
        *ret = calloc(1, sizeof(**ret));
        return *ret ? 0 : -ENOMEM;
}

void sd_journal_close(sd_journal *j) {
        free(j);
}

int sd_journal_set_data_threshold(sd_journal *j, size_t size) {
        return 0;
}

void sd_journal_flush_matches(sd_journal *j) {
        j->seq = 0;
        j->unit = NULL;
}

int sd_journal_add_match(sd_journal *j, const void *data, size_t size) {
        if (sscanf(data, "ANCHORHOLD_SEQ=%" SCNu64, &j->seq) == 1)
                return 0;
        assert_string_equal(data, "_SYSTEMD_UNIT=" UNIT);
        j->unit = UNIT;
        return 0;
}

int sd_journal_seek_tail(sd_journal *j) {
        j->at = SIZE_MAX;
        return 0;
}

int sd_journal_seek_head(sd_journal *j) {
        j->at = 0;
        return 0;
}

/* Only what is asked for by its number: what an earlier life left is in other tests. */
int sd_journal_previous(sd_journal *j) {
        int r = 0;

        (void) pthread_mutex_lock(&lock);
        if (j->at > n_kept_entries)
                j->at = n_kept_entries + 1;
        while (r == 0 && j->seq > 0 && j->at > 1) {
                const Kept *k = kept_entries + --j->at - 1;

                r = k->seq == j->seq && (!j->unit || strcmp(k->unit, j->unit) == 0);
        }
        (void) pthread_mutex_unlock(&lock);
        return r;
}

int sd_journal_next(sd_journal *j) {
        return 0;
}

int sd_journal_get_data(sd_journal *j, const char *field, const void **data, size_t *size) {
        assert_string_equal(field, "ANCHORHOLD_HASH");
        (void) pthread_mutex_lock(&lock);
        (void) snprintf(j->data, sizeof(j->data), "ANCHORHOLD_HASH=%s", kept_entries[j->at - 1].hash);
        (void) pthread_mutex_unlock(&lock);
        *data = j->data;
        *size = strlen(j->data);
        return 0;
}

int sd_journal_wait(sd_journal *j, uint64_t usec) {
        (void) usleep(usec < 1000 ? (useconds_t) usec : 1000);
        return SD_JOURNAL_APPEND;
}

static void keep(uint64_t seq, const char *hash, const char *unit) {
        Kept k = { .seq = seq, .unit = unit };

        strcpy(k.hash, hash);
        (void) pthread_mutex_lock(&lock);
        assert_true(n_kept_entries < ELEMENTSOF(kept_entries));
        kept_entries[n_kept_entries++] = k;
        (void) pthread_mutex_unlock(&lock);
}

/* ---- its files ---- */

static const char *const names[] = { "system.journal", "system@1.journal", "user-1000.journal~", "notes.txt" };
enum { CURRENT, ARCHIVED, TORN, NO_JOURNAL, FOLDER, N_FILES };

static atomic_int fsync_error, n_fsyncs[N_FILES], n_begun;
static atomic_bool fsync_held;

/* In the place of libc's. Of other files it is as it was. */
int fsync(int fd) {
        char link[64], path[128];
        ssize_t n;

        (void) snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
        n = readlink(link, path, sizeof(path) - 1);
        path[n > 0 ? n : 0] = 0;
        if (strncmp(path, journal_dir, strlen(journal_dir)) != 0)
                return (int) syscall(SYS_fsync, fd);

        n_begun++;
        while (fsync_held)
                (void) usleep(1000);
        if (fsync_error) {
                errno = fsync_error;
                return -1;
        }
        for (size_t i = 0; i < ELEMENTSOF(names); i++)
                if (strcmp(path + strlen(path) - strlen(names[i]), names[i]) == 0) {
                        n_fsyncs[i]++;
                        return 0;
                }
        n_fsyncs[FOLDER]++;
        return 0;
}

/* ---- the world ---- */

typedef struct World {
        sd_event *event;
        AuditQueue *queue;
        int journald;        /* owned */
        char folder[40], socket[64];
        uint64_t kept, resent_first, resent_last;
} World;

static void on_kept(const AuditHead *head, void *userdata) {
        ((World *) userdata)->kept = head->seq;
}

static void on_resent(uint64_t first, uint64_t last, void *userdata) {
        World *w = userdata;

        w->resent_first = first;
        w->resent_last = last;
}

static int set_up(void **state) {
        struct sockaddr_un un = { .sun_family = AF_UNIX };
        World *w = calloc(1, sizeof(*w));

        assert_non_null(w);
        strcpy(w->folder, "/tmp/test-audit-journal-XXXXXX");
        assert_non_null(mkdtemp(w->folder));
        (void) snprintf(journal_dir, sizeof(journal_dir), "%s/journal", w->folder);
        assert_int_equal(mkdir(journal_dir, 0755), 0);
        for (size_t i = 0; i < ELEMENTSOF(names); i++) {
                char path[128];
                int fd;

                (void) snprintf(path, sizeof(path), "%s/%s", journal_dir, names[i]);
                fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
                assert_true(fd >= 0);
                (void) close(fd);
        }

        (void) snprintf(w->socket, sizeof(w->socket), "%s/socket", w->folder);
        strcpy(un.sun_path, w->socket);
        w->journald = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        assert_int_equal(bind(w->journald, (struct sockaddr *) &un, sizeof(un)), 0);
        assert_int_equal(sd_event_new(&w->event), 0);

        n_kept_entries = 0;
        fsync_error = n_begun = 0;
        fsync_held = false;
        for (size_t i = 0; i < N_FILES; i++)
                n_fsyncs[i] = 0;
        *state = w;
        return 0;
}

static int tear_down(void **state) {
        World *w = *state;
        char command[64];

        fsync_held = false;
        (void) audit_queue_free(w->queue);
        sd_event_unref(w->event);
        (void) fd_close(w->journald);
        (void) snprintf(command, sizeof(command), "rm -r %s", w->folder);
        assert_int_equal(system(command), 0);
        free(w);
        return 0;
}

static const char *hash_of(uint64_t seq, uint8_t ret[static AUDIT_HASH_SIZE]) {
        static char text[2 * AUDIT_HASH_SIZE + 1];

        memset(ret, (int) seq, AUDIT_HASH_SIZE);
        text_hex(ret, AUDIT_HASH_SIZE, text);
        return text;
}

/* A list with records from 1 to n, all of which were sent. */
static void start_queue(World *w, uint64_t n) {
        assert_int_equal(audit_queue_new(&w->queue, w->event, w->socket, journal_dir, UNIT, on_kept, on_resent, w), 0);
        for (uint64_t seq = 1; seq <= n; seq++) {
                AuditHead head = { .seq = seq };

                (void) hash_of(seq, head.hash);
                assert_int_equal(audit_queue_add(w->queue, &head, "x", 1, false), 0);
        }
        audit_queue_pump(w->queue);
}

static void keep_record(uint64_t seq) {
        uint8_t hash[AUDIT_HASH_SIZE];

        keep(seq, hash_of(seq, hash), UNIT);
}

static void run_all(World *w) {
        while (sd_event_run(w->event, 0) > 0)
                ;
}

/* ---- the list ---- */

/* Found is not kept: not before the last fsync has returned. */
static void test_synced_first(void **state) {
        World *w = *state;

        fsync_held = true;
        start_queue(w, 1);
        keep_record(1);
        UNTIL(w->event, n_begun == 1);
        run_all(w);
        assert_int_equal(w->kept, 0);
        assert_int_equal(audit_queue_size(w->queue), 1);

        fsync_held = false;
        UNTIL(w->event, w->kept == 1);
        assert_int_equal(audit_queue_size(w->queue), 0);
        assert_true(n_fsyncs[CURRENT] > 0 && n_fsyncs[TORN] > 0 && n_fsyncs[ARCHIVED] > 0 && n_fsyncs[FOLDER] > 0);
        assert_int_equal(n_fsyncs[NO_JOURNAL], 0);
}

static void test_not_found_is_not_synced(void **state) {
        World *w = *state;

        start_queue(w, 1);
        UNTIL(w->event, w->resent_first == 1);
        assert_int_equal(n_begun, 0);
        assert_int_equal(w->kept, 0);
        assert_int_equal(audit_queue_size(w->queue), 1);
        keep_record(1);
        UNTIL(w->event, w->kept == 1);
}

static void test_fsync_fails(void **state) {
        World *w = *state;

        fsync_error = EIO;
        start_queue(w, 2);
        keep_record(1);
        keep_record(2);
        UNTIL(w->event, n_begun >= 3); /* each time anew */
        assert_int_equal(w->kept, 0);
        assert_int_equal(audit_queue_size(w->queue), 2);

        fsync_error = 0;
        UNTIL(w->event, w->kept == 2);
        assert_int_equal(audit_queue_size(w->queue), 0);
}

/* What was archived does not change any more; what is written to is synced for each look. */
static void test_archived_once(void **state) {
        World *w = *state;
        int archived, current;

        start_queue(w, 2);
        keep_record(1);
        UNTIL(w->event, w->kept == 1);
        archived = n_fsyncs[ARCHIVED];
        current = n_fsyncs[CURRENT];
        keep_record(2);
        UNTIL(w->event, w->kept == 2);
        assert_int_equal(n_fsyncs[ARCHIVED], archived);
        assert_true(n_fsyncs[CURRENT] > current);
}

/* Our number with another hash, or of another unit, is not our record. */
static void test_of_somebody_else(void **state) {
        uint8_t hash[AUDIT_HASH_SIZE];
        World *w = *state;

        keep(1, hash_of(9, hash), UNIT);
        keep(1, hash_of(1, hash), "evil.service");
        start_queue(w, 1);
        UNTIL(w->event, w->resent_first == 1);
        assert_int_equal(w->kept, 0);
        assert_int_equal(n_begun, 0);

        keep_record(1);
        UNTIL(w->event, w->kept == 1);
}

/* In the chain's order: nothing behind the first that is missing counts. */
static void test_one_is_missing(void **state) {
        World *w = *state;

        keep_record(1);
        keep_record(3);
        start_queue(w, 3);
        UNTIL(w->event, w->resent_first > 0);
        assert_int_equal(w->kept, 1);
        assert_int_equal(w->resent_first, 2);
        assert_int_equal(w->resent_last, 3);
        assert_int_equal(audit_queue_size(w->queue), 2);
        keep_record(2);
        UNTIL(w->event, w->kept == 3);
}

/* ---- the outbox ---- */

/* Number and hash of the next record that journald got; false if there is none yet. */
static bool receive(World *w, uint64_t *ret_seq, char ret_hash[static 2 * AUDIT_HASH_SIZE + 1]) {
        char data[4096], *seq, *hash;
        ssize_t n = recv(w->journald, data, sizeof(data) - 1, 0);

        if (n < 0)
                return false;
        data[n] = 0;
        seq = strstr(data, "ANCHORHOLD_SEQ=");
        hash = strstr(data, "ANCHORHOLD_HASH=");
        assert_true(seq && hash);
        *ret_seq = strtoull(strchr(seq, '=') + 1, NULL, 10);
        (void) snprintf(ret_hash, 2 * AUDIT_HASH_SIZE + 1, "%s", strchr(hash, '=') + 1);
        return true;
}

static int count(AuditRecord *r, const char *text, size_t size, void *userdata) {
        ++*(uint64_t *) userdata;
        return 0;
}

/* How many records are in the outbox of a daemon that runs: of its files as they are now. */
static uint64_t n_in_outbox(World *w) {
        _cleanup_(audit_outbox_freep) AuditOutbox *o = NULL;
        char command[256], path[64];
        uint64_t n = 0;

        (void) snprintf(command, sizeof(command), "cd %s && rm -rf copy && mkdir copy && cp " AUDIT_OUTBOX "* copy/", w->folder);
        assert_int_equal(system(command), 0);
        (void) snprintf(path, sizeof(path), "%s/copy/" AUDIT_OUTBOX, w->folder);
        assert_int_equal(audit_outbox_open(&o, path), 0);
        assert_int_equal(audit_outbox_foreach(o, count, &n), 0);
        return n;
}

static void test_outbox(void **state) {
        World *w = *state;
        AuditServerOptions options = { .state_dir = w->folder, .journal_socket = w->socket, .journal_dir = journal_dir, .journal_unit = UNIT };
        _cleanup_(audit_server_freep) AuditServer *s = NULL;
        char hash[2 * AUDIT_HASH_SIZE + 1];
        uint64_t seq;

        fsync_error = EIO;
        assert_int_equal(audit_server_new(&s, w->event, &options), 0);
        UNTIL(w->event, receive(w, &seq, hash));
        assert_int_equal(seq, 1); /* audit.started */
        assert_int_equal(n_in_outbox(w), 1);

        /* in the journal, and not on a disk */
        keep(seq, hash, UNIT);
        UNTIL(w->event, n_begun >= 3);
        run_all(w);
        assert_int_equal(n_in_outbox(w), 1);

        fsync_error = 0;
        UNTIL(w->event, n_in_outbox(w) == 0);
        assert_true(n_fsyncs[CURRENT] > 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_synced_first, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_not_found_is_not_synced, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_fsync_fails, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_archived_once, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_of_somebody_else, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_one_is_missing, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_outbox, set_up, tear_down),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
