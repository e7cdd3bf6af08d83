/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A pack is read as it comes, object by object: a head (type and size, for a delta its base), then a zlib stream. Commits are kept, also those that
 * are a delta of a kept commit; everything else that comes before the first tree or blob is unpacked into nothing, to know where the
 * next object begins. Nothing that is read here is believed: a commit counts under the hash of what it is.
 */

#include "inject/git-pack.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "inject/buffer.h"
#include "util/text.h"

enum { PIECE = 16 * 1024, HEAD_MAX = 64, PARENTS_MAX = 64 };

enum { TYPE_COMMIT = 1, TYPE_TREE, TYPE_BLOB, TYPE_TAG, TYPE_OFS_DELTA = 6, TYPE_REF_DELTA };

typedef struct Commit {
        uint64_t offset; /* in the pack, of its head */
        uint8_t name[GIT_NAME_MAX];
        uint8_t *text;   /* owned */
        size_t size, n_parents;
        uint8_t *parents; /* owned; one name behind the other */
        bool seen;
} Commit;

typedef enum Stage { STAGE_PACK_HEAD, STAGE_HEAD, STAGE_BODY, STAGE_OVER } Stage;

struct GitPack {
        size_t name_size;
        Stage stage;
        uint64_t offset, begin; /* of the next byte, of the object at hand */
        uint32_t n_left, n_seen; /* objects */
        uint8_t head[HEAD_MAX];
        size_t n_head;

        /* of the object at hand */
        int type;
        uint64_t size, unpacked, unpacked_all;
        const Commit *base; /* borrowed, of a delta; an index would do as well, as the array moves only between objects */
        bool kept;
        z_stream z;
        bool inflating;
        uint8_t scratch[PIECE]; /* what was unpacked */
        Buffer body;

        Commit *commits; /* owned */
        size_t n_commits, n_room, n_kept;
};

int git_pack_new(GitPack **ret, size_t name_size) {
        GitPack *p = calloc(1, sizeof(*p));

        if (!p)
                return -ENOMEM;
        p->name_size = name_size;
        *ret = p;
        return 0;
}

GitPack *git_pack_free(GitPack *p) {
        if (!p)
                return NULL;
        for (size_t i = 0; i < p->n_commits; i++) {
                free(p->commits[i].text);
                free(p->commits[i].parents);
        }
        free(p->commits);
        buffer_done(&p->body);
        if (p->inflating)
                (void) inflateEnd(&p->z);
        free(p);
        return NULL;
}

size_t git_pack_commits(const GitPack *p) {
        return p->n_commits;
}

/* ---- commits ---- */

static bool read_name(const uint8_t *hex, size_t name_size, uint8_t *ret) {
        for (size_t i = 0; i < name_size; i++) {
                int high = text_lower_hex_digit((char) hex[2 * i]), low = text_lower_hex_digit((char) hex[2 * i + 1]);

                if (high < 0 || low < 0)
                        return false;
                ret[i] = (uint8_t) (high * 16 + low);
        }
        return true;
}

/* "tree NAME\n", then "parent NAME\n" for each; what follows is of no interest. */
static int read_parents(const GitPack *p, Commit *c) {
        const size_t hex = 2 * p->name_size, tree = strlen("tree ") + hex + 1, line = strlen("parent ") + hex + 1;
        size_t at = tree, n = 0;

        if (c->size < tree || memcmp(c->text, "tree ", 5) != 0 || c->text[tree - 1] != '\n')
                return 0;
        c->parents = malloc(PARENTS_MAX * p->name_size);
        if (!c->parents)
                return -ENOMEM;
        while (n < PARENTS_MAX && c->size - at >= line && memcmp(c->text + at, "parent ", 7) == 0 && c->text[at + line - 1] == '\n' &&
               read_name(c->text + at + 7, p->name_size, c->parents + n * p->name_size)) {
                n++;
                at += line;
        }
        c->n_parents = n;
        return 0;
}

static int name_commit(const GitPack *p, Commit *c) {
        const EVP_MD *kind = p->name_size == 20 ? EVP_sha1() : EVP_sha256();
        EVP_MD_CTX *hash = EVP_MD_CTX_new();
        unsigned n = 0;
        char head[32];
        bool done;

        (void) snprintf(head, sizeof(head), "commit %zu", c->size);
        done = hash && EVP_DigestInit_ex(hash, kind, NULL) == 1 && EVP_DigestUpdate(hash, head, strlen(head) + 1) == 1 &&
               EVP_DigestUpdate(hash, c->text, c->size) == 1 && EVP_DigestFinal_ex(hash, c->name, &n) == 1 && n == p->name_size;
        EVP_MD_CTX_free(hash);
        return done ? 0 : -EIO;
}

/* Takes text over. -E2BIG: there is no room for more. */
static int keep_commit(GitPack *p, uint8_t *text, size_t size) {
        Commit c = { .offset = p->begin, .text = text, .size = size };
        int r;

        r = p->n_commits >= GIT_PACK_COMMITS_MAX || size > GIT_PACK_KEPT_MAX - p->n_kept ? -E2BIG : name_commit(p, &c);
        if (r == 0)
                r = read_parents(p, &c);
        if (r == 0 && p->n_commits == p->n_room) {
                size_t room = p->n_room ? 2 * p->n_room : 16;
                Commit *more = reallocarray(p->commits, room, sizeof(*more));

                if (more) {
                        p->commits = more;
                        p->n_room = room;
                } else
                        r = -ENOMEM;
        }
        if (r < 0) {
                free(c.text);
                free(c.parents);
                return r;
        }
        p->commits[p->n_commits++] = c;
        p->n_kept += size;
        return 0;
}

/* ---- deltas ---- */

static bool read_delta_size(const uint8_t **at, const uint8_t *end, uint64_t *ret) {
        uint64_t v = 0;

        for (unsigned shift = 0; *at < end && shift < 35; shift += 7) {
                uint8_t c = *(*at)++;

                v |= (uint64_t) (c & 0x7f) << shift;
                if (!(c & 0x80)) {
                        *ret = v;
                        return true;
                }
        }
        return false;
}

/* The operand bytes that the flags say are there, the lowest first. */
static bool read_operand(const uint8_t **at, const uint8_t *end, unsigned flags, unsigned n, uint32_t *ret) {
        *ret = 0;
        for (unsigned i = 0; i < n; i++)
                if (flags & (1U << i)) {
                        if (*at >= end)
                                return false;
                        *ret |= (uint32_t) *(*at)++ << (8 * i);
                }
        return true;
}

/* The text that a delta makes of its base, the caller's. -EBADMSG: it is none for that base; -EFBIG: it is too large to be a commit that is kept. */
static int apply_delta(const Commit *base, const uint8_t *delta, size_t delta_size, uint8_t **ret, size_t *ret_size) {
        const uint8_t *at = delta, *end = delta + delta_size;
        uint64_t from, to, done = 0;
        _cleanup_free_ uint8_t *text = NULL;

        if (!read_delta_size(&at, end, &from) || !read_delta_size(&at, end, &to) || from != base->size)
                return -EBADMSG;
        if (to > GIT_COMMIT_MAX)
                return -EFBIG;
        text = malloc(to + 1);
        if (!text)
                return -ENOMEM;
        while (at < end) {
                unsigned op = *at++;
                uint32_t offset, n = op;
                const uint8_t *source;

                if (op & 0x80) {
                        if (!read_operand(&at, end, op & 0xf, 4, &offset) || !read_operand(&at, end, op >> 4 & 7, 3, &n))
                                return -EBADMSG;
                        n = n ?: 0x10000;
                        if (offset > base->size || n > base->size - offset)
                                return -EBADMSG;
                        source = base->text + offset;
                } else {
                        if (n == 0 || n > (size_t) (end - at))
                                return -EBADMSG;
                        source = at;
                        at += n;
                }
                if (n > to - done)
                        return -EBADMSG;
                memcpy(text + done, source, n);
                done += n;
        }
        if (done != to)
                return -EBADMSG;
        *ret_size = to;
        *ret = TAKE_PTR(text);
        return 0;
}

/* ---- objects ---- */

/* The object at hand is whole. False: it ends here, as with anything else that is no pack. */
static bool take_object(GitPack *p) {
        size_t size = buffer_size(&p->body);
        uint8_t *text = NULL;
        int r = 0;

        if (p->kept && p->type == TYPE_COMMIT) {
                text = malloc(size + 1);
                if (!text)
                        return false;
                memcpy(text, buffer_data(&p->body), size);
        } else if (p->kept)
                r = apply_delta(p->base, buffer_data(&p->body), size, &text, &size);
        buffer_clear(&p->body);
        if (r < 0 && r != -EFBIG)
                return false;

        if (text && keep_commit(p, text, size) < 0)
                return false;
        p->n_head = 0;
        p->stage = --p->n_left > 0 && ++p->n_seen < GIT_PACK_OBJECTS_MAX ? STAGE_HEAD : STAGE_OVER;
        return true;
}

static const Commit *find_at(const GitPack *p, uint64_t offset) {
        for (size_t i = p->n_commits; i-- > 0;)
                if (p->commits[i].offset == offset)
                        return &p->commits[i];
        return NULL;
}

static const Commit *find_unsorted(const GitPack *p, const uint8_t *name) {
        for (size_t i = 0; i < p->n_commits; i++)
                if (memcmp(p->commits[i].name, name, p->name_size) == 0)
                        return &p->commits[i];
        return NULL;
}

/* Reads what there is of an object's head. 1: all of it, 0: not yet, negative: it is none, or one that ends the reading. */
static int parse_head(GitPack *p) {
        const uint8_t *h = p->head;
        uint64_t back = 0;
        size_t i = 0;

        p->size = h[0] & 0xf;
        for (unsigned shift = 4; h[i++] & 0x80; shift += 7) {
                if (i == p->n_head)
                        return 0;
                if (shift > 50)
                        return -EBADMSG;
                p->size |= (uint64_t) (h[i] & 0x7f) << shift;
        }
        p->type = h[0] >> 4 & 7;
        p->base = NULL;

        switch (p->type) {
        case TYPE_COMMIT:
        case TYPE_TAG:
                return 1;
        case TYPE_OFS_DELTA:
                for (bool more = true; more; i++) {
                        if (i == p->n_head)
                                return 0;
                        if (back >> 50)
                                return -EBADMSG;
                        more = h[i] & 0x80;
                        back = back << 7 | (h[i] & 0x7f);
                        back += more; /* each byte but the last counts from one on */
                }
                if (back == 0 || back > p->begin)
                        return -EBADMSG;
                p->base = find_at(p, p->begin - back);
                return 1;
        case TYPE_REF_DELTA:
                if (p->n_head < i + p->name_size)
                        return 0;
                p->base = find_unsorted(p, h + i);
                return 1;
        default:
                return -EBADMSG;
        }
}

static bool begin_body(GitPack *p) {
        int rc;

        p->unpacked = 0;
        p->kept = (p->type == TYPE_COMMIT || p->base) && p->size <= GIT_COMMIT_MAX;
        if (p->inflating)
                rc = inflateReset(&p->z);
        else
                rc = inflateInit(&p->z);
        p->inflating = p->inflating || rc == Z_OK;
        p->stage = STAGE_BODY;
        return rc == Z_OK;
}

/* Unpacks from data; the number of bytes used, negative if that is none. */
static ssize_t feed_body(GitPack *p, const uint8_t *data, size_t size) {
        int rc = Z_OK;

        p->z.next_in = (Bytef *) data; /* zlib does not write to it */
        p->z.avail_in = (uInt) size;
        do {
                size_t n;

                p->z.next_out = p->scratch;
                p->z.avail_out = sizeof(p->scratch);
                rc = inflate(&p->z, Z_NO_FLUSH);
                if (rc != Z_OK && rc != Z_STREAM_END && rc != Z_BUF_ERROR)
                        return -EBADMSG;
                n = sizeof(p->scratch) - p->z.avail_out;
                p->unpacked += n;
                p->unpacked_all += n;
                if (p->unpacked > p->size || p->unpacked_all > GIT_PACK_UNPACKED_MAX || (p->kept && buffer_append(&p->body, p->scratch, n) < 0))
                        return -EBADMSG;
        } while (rc == Z_OK && (p->z.avail_in > 0 || p->z.avail_out == 0));

        if (rc == Z_STREAM_END && (p->unpacked != p->size || !take_object(p)))
                return -EBADMSG;
        return (ssize_t) (size - p->z.avail_in);
}

static uint32_t read_be32(const uint8_t *p) {
        return (uint32_t) p[0] << 24 | (uint32_t) p[1] << 16 | (uint32_t) p[2] << 8 | p[3];
}

/* One more byte of the pack's head, or of an object's. False: that is none. */
static bool feed_head(GitPack *p, uint8_t byte) {
        int r;

        if (p->stage == STAGE_HEAD && p->n_head == 0)
                p->begin = p->offset;
        if (p->n_head == HEAD_MAX)
                return false;
        p->head[p->n_head++] = byte;
        if (p->stage == STAGE_HEAD) {
                r = parse_head(p);
                return r < 0 ? false : r == 0 || begin_body(p);
        }
        if (p->n_head < 12)
                return true;
        if (memcmp(p->head, "PACK", 4) != 0 || read_be32(p->head + 4) < 2 || read_be32(p->head + 4) > 3)
                return false;
        p->n_left = read_be32(p->head + 8);
        p->n_head = 0;
        p->stage = p->n_left > 0 ? STAGE_HEAD : STAGE_OVER;
        return true;
}

bool git_pack_feed(GitPack *p, const void *data, size_t size) {
        const uint8_t *at = data;

        while (size > 0 && p->stage != STAGE_OVER) {
                ssize_t n = 1;

                if (p->stage == STAGE_BODY)
                        n = feed_body(p, at, size);
                else if (!feed_head(p, *at))
                        n = -EBADMSG;
                if (n < 0) {
                        p->stage = STAGE_OVER;
                        break;
                }
                at += n;
                size -= (size_t) n;
                p->offset += (uint64_t) n;
        }
        return p->stage == STAGE_OVER;
}

/* ---- ancestry ---- */

static int compare_commits(const void *a, const void *b) {
        return memcmp(((const Commit *) a)->name, ((const Commit *) b)->name, GIT_NAME_MAX);
}

static Commit *find_sorted(GitPack *p, const uint8_t *name) {
        Commit key = {};

        memcpy(key.name, name, p->name_size);
        return bsearch(&key, p->commits, p->n_commits, sizeof(key), compare_commits);
}

bool git_pack_descends(GitPack *p, const uint8_t *name, const uint8_t *ancestor) {
        _cleanup_free_ Commit **queue = NULL;
        size_t n = 0;
        Commit *c;

        if (p->n_commits == 0)
                return false;
        p->stage = STAGE_OVER; /* deltas are found by place no more */
        qsort(p->commits, p->n_commits, sizeof(*p->commits), compare_commits);
        for (size_t i = 0; i < p->n_commits; i++)
                p->commits[i].seen = false;

        queue = calloc(p->n_commits, sizeof(*queue));
        c = find_sorted(p, name);
        if (!queue || !c)
                return false;
        c->seen = true;
        queue[n++] = c;
        for (size_t i = 0; i < n; i++)
                for (size_t k = 0; k < queue[i]->n_parents; k++) {
                        const uint8_t *parent = queue[i]->parents + k * p->name_size;

                        if (memcmp(parent, ancestor, p->name_size) == 0)
                                return true;
                        c = find_sorted(p, parent);
                        if (!c || c->seen)
                                continue;
                        c->seen = true;
                        queue[n++] = c;
                }
        return false;
}
