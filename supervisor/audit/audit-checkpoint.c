/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Checkpoints.
 *
 * The file has one line each, oldest first:
 *
 *     anchorhold-checkpoint-1 SEQ HASH FIRST TIME SIGNATURE
 *
 * SEQ and TIME as in a record, HASH that record's hash (64 hexadecimal digits), FIRST the number of the first record that the
 * journal still had, SIGNATURE 128 hexadecimal digits: Ed25519 (RFC 8032) over the line up to and without the space before SIGNATURE. A line is written once the journal is known to keep that
 * record, at intervals and when auditd stops. So a log that has not the record SEQ with that HASH is cut, or is
 * another log; one that begins where the newest line says was vacuumed, one that begins later was cut at its head. audit.checkpoint events carry the
 * line in their data, so that an export and the public key suffice.
 *
 * The key is made at auditd's first start, and its private part (PKCS #8 PEM, 0600) never leaves the host. The
 * public part (PEM, 0644) is for whoever checks: take a copy elsewhere, for who owns the host's root owns the key.
 */
#include "audit/audit-checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <string.h>
#include <sys/stat.h>

#include "audit/audit-api.h"
#include "util/io.h"

enum {
        KEY_FILE_MAX = 16 * 1024,
        SIGNATURE_SIZE = 64,
        CHECKPOINTS_FILE_MAX = AUDIT_CHECKPOINTS_MAX * AUDIT_CHECKPOINT_LINE_MAX,
};

#define LINE_HEADER "anchorhold-checkpoint-1 "

struct AuditKey {
        EVP_PKEY *pkey;
};

AuditKey *audit_key_free(AuditKey *k) {
        if (k)
                EVP_PKEY_free(k->pkey);
        free(k);
        return NULL;
}

static int key_new(AuditKey **ret, EVP_PKEY *pkey) {
        AuditKey *k;

        if (!pkey || EVP_PKEY_get_id(pkey) != EVP_PKEY_ED25519) {
                EVP_PKEY_free(pkey);
                return -EBADMSG;
        }

        k = malloc(sizeof(*k));
        if (!k) {
                EVP_PKEY_free(pkey);
                return -ENOMEM;
        }
        k->pkey = pkey;
        *ret = k;
        return 0;
}

/* Writes what `print` puts into a memory buffer to a file. */
static int key_write(int dir_fd, const char *name, mode_t mode, EVP_PKEY *pkey, bool private) {
        BIO *bio = BIO_new(BIO_s_secmem());
        char *data;
        long size;
        int r;

        if (!bio)
                return -ENOMEM;

        r = (private ? PEM_write_bio_PKCS8PrivateKey(bio, pkey, NULL, NULL, 0, NULL, NULL) : PEM_write_bio_PUBKEY(bio, pkey)) == 1 ? 0 : -EIO;
        if (r >= 0) {
                size = BIO_get_mem_data(bio, &data);
                r = io_write_file_atomic(dir_fd, name, data, (size_t) size, mode);
        }

        (void) BIO_free(bio);
        return r;
}

static int key_make(AuditKey **ret, int dir_fd) {
        _cleanup_(audit_key_freep) AuditKey *k = NULL;
        int r;

        r = key_new(&k, EVP_PKEY_Q_keygen(NULL, NULL, "ED25519"));
        if (r < 0)
                return r;

        /* the public part first: a private key without it would be loaded next time and never get one */
        r = key_write(dir_fd, AUDIT_PUBLIC_KEY, 0644, k->pkey, false);
        if (r >= 0)
                r = key_write(dir_fd, AUDIT_PRIVATE_KEY, 0600, k->pkey, true);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(k);
        return 0;
}

static int key_parse(AuditKey **ret, const char *data, size_t size, bool private) {
        BIO *bio = BIO_new_mem_buf(data, (int) size);
        EVP_PKEY *pkey;

        if (!bio)
                return -ENOMEM;

        pkey = private ? PEM_read_bio_PrivateKey(bio, NULL, NULL, NULL) : PEM_read_bio_PUBKEY(bio, NULL, NULL, NULL);
        (void) BIO_free(bio);
        return key_new(ret, pkey);
}

int audit_key_load_or_make(AuditKey **ret, int dir_fd) {
        _cleanup_free_ char *data = NULL;
        size_t size;
        int r;

        r = io_read_file(dir_fd, AUDIT_PRIVATE_KEY, KEY_FILE_MAX, &data, &size);
        if (r == -ENOENT)
                return key_make(ret, dir_fd);
        if (r < 0)
                return r;

        r = key_parse(ret, data, size, true);
        explicit_bzero(data, size);
        return r;
}

int audit_key_load_public(AuditKey **ret, const char *path) {
        _cleanup_free_ char *data = NULL;
        size_t size;
        int r;

        r = io_read_file(AT_FDCWD, path, KEY_FILE_MAX, &data, &size);
        return r < 0 ? r : key_parse(ret, data, size, false);
}

int audit_key_load_private(AuditKey **ret, const char *path) {
        _cleanup_free_ char *data = NULL;
        size_t size;
        int r;

        r = io_read_file(AT_FDCWD, path, KEY_FILE_MAX, &data, &size);
        if (r < 0)
                return r;

        r = key_parse(ret, data, size, true);
        explicit_bzero(data, size);
        return r;
}

int audit_key_sign(const AuditKey *key, const char *text, char ret[static AUDIT_SIGNATURE_HEX]) {
        uint8_t signature[SIGNATURE_SIZE];
        size_t size = sizeof(signature);
        EVP_MD_CTX *ctx;
        int ok;

        ctx = EVP_MD_CTX_new();
        if (!ctx)
                return -ENOMEM;
        ok = EVP_DigestSignInit(ctx, NULL, NULL, NULL, key->pkey) == 1 &&
             EVP_DigestSign(ctx, signature, &size, (const uint8_t *) text, strlen(text)) == 1 && size == SIGNATURE_SIZE;
        EVP_MD_CTX_free(ctx);
        if (!ok)
                return -EIO;

        text_hex(signature, size, ret);
        return 0;
}

int audit_key_verify(const AuditKey *key, const char *text, const char *signature) {
        uint8_t bytes[SIGNATURE_SIZE];
        EVP_MD_CTX *ctx;
        int ok;

        if (text_unhex(signature, bytes, sizeof(bytes)) < 0)
                return 0;

        ctx = EVP_MD_CTX_new();
        if (!ctx)
                return -ENOMEM;
        ok = EVP_DigestVerifyInit(ctx, NULL, NULL, NULL, key->pkey) == 1 &&
             EVP_DigestVerify(ctx, bytes, sizeof(bytes), (const uint8_t *) text, strlen(text)) == 1;
        EVP_MD_CTX_free(ctx);
        return ok;
}

/* What is signed. */
static int checkpoint_text(const AuditCheckpoint *c, char ret[static AUDIT_CHECKPOINT_LINE_MAX]) {
        char hash[HEX_SHA256_SIZE];

        text_hex(c->head.hash, AUDIT_HASH_SIZE, hash);
        return snprintf(ret, AUDIT_CHECKPOINT_LINE_MAX, LINE_HEADER "%llu %s %llu %s", (unsigned long long) c->head.seq, hash,
                        (unsigned long long) c->first_seq, c->time);
}

void audit_checkpoint_line(const AuditCheckpoint *c, char ret[static AUDIT_CHECKPOINT_LINE_MAX]) {
        int n = checkpoint_text(c, ret);

        (void) snprintf(ret + n, (size_t) (AUDIT_CHECKPOINT_LINE_MAX - n), " %s", c->signature);
}

int audit_checkpoint_sign(const AuditKey *key, const AuditHead *head, uint64_t first_seq, AuditCheckpoint *ret) {
        AuditCheckpoint c = { .head = *head, .first_seq = first_seq };
        char text[AUDIT_CHECKPOINT_LINE_MAX];
        int r;

        text_time(time_realtime(), c.time);
        (void) checkpoint_text(&c, text);
        r = audit_key_sign(key, text, c.signature);
        if (r < 0)
                return r;

        *ret = c;
        return 0;
}

int audit_checkpoint_verify(const AuditKey *key, const AuditCheckpoint *c) {
        char text[AUDIT_CHECKPOINT_LINE_MAX];

        (void) checkpoint_text(c, text);
        return audit_key_verify(key, text, c->signature);
}

int audit_checkpoint_parse(const char *line, size_t size, AuditCheckpoint *ret) {
        AuditCheckpoint c = {};
        char copy[AUDIT_CHECKPOINT_LINE_MAX], hash[HEX_SHA256_SIZE], again[AUDIT_CHECKPOINT_LINE_MAX];
        unsigned long long seq, first;
        int n = 0;

        if (size >= sizeof(copy) || memchr(line, '\0', size))
                return -EBADMSG;
        memcpy(copy, line, size);
        copy[size] = '\0';

        if (sscanf(copy, LINE_HEADER "%18llu %64[0-9a-f] %18llu %24[0-9TZ:.-] %128[0-9a-f]%n", &seq, hash, &first, c.time, c.signature, &n) != 5 ||
            (size_t) n != size || text_unhex(hash, c.head.hash, AUDIT_HASH_SIZE) < 0 || strlen(c.signature) != AUDIT_SIGNATURE_HEX - 1)
                return -EBADMSG;

        /* exactly this form: the signature is over the text, not over what it means */
        c.head.seq = seq;
        c.first_seq = first;
        n = checkpoint_text(&c, again);
        if (strncmp(again, copy, (size_t) n) != 0 || copy[n] != ' ')
                return -EBADMSG;

        *ret = c;
        return 0;
}

/* Keeps the newer half. */
static int checkpoints_shrink(int dir_fd) {
        _cleanup_free_ char *data = NULL;
        const char *middle;
        size_t size;
        int r;

        r = io_read_file(dir_fd, AUDIT_CHECKPOINTS, CHECKPOINTS_FILE_MAX, &data, &size);
        if (r < 0)
                return r;

        middle = memchr(data + size / 2, '\n', size - size / 2);
        if (!middle)
                return -EBADMSG;
        middle++;

        return io_write_file_atomic(dir_fd, AUDIT_CHECKPOINTS, middle, size - (size_t) (middle - data), 0644);
}

int audit_checkpoint_store(int dir_fd, const AuditCheckpoint *c) {
        _cleanup_fd_ int fd = -1;
        char line[AUDIT_CHECKPOINT_LINE_MAX + 1];
        struct stat st;
        int r;

        audit_checkpoint_line(c, line);
        strcat(line, "\n");

        fd = openat(dir_fd, AUDIT_CHECKPOINTS, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
        if (fd < 0)
                return -errno;
        if (fchmod(fd, 0644) < 0 || fstat(fd, &st) < 0)
                return -errno;

        /* a line that was cut off by a crash ends here, so that this one stands alone */
        if (st.st_size > 0) {
                char last = '\n';

                if (pread(fd, &last, 1, st.st_size - 1) == 1 && last != '\n') {
                        r = io_write_full(fd, "\n", 1);
                        if (r < 0)
                                return r;
                }
        }

        r = io_write_full(fd, line, strlen(line));
        if (r < 0)
                return r;
        if (fsync(fd) < 0 || fsync(dir_fd) < 0)
                return -errno;

        return st.st_size > CHECKPOINTS_FILE_MAX * 3 / 4 ? checkpoints_shrink(dir_fd) : 0;
}
