/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Constraints are defence in depth: inject signs only what the proxy handed it, and a guest that trusts
 * this CA for one run is no one else's client. They make a stolen key worth only the names that could be
 * read anyway. A DNS constraint covers the name and everything below it (RFC 5280 4.2.1.10), so
 * that an exact name admits its children as well; leaves are made for exact names only.
 */

#include "secret/run-ca.h"

#include <errno.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>

#define DEFINE_OPENSSL_CLEANUP(type, func)                      \
        static inline void func##p(type **p) {                  \
                func(*p);                                       \
        }
DEFINE_OPENSSL_CLEANUP(X509, X509_free)
DEFINE_OPENSSL_CLEANUP(EVP_PKEY, EVP_PKEY_free)
DEFINE_OPENSSL_CLEANUP(BIO, BIO_free_all)
DEFINE_OPENSSL_CLEANUP(GENERAL_SUBTREE, GENERAL_SUBTREE_free)
DEFINE_OPENSSL_CLEANUP(NAME_CONSTRAINTS, NAME_CONSTRAINTS_free)

static int subtree_push(STACK_OF(GENERAL_SUBTREE) **stack, int type, const void *value, size_t size) {
        _cleanup_(GENERAL_SUBTREE_freep) GENERAL_SUBTREE *tree = NULL;
        ASN1_STRING *text;

        if (!*stack)
                *stack = sk_GENERAL_SUBTREE_new_null();
        tree = GENERAL_SUBTREE_new();
        if (!*stack || !tree)
                return -ENOMEM;

        text = type == GEN_IPADD ? ASN1_OCTET_STRING_new() : ASN1_IA5STRING_new();
        if (!text)
                return -ENOMEM;
        /* the subtree owns text from here on */
        GENERAL_NAME_set0_value(tree->base, type, text);
        if (ASN1_STRING_set(text, value, (int) size) != 1 || sk_GENERAL_SUBTREE_push(*stack, tree) <= 0)
                return -ENOMEM;
        tree = NULL;
        return 0;
}

static int add_constraints(X509 *cert, const char *const *names, size_t n_names) {
        _cleanup_(NAME_CONSTRAINTS_freep) NAME_CONSTRAINTS *nc = NULL;
        static const uint8_t any[32]; /* address and mask, all zero */
        int r;

        nc = NAME_CONSTRAINTS_new();
        if (!nc)
                return -ENOMEM;

        for (size_t i = 0; i < n_names; i++) {
                const char *name = strncmp(names[i], "*.", 2) == 0 ? names[i] + 2 : names[i];

                r = subtree_push(&nc->permittedSubtrees, GEN_DNS, name, strlen(name));
                if (r < 0)
                        return r;
        }
        r = subtree_push(&nc->excludedSubtrees, GEN_IPADD, any, 8);
        if (r < 0)
                return r;
        r = subtree_push(&nc->excludedSubtrees, GEN_IPADD, any, 32);
        if (r < 0)
                return r;

        return X509_add1_ext_i2d(cert, NID_name_constraints, nc, 1, X509V3_ADD_APPEND) == 1 ? 0 : -ENOMEM;
}

static int add_extension(X509 *cert, int nid, const char *value) {
        X509_EXTENSION *ext;
        X509V3_CTX ctx;
        int ok;

        X509V3_set_ctx_nodb(&ctx);
        X509V3_set_ctx(&ctx, cert, cert, NULL, NULL, 0);
        ext = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
        if (!ext)
                return -ENOMEM;
        ok = X509_add_ext(cert, ext, -1);
        X509_EXTENSION_free(ext);
        return ok == 1 ? 0 : -ENOMEM;
}

static int set_serial(X509 *cert) {
        unsigned char bytes[16];
        BIGNUM *n;
        int ok;

        if (RAND_bytes(bytes, sizeof(bytes)) != 1)
                return -EIO;
        bytes[0] &= 0x7f;
        bytes[0] |= 0x40;
        n = BN_bin2bn(bytes, sizeof(bytes), NULL);
        ok = n && BN_to_ASN1_INTEGER(n, X509_get_serialNumber(cert));
        BN_free(n);
        return ok ? 0 : -ENOMEM;
}

static int set_subject(X509 *cert, const char *run) {
        X509_NAME *name = X509_get_subject_name(cert);
        char text[64];

        (void) snprintf(text, sizeof(text), "Anchorhold run %s", run);
        if (X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *) text, -1, -1, 0) != 1 ||
            X509_set_issuer_name(cert, name) != 1)
                return -ENOMEM;
        return 0;
}

static int export_cert(X509 *cert, char **ret) {
        _cleanup_(BIO_free_allp) BIO *bio = BIO_new(BIO_s_mem());
        char *data;
        long size;

        if (!bio || PEM_write_bio_X509(bio, cert) != 1)
                return -ENOMEM;
        size = BIO_get_mem_data(bio, &data);
        *ret = strndup(data, (size_t) size);
        return *ret ? 0 : -ENOMEM;
}

static int export_key(EVP_PKEY *key, Secret **ret) {
        unsigned char *der = NULL;
        int size, r;

        size = i2d_PrivateKey(key, &der);
        if (size <= 0)
                return -ENOMEM;
        r = secret_new(ret, der, (size_t) size);
        OPENSSL_clear_free(der, (size_t) size);
        return r;
}

int run_ca_make(const char *run, const char *const *names, size_t n_names,
                uint64_t not_before_usec, uint64_t not_after_usec, char **ret_cert_pem, Secret **ret_key) {
        _cleanup_(EVP_PKEY_freep) EVP_PKEY *key = NULL;
        _cleanup_(X509_freep) X509 *cert = NULL;
        _cleanup_(secret_freep) Secret *secret = NULL;
        _cleanup_free_ char *pem = NULL;
        int r;

        if (n_names == 0 || not_after_usec <= not_before_usec)
                return -EINVAL;

        key = EVP_EC_gen("P-256");
        cert = X509_new();
        if (!key || !cert)
                return -ENOMEM;

        if (X509_set_version(cert, X509_VERSION_3) != 1 || X509_set_pubkey(cert, key) != 1 ||
            !ASN1_TIME_set(X509_getm_notBefore(cert), (time_t) (not_before_usec / 1000000)) ||
            !ASN1_TIME_set(X509_getm_notAfter(cert), (time_t) (not_after_usec / 1000000)))
                return -ENOMEM;

        if ((r = set_serial(cert)) < 0 || (r = set_subject(cert, run)) < 0 ||
            (r = add_extension(cert, NID_basic_constraints, "critical,CA:TRUE,pathlen:0")) < 0 ||
            (r = add_extension(cert, NID_key_usage, "critical,keyCertSign")) < 0 ||
            (r = add_extension(cert, NID_ext_key_usage, "serverAuth")) < 0 ||
            (r = add_extension(cert, NID_subject_key_identifier, "hash")) < 0 ||
            (r = add_constraints(cert, names, n_names)) < 0)
                return r;

        if (X509_sign(cert, key, EVP_sha256()) == 0)
                return -EIO;

        r = export_cert(cert, &pem);
        if (r < 0)
                return r;
        r = export_key(key, &secret);
        if (r < 0)
                return r;

        *ret_cert_pem = TAKE_PTR(pem);
        *ret_key = TAKE_PTR(secret);
        return 0;
}
