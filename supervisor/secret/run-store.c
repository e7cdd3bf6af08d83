/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * One file a run, named after it: bundle_format() without the credentials' values, sealed (seal.h)
 * under a random key that exists only in a folder of /run. So the disk holds the run's sentinels and the
 * key of its CA in a form that is worth nothing after a reboot or to anyone but this service, and never
 * a credential. Each file is replaced as a whole; a crash leaves the old one, the new one, or none.
 *
 * Removed at a start is only what can never be opened again: what is sealed under another key, or is not what was written. This service starts anew with every
 * change of a credential, while runs go on: one whose file cannot be read just now is as good as any other, so that the start fails instead.
 */

#include "secret/run-store.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "secret/bundle-api.h"
#include "secret/seal.h"
#include "util/io.h"
#include "util/log.h"

#define KEY_FILE "seal.key"

enum { RUNS_MAX = 512 };

struct RunStore {
        int state_fd;
        Secret *key;               /* owned */
        RunSecrets *runs[RUNS_MAX]; /* owned */
        size_t n_runs;
};

static int load_key(RunStore *s, const char *key_dir) {
        _cleanup_fd_ int fd = -1;
        SecretView v;
        int r;

        fd = open(key_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
                return -errno;

        r = secret_read_file(&s->key, fd, KEY_FILE);
        if (r >= 0 && secret_view(s->key).size == SEAL_KEY_SIZE)
                return 0;
        if (r < 0 && r != -ENOENT && r != -ENODATA)
                return r;

        s->key = secret_free(s->key);
        r = secret_new_random(&s->key, SEAL_KEY_SIZE);
        if (r < 0)
                return r;
        v = secret_view(s->key);
        return io_write_file_atomic(fd, KEY_FILE, v.bytes, v.size, 0600);
}

/* -EBADMSG, -EFBIG: it will never open. */
static int load_run(RunStore *s, const char *run) {
        _cleanup_free_ char *sealed = NULL;
        size_t sealed_size, size;
        RunSecrets *secrets = NULL;
        void *data;
        int r;

        r = io_read_file(s->state_fd, run, 2 * BUNDLE_MAX, &sealed, &sealed_size);
        if (r < 0)
                return r;
        r = seal_open(s->key, run, sealed, sealed_size, &data, &size);
        if (r < 0)
                return r;
        r = bundle_parse(&secrets, data, size);
        secret_erase(data, size);
        if (r < 0)
                return r;
        if (strcmp(secrets->run, run) != 0) {
                run_secrets_free(secrets);
                return -EBADMSG;
        }
        if (s->n_runs == RUNS_MAX) {
                run_secrets_free(secrets);
                return -ENOBUFS;
        }

        s->runs[s->n_runs++] = secrets;
        return 0;
}

static int load_runs(RunStore *s) {
        _cleanup_dir_ DIR *dir = NULL;
        struct dirent *e;
        int fd, r;

        fd = fcntl(s->state_fd, F_DUPFD_CLOEXEC, 3);
        if (fd < 0)
                return -errno;
        dir = fdopendir(fd);
        if (!dir) {
                r = -errno;
                (void) close(fd);
                return r;
        }

        while ((errno = 0, e = readdir(dir))) {
                if (!text_is_id('r', e->d_name))
                        continue;
                r = load_run(s, e->d_name);
                if (r == -EBADMSG || r == -EFBIG) {
                        log_info("run %s: its sealed state is of an earlier boot or damaged, removed", e->d_name);
                        (void) unlinkat(s->state_fd, e->d_name, 0);
                } else if (r < 0)
                        return log_error_errno(r, "run %s: its sealed state cannot be read now, and is kept", e->d_name);
        }
        return -errno;
}

int run_store_new(RunStore **ret, const char *state_dir, const char *key_dir) {
        _cleanup_(run_store_freep) RunStore *s = NULL;
        int r;

        s = malloc(sizeof(*s));
        if (!s)
                return -ENOMEM;
        *s = (RunStore) { .state_fd = -1 };

        s->state_fd = open(state_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (s->state_fd < 0)
                return -errno;
        r = load_key(s, key_dir);
        if (r < 0)
                return r;
        r = load_runs(s);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(s);
        return 0;
}

RunStore *run_store_free(RunStore *s) {
        if (!s)
                return NULL;
        for (size_t i = 0; i < s->n_runs; i++)
                run_secrets_free(s->runs[i]);
        secret_free(s->key);
        fd_close(s->state_fd);
        free(s);
        return NULL;
}

static int save_run(RunStore *s, const RunSecrets *secrets) {
        size_t size, sealed_size;
        void *sealed;
        char *data;
        int r;

        r = bundle_format(secrets, 0, &data, &size);
        if (r < 0)
                return r;
        r = seal_close(s->key, secrets->run, data, size, &sealed, &sealed_size);
        secret_erase(data, size);
        if (r < 0)
                return r;
        r = io_write_file_atomic(s->state_fd, secrets->run, sealed, sealed_size, 0600);
        free(sealed);
        return r;
}

int run_store_add(RunStore *s, RunSecrets *secrets) {
        int r;

        if (run_store_find(s, secrets->run))
                return -EEXIST;
        if (s->n_runs == RUNS_MAX)
                return -ENOBUFS;
        r = save_run(s, secrets);
        if (r < 0)
                return r;

        s->runs[s->n_runs++] = secrets;
        return 0;
}

RunSecrets *run_store_find(const RunStore *s, const char *run) {
        for (size_t i = 0; i < s->n_runs; i++)
                if (strcmp(s->runs[i]->run, run) == 0)
                        return s->runs[i];
        return NULL;
}

int run_store_remove(RunStore *s, const char *run) {
        for (size_t i = 0; i < s->n_runs; i++) {
                if (strcmp(s->runs[i]->run, run) != 0)
                        continue;
                if (unlinkat(s->state_fd, run, 0) < 0 && errno != ENOENT)
                        return -errno;
                run_secrets_free(s->runs[i]);
                s->runs[i] = s->runs[--s->n_runs];
                return 0;
        }
        return 0;
}

RunSecrets *run_store_find_expired(const RunStore *s, uint64_t now_usec) {
        for (size_t i = 0; i < s->n_runs; i++)
                if (s->runs[i]->expires_usec < now_usec)
                        return s->runs[i];
        return NULL;
}

size_t run_store_size(const RunStore *s) {
        return s->n_runs;
}

const RunSecrets *run_store_get(const RunStore *s, size_t i) {
        return s->runs[i];
}
