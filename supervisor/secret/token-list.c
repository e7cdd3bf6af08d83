/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A folder "tokens" with one file a token, named after its id: a line of JSON, a newline, the token, all of it sealed (seal.h) under the list's
 * key. Each file is written as a whole and synced before the token is given to anybody, and removed once the API has said that the token is
 * worth nothing any more, or when it has expired: so the folder always names every token that may be good for something, whatever died when. The exception is one whose
 * answer was on its way to us when inject or this process died; it expires within the hour.
 *
 * Tokens must be revoked after a reboot too. So the list's key is not only in /run, as that of the runs is, but also beside the list, sealed
 * with a key that is derived from an app's private key, once for each: "key-NAME". PID 1 alone can decrypt those private keys (systemd-creds), and gives them to this
 * service alone. After a change of a key the copy of /run is still there, since changing one restarts this service and not the host.
 *
 * Another key than the one that the list is sealed with makes all of it worthless, and replaces the sealed copies. So there is a new one only if each place certainly has
 * none that could be opened; if one of them cannot be read just now, the start fails.
 */

#include "secret/token-list.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "secret/app-key.h"
#include "secret/seal.h"
#include "util/io.h"
#include "util/json.h"
#include "util/log.h"

#define FOLDER "tokens"
#define KEY_FILE "tokens.key"
#define PURPOSE "anchorhold: the list of tokens"

#define ASIDE ".unreadable"
#define ASIDE_SEC (7 * 24 * 3600) /* longer than any token lives */

enum { FILE_MAX = 64 * 1024, KEY_NAME_SIZE = 80 };

struct TokenList {
        int fd;             /* of the folder */
        Secret *key;        /* owned */
        Token *tokens[TOKENS_MAX]; /* owned */
        size_t n_tokens;
};

/* ---- one token ---- */

Token *token_free(Token *t) {
        if (!t)
                return NULL;
        secret_free(t->secret);
        free(t->workflow);
        free(t->credential);
        free(t->host);
        free(t->target);
        free(t);
        return NULL;
}

int token_new(Token **ret, const char *run, const char *item, const char *workflow, const char *credential,
              const char *host, uint16_t port, const char *target, uint64_t expires_usec) {
        _cleanup_(token_freep) Token *t = NULL;
        int r;

        if (!text_is_id('r', run) || !text_is_id('i', item))
                return -EINVAL;
        t = malloc(sizeof(*t));
        if (!t)
                return -ENOMEM;
        *t = (Token) {
                .workflow = strdup(workflow),
                .credential = strdup(credential),
                .host = strdup(host),
                .target = strdup(target),
                .port = port,
                .expires_usec = expires_usec,
        };
        memcpy(t->run, run, sizeof(t->run));
        memcpy(t->item, item, sizeof(t->item));
        if (!t->workflow || !t->credential || !t->host || !t->target)
                return -ENOMEM;
        r = text_make_id('t', t->id);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(t);
        return 0;
}

static int parse(const char *id, const char *data, size_t size, Token **ret) {
        const char *newline = memchr(data, '\n', size), *run, *item, *workflow, *credential, *host, *target;
        _cleanup_(token_freep) Token *t = NULL;
        _cleanup_json_ json_t *head = NULL;
        json_int_t port, expires;
        int r;

        if (!newline || json_parse(data, (size_t) (newline - data), &head, NULL) < 0)
                return -EBADMSG;
        run = json_string_value(json_object_get(head, "run"));
        item = json_string_value(json_object_get(head, "item"));
        workflow = json_string_value(json_object_get(head, "workflow"));
        credential = json_string_value(json_object_get(head, "credential"));
        host = json_string_value(json_object_get(head, "host"));
        target = json_string_value(json_object_get(head, "target"));
        port = json_integer_value(json_object_get(head, "port"));
        expires = json_integer_value(json_object_get(head, "expires_usec"));
        if (!workflow || !credential || !host || !target || port < 1 || port > 65535 || expires < 1)
                return -EBADMSG;

        r = token_new(&t, run, item, workflow, credential, host, (uint16_t) port, target, (uint64_t) expires);
        if (r < 0)
                return r == -ENOMEM ? r : -EBADMSG;
        memcpy(t->id, id, sizeof(t->id));
        t->unusable = json_is_true(json_object_get(head, "unusable"));
        t->recorded = !json_is_false(json_object_get(head, "recorded")); /* older files do not say so, and were */
        newline++;
        r = secret_new(&t->secret, newline, size - (size_t) (newline - data));
        if (r < 0)
                return r == -EINVAL ? -EBADMSG : r;
        *ret = TAKE_PTR(t);
        return 0;
}

static int format(const Token *t, char **ret, size_t *ret_size) {
        _cleanup_json_ json_t *head = NULL;
        _cleanup_free_ char *text = NULL;
        SecretView v = secret_view(t->secret);
        char *data, *p;

        head = json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:s, s:I, s:b, s:b}", "run", t->run, "item", t->item, "workflow", t->workflow, "credential",
                         t->credential, "host", t->host, "port", (int) t->port, "target", t->target, "expires_usec", (json_int_t) t->expires_usec,
                         "unusable", (int) t->unusable, "recorded", (int) t->recorded);
        text = head ? json_canonical(head) : NULL;
        data = text ? malloc(strlen(text) + 1 + v.size) : NULL;
        if (!data)
                return -ENOMEM;

        p = mempcpy(data, text, strlen(text));
        *p++ = '\n';
        p = mempcpy(p, v.bytes, v.size);
        *ret = data;
        *ret_size = (size_t) (p - data);
        return 0;
}

/* ---- the key ---- */

static int read_key(int dir_fd, const char *file, Secret **ret) {
        _cleanup_(secret_freep) Secret *key = NULL;
        int r;

        r = secret_read_file(&key, dir_fd, file);
        if (r < 0)
                return r;
        if (secret_view(key).size != SEAL_KEY_SIZE)
                return -EBADMSG;
        *ret = TAKE_PTR(key);
        return 0;
}

static int key_name(const char *credential, char ret[static KEY_NAME_SIZE]) {
        int n = snprintf(ret, KEY_NAME_SIZE, "key-%s", credential);

        return n < 0 || n >= KEY_NAME_SIZE ? -ENAMETOOLONG : 0;
}

/* The list's key as it was sealed for that app, if it was. */
static int unwrap_key(TokenList *l, const char *credential, const Secret *app) {
        _cleanup_(secret_freep) Secret *with = NULL;
        _cleanup_free_ char *sealed = NULL;
        char name[KEY_NAME_SIZE];
        size_t sealed_size, size;
        void *data;
        int r;

        if ((r = key_name(credential, name)) < 0 || (r = io_read_file(l->fd, name, FILE_MAX, &sealed, &sealed_size)) < 0 ||
            (r = app_key_derive(app, PURPOSE, &with)) < 0 || (r = seal_open(with, name, sealed, sealed_size, &data, &size)) < 0)
                return r;
        r = size == SEAL_KEY_SIZE ? secret_new(&l->key, data, size) : -EBADMSG;
        secret_erase(data, size);
        return r;
}

static int wrap_key(TokenList *l, const char *credential, const Secret *app) {
        _cleanup_(secret_freep) Secret *with = NULL;
        _cleanup_free_ void *sealed = NULL;
        SecretView v = secret_view(l->key);
        char name[KEY_NAME_SIZE];
        size_t size;
        int r;

        if ((r = key_name(credential, name)) < 0 || (r = app_key_derive(app, PURPOSE, &with)) < 0 ||
            (r = seal_close(with, name, v.bytes, v.size, &sealed, &size)) < 0)
                return r;
        return io_write_file_atomic(l->fd, name, sealed, size, 0600);
}

static bool is_app(const CredentialStore *store, size_t i, const char **ret_name, const Secret **ret_value) {
        *ret_name = credential_store_name(store, i);
        *ret_value = credential_store_find(store, *ret_name);
        return app_key_is_pem(*ret_value);
}

/* There is none, or it is none that will ever be of use. */
static bool is_no_key(int r) {
        return r == -ENOENT || r == -ENODATA || r == -EBADMSG || r == -EFBIG;
}

static int find_key(TokenList *l, const CredentialStore *store) {
        const Secret *value;
        const char *name;
        int r;

        for (size_t i = 0; !l->key && i < credential_store_size(store); i++) {
                if (!is_app(store, i, &name, &value))
                        continue;
                r = unwrap_key(l, name, value);
                if (r < 0 && !is_no_key(r))
                        return log_error_errno(r, "the key of the list of tokens, sealed for credential %s, cannot be read now, and is kept", name);
        }
        return l->key ? 0 : secret_new_random(&l->key, SEAL_KEY_SIZE);
}

static int load_key(TokenList *l, const char *key_dir, const CredentialStore *store) {
        _cleanup_fd_ int fd = -1;
        const Secret *value;
        const char *name;
        int r;

        fd = open(key_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
                return -errno;
        r = read_key(fd, KEY_FILE, &l->key);
        if (r < 0 && !is_no_key(r))
                return log_error_errno(r, "the key of the list of tokens, %s/" KEY_FILE ", cannot be read now, and is kept", key_dir);
        if (r < 0) {
                r = find_key(l, store);
                if (r >= 0)
                        r = io_write_file_atomic(fd, KEY_FILE, (const void *) secret_view(l->key).bytes, SEAL_KEY_SIZE, 0600);
        }
        for (size_t i = 0; r >= 0 && i < credential_store_size(store); i++)
                if (is_app(store, i, &name, &value))
                        r = wrap_key(l, name, value);
        return r;
}

/* ---- the list ---- */

static int load_one(TokenList *l, const char *id) {
        _cleanup_free_ char *sealed = NULL;
        size_t sealed_size, size;
        Token *t = NULL;
        void *data;
        int r;

        r = io_read_file(l->fd, id, FILE_MAX, &sealed, &sealed_size);
        if (r < 0)
                return r;
        r = seal_open(l->key, id, sealed, sealed_size, &data, &size);
        if (r < 0)
                return r;
        r = parse(id, data, size, &t);
        secret_erase(data, size);
        if (r >= 0)
                l->tokens[l->n_tokens++] = t;
        return r;
}

/* The seal is broken, or of another key, or what is in it is no token: nobody here can revoke it, but whoever looks into it has it. */
static void put_aside(TokenList *l, const char *id) {
        char name[ID_LENGTH + sizeof(ASIDE)];

        (void) snprintf(name, sizeof(name), "%.*s" ASIDE, ID_LENGTH, id);
        if (renameat(l->fd, id, l->fd, name) < 0)
                log_warning_errno(-errno, "token %s cannot be put aside", id);
}

static bool is_aside(const char *name) {
        size_t n = strlen(name);

        return n == ID_LENGTH + strlen(ASIDE) && name[0] == 't' && strcmp(name + ID_LENGTH, ASIDE) == 0;
}

static void drop_old(TokenList *l, const char *name) {
        struct stat st;

        if (fstatat(l->fd, name, &st, AT_SYMLINK_NOFOLLOW) >= 0 && st.st_mtim.tv_sec < (time_t) (time_realtime() / 1000000) - ASIDE_SEC)
                (void) unlinkat(l->fd, name, 0);
}

static int load_all(TokenList *l, size_t *ret_lost) {
        _cleanup_dir_ DIR *dir = NULL;
        struct dirent *e;
        int fd, r;

        fd = fcntl(l->fd, F_DUPFD_CLOEXEC, 3);
        if (fd < 0)
                return -errno;
        dir = fdopendir(fd);
        if (!dir) {
                r = -errno;
                (void) close(fd);
                return r;
        }
        while ((errno = 0, e = readdir(dir))) {
                if (is_aside(e->d_name))
                        drop_old(l, e->d_name);
                if (!text_is_id('t', e->d_name))
                        continue;
                r = l->n_tokens < TOKENS_MAX ? load_one(l, e->d_name) : -ENOBUFS;
                if (r == -ENOMEM)
                        return r;
                if (r == -EBADMSG) {
                        log_warning("token %s cannot be opened: it is not revoked, and expires by itself; its file is kept as %s" ASIDE, e->d_name, e->d_name);
                        put_aside(l, e->d_name);
                        (*ret_lost)++;
                } else if (r < 0)
                        log_warning_errno(r, "token %s cannot be read now: it stays on the list, and is revoked after the next start of this unit", e->d_name);
        }
        return -errno;
}

int token_list_new(TokenList **ret, const char *state_dir, const char *key_dir, const CredentialStore *store, size_t *ret_lost) {
        _cleanup_(token_list_freep) TokenList *l = NULL;
        _cleanup_fd_ int state_fd = -1;
        int r;

        *ret_lost = 0;
        l = malloc(sizeof(*l));
        if (!l)
                return -ENOMEM;
        *l = (TokenList) { .fd = -1 };

        state_fd = open(state_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (state_fd < 0 || (mkdirat(state_fd, FOLDER, 0700) < 0 && errno != EEXIST))
                return -errno;
        l->fd = openat(state_fd, FOLDER, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (l->fd < 0)
                return -errno;
        if ((r = load_key(l, key_dir, store)) < 0 || (r = load_all(l, ret_lost)) < 0)
                return r;
        *ret = TAKE_PTR(l);
        return 0;
}

TokenList *token_list_free(TokenList *l) {
        if (!l)
                return NULL;
        for (size_t i = 0; i < l->n_tokens; i++)
                token_free(l->tokens[i]);
        secret_free(l->key);
        fd_close(l->fd);
        free(l);
        return NULL;
}

static int save(TokenList *l, const Token *t) {
        _cleanup_free_ void *sealed = NULL;
        size_t size, sealed_size;
        char *data;
        int r;

        r = format(t, &data, &size);
        if (r < 0)
                return r;
        r = seal_close(l->key, t->id, data, size, &sealed, &sealed_size);
        secret_erase(data, size);
        return r < 0 ? r : io_write_file_atomic(l->fd, t->id, sealed, sealed_size, 0600);
}

int token_list_add(TokenList *l, Token *t) {
        int r;

        if (l->n_tokens == TOKENS_MAX)
                return -ENOBUFS;
        r = save(l, t);
        if (r >= 0)
                l->tokens[l->n_tokens++] = t;
        return r;
}

int token_list_set_recorded(TokenList *l, const char *id) {
        for (size_t i = 0; i < l->n_tokens; i++) {
                Token *t = l->tokens[i];
                int r;

                if (strcmp(t->id, id) != 0 || t->recorded)
                        continue;
                t->recorded = true;
                r = save(l, t);
                t->recorded = r >= 0;
                return r;
        }
        return 0;
}

int token_list_remove(TokenList *l, const char *id) {
        for (size_t i = 0; i < l->n_tokens; i++) {
                if (strcmp(l->tokens[i]->id, id) != 0)
                        continue;
                if (unlinkat(l->fd, id, 0) < 0 && errno != ENOENT)
                        return -errno;
                if (fsync(l->fd) < 0)
                        return -errno;
                token_free(l->tokens[i]);
                l->tokens[i] = l->tokens[--l->n_tokens];
                return 0;
        }
        return 0;
}

size_t token_list_size(const TokenList *l) {
        return l->n_tokens;
}

const Token *token_list_get(const TokenList *l, size_t i) {
        return l->tokens[i];
}

const Token *token_list_find(const TokenList *l, const char *id) {
        for (size_t i = 0; i < l->n_tokens; i++)
                if (strcmp(l->tokens[i]->id, id) == 0)
                        return l->tokens[i];
        return NULL;
}

size_t token_list_count(const TokenList *l, const char *run, const char *credential, uint64_t now_usec) {
        size_t n = 0;

        for (size_t i = 0; i < l->n_tokens; i++) {
                const Token *t = l->tokens[i];

                n += strcmp(t->run, run) == 0 && strcmp(t->credential, credential) == 0 && t->expires_usec > now_usec;
        }
        return n;
}

const Token *token_list_newest(const TokenList *l, const char *run, const char *credential, uint64_t now_usec) {
        const Token *best = NULL;

        for (size_t i = 0; i < l->n_tokens; i++) {
                const Token *t = l->tokens[i];

                if (strcmp(t->run, run) == 0 && strcmp(t->credential, credential) == 0 && t->expires_usec > now_usec && t->recorded && !t->unusable &&
                    (!best || t->expires_usec > best->expires_usec))
                        best = t;
        }
        return best;
}
