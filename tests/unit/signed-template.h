/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Manifests of guest templates that a key of the test's own signed. */

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <stdio.h>
#include <string.h>

#include "util/io.h"
#include "util/json.h"
#include "util/text.h"
#include "vmm/signature.h"
#include "vmm/vm-template.h"

/* A fresh key, with its public part in `folder`, which exists. The caller frees it. */
static inline EVP_PKEY *signed_template_make_key(const char *folder) {
        EVP_PKEY *key = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
        char path[256];
        FILE *f;

        (void) snprintf(path, sizeof(path), "%s/test.pem", folder);
        f = fopen(path, "we");
        assert_non_null(f);
        assert_int_equal(PEM_write_PUBKEY(f, key), 1);
        assert_int_equal(fclose(f), 0);
        return key;
}

/* This text as the manifest of the template in `folder`. */
static inline void signed_template_put(EVP_PKEY *key, const char *folder, const char *text) {
        uint8_t signature[SIGNATURE_SIZE];
        size_t size = sizeof(signature);
        EVP_MD_CTX *ctx = EVP_MD_CTX_new();
        char path[256];

        assert_int_equal(EVP_DigestSignInit(ctx, NULL, NULL, NULL, key), 1);
        assert_int_equal(EVP_DigestSign(ctx, signature, &size, (const uint8_t *) text, strlen(text)), 1);
        EVP_MD_CTX_free(ctx);
        (void) snprintf(path, sizeof(path), "%s/" VM_TEMPLATE_MANIFEST, folder);
        assert_int_equal(io_write_file_atomic(AT_FDCWD, path, text, strlen(text), 0644), 0);
        (void) snprintf(path, sizeof(path), "%s/" VM_TEMPLATE_SIGNATURE, folder);
        assert_int_equal(io_write_file_atomic(AT_FDCWD, path, signature, size, 0644), 0);
}

/* Adds the digest to the manifest and puts it there; takes the manifest over. ret_digest may be NULL. */
static inline void signed_template_write(EVP_PKEY *key, const char *folder, json_t *manifest, char *ret_digest) {
        _cleanup_free_ char *text = NULL;
        char digest[HEX_SHA256_SIZE];

        assert_int_equal(json_digest(manifest, digest), 0);
        assert_int_equal(json_object_set_new(manifest, "digest", json_string(digest)), 0);
        text = json_canonical(manifest);
        assert_non_null(text);
        signed_template_put(key, folder, text);
        json_decref(manifest);
        if (ret_digest)
                memcpy(ret_digest, digest, sizeof(digest));
}
