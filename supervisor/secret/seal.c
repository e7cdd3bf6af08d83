/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "secret/seal.h"

#include <errno.h>
#include <limits.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <stdint.h>
#include <string.h>

#define SEAL_MAGIC "AHSEAL1\n"

enum { MAGIC_SIZE = 8, NONCE_SIZE = 12, TAG_SIZE = 16, OVERHEAD = MAGIC_SIZE + NONCE_SIZE + TAG_SIZE };

static void cipher_freep(EVP_CIPHER_CTX **c) {
        EVP_CIPHER_CTX_free(*c);
}

static EVP_CIPHER_CTX *cipher_start(const Secret *key, const char *name, const uint8_t *nonce, int encrypt) {
        EVP_CIPHER_CTX *c;
        int n;

        if (secret_view(key).size != SEAL_KEY_SIZE)
                return NULL;
        c = EVP_CIPHER_CTX_new();
        if (!c)
                return NULL;
        if (EVP_CipherInit_ex(c, EVP_aes_256_gcm(), NULL, (const unsigned char *) secret_view(key).bytes, nonce, encrypt) != 1 ||
            EVP_CipherUpdate(c, NULL, &n, (const uint8_t *) name, (int) strlen(name)) != 1) {
                EVP_CIPHER_CTX_free(c);
                return NULL;
        }
        return c;
}

int seal_close(const Secret *key, const char *name, const void *data, size_t size, void **ret, size_t *ret_size) {
        _cleanup_(cipher_freep) EVP_CIPHER_CTX *c = NULL;
        _cleanup_free_ uint8_t *out = NULL;
        int n, last;

        if (size > INT_MAX - OVERHEAD)
                return -EFBIG;

        out = malloc(size + OVERHEAD);
        if (!out)
                return -ENOMEM;

        memcpy(out, SEAL_MAGIC, MAGIC_SIZE);
        if (RAND_bytes(out + MAGIC_SIZE, NONCE_SIZE) != 1)
                return -EIO;

        c = cipher_start(key, name, out + MAGIC_SIZE, 1);
        if (!c)
                return -ENOMEM;
        if (EVP_CipherUpdate(c, out + MAGIC_SIZE + NONCE_SIZE, &n, data, (int) size) != 1 ||
            EVP_CipherFinal_ex(c, out + MAGIC_SIZE + NONCE_SIZE + n, &last) != 1 ||
            EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_GET_TAG, TAG_SIZE, out + MAGIC_SIZE + NONCE_SIZE + size) != 1)
                return -EIO;

        *ret = TAKE_PTR(out);
        *ret_size = size + OVERHEAD;
        return 0;
}

int seal_open(const Secret *key, const char *name, const void *data, size_t size, void **ret, size_t *ret_size) {
        _cleanup_(cipher_freep) EVP_CIPHER_CTX *c = NULL;
        const uint8_t *in = data;
        size_t inner;
        uint8_t *out;
        int n, last;

        if (size < OVERHEAD || size > INT_MAX || memcmp(in, SEAL_MAGIC, MAGIC_SIZE) != 0)
                return -EBADMSG;

        inner = size - OVERHEAD;
        c = cipher_start(key, name, in + MAGIC_SIZE, 0);
        if (!c)
                return -ENOMEM;
        out = malloc(inner + 1);
        if (!out)
                return -ENOMEM;

        if (EVP_CipherUpdate(c, out, &n, in + MAGIC_SIZE + NONCE_SIZE, (int) inner) != 1 ||
            EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_SET_TAG, TAG_SIZE, (void *) (in + size - TAG_SIZE)) != 1 ||
            EVP_CipherFinal_ex(c, out + n, &last) != 1) {
                secret_erase(out, inner + 1);
                return -EBADMSG;
        }

        out[inner] = 0;
        *ret = out;
        *ret_size = inner;
        return 0;
}
