/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "host/host-bls.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/cleanup.h"
#include "util/text.h"

#define PREFIX "anchorhold-"
#define SUFFIX ".conf"
#define BOOT_PREFIX "/boot"
#define KERNELS "/ostree/"

enum { COMMIT_LENGTH = HEX_SHA256_SIZE - 1,
       ATTRIBUTES_SIZE = 4 };

/* ---- names ---- */

/* COMMIT.SERIAL */
static bool is_id(const char *s) {
        size_t digits = strspn(s, "0123456789abcdef"), serial = digits == COMMIT_LENGTH && s[digits] == '.' ? strspn(s + digits + 1, "0123456789") : 0;

        return serial > 0 && s[digits + 1 + serial] == '\0';
}

/* A number of tries at s, which is moved behind it. */
static bool take_tries(const char **s, int *ret) {
        char *end;
        long n;

        if (!isdigit((unsigned char) **s))
                return false;
        n = strtol(*s, &end, 10);
        if (n > BLS_TRIES_MAX)
                return false;
        *s = end;
        *ret = (int) n;
        return true;
}

bool bls_name_parse(const char *file, BlsName *ret) {
        size_t length = strlen(file), end;
        BlsName name = { .left = -1 };
        const char *at;

        if (length >= BLS_NAME_SIZE || length <= strlen(PREFIX SUFFIX) || strncmp(file, PREFIX, strlen(PREFIX)) != 0 ||
            strcmp(file + length - strlen(SUFFIX), SUFFIX) != 0)
                return false;
        file += strlen(PREFIX);
        end = length - strlen(PREFIX SUFFIX);
        at = memchr(file, '+', end);
        if (at) {
                end = (size_t) (at++ - file);
                if (!take_tries(&at, &name.left) || (*at == '-' && (at++, !take_tries(&at, &name.done))) || strcmp(at, SUFFIX) != 0)
                        return false;
        }
        if (end >= sizeof(name.id))
                return false;
        memcpy(name.id, file, end);
        if (!is_id(name.id))
                return false;
        *ret = name;
        return true;
}

void bls_name_format(const BlsName *name, char ret[static BLS_NAME_SIZE]) {
        char tries[32] = "";

        if (name->left >= 0 && name->done > 0)
                (void) snprintf(tries, sizeof(tries), "+%d-%d", name->left, name->done);
        else if (name->left >= 0)
                (void) snprintf(tries, sizeof(tries), "+%d", name->left);
        (void) snprintf(ret, BLS_NAME_SIZE, PREFIX "%s%s" SUFFIX, name->id, tries);
}

/* ---- entries ---- */

static bool is_file_name(const char *s) {
        size_t n = strspn(s, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._+-");

        return n > 0 && n < NAME_MAX && s[n] == '\0' && s[0] != '.';
}

/* "[/boot]/ostree/FOLDER/FILE", cut in two in place. */
static bool split_path(char *path, const char **ret_folder, const char **ret_file) {
        char *slash;

        if (strncmp(path, BOOT_PREFIX KERNELS, strlen(BOOT_PREFIX KERNELS)) == 0)
                path += strlen(BOOT_PREFIX);
        if (strncmp(path, KERNELS, strlen(KERNELS)) != 0)
                return false;
        path += strlen(KERNELS);
        slash = strchr(path, '/');
        if (!slash)
                return false;
        *slash = '\0';
        *ret_folder = path;
        *ret_file = slash + 1;
        return is_file_name(path) && is_file_name(slash + 1);
}

void bls_entry_done(BlsEntry *e) {
        free(e->text);
        *e = (BlsEntry) {};
}

/* The value of a line "KEY VALUE" that has this key, or NULL. */
static char *value_of(char *line, const char *key) {
        size_t n = strlen(key);

        if (strncmp(line, key, n) != 0 || (line[n] != ' ' && line[n] != '\t'))
                return NULL;
        return line + n + strspn(line + n, " \t");
}

static void take_line(BlsEntry *e, char *line, char **linux_path, char **initrd_path) {
        const struct {
                const char *key;
                const char **value;
        } keys[] = {
                { "title", &e->title },
                { "version", &e->version },
                { "options", &e->options },
                { "linux", (const char **) linux_path },
                { "initrd", (const char **) initrd_path },
        };

        for (size_t i = 0; i < ELEMENTSOF(keys); i++) {
                const char *value = value_of(line, keys[i].key);

                if (value && !*keys[i].value)
                        *keys[i].value = value;
        }
}

int bls_entry_parse(const char *data, size_t size, BlsEntry *ret) {
        char *linux_path = NULL, *initrd_path = NULL, *save = NULL;
        const char *other = NULL;
        BlsEntry e = {};

        if (memchr(data, '\0', size))
                return -EINVAL;
        e.text = strndup(data, size);
        if (!e.text)
                return -ENOMEM;
        for (char *line = strtok_r(e.text, "\r\n", &save); line; line = strtok_r(NULL, "\r\n", &save))
                take_line(&e, line, &linux_path, &initrd_path);

        if (!e.title || !e.version || !e.options || !linux_path || !initrd_path || !split_path(linux_path, &e.kernels, &e.kernel) ||
            !split_path(initrd_path, &other, &e.initrd) || strcmp(e.kernels, other) != 0) {
                bls_entry_done(&e);
                return -EINVAL;
        }
        *ret = e;
        return 0;
}

char *bls_entry_link(const BlsEntry *e) {
        static const char key[] = "ostree=/";

        for (const char *word = e->options; *word; word += strspn(word, " ")) {
                size_t n = strcspn(word, " ");

                if (n > strlen(key) && strncmp(word, key, strlen(key)) == 0)
                        return strndup(word + strlen(key), n - strlen(key));
                word += n;
        }
        return NULL;
}

char *bls_entry_format(const BlsEntry *e) {
        return text_format("title %s\nsort-key anchorhold\nversion %s\nlinux " KERNELS "%s/%s\ninitrd " KERNELS "%s/%s\noptions %s\n", e->title, e->version,
                           e->kernels, e->kernel, e->kernels, e->initrd, e->options);
}

/* ---- where the loader came from ---- */

/* efivarfs: the attributes, then UTF-16 as UEFI has it, here of ASCII alone. udev names partitions in lower case. */
int bls_partition_parse(const char *data, size_t size, char ret[static BLS_PARTITION_SIZE]) {
        enum { LENGTH = BLS_PARTITION_SIZE - 1 };
        const uint8_t *at = (const uint8_t *) data + ATTRIBUTES_SIZE;
        char text[BLS_PARTITION_SIZE] = "";

        if (size < ATTRIBUTES_SIZE + 2 * LENGTH)
                return -EINVAL;
        for (size_t i = 0; i < LENGTH; i++) {
                bool dash = i == 8 || i == 13 || i == 18 || i == 23;

                if (at[2 * i + 1] != 0 || (dash ? at[2 * i] != '-' : !isxdigit(at[2 * i])))
                        return -EINVAL;
                text[i] = (char) tolower(at[2 * i]);
        }
        for (size_t i = ATTRIBUTES_SIZE + 2 * LENGTH; i < size; i++)
                if (data[i] != '\0')
                        return -EINVAL;
        memcpy(ret, text, BLS_PARTITION_SIZE);
        return 0;
}
