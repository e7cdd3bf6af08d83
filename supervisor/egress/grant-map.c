/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Grants in the kernel's maps, and who shares which.
 *
 * A grant that egressd hands out is one connection that somebody may make. The kernel can only be told
 * of destinations, because connect() carries nothing that would tell two grants for the same one apart. So
 * there is one Entry a (cgroup, address, port, protocol), with the number under which the kernel knows it, and any number of
 * Grants that hold a reference. A later grant pushes the entry's expiry out, never in.
 *
 * Order matters, for a reader in the kernel may come between any two steps. Opening: `live` first, then
 * `grants`, so that no socket gets an id that is not live. Closing: `grants` first, so that no socket
 * takes the id that is about to die.
 *
 * Ids are never used again within a boot, or a socket whose grant was revoked would come back to life
 * with somebody else's: they start at CLOCK_BOOTTIME in microseconds when the map is opened, and opening a map and
 * handing out a grant each takes longer than one. After a crash of egressd the entries are still in
 * the kernel. They are adopted: established connections go on, no connect succeeds under them until there is a new
 * grant. Whoever still knows the grants attaches them again; entries that nobody claims are closed.
 */

#include <bpf/bpf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>

#include "egress/egress-state.h"
#include "egress/grant-map.h"
#include "fence-api.bpf.h"
#include "util/text.h"

_Static_assert(EGRESS_RUNS_MAX *RUN_ADDRESSES_MAX <= FENCE_MAX_GRANTS, "a run could use up what another needs");

typedef struct Entry Entry;
typedef struct Grant Grant;

struct Entry {
        struct fence_key key;
        struct fence_grant value;
        Grant *grants; /* borrowed; those that hold it. None: left by an earlier life, and not claimed yet */
        Entry *next;   /* owned; in m->entries[], by key */
};

struct Grant {
        uint64_t id;
        Entry *entry;   /* borrowed */
        Grant *sibling; /* borrowed; the next one that holds the same entry */
        Grant *next;    /* owned; in m->grants[], by id */
};

#define BUCKETS 4096

struct GrantMap {
        int grants_fd, live_fd, heartbeat_fd;
        uint64_t next_id;
        size_t n_grants;
        Entry *entries[BUCKETS];
        Grant *grants[BUCKETS];
};

static size_t hash_bytes(const void *data, size_t size) {
        const uint8_t *p = data;
        uint64_t h = 0xcbf29ce484222325ULL;

        for (size_t i = 0; i < size; i++)
                h = (h ^ p[i]) * 0x100000001b3ULL;

        return (h ^ (h >> 32)) % BUCKETS;
}

static Entry **find_entry(GrantMap *m, const struct fence_key *key) {
        Entry **p = &m->entries[hash_bytes(key, sizeof(*key))];

        while (*p && memcmp(&(*p)->key, key, sizeof(*key)) != 0)
                p = &(*p)->next;
        return p;
}

static Grant **find_grant(GrantMap *m, uint64_t id) {
        Grant **p = &m->grants[hash_bytes(&id, sizeof(id))];

        while (*p && (*p)->id != id)
                p = &(*p)->next;
        return p;
}

static int make_key(struct fence_key *ret, uint64_t cgroup_id, int family, const void *address, uint16_t port,
                    int protocol) {
        struct fence_key key = {
                .cgroup_id = cgroup_id,
                .port = htons(port),
                .protocol = (uint8_t) protocol,
        };

        if (port == 0 || (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP))
                return -EINVAL;

        switch (family) {
        case AF_INET:
                key.address[10] = key.address[11] = 0xff;
                memcpy(key.address + 12, address, 4);
                break;
        case AF_INET6:
                memcpy(key.address, address, 16);
                break;
        default:
                return -EAFNOSUPPORT;
        }

        if (fence_never(key.address))
                return -EPERM;

        *ret = key;
        return 0;
}

/* Closes the entry in the kernel. One that is gone already (another instance) is fine. */
static int entry_close(GrantMap *m, const Entry *e) {
        int r;

        r = bpf_map_delete_elem(m->grants_fd, &e->key);
        if (r < 0 && r != -ENOENT)
                return r;

        r = bpf_map_delete_elem(m->live_fd, &e->value.id);
        if (r < 0 && r != -ENOENT)
                return r;

        return 0;
}

/* Takes the grant out of both lists and frees it. */
static void grant_forget(GrantMap *m, Grant *g) {
        Grant **p;

        for (p = &g->entry->grants; *p != g; p = &(*p)->sibling)
                ;
        *p = g->sibling;

        *find_grant(m, g->id) = g->next;
        free(g);
        m->n_grants--;
}

/* Closes and forgets *p with all its grants. On failure everything is as it was. */
static int entry_remove(GrantMap *m, Entry **p) {
        Entry *e = *p;
        int r;

        r = entry_close(m, e);
        if (r < 0)
                return r;

        while (e->grants)
                grant_forget(m, e->grants);

        *p = e->next;
        free(e);
        return 0;
}

static int entry_insert(GrantMap *m, const struct fence_key *key, const struct fence_grant *value, Entry **ret) {
        Entry **p = find_entry(m, key), *e;

        e = malloc(sizeof(*e));
        if (!e)
                return -ENOMEM;

        *e = (Entry) {
                .key = *key,
                .value = *value,
                .next = *p,
        };
        *p = e;
        *ret = e;
        return 0;
}

/*
 * What an earlier life left: adopted as it is in `live`; its destination is closed for new connections.
 * `live` alone is walked: an id that is not in it admits no packet.
 */
static int adopt_entries(GrantMap *m) {
        uint64_t id, previous, *at = NULL;
        struct fence_key key;
        Entry *e;
        int r;

        for (;;) {
                r = bpf_map_get_next_key(m->live_fd, at, &id);
                if (r == -ENOENT)
                        return 0;
                if (r < 0)
                        return r;

                previous = id;
                at = &previous;

                r = bpf_map_lookup_elem(m->live_fd, &id, &key);
                if (r == -ENOENT)
                        continue;
                if (r < 0)
                        return r;

                r = bpf_map_delete_elem(m->grants_fd, &key);
                if (r < 0 && r != -ENOENT)
                        return r;

                r = entry_insert(m, &key, &(struct fence_grant) { .id = id }, &e);
                if (r < 0)
                        return r;

                if (id >= m->next_id && !(id & FENCE_CHECK_ID)) /* such a one is random, and not from our count */
                        m->next_id = id + 1;
        }
}

static int open_map(const char *dir, const char *name) {
        _cleanup_free_ char *path = NULL;
        int fd;

        path = text_format("%s/%s", dir, name);
        if (!path)
                return -ENOMEM;

        fd = bpf_obj_get(path);
        if (fd < 0)
                return fd;

        (void) fcntl(fd, F_SETFD, FD_CLOEXEC);
        return fd;
}

int grant_map_open(GrantMap **ret, const char *dir) {
        _cleanup_(grant_map_freep) GrantMap *m = NULL;
        int r;

        if (!dir)
                dir = FENCE_MAPS_DIR;

        m = malloc(sizeof(*m));
        if (!m)
                return -ENOMEM;

        *m = (GrantMap) {
                .grants_fd = -1,
                .live_fd = -1,
                .heartbeat_fd = -1,
                .next_id = time_boottime(),
        };

        m->grants_fd = r = open_map(dir, "grants");
        if (r < 0)
                return r;
        m->live_fd = r = open_map(dir, "live");
        if (r < 0)
                return r;
        m->heartbeat_fd = r = open_map(dir, "heartbeat");
        if (r < 0)
                return r;

        r = adopt_entries(m);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(m);
        return 0;
}

GrantMap *grant_map_free(GrantMap *m) {
        if (!m)
                return NULL;

        for (size_t i = 0; i < BUCKETS; i++) {
                while (m->grants[i]) {
                        Grant *next = m->grants[i]->next;

                        free(m->grants[i]);
                        m->grants[i] = next;
                }
                while (m->entries[i]) {
                        Entry *next = m->entries[i]->next;

                        free(m->entries[i]);
                        m->entries[i] = next;
                }
        }

        m->heartbeat_fd = fd_close(m->heartbeat_fd);
        m->live_fd = fd_close(m->live_fd);
        m->grants_fd = fd_close(m->grants_fd);
        free(m);
        return NULL;
}

/* Opens a new entry, or pushes out the expiry of one that is there. */
static int entry_open(GrantMap *m, Entry *e, uint64_t expires_ns) {
        struct fence_grant value = e->value;
        bool fresh = value.expires_ns == 0;
        int r;

        if (expires_ns <= value.expires_ns)
                return 0;
        value.expires_ns = expires_ns;

        if (fresh) {
                r = bpf_map_update_elem(m->live_fd, &value.id, &e->key, BPF_ANY);
                if (r < 0)
                        return r == -E2BIG ? -ENOSPC : r;
        }

        r = bpf_map_update_elem(m->grants_fd, &e->key, &value, BPF_ANY);
        if (r < 0) {
                if (fresh && !e->grants)
                        (void) bpf_map_delete_elem(m->live_fd, &value.id);
                return r == -E2BIG ? -ENOSPC : r;
        }

        e->value = value;
        return 0;
}

static int attach_grant(GrantMap *m, Entry *e, uint64_t *ret_id) {
        Grant *grant, **bucket;

        grant = calloc(1, sizeof(*grant));
        if (!grant)
                return -ENOMEM;

        grant->id = m->next_id++;
        grant->entry = e;
        grant->sibling = e->grants;
        bucket = find_grant(m, grant->id);

        *ret_id = grant->id;
        e->grants = *bucket = grant;
        m->n_grants++;
        return 0;
}

int grant_map_add(GrantMap *m, uint64_t cgroup_id, int family, const void *address, uint16_t port,
                  int protocol, uint64_t expires_usec, uint64_t *ret_id) {
        struct fence_key key;
        bool known;
        Entry *e;
        int r;

        if (expires_usec == 0)
                return -EINVAL;

        r = make_key(&key, cgroup_id, family, address, port, protocol);
        if (r < 0)
                return r;

        e = *find_entry(m, &key);
        known = e;
        if (!known) {
                r = entry_insert(m, &key, &(struct fence_grant) { .id = m->next_id }, &e);
                if (r < 0)
                        return r;
        }

        r = entry_open(m, e, expires_usec > UINT64_MAX / 1000 ? UINT64_MAX : expires_usec * 1000);
        if (r >= 0)
                r = attach_grant(m, e, ret_id);
        if (r < 0 && !known)
                (void) entry_remove(m, find_entry(m, &key));
        return r;
}

int grant_map_claim(GrantMap *m, uint64_t cgroup_id, int family, const void *address, uint16_t port, int protocol, uint64_t *ret_id) {
        struct fence_key key;
        Entry *e;
        int r;

        r = make_key(&key, cgroup_id, family, address, port, protocol);
        if (r < 0)
                return r;

        e = *find_entry(m, &key);
        return e ? attach_grant(m, e, ret_id) : -ENOENT;
}

/* Those of this cgroup, or with NULL those that no grant holds: how many. */
static int remove_entries(GrantMap *m, const uint64_t *cgroup_id) {
        int n = 0, r;

        for (size_t i = 0; i < BUCKETS; i++)
                for (Entry **p = &m->entries[i]; *p;) {
                        if (cgroup_id ? (*p)->key.cgroup_id != *cgroup_id : (*p)->grants != NULL) {
                                p = &(*p)->next;
                                continue;
                        }
                        r = entry_remove(m, p);
                        if (r < 0)
                                return r;
                        n++;
                }
        return n;
}

int grant_map_settle(GrantMap *m) {
        return remove_entries(m, NULL);
}

int grant_map_release(GrantMap *m, uint64_t id) {
        Grant *g = *find_grant(m, id);

        if (!g)
                return -ENOENT;
        if (!g->sibling && g->entry->grants == g)
                return entry_remove(m, find_entry(m, &g->entry->key));

        grant_forget(m, g);
        return 0;
}

int grant_map_revoke_cgroup(GrantMap *m, uint64_t cgroup_id) {
        return remove_entries(m, &cgroup_id);
}

int grant_map_heartbeat(GrantMap *m) {
        uint64_t now = time_boottime() * 1000;
        uint32_t zero = 0;

        return bpf_map_update_elem(m->heartbeat_fd, &zero, &now, BPF_ANY);
}

size_t grant_map_count(const GrantMap *m, size_t *ret_unclaimed) {
        if (ret_unclaimed) {
                *ret_unclaimed = 0;
                for (size_t i = 0; i < BUCKETS; i++)
                        for (const Entry *e = m->entries[i]; e; e = e->next)
                                *ret_unclaimed += !e->grants;
        }
        return m->n_grants;
}
