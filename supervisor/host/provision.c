/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The credentials, and what becomes of each:
 *
 *   anchorhold.host          host.json
 *   anchorhold.authority     authority.json
 *   anchorhold.upstream-ca   upstream-ca.d/provisioned.pem    CA certificates in PEM, one after the other
 *   anchorhold.trusted-keys  keys/provisioned-N.pem           Ed25519 public keys in PEM, one after the other
 *
 * They come from the kernel's command line, SMBIOS, fw_cfg or a file (systemd.system-credentials(7)); systemd puts them into the folder. They are checked by the very
 * code that reads the files later. If one is malformed none is taken over, and the files stay as they were: half of a definition
 * may be wider than either the old or the new one.
 *
 * What a machine's definition says holds at each boot, also over what somebody wrote into these files meanwhile. A credential that is gone takes nothing
 * away, but for keys beyond those of a shorter list.
 */

#include "host/provision.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "policy/policy.h"
#include "util/cleanup.h"
#include "util/io.h"
#include "util/log.h"

enum { CREDENTIAL_MAX = 1024 * 1024, KEYS_MAX = 16 };

typedef struct Piece {
        const char *name;
        /* 0, or -EINVAL and why in *ret_reason (the caller's) */
        int (*check)(const char *data, size_t size, char **ret_reason);
        int (*write)(int etc, const char *data, size_t size);
} Piece;

/* ---- PEM ---- */

/* Calls back with each object of a PEM text, decoded. Text between objects is passed over, as every reader of PEM does; -EINVAL for an object that is damaged, which
 * *ret_n counts as well. */
static int each_pem(const char *data, size_t size, int (*handler)(const char *name, const unsigned char *der, long n, unsigned index, void *userdata),
                    void *userdata, unsigned *ret_n) {
        BIO *bio = BIO_new_mem_buf(data, (int) size);
        unsigned n = 0;
        int r = 0;

        if (!bio)
                return -ENOMEM;
        for (;;) {
                unsigned char *der = NULL;
                char *name = NULL, *header = NULL;
                long length = 0;

                if (PEM_read_bio(bio, &name, &header, &der, &length) != 1) {
                        /* at the end there is no further line that could begin one; anything else is damaged */
                        r = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE ? 0 : -EINVAL;
                        n += r < 0;
                        ERR_clear_error();
                        break;
                }
                r = handler(name, der, length, n++, userdata);
                OPENSSL_free(name);
                OPENSSL_free(header);
                OPENSSL_free(der);
                if (r < 0)
                        break;
        }
        (void) BIO_free(bio);
        *ret_n = n;
        return r;
}

static int is_ca(const char *name, const unsigned char *der, long n, unsigned index, void *userdata) {
        X509 *x;
        bool good;

        if (strcmp(name, PEM_STRING_X509) != 0)
                return -EINVAL;
        x = d2i_X509(NULL, &der, n);
        good = x && X509_check_ca(x) == 1;
        X509_free(x);
        return good ? 0 : -EINVAL;
}

static int is_key(const char *name, const unsigned char *der, long n, unsigned index, void *userdata) {
        EVP_PKEY *key;
        bool good;

        if (strcmp(name, PEM_STRING_PUBLIC) != 0 || index >= KEYS_MAX)
                return -EINVAL;
        key = d2i_PUBKEY(NULL, &der, n);
        good = key && EVP_PKEY_get_id(key) == EVP_PKEY_ED25519;
        EVP_PKEY_free(key);
        return good ? 0 : -EINVAL;
}

static int check_pem(const char *data, size_t size, int (*handler)(const char *, const unsigned char *, long, unsigned, void *), const char *what, char **ret_reason) {
        unsigned n = 0;
        int r;

        r = each_pem(data, size, handler, NULL, &n);
        if (r == -ENOMEM || (r == 0 && n > 0))
                return r;
        *ret_reason = n == 0 ? text_format("there is no PEM object in it; it must have %s", what) : text_format("object %u is none of %s", n, what);
        return *ret_reason ? -EINVAL : -ENOMEM;
}

static int check_ca(const char *data, size_t size, char **ret_reason) {
        return check_pem(data, size, is_ca, "CA certificates in PEM", ret_reason);
}

static int check_keys(const char *data, size_t size, char **ret_reason) {
        return check_pem(data, size, is_key, "at most 16 Ed25519 public keys in PEM", ret_reason);
}

static int check_host(const char *data, size_t size, char **ret_reason) {
        return policy_check_text(POLICY_TEXT_HOST, data, size, ret_reason);
}

static int check_authority(const char *data, size_t size, char **ret_reason) {
        return policy_check_text(POLICY_TEXT_AUTHORITY, data, size, ret_reason);
}

/* ---- files ---- */

/* A second boot with the same definition changes no file, not even its time. */
static int put(int etc, const char *path, const char *data, size_t size) {
        _cleanup_free_ char *there = NULL;
        size_t n = 0;

        if (io_read_file(etc, path, CREDENTIAL_MAX, &there, &n) >= 0 && n == size && memcmp(there, data, size) == 0)
                return 0;
        log_info("%s is written, as this host is provisioned", path);
        return io_write_file_atomic(etc, path, data, size, 0644);
}

static int make_folder(int etc, const char *name) {
        return mkdirat(etc, name, 0755) < 0 && errno != EEXIST ? -errno : 0;
}

static int write_host(int etc, const char *data, size_t size) {
        return put(etc, "host.json", data, size);
}

static int write_authority(int etc, const char *data, size_t size) {
        return put(etc, "authority.json", data, size);
}

static int write_ca(int etc, const char *data, size_t size) {
        return make_folder(etc, "upstream-ca.d") ?: put(etc, "upstream-ca.d/provisioned.pem", data, size);
}

static void key_path(unsigned index, char ret[static 64]) {
        (void) snprintf(ret, 64, "keys/provisioned-%u.pem", index + 1);
}

static int write_key(const char *name, const unsigned char *der, long n, unsigned index, void *userdata) {
        BIO *bio = BIO_new(BIO_s_mem());
        char path[64], *text = NULL;
        long size = 0;
        int r = -ENOMEM;

        key_path(index, path);
        if (bio && PEM_write_bio(bio, name, "", der, n) > 0)
                size = BIO_get_mem_data(bio, &text);
        if (size > 0)
                r = put(*(int *) userdata, path, text, (size_t) size);
        (void) BIO_free(bio);
        return r;
}

static int write_keys(int etc, const char *data, size_t size) {
        char path[64];
        unsigned n = 0;
        int r;

        r = make_folder(etc, "keys");
        if (r >= 0)
                r = each_pem(data, size, write_key, &etc, &n);
        for (; r >= 0 && n < KEYS_MAX; n++) {
                key_path(n, path);
                if (unlinkat(etc, path, 0) < 0 && errno != ENOENT)
                        r = -errno;
        }
        return r;
}

/* ---- all of it ---- */

static const Piece pieces[] = {
        { "anchorhold.host", check_host, write_host },
        { "anchorhold.authority", check_authority, write_authority },
        { "anchorhold.upstream-ca", check_ca, write_ca },
        { "anchorhold.trusted-keys", check_keys, write_keys },
};

typedef struct Given {
        char *data; /* owned; NULL: not given */
        size_t size;
} Given;

static int read_piece(int folder, const Piece *piece, Given *ret, char *reason, size_t size) {
        _cleanup_free_ char *why = NULL;
        int r;

        r = io_read_file(folder, piece->name, CREDENTIAL_MAX, &ret->data, &ret->size);
        if (r == -ENOENT)
                return 0;
        if (r >= 0)
                r = piece->check(ret->data, ret->size, &why);
        if (r < 0)
                (void) snprintf(reason, size, "credential %s: %s", piece->name, why ?: strerror(-r));
        return r;
}

static int apply(int folder, const char *etc, Given given[static ELEMENTSOF(pieces)], char *reason, size_t size) {
        _cleanup_fd_ int to = -1;
        int r;

        for (size_t i = 0; i < ELEMENTSOF(pieces); i++) {
                r = read_piece(folder, &pieces[i], &given[i], reason, size);
                if (r < 0)
                        return r;
        }

        to = open(etc, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        r = to < 0 ? -errno : 0;
        for (size_t i = 0; r >= 0 && i < ELEMENTSOF(pieces); i++)
                if (given[i].data)
                        r = pieces[i].write(to, given[i].data, given[i].size);
        if (r < 0)
                (void) snprintf(reason, size, "cannot write below %s: %s", etc, strerror(-r));
        return r;
}

int provision_apply(const char *folder, const char *etc, char *reason, size_t size) {
        Given given[ELEMENTSOF(pieces)] = {};
        _cleanup_fd_ int from = -1;
        int r;

        from = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (from < 0) {
                (void) snprintf(reason, size, "cannot open %s: %s", folder, strerror(errno));
                return -errno;
        }
        r = apply(from, etc, given, reason, size);
        for (size_t i = 0; i < ELEMENTSOF(pieces); i++)
                free(given[i].data);
        return r;
}
