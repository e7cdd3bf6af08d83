/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * All leaves of a run share one key, made here and never written anywhere; making one for each name would
 * protect nothing, since they would lie side by side. A leaf is as valid as the CA. The last LEAVES_MAX are kept.
 */

#include "inject/leaf.h"

#include <errno.h>
#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <string.h>

enum { LEAVES_MAX = 64 };

typedef struct Leaf {
        char *name; /* owned */
        X509 *cert; /* owned */
} Leaf;

struct LeafMaker {
        X509 *ca;           /* owned */
        EVP_PKEY *ca_key;   /* owned */
        EVP_PKEY *leaf_key; /* owned */
        NAME_CONSTRAINTS *constraints; /* owned */
        Leaf leaves[LEAVES_MAX];
        size_t next; /* to be replaced */
};

int leaf_maker_new(LeafMaker **ret, const char *ca_pem, const Secret *ca_key) {
        _cleanup_(leaf_maker_freep) LeafMaker *m = NULL;
        SecretView key = secret_view(ca_key);
        const unsigned char *der = (const unsigned char *) key.bytes;
        BIO *bio;

        m = calloc(1, sizeof(*m));
        if (!m)
                return -ENOMEM;

        bio = BIO_new_mem_buf(ca_pem, -1);
        if (!bio)
                return -ENOMEM;
        m->ca = PEM_read_bio_X509(bio, NULL, NULL, NULL);
        BIO_free(bio);
        m->ca_key = d2i_AutoPrivateKey(NULL, &der, (long) key.size);
        if (!m->ca || !m->ca_key || X509_check_private_key(m->ca, m->ca_key) != 1) {
                ERR_clear_error();
                return -EBADMSG;
        }
        m->constraints = X509_get_ext_d2i(m->ca, NID_name_constraints, NULL, NULL);
        if (!m->constraints)
                return -EBADMSG;
        m->leaf_key = EVP_EC_gen("P-256");
        if (!m->leaf_key)
                return -ENOMEM;

        *ret = TAKE_PTR(m);
        return 0;
}

LeafMaker *leaf_maker_free(LeafMaker *m) {
        if (!m)
                return NULL;
        for (size_t i = 0; i < LEAVES_MAX; i++) {
                free(m->leaves[i].name);
                X509_free(m->leaves[i].cert);
        }
        NAME_CONSTRAINTS_free(m->constraints);
        EVP_PKEY_free(m->leaf_key);
        EVP_PKEY_free(m->ca_key);
        X509_free(m->ca);
        free(m);
        return NULL;
}

static int leaf_set_serial(X509 *cert) {
        unsigned char bytes[16];
        BIGNUM *n;
        int ok;

        if (RAND_bytes(bytes, sizeof(bytes)) != 1)
                return -EIO;
        bytes[0] = (bytes[0] & 0x3f) | 0x40; /* positive, and never shorter */
        n = BN_bin2bn(bytes, sizeof(bytes), NULL);
        ok = n && BN_to_ASN1_INTEGER(n, X509_get_serialNumber(cert));
        BN_free(n);
        return ok ? 0 : -ENOMEM;
}

static int leaf_add_name(X509 *cert, const char *name) {
        GENERAL_NAMES *names = GENERAL_NAMES_new();
        GENERAL_NAME *general = GENERAL_NAME_new();
        ASN1_IA5STRING *text = ASN1_IA5STRING_new();
        int ok = 0;

        if (names && general && text && ASN1_STRING_set(text, name, -1) == 1) {
                GENERAL_NAME_set0_value(general, GEN_DNS, text);
                text = NULL;
                if (sk_GENERAL_NAME_push(names, general) > 0) {
                        general = NULL;
                        /* critical, because the subject is empty (RFC 5280 4.2.1.6) */
                        ok = X509_add1_ext_i2d(cert, NID_subject_alt_name, names, 1, X509V3_ADD_APPEND);
                }
        }
        ASN1_IA5STRING_free(text);
        GENERAL_NAME_free(general);
        GENERAL_NAMES_free(names);
        return ok == 1 ? 0 : -ENOMEM;
}

static int leaf_add_extension(X509 *ca, X509 *cert, int nid, const char *value) {
        X509_EXTENSION *ext;
        X509V3_CTX ctx;
        int ok;

        X509V3_set_ctx_nodb(&ctx);
        X509V3_set_ctx(&ctx, ca, cert, NULL, NULL, 0);
        ext = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
        ok = ext && X509_add_ext(cert, ext, -1) == 1;
        X509_EXTENSION_free(ext);
        return ok ? 0 : -ENOMEM;
}

static int leaf_make(LeafMaker *m, const char *name, X509 **ret) {
        X509 *cert = X509_new();
        int r = -ENOMEM;

        if (!cert)
                return -ENOMEM;

        if (X509_set_version(cert, X509_VERSION_3) != 1 || X509_set_pubkey(cert, m->leaf_key) != 1 ||
            X509_set1_notBefore(cert, X509_get0_notBefore(m->ca)) != 1 ||
            X509_set1_notAfter(cert, X509_get0_notAfter(m->ca)) != 1 ||
            X509_set_issuer_name(cert, X509_get_subject_name(m->ca)) != 1)
                goto finish;

        if ((r = leaf_set_serial(cert)) < 0 || (r = leaf_add_name(cert, name)) < 0 ||
            (r = leaf_add_extension(m->ca, cert, NID_basic_constraints, "critical,CA:FALSE")) < 0 ||
            (r = leaf_add_extension(m->ca, cert, NID_key_usage, "critical,digitalSignature")) < 0 ||
            (r = leaf_add_extension(m->ca, cert, NID_ext_key_usage, "serverAuth")) < 0 ||
            (r = leaf_add_extension(m->ca, cert, NID_authority_key_identifier, "keyid")) < 0)
                goto finish;

        r = -EIO;
        if (X509_sign(cert, m->ca_key, EVP_sha256()) == 0)
                goto finish;
        /* What no guest would take: say so here, where it can be logged. The check reads what OpenSSL has cached of
         * the extensions, and X509_check_purpose() is what makes it do so. */
        if (X509_check_purpose(cert, -1, 0) == 1)
                r = NAME_CONSTRAINTS_check(cert, m->constraints) == X509_V_OK ? 0 : -EACCES;

finish:
        ERR_clear_error();
        if (r < 0)
                X509_free(cert);
        else
                *ret = cert;
        return r;
}

int leaf_maker_get(LeafMaker *m, const char *name, X509 **ret_cert, EVP_PKEY **ret_key) {
        Leaf *leaf = NULL;
        X509 *cert;
        char *copy;
        int r;

        for (size_t i = 0; i < LEAVES_MAX && !leaf; i++)
                if (m->leaves[i].name && strcmp(m->leaves[i].name, name) == 0)
                        leaf = &m->leaves[i];

        if (!leaf) {
                copy = strdup(name);
                if (!copy)
                        return -ENOMEM;
                r = leaf_make(m, name, &cert);
                if (r < 0) {
                        free(copy);
                        return r;
                }
                leaf = &m->leaves[m->next];
                m->next = (m->next + 1) % LEAVES_MAX;
                free(leaf->name);
                X509_free(leaf->cert);
                *leaf = (Leaf) { .name = copy, .cert = cert };
        }

        *ret_cert = leaf->cert;
        *ret_key = m->leaf_key;
        return 0;
}
