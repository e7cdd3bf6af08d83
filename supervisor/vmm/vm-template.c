/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "vmm/vm-template.h"

#include <errno.h>
#include <openssl/evp.h>
#include <string.h>
#include <unistd.h>

#include "util/io.h"
#include "util/json.h"
#include "util/text.h"
#include "vmm/signature.h"
#include "vmm/vm-measured.h"

enum {
        MANIFEST_MAX = 4 * 1024 * 1024,
        BLOCK_SIZE = 256 * 1024,
};

static int refuse(int error, char **ret_reason, const char *text) {
        if (ret_reason && !*ret_reason)
                *ret_reason = strdup(text);
        return error;
}

/* Only the bytes that were signed count: they are read once, checked, and then parsed. */
static int read_signed(int dir_fd, const char *keys, char **ret, size_t *ret_size, char **ret_reason) {
        _cleanup_free_ char *text = NULL, *signature = NULL;
        size_t size = 0, signature_size = 0;
        int r;

        r = io_read_file(dir_fd, VM_TEMPLATE_MANIFEST, MANIFEST_MAX, &text, &size);
        if (r < 0)
                return refuse(r, ret_reason, "its " VM_TEMPLATE_MANIFEST " cannot be read");

        r = io_read_file(dir_fd, VM_TEMPLATE_SIGNATURE, SIGNATURE_SIZE, &signature, &signature_size);
        if (r == -ENOENT)
                return refuse(-EKEYREJECTED, ret_reason, "it is not signed");
        if (r < 0 && r != -EFBIG)
                return refuse(r, ret_reason, "its signature cannot be read");

        r = signature_check(keys, text, size, signature, r < 0 ? 0 : signature_size);
        if (r < 0)
                return refuse(r, ret_reason, r == -EKEYREJECTED ? "no key that this host trusts made its signature" : "its signature cannot be checked");

        *ret = TAKE_PTR(text);
        *ret_size = size;
        return 0;
}

/* Does the digest that names the template belong to the rest of the manifest? */
static int check_digest(const json_t *manifest) {
        _cleanup_json_ json_t *rest = json_copy((json_t *) manifest);
        const char *digest = json_string_value(json_object_get(manifest, "digest"));
        char here[HEX_SHA256_SIZE];
        int r;

        if (!rest)
                return -ENOMEM;
        if (!digest)
                return -EBADMSG;

        (void) json_object_del(rest, "digest");
        r = json_digest(rest, here);
        if (r < 0)
                return r;

        return strcmp(here, digest) == 0 ? 0 : -EBADMSG;
}

int vm_template_read(int dir_fd, const char *name, const char *keys, json_t **ret, char **ret_reason) {
        _cleanup_json_ json_t *manifest = NULL;
        _cleanup_free_ char *text = NULL;
        const char *said;
        size_t size = 0;
        int r;

        r = read_signed(dir_fd, keys, &text, &size, ret_reason);
        if (r < 0)
                return r;

        r = json_parse(text, size, &manifest, ret_reason);
        if (r < 0)
                return -EBADMSG;

        said = json_string_value(json_object_get(manifest, "name"));
        if (!said || strcmp(said, name) != 0)
                return refuse(-EBADMSG, ret_reason, "its manifest is another template's");
        if (!json_is_object(json_object_get(manifest, "files")))
                return refuse(-EBADMSG, ret_reason, "its manifest names no files");

        r = check_digest(manifest);
        if (r < 0)
                return refuse(r, ret_reason, "its digest is not that of its manifest");

        *ret = TAKE_PTR(manifest);
        return 0;
}

static int hash_file(int fd, char ret_hex[static HEX_SHA256_SIZE]) {
        _cleanup_free_ uint8_t *block = malloc(BLOCK_SIZE);
        uint8_t digest[EVP_MAX_MD_SIZE];
        EVP_MD_CTX *ctx = EVP_MD_CTX_new();
        unsigned size = 0;
        off_t at = 0;
        ssize_t n;
        int r = 0;

        if (!block || !ctx || EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) != 1)
                r = -ENOMEM;

        while (r == 0) {
                n = pread(fd, block, BLOCK_SIZE, at);
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        r = -errno;
                if (n <= 0)
                        break;
                if (EVP_DigestUpdate(ctx, block, (size_t) n) != 1)
                        r = -EIO;
                at += n;
        }
        if (r == 0 && EVP_DigestFinal_ex(ctx, digest, &size) != 1)
                r = -EIO;

        EVP_MD_CTX_free(ctx);
        if (r < 0)
                return r;

        text_hex(digest, size, ret_hex);
        return 0;
}

int vm_template_check_contents(int fd, const char *digest) {
        char here[HEX_SHA256_SIZE];
        int r;

        r = hash_file(fd, here);
        if (r < 0)
                return r;

        return strcmp(here, digest) == 0 ? 0 : -ESTALE;
}

int vm_template_check_file(int fd, const json_t *manifest, const char *file, const json_t *measured) {
        const char *digest = json_string_value(json_object_get(json_object_get(manifest, "files"), file));
        struct stat st;

        if (!digest)
                return -ESTALE;
        if (fstat(fd, &st) < 0)
                return -errno;

        return vm_measured_has(measured, &st, digest) ? 0 : vm_template_check_contents(fd, digest);
}
