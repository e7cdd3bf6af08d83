/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Deployments by ostree, images by skopeo. image/disk lays a host out like this, and this keeps it so:
 *
 *   layer/HEX    a reference for each layer of an image that is deployed here, named by its digest
 *   anchorhold   the last image: a commit of its layers, one over the other, with their digests in
 *                metadata io.anchorhold.layers and the digest of the image's manifest as its version
 *
 * So only layers that are not here yet are fetched. skopeo believes that it has the others because a file of their name and
 * size lies in the folder that it fills; what is deployed comes from the reference, which was made from a blob that was
 * checked against the same digest. Whether an image may come here at all is decided by skopeo from
 * /etc/containers/policy.json, and the manifest that it accepted must be the one that was asked for. A crash leaves at most
 * references and a folder, which the next time uses and removes.
 */

#include <errno.h>
#include <fcntl.h>
#include <openssl/sha.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>

#include "host/host-esp.h"
#include "host/host-os.h"
#include "util/cleanup.h"
#include "util/io.h"
#include "util/json.h"

#define REPO "/ostree/repo"
#define STATEROOT "anchorhold"
#define WORK "/var/lib/anchorhold/host/image"
#define BLOBS WORK "/blobs/sha256"
#define LAYERS "layer"
#define LAYER_REF LAYERS "/"
#define LAYERS_KEY "io.anchorhold.layers"

enum { INDEX_MAX = 64 * 1024 };

_printf_(2, 3) static int refuse(char *reason, const char *format, ...) {
        va_list ap;

        va_start(ap, format);
        (void) vsnprintf(reason, HOST_REASON_SIZE, format, ap);
        va_end(ap);
        return -EREMOTEIO;
}

/* Runs a tool that says itself what went wrong. */
static int tool(const char *const argv[], const HostWaiting *waiting, char *reason) {
        int r;

        r = command_run(argv, waiting, NULL, NULL);
        if (r < 0)
                return refuse(reason, "cannot run %s: %s", argv[0], strerror(-r));
        return r == 0 ? 0 : refuse(reason, "%s %s failed with status %d", argv[0], argv[1], r);
}

static int tool_output(const char *const argv[], char *reason, char **ret, size_t *ret_size) {
        int r;

        r = command_run(argv, NULL, ret, ret_size);
        if (r < 0)
                return refuse(reason, "cannot run %s: %s", argv[0], strerror(-r));
        if (r > 0) {
                free(TAKE_PTR(*ret));
                return refuse(reason, "%s %s failed with status %d", argv[0], argv[1], r);
        }
        return 0;
}

static int ostree_list(HostDeployments *ret, char *reason) {
        _cleanup_free_ char *out = NULL;
        size_t size = 0;
        int r;

        r = tool_output((const char *const[]) { "ostree", "admin", "status", "--json", NULL }, reason, &out, &size);
        if (r < 0)
                return r;
        r = host_ostree_parse(out, size, ret);
        return r < 0 ? refuse(reason, "ostree admin status prints nothing that is known here") : 0;
}

static int manifest_of(const char *image, char **ret, size_t *ret_size, char ret_digest[static HEX_SHA256_SIZE], char *reason) {
        unsigned char digest[SHA256_DIGEST_LENGTH];
        int r;

        r = tool_output((const char *const[]) { "skopeo", "inspect", "--raw", image, NULL }, reason, ret, ret_size);
        if (r < 0)
                return r;
        (void) SHA256((const unsigned char *) *ret, *ret_size, digest);
        text_hex(digest, sizeof(digest), ret_digest);
        return 0;
}

static int ostree_resolve(const char *image, char ret_digest[static HEX_SHA256_SIZE], char *reason) {
        _cleanup_free_ char *manifest = NULL;
        size_t size = 0;

        return manifest_of(image, &manifest, &size, ret_digest, reason);
}

/* ---- fetching ---- */

/* A line for each reference of a layer; the caller's. */
static int list_layers(char **ret, char *reason) {
        return tool_output((const char *const[]) { "ostree", "--repo=" REPO, "refs", "--list", LAYERS, NULL }, reason, ret, NULL);
}

static int remove_work(char *reason) {
        return tool((const char *const[]) { "rm", "-rf", "--one-file-system", "--", WORK, NULL }, NULL, reason);
}

/* The folder that skopeo fills, with a stand-in for each layer that is here already. */
static int prepare_work(const HostLayer *layers, const bool *here, size_t n, char *reason) {
        int r;

        r = remove_work(reason);
        if (r >= 0)
                r = tool((const char *const[]) { "mkdir", "-p", "-m", "0700", "--", WORK, BLOBS, NULL }, NULL, reason);
        if (r < 0)
                return r;

        for (size_t i = 0; i < n; i++) {
                _cleanup_free_ char *path = text_format(BLOBS "/%s", layers[i].digest);
                _cleanup_fd_ int fd = -1;

                if (!here[i])
                        continue;
                fd = path ? open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600) : -1;
                if (fd < 0 || ftruncate(fd, layers[i].size) < 0)
                        return refuse(reason, "cannot write below " WORK ": %s", strerror(errno));
        }
        return 0;
}

/* Is what skopeo accepted the manifest that was asked for? */
static int check_fetched(const char *digest, char *reason) {
        _cleanup_free_ char *text = NULL, *wanted = text_format("sha256:%s", digest);
        _cleanup_json_ json_t *index = NULL;
        const char *got;
        size_t size;
        int r;

        r = io_read_file(AT_FDCWD, WORK "/index.json", INDEX_MAX, &text, &size);
        if (r >= 0)
                r = json_parse(text, size, &index, NULL);
        if (r < 0)
                return refuse(reason, "what skopeo left has no index");
        got = json_string_value(json_object_get(json_array_get(json_object_get(index, "manifests"), 0), "digest"));
        if (!wanted || !got || strcmp(got, wanted) != 0)
                return refuse(reason, "the image changed while it was fetched");
        return 0;
}

static int fetch(const char *image, const char *digest, const HostWaiting *waiting, char *reason) {
        int r;

        r = tool((const char *const[]) { "skopeo", "copy", "--quiet", "--preserve-digests", "--remove-signatures", image, "oci:" WORK ":next", NULL },
                 waiting, reason);
        return r < 0 ? r : check_fetched(digest, reason);
}

static int commit_layer(const HostLayer *layer, const HostWaiting *waiting, char *reason) {
        _cleanup_free_ char *branch = text_format("--branch=" LAYER_REF "%s", layer->digest),
                            *tree = text_format("--tree=tar=" BLOBS "/%s", layer->digest);

        if (!branch || !tree)
                return -ENOMEM;
        return tool((const char *const[]) { "ostree", "--repo=" REPO, "commit", branch, "--timestamp=@0", "--no-bindings", "--tar-autocreate-parents",
                                            /* a deployment keeps the image's /etc below /usr, for the merge */
                                            "--tar-pathname-filter=^etc(/|$),usr/etc\\1", tree, NULL }, waiting, reason);
}

static int commit_image(const char *digest, const HostLayer *layers, size_t n, const HostWaiting *waiting, char *reason) {
        const char *argv[HOST_LAYERS_MAX + 16] = { "ostree", "--repo=" REPO, "commit", "--branch=" STATEROOT, "--timestamp=@0", "--no-bindings" };
        _cleanup_free_ char *subject = text_format("--subject=sha256:%s", digest), *version = text_format("--add-metadata-string=version=%s", digest),
                            *list = text_format("--add-metadata-string=" LAYERS_KEY "=");
        size_t n_args = 6, first;
        int r = -ENOMEM;

        argv[n_args++] = subject;
        argv[n_args++] = version;
        first = n_args + 1;
        for (size_t i = 0; i < n && list; i++) {
                char *more = text_format("%s%s%s", list, i > 0 ? " " : "", layers[i].digest);

                free(list);
                list = more;
                argv[first + i] = text_format("--tree=ref=" LAYER_REF "%s", layers[i].digest);
                if (!argv[first + i])
                        goto finish;
        }
        if (!subject || !version || !list)
                goto finish;
        argv[n_args] = list;
        r = tool(argv, waiting, reason);

finish:
        for (size_t i = 0; i < n; i++)
                free((char *) argv[first + i]);
        return r;
}

/* References of layers that no deployment has any more. */
static void forget_layers(const HostLayer *layers, size_t n) {
        _cleanup_free_ char *refs = NULL, *kept = NULL;
        char *save = NULL;

        if (list_layers(&refs, (char[HOST_REASON_SIZE]) {}) < 0 ||
            command_run((const char *const[]) { "sh", "-c", "for d in /ostree/deploy/" STATEROOT "/deploy/*.[0-9]*; do c=${d##*/}; "
                                                "case $c in *.origin) continue ;; esac; "
                                                "ostree --repo=" REPO " show --print-metadata-key=" LAYERS_KEY " \"${c%.*}\" || exit; done", NULL },
                        NULL, &kept, NULL) != 0)
                return; /* rather too many than too few */

        for (char *ref = strtok_r(refs, "\n", &save); ref; ref = strtok_r(NULL, "\n", &save)) {
                const char *digest = strrchr(ref, '/');
                bool wanted = !digest || strstr(kept, digest + 1);

                for (size_t i = 0; !wanted && i < n; i++)
                        wanted = strcmp(layers[i].digest, digest + 1) == 0;
                if (!wanted)
                        (void) command_run((const char *const[]) { "ostree", "--repo=" REPO, "refs", "--delete", ref, NULL }, NULL, NULL, NULL);
        }
}

static int ostree_stage(const char *image, const char *digest, const HostWaiting *waiting, char *reason) {
        _cleanup_free_ char *manifest = NULL, *refs = NULL;
        HostLayer layers[HOST_LAYERS_MAX];
        bool here[HOST_LAYERS_MAX] = {};
        char got[HEX_SHA256_SIZE];
        size_t size = 0, n = 0;
        int r;

        r = manifest_of(image, &manifest, &size, got, reason);
        if (r < 0)
                return r;
        if (strcmp(got, digest) != 0)
                return refuse(reason, "the image changed meanwhile");
        r = host_manifest_parse(manifest, size, layers, &n);
        if (r < 0)
                return refuse(reason, "%s is no image of one platform", image);
        r = list_layers(&refs, reason);
        if (r < 0)
                return r;
        for (size_t i = 0; i < n; i++)
                here[i] = strstr(refs, layers[i].digest);

        r = prepare_work(layers, here, n, reason);
        if (r >= 0)
                r = fetch(image, digest, waiting, reason);
        for (size_t i = 0; r >= 0 && i < n; i++)
                if (!here[i])
                        r = commit_layer(&layers[i], waiting, reason);
        if (r >= 0)
                r = commit_image(digest, layers, n, waiting, reason);
        if (r >= 0)
                r = tool((const char *const[]) { "ostree", "admin", "deploy", "--stage", "--os=" STATEROOT, STATEROOT, NULL }, waiting, reason);
        if (r >= 0)
                forget_layers(layers, n);

        (void) remove_work((char[HOST_REASON_SIZE]) {});
        return r;
}

static int ostree_rollback(const HostDeployments *d, char *reason) {
        const HostDeployment *staged = host_find(d, HOST_STAGED), *back = host_find(d, HOST_ROLLBACK);
        char index[16];
        int r;

        if (!back)
                return refuse(reason, "there is no deployment to go back to");
        if (staged) {
                (void) snprintf(index, sizeof(index), "%d", staged->index);
                r = tool((const char *const[]) { "ostree", "admin", "undeploy", index, NULL }, NULL, reason);
                if (r < 0)
                        return r;
        }
        (void) snprintf(index, sizeof(index), "%d", back->index - (staged && staged->index < back->index));
        r = tool((const char *const[]) { "ostree", "admin", "set-default", index, NULL }, NULL, reason);
        if (r >= 0)
                (void) host_esp_follow(); /* what fails here is done while the host goes down */
        return r;
}

const HostOs host_os_ostree = {
        .name = "ostree",
        .list = ostree_list,
        .resolve = ostree_resolve,
        .stage = ostree_stage,
        .rollback = ostree_rollback,
};
