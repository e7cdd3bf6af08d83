/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "vmm/signature.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>

#include "util/cleanup.h"
#include "util/io.h"
#include "util/log.h"
#include "util/text.h"

enum {
        KEY_FILE_MAX = 16 * 1024,
        KEYS_MAX = 64,
        FOLDERS_MAX = 4,
};

static int is_pem(const struct dirent *entry) {
        size_t n = strlen(entry->d_name);

        return n > 4 && strcmp(entry->d_name + n - 4, ".pem") == 0 && entry->d_name[0] != '.';
}

static EVP_PKEY *parse_key(const char *data, size_t size) {
        BIO *bio = BIO_new_mem_buf(data, (int) size);
        EVP_PKEY *key;

        if (!bio)
                return NULL;

        key = PEM_read_bio_PUBKEY(bio, NULL, NULL, NULL);
        (void) BIO_free(bio);
        if (key && EVP_PKEY_get_id(key) != EVP_PKEY_ED25519) {
                EVP_PKEY_free(key);
                key = NULL;
        }

        return key;
}

/* Did this key make it? */
static int check_with(EVP_PKEY *key, const void *data, size_t size, const void *signature, size_t signature_size) {
        EVP_MD_CTX *ctx = EVP_MD_CTX_new();
        int ok;

        if (!ctx)
                return -ENOMEM;

        ok = EVP_DigestVerifyInit(ctx, NULL, NULL, NULL, key) == 1 &&
             EVP_DigestVerify(ctx, signature, signature_size, data, size) == 1;
        EVP_MD_CTX_free(ctx);
        return ok ? 0 : -EKEYREJECTED;
}

typedef struct Folders {
        const char *paths[FOLDERS_MAX];
        int fds[FOLDERS_MAX]; /* owned; -1: there is none */
        size_t n;
} Folders;

static void folders_done(Folders *f) {
        for (size_t i = 0; i < f->n; i++)
                f->fds[i] = fd_close(f->fds[i]);
}

/* Is there a file of this name in a folder before the one with this index? */
static bool is_hidden(const Folders *f, size_t index, const char *name) {
        struct stat st;

        for (size_t i = 0; i < index; i++)
                if (f->fds[i] >= 0 && (fstatat(f->fds[i], name, &st, AT_SYMLINK_NOFOLLOW) >= 0 || errno != ENOENT))
                        return true;
        return false;
}

static int try_key(const Folders *f, size_t index, const char *name, const void *data, size_t size, const void *signature, size_t signature_size) {
        _cleanup_free_ char *text = NULL;
        EVP_PKEY *key;
        size_t n = 0;
        int r;

        r = io_read_file(f->fds[index], name, KEY_FILE_MAX, &text, &n);
        if (r < 0) {
                (void) log_error_errno(r, "key %s/%s: cannot be read", f->paths[index], name);
                return -EKEYREJECTED;
        }
        if (n == 0) /* hides the vendor's of that name */
                return -EKEYREJECTED;

        key = parse_key(text, n);
        if (!key) {
                log_error("key %s/%s: not a public Ed25519 key in PEM form", f->paths[index], name);
                return -EKEYREJECTED;
        }

        r = check_with(key, data, size, signature, signature_size);
        EVP_PKEY_free(key);
        return r;
}

static int try_folder(const Folders *f, size_t index, const void *data, size_t size, const void *signature, size_t signature_size) {
        struct dirent **entries = NULL;
        int n, r = -EKEYREJECTED;

        n = scandirat(f->fds[index], ".", &entries, is_pem, alphasort);
        if (n < 0)
                return -errno;

        for (int i = 0; i < n; i++) {
                if (i < KEYS_MAX && r == -EKEYREJECTED && !is_hidden(f, index, entries[i]->d_name))
                        r = try_key(f, index, entries[i]->d_name, data, size, signature, signature_size);
                free(entries[i]);
        }
        free(entries);
        return r;
}

int signature_check(const char *keys, const void *data, size_t size, const void *signature, size_t signature_size) {
        _cleanup_free_ char *list = strdup(keys);
        _cleanup_(folders_done) Folders f = {};
        char *state = NULL;

        if (!list)
                return -ENOMEM;
        if (signature_size != SIGNATURE_SIZE)
                return -EKEYREJECTED;

        for (char *path = strtok_r(list, ":", &state); path; path = strtok_r(NULL, ":", &state)) {
                int fd;

                if (f.n == FOLDERS_MAX)
                        return -E2BIG;
                fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
                /* The operator's folder cannot be skipped for any other reason: it may take a key out of use. */
                if (fd < 0 && errno != ENOENT)
                        return log_error_errno(-errno, "cannot open the keys in %s", path);
                f.paths[f.n] = path;
                f.fds[f.n++] = fd;
        }

        for (size_t i = 0; i < f.n; i++) {
                int r = f.fds[i] < 0 ? -EKEYREJECTED : try_folder(&f, i, data, size, signature, signature_size);

                if (r != -EKEYREJECTED)
                        return r;
        }

        return -EKEYREJECTED;
}
