/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * At rest a credential is /var/lib/anchorhold/credentials/NAME, made by `anchorctl credential add` with what is
 *
 *     systemd-creds encrypt --name=cred_NAME - /var/lib/anchorhold/credentials/NAME
 *
 * and secretd's unit says LoadCredentialEncrypted=cred:/var/lib/anchorhold/credentials: PID 1 decrypts
 * each file of that folder as cred_NAME, and the name inside must be that one. A credential goes
 * into HTTP heads, so its bytes are visible ASCII without blanks; one line end at its end is an
 * editor's and is dropped. Or it is the private key of a GitHub App in PEM, by which values are minted.
 */

#include "secret/credential-store.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "secret/app-key.h"
#include "util/log.h"
#include "util/text.h"

enum { CREDENTIALS_MAX = 256, CREDENTIAL_MIN_SIZE = 8 };

typedef struct Entry {
        char *name;     /* owned */
        Secret *secret; /* owned */
} Entry;

struct CredentialStore {
        Entry entries[CREDENTIALS_MAX];
        size_t n_entries;
};

static const char *check(const Secret *s) {
        SecretView v = secret_view(s);
        const unsigned char *p = (const unsigned char *) v.bytes;

        if (v.size < CREDENTIAL_MIN_SIZE)
                return "shorter than 8 bytes";
        if (v.size > CREDENTIAL_MAX_SIZE)
                return "longer than 8192 bytes";
        if (app_key_is_pem(s))
                return app_key_check(s);
        for (size_t i = 0; i < v.size; i++)
                if (p[i] < 0x21 || p[i] > 0x7e)
                        return "a byte that is no visible ASCII character";
        return NULL;
}

static int without_line_end(Secret **s) {
        SecretView v = secret_view(*s);
        const char *p = (const char *) v.bytes;
        Secret *shorter = NULL;
        size_t size = v.size;
        int r;

        if (size > 0 && p[size - 1] == '\n')
                size--;
        if (size > 0 && p[size - 1] == '\r')
                size--;
        if (size == v.size || size == 0)
                return 0;

        r = secret_new(&shorter, p, size);
        if (r < 0)
                return r;
        secret_free(*s);
        *s = shorter;
        return 0;
}

int credential_value_take(Secret **value, const char **ret_wrong) {
        int r;

        r = without_line_end(value);
        if (r < 0)
                return r;
        *ret_wrong = check(*value);
        return 0;
}

static int load_one(CredentialStore *s, int dir_fd, const char *file) {
        const char *name = file + strlen(CREDENTIAL_PREFIX), *wrong = NULL;
        _cleanup_(secret_freep) Secret *secret = NULL;
        int r;

        if (!text_is_name(name)) {
                log_warning("credential file %s: not a credential's name, ignored", file);
                return 0;
        }
        if (s->n_entries == CREDENTIALS_MAX) {
                log_warning("credential %s: more than %d credentials, ignored", name, CREDENTIALS_MAX);
                return 0;
        }

        r = secret_read_file(&secret, dir_fd, file);
        if (r >= 0)
                r = credential_value_take(&secret, &wrong);
        if (r < 0) {
                log_warning_errno(r, "credential %s: cannot be read, ignored", name);
                return r == -ENOMEM ? r : 0;
        }
        if (wrong) {
                log_warning("credential %s: %s, ignored", name, wrong);
                return 0;
        }

        s->entries[s->n_entries].name = strdup(name);
        if (!s->entries[s->n_entries].name)
                return -ENOMEM;
        s->entries[s->n_entries++].secret = TAKE_PTR(secret);
        return 0;
}

int credential_store_load(CredentialStore **ret, const char *folder) {
        _cleanup_(credential_store_freep) CredentialStore *s = NULL;
        _cleanup_dir_ DIR *dir = NULL;
        struct dirent *e;
        int r;

        s = calloc(1, sizeof(*s));
        if (!s)
                return -ENOMEM;
        if (!folder) {
                *ret = TAKE_PTR(s);
                return 0;
        }

        dir = opendir(folder);
        if (!dir)
                return -errno;

        while ((errno = 0, e = readdir(dir))) {
                if (strncmp(e->d_name, CREDENTIAL_PREFIX, strlen(CREDENTIAL_PREFIX)) != 0)
                        continue;
                r = load_one(s, dirfd(dir), e->d_name);
                if (r < 0)
                        return r;
        }
        if (errno > 0)
                return -errno;

        *ret = TAKE_PTR(s);
        return 0;
}

CredentialStore *credential_store_free(CredentialStore *s) {
        if (!s)
                return NULL;
        for (size_t i = 0; i < s->n_entries; i++) {
                free(s->entries[i].name);
                secret_free(s->entries[i].secret);
        }
        free(s);
        return NULL;
}

size_t credential_store_size(const CredentialStore *s) {
        return s->n_entries;
}

const char *credential_store_name(const CredentialStore *s, size_t i) {
        return s->entries[i].name;
}

const Secret *credential_store_find(const CredentialStore *s, const char *name) {
        for (size_t i = 0; i < s->n_entries; i++)
                if (strcmp(s->entries[i].name, name) == 0)
                        return s->entries[i].secret;
        return NULL;
}
