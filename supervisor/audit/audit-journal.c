/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Between auditd and journald.
 *
 * Sending is a datagram in journald's native protocol; that it was taken says nothing about a disk. So each record
 * is read back from the journal's persistent files: the entry with its number, from our unit, with its hash. Then the
 * files are fsynced. journald writes through a shared mapping; what we could read is in the page cache, and fsync
 * of the same file from any descriptor writes it out, an honest statement that needs no word of journald's.
 * (Its Synchronize method is root's, and succeeds even if a write failed before.) Files that were archived do not
 * change any more and are synced once.
 *
 * Looking and syncing block, and the daemon's loop must not: one worker thread does both. Owner and worker share
 * `request` and `result` under the mutex, and the worker announces a result through an eventfd. The journal handle and
 * the list of synced files are the worker's alone.
 */
#include "audit/audit-journal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <systemd/sd-id128.h>

#include "audit/audit-api.h"
#include "util/text.h"

enum {
        SEND_BUFFER = 4 * 1024 * 1024,
        POLL_USEC = 50 * 1000,
        SYNCED_MAX = 4096,
        SCAN_MAX = 1024,      /* how many entries are looked at for the first or the last record */
};

#define IDENTIFIER "SYSLOG_IDENTIFIER=anchor-auditd\n"

typedef enum State { STATE_IDLE, STATE_REQUESTED, STATE_DONE, STATE_QUIT } State;

struct AuditJournal {
        char *socket_path, *directory, *unit; /* owned */
        int socket_fd;                 /* owned; -1 until the first send */
        AuditJournalKept handler;
        void *userdata;

        pthread_t thread;
        atomic_bool quit;           /* a look under way ends at its next step */
        bool has_thread;
        int event_fd;                  /* owned */
        sd_event_source *source;       /* ref */
        pthread_mutex_t mutex;
        pthread_cond_t cond;
        State state;
        AuditHead records[AUDIT_LOOK_MAX];
        size_t n_records, n_kept;
        uint64_t wait_usec;
        int result;

        /* the worker's */
        sd_journal *journal;           /* owned */
        ino_t *synced;                 /* owned: archived files that were synced */
        size_t n_synced;
};

int audit_journal_directory(char **ret) {
        char id[SD_ID128_STRING_MAX];
        sd_id128_t machine;
        int r;

        r = sd_id128_get_machine(&machine);
        if (r < 0)
                return r;

        *ret = text_format("/var/log/journal/%s." AUDIT_NAMESPACE, sd_id128_to_string(machine, id));
        return *ret ? 0 : -ENOMEM;
}

/* ---- sending ---- */

static int journal_connect(AuditJournal *j) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        _cleanup_fd_ int fd = -1;
        int size = SEND_BUFFER;

        if (strlen(j->socket_path) >= sizeof(address.sun_path))
                return -ENAMETOOLONG;
        strcpy(address.sun_path, j->socket_path);

        fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return -errno;
        (void) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
        if (connect(fd, (struct sockaddr *) &address, sizeof(address)) < 0)
                return -errno;

        j->socket_fd = TAKE_FD(fd);
        return 0;
}

int audit_journal_send(AuditJournal *j, const char *text, size_t size) {
        struct iovec iov[] = {
                { .iov_base = (char *) IDENTIFIER, .iov_len = strlen(IDENTIFIER) },
                { .iov_base = (char *) text, .iov_len = size },
        };
        struct msghdr message = { .msg_iov = iov, .msg_iovlen = ELEMENTSOF(iov) };
        int r;

        if (j->socket_fd < 0) {
                r = journal_connect(j);
                if (r < 0)
                        return r;
        }

        if (sendmsg(j->socket_fd, &message, MSG_NOSIGNAL) < 0) {
                r = -errno;
                /* the socket is another one when journald's socket unit was restarted */
                if (r != -EAGAIN && r != -ENOBUFS)
                        j->socket_fd = fd_close(j->socket_fd);
                return r == -ENOBUFS ? -EAGAIN : r;
        }

        return 0;
}

/* ---- reading ---- */

int audit_journal_read_entry(sd_journal *j, AuditRecord *r, char **ret_unit) {
        _cleanup_free_ char *unit = NULL;
        const void *data;
        size_t size;
        int k;

        SD_JOURNAL_FOREACH_DATA(j, data, size) {
                const char *equal = memchr(data, '=', size);
                size_t name_size;

                if (!equal)
                        continue;
                name_size = (size_t) (equal - (const char *) data);
                if (ret_unit && !unit && name_size == strlen("_SYSTEMD_UNIT") && memcmp(data, "_SYSTEMD_UNIT", name_size) == 0) {
                        unit = strndup(equal + 1, size - name_size - 1);
                        if (!unit)
                                return -ENOMEM;
                }
                k = audit_record_add(r, data, name_size, equal + 1, size - name_size - 1);
                if (k < 0)
                        return k;
        }

        if (ret_unit)
                *ret_unit = TAKE_PTR(unit);
        return 0;
}

static int add_match(sd_journal *j, const char *name, const char *value) {
        _cleanup_free_ char *match = text_format("%s=%s", name, value);

        return match ? sd_journal_add_match(j, match, 0) : -ENOMEM;
}

/* The journal with only our unit's entries; NULL if there are no files yet. */
static int open_unit_journal(const char *directory, const char *unit, sd_journal **ret) {
        sd_journal *j = NULL;
        int r;

        *ret = NULL;
        r = sd_journal_open_directory(&j, directory, 0);
        if (r == -ENOENT)
                return 0;
        if (r >= 0)
                r = sd_journal_set_data_threshold(j, 0);
        if (r >= 0 && unit)
                r = add_match(j, "_SYSTEMD_UNIT", unit);
        if (r < 0) {
                if (j)
                        sd_journal_close(j);
                return r;
        }

        *ret = j;
        return 0;
}

/* Moves by `step` through at most max entries and keeps the highest good record; stops at the first one if `only_first`. */
static int scan(sd_journal *j, int (*step)(sd_journal *), unsigned max, bool only_first, AuditHead *ret) {
        int r = 0;

        for (unsigned n = 0; n < max; n++) {
                _cleanup_(audit_record_done) AuditRecord record = {};
                const char *reason;

                r = step(j);
                if (r <= 0)
                        return r;
                r = audit_journal_read_entry(j, &record, NULL);
                if (r < 0)
                        return r;
                if (!record.ours || audit_record_check(&record, &reason) != AUDIT_CHECK_GOOD || record.seq <= ret->seq)
                        continue;

                ret->seq = record.seq;
                memcpy(ret->hash, record.hash, AUDIT_HASH_SIZE);
                if (only_first)
                        return 0;
        }

        return 0;
}

int audit_journal_last(const char *directory, const char *unit, AuditHead *ret) {
        AuditHead last = {};
        sd_journal *j;
        int r;

        r = open_unit_journal(directory, unit, &j);
        if (r >= 0 && j) {
                r = sd_journal_seek_tail(j);
                if (r >= 0)
                        r = scan(j, sd_journal_previous, SCAN_MAX, false, &last);
                sd_journal_close(j);
        }
        if (r < 0)
                return r;

        *ret = last;
        return 0;
}

int audit_journal_first(const char *directory, const char *unit, uint64_t *ret_seq) {
        AuditHead first = {};
        sd_journal *j;
        int r;

        r = open_unit_journal(directory, unit, &j);
        if (r >= 0 && j) {
                r = sd_journal_seek_head(j);
                if (r >= 0)
                        r = scan(j, sd_journal_next, SCAN_MAX, true, &first);
                sd_journal_close(j);
        }
        if (r < 0)
                return r;

        *ret_seq = first.seq;
        return 0;
}

/* Is this record in the journal, from our unit? 1, 0, or negative errno. */
static int worker_find(AuditJournal *j, const AuditHead *record) {
        char number[24], hash[sizeof("ANCHORHOLD_HASH=") + 2 * AUDIT_HASH_SIZE];
        const void *data;
        size_t size;
        int r;

        (void) snprintf(number, sizeof(number), "%llu", (unsigned long long) record->seq);
        strcpy(hash, "ANCHORHOLD_HASH=");
        text_hex(record->hash, AUDIT_HASH_SIZE, hash + strlen(hash));

        sd_journal_flush_matches(j->journal);
        r = add_match(j->journal, "ANCHORHOLD_SEQ", number);
        if (r >= 0 && j->unit)
                r = add_match(j->journal, "_SYSTEMD_UNIT", j->unit);
        if (r >= 0)
                r = sd_journal_seek_tail(j->journal);

        while (r >= 0 && (r = sd_journal_previous(j->journal)) > 0) {
                r = sd_journal_get_data(j->journal, "ANCHORHOLD_HASH", &data, &size);
                if (r >= 0 && size == strlen(hash) && memcmp(data, hash, size) == 0)
                        return 1;
                if (r == -ENOENT || r == -EBADMSG)
                        r = 0; /* somebody else's entry with our number, or a torn one */
        }

        return r;
}

static bool worker_knows_synced(const AuditJournal *j, ino_t inode) {
        for (size_t i = 0; i < j->n_synced; i++)
                if (j->synced[i] == inode)
                        return true;

        return false;
}

static int worker_sync_file(AuditJournal *j, int dir_fd, const char *name) {
        _cleanup_fd_ int fd = -1;
        struct stat st;

        fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0)
                return errno == ENOENT ? 0 : -errno; /* renamed meanwhile: the next pass has it, see worker_sync() */
        if (fstat(fd, &st) < 0)
                return -errno;
        if (worker_knows_synced(j, st.st_ino))
                return 0;
        if (fsync(fd) < 0)
                return -errno;

        if (strchr(name, '@') && j->synced) {
                /* the oldest are forgotten first: they are vacuumed first, too */
                if (j->n_synced == SYNCED_MAX)
                        memmove(j->synced, j->synced + 1, --j->n_synced * sizeof(j->synced[0]));
                j->synced[j->n_synced++] = st.st_ino;
        }
        return 1;
}

static int worker_sync_pass(AuditJournal *j) {
        _cleanup_dir_ DIR *dir = opendir(j->directory);
        int r, n = 0;

        if (!dir)
                return -errno;

        for (struct dirent *e; (e = readdir(dir));) {
                const char *suffix = strrchr(e->d_name, '.');

                if (!suffix || (strcmp(suffix, ".journal") != 0 && strcmp(suffix, ".journal~") != 0))
                        continue;
                r = worker_sync_file(j, dirfd(dir), e->d_name);
                if (r < 0)
                        return r;
                n += r;
        }

        return fsync(dirfd(dir)) < 0 ? -errno : n;
}

/* A file may be renamed (archived) between two looks at the folder and be missed by both names: twice catches it. */
static int worker_sync(AuditJournal *j) {
        int r;

        r = worker_sync_pass(j);
        return r < 0 ? r : worker_sync_pass(j);
}

static int worker_open(AuditJournal *j) {
        int r;

        if (j->journal)
                return 0;

        r = sd_journal_open_directory(&j->journal, j->directory, 0);
        if (r < 0)
                return r;

        return sd_journal_set_data_threshold(j->journal, 0);
}

/* Looks for the records in order; returns when all are found or the time is over. */
static int worker_look(AuditJournal *j, const AuditHead *records, size_t n, uint64_t wait_usec, size_t *ret_found) {
        uint64_t end = time_monotonic() + wait_usec;
        size_t found = 0;
        int r;

        while (found < n && !atomic_load(&j->quit)) {
                uint64_t now;

                r = worker_open(j);
                if (r >= 0)
                        r = worker_find(j, &records[found]);
                if (r > 0) {
                        found++;
                        continue;
                }
                now = time_monotonic();
                if (now >= end)
                        break;

                /* sd_journal_wait() also takes notice of new and of vacuumed files */
                if (r < 0 || sd_journal_wait(j->journal, end - now < POLL_USEC ? end - now : POLL_USEC) < 0) {
                        sd_journal_close(TAKE_PTR(j->journal));
                        (void) usleep(POLL_USEC);
                }
        }

        /* whatever was missed because of a stale view is not missed again */
        if (found < n)
                sd_journal_close(TAKE_PTR(j->journal));

        if (found > 0) {
                r = worker_sync(j);
                if (r < 0)
                        return r;
        }
        *ret_found = found;
        return 0;
}

static void *worker_main(void *userdata) {
        AuditJournal *j = userdata;
        AuditHead *records = calloc(AUDIT_LOOK_MAX, sizeof(*records));

        (void) pthread_mutex_lock(&j->mutex);
        while (j->state != STATE_QUIT) {
                size_t n = j->n_records, found = 0;
                uint64_t wait_usec = j->wait_usec;
                int r;

                if (j->state != STATE_REQUESTED) {
                        (void) pthread_cond_wait(&j->cond, &j->mutex);
                        continue;
                }
                if (records)
                        memcpy(records, j->records, n * sizeof(records[0]));
                (void) pthread_mutex_unlock(&j->mutex);

                r = records ? worker_look(j, records, n, wait_usec, &found) : -ENOMEM;

                (void) pthread_mutex_lock(&j->mutex);
                if (j->state == STATE_REQUESTED)
                        j->state = STATE_DONE;
                j->n_kept = r < 0 ? 0 : found;
                j->result = r;
                (void) eventfd_write(j->event_fd, 1);
        }
        (void) pthread_mutex_unlock(&j->mutex);

        free(records);
        return NULL;
}

static int journal_on_result(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        AuditJournal *j = userdata;
        eventfd_t value;
        size_t n_kept;
        bool done;
        int r;

        (void) eventfd_read(fd, &value);
        (void) pthread_mutex_lock(&j->mutex);
        done = j->state == STATE_DONE;
        if (done)
                j->state = STATE_IDLE;
        n_kept = j->n_kept;
        r = j->result;
        (void) pthread_mutex_unlock(&j->mutex);

        if (done)
                j->handler(n_kept, r, j->userdata);
        return 0;
}

int audit_journal_look(AuditJournal *j, const AuditHead *records, size_t n, uint64_t wait_usec) {
        int r = 0;

        if (n == 0 || n > AUDIT_LOOK_MAX)
                return -EINVAL;

        (void) pthread_mutex_lock(&j->mutex);
        if (j->state != STATE_IDLE)
                r = -EBUSY;
        else {
                memcpy(j->records, records, n * sizeof(records[0]));
                j->n_records = n;
                j->wait_usec = wait_usec;
                j->state = STATE_REQUESTED;
                (void) pthread_cond_signal(&j->cond);
        }
        (void) pthread_mutex_unlock(&j->mutex);
        return r;
}

/* Signals are the loop's business: the worker is born with all of them blocked. */
static int journal_start_worker(AuditJournal *j) {
        sigset_t all, before;
        int r;

        (void) sigfillset(&all);
        (void) pthread_sigmask(SIG_SETMASK, &all, &before);
        r = pthread_create(&j->thread, NULL, worker_main, j);
        (void) pthread_sigmask(SIG_SETMASK, &before, NULL);
        j->has_thread = r == 0;
        return -r;
}

int audit_journal_new(AuditJournal **ret, sd_event *event, const char *socket_path, const char *directory,
                      const char *unit, AuditJournalKept handler, void *userdata) {
        _cleanup_(audit_journal_freep) AuditJournal *j = NULL;
        int r;

        j = calloc(1, sizeof(*j));
        if (!j)
                return -ENOMEM;
        *j = (AuditJournal) {
                .socket_path = strdup(socket_path),
                .directory = strdup(directory),
                .unit = unit ? strdup(unit) : NULL,
                .socket_fd = -1,
                .handler = handler,
                .userdata = userdata,
                .event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                .mutex = PTHREAD_MUTEX_INITIALIZER,
                .cond = PTHREAD_COND_INITIALIZER,
                .synced = calloc(SYNCED_MAX, sizeof(ino_t)),
        };
        if (!j->socket_path || !j->directory || (unit && !j->unit) || !j->synced)
                return -ENOMEM;
        if (j->event_fd < 0)
                return -errno;

        r = sd_event_add_io(event, &j->source, j->event_fd, EPOLLIN, journal_on_result, j);
        if (r < 0)
                return r;
        r = journal_start_worker(j);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(j);
        return 0;
}

AuditJournal *audit_journal_free(AuditJournal *j) {
        if (!j)
                return NULL;

        if (j->has_thread) {
                atomic_store(&j->quit, true);
                (void) pthread_mutex_lock(&j->mutex);
                j->state = STATE_QUIT;
                (void) pthread_cond_signal(&j->cond);
                (void) pthread_mutex_unlock(&j->mutex);
                (void) pthread_join(j->thread, NULL);
        }

        (void) sd_event_source_disable_unref(j->source);
        (void) fd_close(j->event_fd);
        (void) fd_close(j->socket_fd);
        if (j->journal)
                sd_journal_close(j->journal);
        free(j->synced);
        free(j->socket_path);
        free(j->directory);
        free(j->unit);
        free(j);
        return NULL;
}
