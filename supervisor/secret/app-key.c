/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "secret/app-key.h"

#include <errno.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <stdio.h>
#include <string.h>

#include "secret/seal.h"
#include "util/cleanup.h"

enum { RSA_BITS_MIN = 2048, RSA_BITS_MAX = 8192, SIGNATURE_MAX = RSA_BITS_MAX / 8, ISS_MAX = 64, PART_MAX = 256 };

static void pkey_freep(EVP_PKEY **p) {
        EVP_PKEY_free(*p);
}
#define _cleanup_pkey_ _cleanup_(pkey_freep)

static void digest_freep(EVP_MD_CTX **c) {
        EVP_MD_CTX_free(*c);
}

bool app_key_is_pem(const Secret *value) {
        static const char begin[] = "-----BEGIN ";
        SecretView v = secret_view(value);

        return v.size >= sizeof(begin) - 1 && memcmp(v.bytes, begin, sizeof(begin) - 1) == 0;
}

/* Nobody is there to be asked for a passphrase. */
static int no_passphrase(char *buffer, int size, int writing, void *userdata) {
        return -1;
}

static EVP_PKEY *read_key(const Secret *value) {
        SecretView v = secret_view(value);
        EVP_PKEY *key = NULL;
        BIO *bio;

        bio = BIO_new_mem_buf(v.bytes, (int) v.size);
        if (bio)
                key = PEM_read_bio_PrivateKey(bio, NULL, no_passphrase, NULL);
        BIO_free(bio);
        return key;
}

const char *app_key_check(const Secret *value) {
        _cleanup_pkey_ EVP_PKEY *key = read_key(value);

        if (!key)
                return "a key that cannot be read: an app's is one in PEM, without a passphrase";
        if (EVP_PKEY_get_base_id(key) != EVP_PKEY_RSA)
                return "a key that is not of RSA, as an app's is";
        if (EVP_PKEY_get_bits(key) < RSA_BITS_MIN || EVP_PKEY_get_bits(key) > RSA_BITS_MAX)
                return "a key that has not between 2048 and 8192 bits";
        return NULL;
}

/* Appends Base64 of the URL's alphabet without padding (RFC 7515, 2). */
static char *append_base64url(char *to, const void *data, size_t size) {
        int n = EVP_EncodeBlock((unsigned char *) to, data, (int) size);

        while (n > 0 && to[n - 1] == '=')
                n--;
        for (int i = 0; i < n; i++)
                to[i] = to[i] == '+' ? '-' : to[i] == '/' ? '_' : to[i];
        to[n] = '\0';
        return to + n;
}

static int sign(EVP_PKEY *key, const void *data, size_t size, uint8_t *ret, size_t *ret_size) {
        _cleanup_(digest_freep) EVP_MD_CTX *c = EVP_MD_CTX_new();

        *ret_size = SIGNATURE_MAX;
        if (!c)
                return -ENOMEM;
        return EVP_DigestSignInit(c, NULL, EVP_sha256(), NULL, key) == 1 && EVP_DigestSign(c, ret, ret_size, data, size) == 1 ? 0 : -EIO;
}

int app_key_sign(const Secret *value, const char *iss, uint64_t now_usec, Secret **ret) {
        static const char header[] = "{\"alg\":\"RS256\",\"typ\":\"JWT\"}";
        char claims[PART_MAX], token[2 * PART_MAX + 2 * SIGNATURE_MAX], *p = token;
        uint64_t iat = now_usec / 1000000 - APP_PROOF_BACK_S;
        _cleanup_pkey_ EVP_PKEY *key = NULL;
        uint8_t signature[SIGNATURE_MAX];
        size_t n;
        int r;

        if (app_key_check(value) || strlen(iss) > ISS_MAX || strpbrk(iss, "\"\\"))
                return -EINVAL;
        key = read_key(value);
        if (!key)
                return -ENOMEM;

        n = (size_t) snprintf(claims, sizeof(claims), "{\"exp\":%" PRIu64 ",\"iat\":%" PRIu64 ",\"iss\":\"%s\"}",
                              iat + APP_PROOF_BACK_S + APP_PROOF_S, iat, iss);
        p = append_base64url(p, header, sizeof(header) - 1);
        *p++ = '.';
        p = append_base64url(p, claims, n);
        r = sign(key, token, (size_t) (p - token), signature, &n);
        if (r < 0)
                return r;
        *p++ = '.';
        p = append_base64url(p, signature, n);

        r = secret_new(ret, token, (size_t) (p - token));
        explicit_bzero(token, sizeof(token));
        return r;
}

int app_key_derive(const Secret *value, const char *purpose, Secret **ret) {
        SecretView v = secret_view(value);
        uint8_t derived[SEAL_KEY_SIZE];
        size_t n = 0;
        int r;

        if (!EVP_Q_mac(NULL, "HMAC", NULL, "SHA256", NULL, v.bytes, v.size, (const unsigned char *) purpose, strlen(purpose),
                       derived, sizeof(derived), &n) ||
            n != sizeof(derived))
                return -EIO;
        r = secret_new(ret, derived, sizeof(derived));
        explicit_bzero(derived, sizeof(derived));
        return r;
}
