/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Sharing, releasing and adopting grants, with the kernel's maps played by arrays: this program's own
 * bpf_*() take the place of libbpf's. test-fence-connect.c has the real ones. */

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "egress/grant-map.h"
#include "fence-api.bpf.h"

#define MAX 64

typedef struct Fake {
        size_t key_size, value_size, n, limit;
        uint8_t keys[MAX][64], values[MAX][64];
} Fake;

enum { GRANTS, LIVE, HEARTBEAT, N_FAKES };
static Fake fakes[N_FAKES];
static int fake_fds[N_FAKES];

static Fake *fake_of(int fd) {
        for (size_t i = 0; i < N_FAKES; i++)
                if (fake_fds[i] == fd)
                        return &fakes[i];
        fail_msg("no map %i", fd);
        return NULL;
}

static size_t fake_find(const Fake *f, const void *key) {
        size_t i = 0;

        while (i < f->n && memcmp(f->keys[i], key, f->key_size) != 0)
                i++;
        return i;
}

int bpf_obj_get(const char *path) {
        static const char *const names[] = { "grants", "live", "heartbeat" };

        for (size_t i = 0; i < N_FAKES; i++)
                if (strcmp(strrchr(path, '/') + 1, names[i]) == 0)
                        return fake_fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
        return -ENOENT;
}

int bpf_map_update_elem(int fd, const void *key, const void *value, __u64 flags) {
        Fake *f = fake_of(fd);
        size_t i = fake_find(f, key);

        if (i == f->n) {
                if (f->n >= f->limit)
                        return -E2BIG;
                f->n++;
        }
        memcpy(f->keys[i], key, f->key_size);
        memcpy(f->values[i], value, f->value_size);
        return 0;
}

int bpf_map_delete_elem(int fd, const void *key) {
        Fake *f = fake_of(fd);
        size_t i = fake_find(f, key);

        if (i == f->n)
                return -ENOENT;
        f->n--;
        memmove(f->keys[i], f->keys[f->n], sizeof(f->keys[i]));
        memmove(f->values[i], f->values[f->n], sizeof(f->values[i]));
        return 0;
}

int bpf_map_lookup_elem(int fd, const void *key, void *value) {
        Fake *f = fake_of(fd);
        size_t i = fake_find(f, key);

        if (i == f->n)
                return -ENOENT;
        memcpy(value, f->values[i], f->value_size);
        return 0;
}

int bpf_map_get_next_key(int fd, const void *key, void *next_key) {
        Fake *f = fake_of(fd);
        size_t i = key ? fake_find(f, key) + 1 : 0;

        if (i >= f->n)
                return -ENOENT;
        memcpy(next_key, f->keys[i], f->key_size);
        return 0;
}

static int setup(void **state) {
        memset(fakes, 0, sizeof(fakes));
        fakes[GRANTS] = (Fake) { .key_size = sizeof(struct fence_key), .value_size = sizeof(struct fence_grant), .limit = MAX };
        fakes[LIVE] = (Fake) { .key_size = sizeof(uint64_t), .value_size = sizeof(struct fence_key), .limit = MAX };
        fakes[HEARTBEAT] = (Fake) { .key_size = sizeof(uint32_t), .value_size = sizeof(uint64_t), .limit = 1 };
        return 0;
}

static uint64_t add(GrantMap *m, uint64_t cgroup, const char *address, uint16_t port, uint64_t expires) {
        struct in_addr a;
        uint64_t id;

        assert_int_equal(inet_pton(AF_INET, address, &a), 1);
        assert_int_equal(grant_map_add(m, cgroup, AF_INET, &a, port, IPPROTO_TCP, expires, &id), 0);
        return id;
}

static uint64_t expiry(size_t i) {
        struct fence_grant g;

        memcpy(&g, fakes[GRANTS].values[i], sizeof(g));
        return g.expires_ns;
}

static void test_share(void **state) {
        _cleanup_(grant_map_freep) GrantMap *m = NULL;
        uint64_t a, b, c;

        assert_int_equal(grant_map_open(&m, "/x"), 0);
        a = add(m, 7, "203.0.113.5", 443, 100);
        b = add(m, 7, "203.0.113.5", 443, 50);
        c = add(m, 8, "203.0.113.5", 443, 100);
        assert_true(a != b && b != c && a != 0);
        assert_int_equal(fakes[GRANTS].n, 2);
        assert_int_equal(fakes[LIVE].n, 2);
        assert_int_equal(expiry(0), 100 * 1000); /* never earlier */
        (void) add(m, 7, "203.0.113.5", 443, 200);
        assert_int_equal(expiry(0), 200 * 1000);
        assert_int_equal(grant_map_count(m, NULL), 4);

        assert_int_equal(grant_map_release(m, a), 0);
        assert_int_equal(grant_map_release(m, a), -ENOENT);
        assert_int_equal(fakes[LIVE].n, 2);

        /* all that share the destination are cut, and no other */
        assert_int_equal(grant_map_revoke_cgroup(m, 7), 1);
        assert_int_equal(fakes[LIVE].n, 1);
        assert_int_equal(grant_map_count(m, NULL), 1);
        assert_int_equal(grant_map_release(m, b), -ENOENT);

        assert_int_equal(grant_map_release(m, c), 0);
        assert_int_equal(fakes[GRANTS].n, 0);
        assert_int_equal(fakes[LIVE].n, 0);
}

static void test_revoke_cgroup(void **state) {
        _cleanup_(grant_map_freep) GrantMap *m = NULL;
        char text[INET_ADDRSTRLEN];

        assert_int_equal(grant_map_open(&m, "/x"), 0);
        for (unsigned i = 1; i <= 20; i++) {
                snprintf(text, sizeof(text), "203.0.113.%u", i);
                (void) add(m, 7 + i % 2, text, 443, 100);
                (void) add(m, 7 + i % 2, text, 443, 100);
        }
        assert_int_equal(grant_map_revoke_cgroup(m, 7), 10);
        assert_int_equal(grant_map_revoke_cgroup(m, 7), 0);
        assert_int_equal(grant_map_count(m, NULL), 20);
        assert_int_equal(grant_map_revoke_cgroup(m, 0), 0);
        assert_int_equal(grant_map_revoke_cgroup(m, 8), 10);
        assert_int_equal(grant_map_count(m, NULL), 0);
        assert_int_equal(fakes[LIVE].n, 0);
}

static int claim(GrantMap *m, uint64_t cgroup, const char *address, uint16_t port, uint64_t *ret_id) {
        struct in_addr a;

        assert_int_equal(inet_pton(AF_INET, address, &a), 1);
        return grant_map_claim(m, cgroup, AF_INET, &a, port, IPPROTO_TCP, ret_id);
}

static void test_adopt(void **state) {
        _cleanup_(grant_map_freep) GrantMap *m = NULL;
        uint64_t old, one, two, fresh;
        size_t unclaimed;

        assert_int_equal(grant_map_open(&m, "/x"), 0);
        old = add(m, 7, "203.0.113.5", 443, 100);
        (void) add(m, 7, "203.0.113.6", 443, 100);
        m = grant_map_free(m);

        /* after a crash: connections go on, no new ones */
        assert_int_equal(grant_map_open(&m, "/x"), 0);
        assert_int_equal(grant_map_count(m, &unclaimed), 0);
        assert_int_equal(unclaimed, 2);
        assert_int_equal(fakes[LIVE].n, 2);
        assert_int_equal(fakes[GRANTS].n, 0);
        assert_int_equal(grant_map_release(m, old), -ENOENT);

        /* two grants of before shared one entry; the other entry is nobody's */
        assert_int_equal(claim(m, 7, "203.0.113.5", 443, &one), 0);
        assert_int_equal(claim(m, 7, "203.0.113.5", 443, &two), 0);
        assert_int_equal(claim(m, 8, "203.0.113.5", 443, &fresh), -ENOENT);
        assert_true(one > old && two > one);
        assert_int_equal(grant_map_settle(m), 1);
        assert_int_equal(grant_map_count(m, &unclaimed), 2);
        assert_int_equal(unclaimed, 0);
        assert_int_equal(fakes[LIVE].n, 1);
        assert_int_equal(fakes[GRANTS].n, 0); /* claimed is not opened */

        /* a new grant for the same place opens it again; its release does not cut the older connections */
        fresh = add(m, 7, "203.0.113.5", 443, 300);
        assert_int_equal(fakes[GRANTS].n, 1);
        assert_int_equal(grant_map_release(m, fresh), 0);
        assert_int_equal(grant_map_release(m, one), 0);
        assert_int_equal(fakes[LIVE].n, 1);

        /* the last of them does */
        assert_int_equal(grant_map_release(m, two), 0);
        assert_int_equal(fakes[LIVE].n, 0);
        assert_int_equal(fakes[GRANTS].n, 0);
}

/* What the agreement check left when it was killed is closed, and its random id does not become ours to count from. */
static void test_of_the_check(void **state) {
        _cleanup_(grant_map_freep) GrantMap *m = NULL;
        struct fence_key key = { .cgroup_id = 9, .port = htons(9), .protocol = IPPROTO_UDP };
        uint64_t id = FENCE_CHECK_ID | 5, own;

        assert_int_equal(grant_map_open(&m, "/x"), 0);
        own = add(m, 7, "203.0.113.5", 443, 100);
        m = grant_map_free(m);

        assert_int_equal(bpf_map_update_elem(fake_fds[LIVE], &id, &key, BPF_ANY), 0);
        assert_int_equal(grant_map_open(&m, "/x"), 0);
        assert_int_equal(grant_map_settle(m), 2);
        assert_int_equal(fakes[LIVE].n, 0);
        id = add(m, 7, "203.0.113.5", 443, 200);
        assert_true(id > own && id < FENCE_CHECK_ID);
}

/* A grant that cannot be opened leaves alone what is there. */
static void test_full_after_a_crash(void **state) {
        _cleanup_(grant_map_freep) GrantMap *m = NULL;
        struct in_addr a = { htonl(0xcb007105) };
        uint64_t one, id;

        assert_int_equal(grant_map_open(&m, "/x"), 0);
        (void) add(m, 7, "203.0.113.5", 443, 100);
        m = grant_map_free(m);
        assert_int_equal(grant_map_open(&m, "/x"), 0);
        assert_int_equal(claim(m, 7, "203.0.113.5", 443, &one), 0);
        fakes[GRANTS].limit = 0;
        assert_int_equal(grant_map_add(m, 7, AF_INET, &a, 443, IPPROTO_TCP, 100, &id), -ENOSPC);
        assert_int_equal(fakes[LIVE].n, 1);
        assert_int_equal(grant_map_release(m, one), 0);
        assert_int_equal(fakes[LIVE].n, 0);
}

static void test_full(void **state) {
        _cleanup_(grant_map_freep) GrantMap *m = NULL;
        struct in_addr a = { htonl(0xcb007105) };
        uint64_t id;

        assert_int_equal(grant_map_open(&m, "/x"), 0);
        fakes[GRANTS].limit = 1;
        (void) add(m, 7, "203.0.113.5", 443, 100);
        assert_int_equal(grant_map_add(m, 7, AF_INET, &a, 80, IPPROTO_TCP, 100, &id), -ENOSPC);
        assert_int_equal(fakes[LIVE].n, 1); /* nothing half open */
        assert_int_equal(grant_map_count(m, NULL), 1);
        (void) add(m, 7, "203.0.113.5", 443, 200); /* what is there can still be shared */
}

static void test_refused(void **state) {
        _cleanup_(grant_map_freep) GrantMap *m = NULL;
        struct in6_addr mapped;
        struct in_addr a;
        uint64_t id;

        assert_int_equal(grant_map_open(&m, "/x"), 0);
        assert_int_equal(inet_pton(AF_INET, "169.254.169.254", &a), 1);
        assert_int_equal(grant_map_add(m, 7, AF_INET, &a, 80, IPPROTO_TCP, 100, &id), -EPERM);
        assert_int_equal(inet_pton(AF_INET6, "::ffff:127.0.0.1", &mapped), 1);
        assert_int_equal(grant_map_add(m, 7, AF_INET6, &mapped, 80, IPPROTO_TCP, 100, &id), -EPERM);
        assert_int_equal(inet_pton(AF_INET, "203.0.113.5", &a), 1);
        assert_int_equal(grant_map_add(m, 7, AF_INET, &a, 0, IPPROTO_TCP, 100, &id), -EINVAL);
        assert_int_equal(grant_map_add(m, 7, AF_INET, &a, 80, IPPROTO_SCTP, 100, &id), -EINVAL);
        assert_int_equal(grant_map_add(m, 7, AF_UNIX, &a, 80, IPPROTO_TCP, 100, &id), -EAFNOSUPPORT);
        assert_int_equal(fakes[LIVE].n, 0);

        assert_int_equal(grant_map_heartbeat(m), 0);
        assert_int_equal(fakes[HEARTBEAT].n, 1);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup(test_share, setup),
                cmocka_unit_test_setup(test_revoke_cgroup, setup),
                cmocka_unit_test_setup(test_adopt, setup),
                cmocka_unit_test_setup(test_of_the_check, setup),
                cmocka_unit_test_setup(test_full_after_a_crash, setup),
                cmocka_unit_test_setup(test_full, setup),
                cmocka_unit_test_setup(test_refused, setup),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
