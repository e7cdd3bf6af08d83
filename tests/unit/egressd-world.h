/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * For tests of the whole of egressd. The kernel's maps are played by arrays (the test's bpf_*() take the place of libbpf's), a DNS
 * server and auditd by the test, in a network of their own. It defines functions: one file of a program includes it.
 */

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <net/if.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>

#include <cmocka.h>

#include <dirent.h>

#include "egress/egressd-private.h"
#include "fake-auditd.h"
#include "fence-api.bpf.h"
#include "own-world.h"
#include "policy-tree.h"
#include "util/json.h"

#define RUN "r0123456789ab"
#define OTHER "r0000000other"
#define API "/run/test-egress.sock"

/* ---- the kernel's maps ---- */

enum { ENTRIES_MAX = 64 };

static struct Fake {
        const char *name;
        size_t key_size, value_size, n, limit;
        int fd;
        uint8_t keys[ENTRIES_MAX][64], values[ENTRIES_MAX][64];
} fakes[] = {
        { "grants", sizeof(struct fence_key), sizeof(struct fence_grant), .fd = -1 },
        { "live", sizeof(uint64_t), sizeof(struct fence_key), .fd = -1 },
        { "heartbeat", sizeof(uint32_t), sizeof(uint64_t), .fd = -1 },
};

static struct Fake *fake_of(int fd) {
        for (size_t i = 0; i < ELEMENTSOF(fakes); i++)
                if (fakes[i].fd == fd)
                        return &fakes[i];
        fail_msg("no map %i", fd);
        return NULL;
}

static inline size_t fake_find(const struct Fake *f, const void *key) {
        size_t i = 0;

        while (i < f->n && memcmp(f->keys[i], key, f->key_size) != 0)
                i++;
        return i;
}

int bpf_obj_get(const char *path) {
        for (size_t i = 0; i < ELEMENTSOF(fakes); i++)
                if (strcmp(strrchr(path, '/') + 1, fakes[i].name) == 0)
                        return fakes[i].fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        return -ENOENT;
}

int bpf_map_update_elem(int fd, const void *key, const void *value, __u64 flags) {
        struct Fake *f = fake_of(fd);
        size_t i = fake_find(f, key);

        if (i == f->n && f->n >= f->limit)
                return -E2BIG;
        f->n += i == f->n;
        memcpy(f->keys[i], key, f->key_size);
        memcpy(f->values[i], value, f->value_size);
        return 0;
}

int bpf_map_delete_elem(int fd, const void *key) {
        struct Fake *f = fake_of(fd);
        size_t i = fake_find(f, key);

        if (i == f->n)
                return -ENOENT;
        f->n--;
        memmove(f->keys[i], f->keys[f->n], sizeof(f->keys[i]));
        memmove(f->values[i], f->values[f->n], sizeof(f->values[i]));
        return 0;
}

int bpf_map_lookup_elem(int fd, const void *key, void *value) {
        struct Fake *f = fake_of(fd);
        size_t i = fake_find(f, key);

        if (i == f->n)
                return -ENOENT;
        memcpy(value, f->values[i], f->value_size);
        return 0;
}

int bpf_map_get_next_key(int fd, const void *key, void *next_key) {
        struct Fake *f = fake_of(fd);
        size_t i = key ? fake_find(f, key) + 1 : 0;

        if (i >= f->n)
                return -ENOENT;
        memcpy(next_key, f->keys[i], f->key_size);
        return 0;
}

static inline size_t n_granted(void) {
        return fakes[0].n;
}

static inline size_t n_live(void) {
        return fakes[1].n;
}

/* ---- the world ---- */

typedef struct World {
        sd_event *event;
        Egressd *e;
        FakeAuditd auditd;
        IpcServer *server;
        IpcClient *client, *watcher;
        sd_event_source *dns;
        const char *as_run, *as_unit; /* the latter NULL: the test's own */
        PeerRole as_role;
        bool answered;
        char *error;                /* owned */
        json_t *answer;             /* owned */
        unsigned n_beats;
        json_int_t revoked, stream_grant, streams[8]; /* what the watcher was told */
        size_t n_streams;
        unsigned n_lookups;
        size_t n_granted_before;    /* when the record of a grant came */
} World;

static inline void on_append(const char *event, void *userdata) {
        World *w = userdata;

        if (strcmp(event, "egress.allow") == 0)
                w->n_granted_before = n_granted();
}

/* The real handlers; who calls is the test's word in place of the kernel's. */
static inline int on_call(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;
        Peer *peer = ipc_call_peer(call);

        strcpy(peer->run, w->as_run);
        peer->roles = PEER_ROOT | w->as_role; /* root: the next call of this connection comes here as well */
        if (w->as_unit) {
                free(peer->unit);
                peer->unit = strdup(w->as_unit);
        }
        peer->cgroup_id = strcmp(w->as_run, RUN) == 0 ? 77 : 88;
        for (const IpcMethod *m = egressd_methods; m->name; m++)
                if (strcmp(m->name, ipc_call_method(call)) == 0)
                        return m->handler(call, params, w->e);
        return -ENOSYS;
}

static IpcMethod played[16];

/* Every name has the address that its first label says. */
static inline int on_dns(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        static const struct { const char *label; uint32_t address; } hosts[] = {
                { "good", 0xcb007107 }, { "fine", 0xcb007108 }, { "private", 0x0a000001 }, { "meta", 0xa9fea9fe }, { "own", 0xcb007163 },
        };
        World *w = userdata;
        struct sockaddr_in from;
        socklen_t n_from = sizeof(from);
        uint8_t m[1024];
        ssize_t n = recvfrom(fd, m, 512, 0, (struct sockaddr *) &from, &n_from);
        size_t end = 12;

        if (n < 17)
                return 0;
        w->n_lookups++;
        while (m[end])
                end += 1U + m[end];
        end += 5;
        m[2] = 0x81;
        m[3] = 0x80;
        memset(m + 6, 0, 6);
        for (size_t i = 0; i < ELEMENTSOF(hosts) && m[end - 3] == 1; i++) {
                uint32_t address = htonl(hosts[i].address);

                if (m[12] != strlen(hosts[i].label) || strncasecmp((char *) m + 13, hosts[i].label, m[12]) != 0)
                        continue;
                memcpy(m + end, "\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4", 12);
                memcpy(m + end + 12, &address, 4);
                end += 16;
                m[7] = 1;
        }
        assert_int_equal(sendto(fd, m, end, 0, (struct sockaddr *) &from, n_from), end);
        return 0;
}

static inline IpcServer *serve(World *w, const IpcMethod *methods, const char *path) {
        IpcServer *s = NULL;

        assert_int_equal(ipc_server_new(&s, w->event, methods, w), 0);
        assert_true(ipc_server_listen_fd(s, own_world_listen(path)) >= 0);
        return s;
}

static inline void begin_life(World *w) {
        static const char *const paths[] = { "/run/anchorhold/egress.sock", "/run/anchorhold/egress-api.sock" };

        own_world_pass(paths, 2, "egress:egress-api");
        assert_int_equal(egressd_new(&w->e, w->event), 0);
}

static inline int set_up(void **state) {
        struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(53), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        World *w = calloc(1, sizeof(*w));
        int fd;

        own_world_reserve(2);
        assert_int_equal(system("rm -rf /var/lib/anchorhold/egress && mkdir -p /var/lib/anchorhold/egress"), 0);
        for (size_t i = 0; i < ELEMENTSOF(fakes); i++)
                fakes[i].n = 0, fakes[i].limit = ENTRIES_MAX;
        w->as_run = RUN;
        w->as_role = PEER_PROXY;
        assert_int_equal(sd_event_new(&w->event), 0);
        fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        assert_int_equal(bind(fd, (struct sockaddr *) &in, sizeof(in)), 0);
        assert_true(sd_event_add_io(w->event, &w->dns, fd, EPOLLIN, on_dns, w) >= 0);
        assert_true(sd_event_source_set_io_fd_own(w->dns, true) >= 0);
        w->auditd.on_append = on_append;
        w->auditd.userdata = w;
        fake_auditd_start(&w->auditd, w->event);
        for (size_t i = 0; egressd_methods[i].name; i++) {
                assert_true(i + 1 < ELEMENTSOF(played));
                played[i] = (IpcMethod) { egressd_methods[i].name, PEER_ROOT, on_call };
        }
        w->server = serve(w, played, API);
        assert_int_equal(ipc_client_new(&w->client, w->event, API), 0);
        assert_int_equal(ipc_client_new(&w->watcher, w->event, API), 0);
        begin_life(w);
        *state = w;
        return 0;
}

static inline int tear_down(void **state) {
        World *w = *state;

        ipc_client_free(w->client);
        ipc_client_free(w->watcher);
        egressd_free(w->e);
        ipc_server_free(w->server);
        fake_auditd_stop(&w->auditd);
        sd_event_source_disable_unref(w->dns);
        sd_event_unref(w->event);
        json_decref(w->answer);
        free(w->error);
        free(w);
        return 0;
}

static inline void on_answer(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        World *w = userdata;

        w->answered = true;
        w->error = error ? strdup(error) : NULL;
        w->answer = json_incref(params);
}

static inline void call(World *w, const char *method, json_t *params) {
        _cleanup_free_ char *name = text_format("io.anchorhold.Egress.%s", method);

        json_decref(w->answer);
        free(w->error);
        w->answer = NULL;
        w->error = NULL;
        w->answered = false;
        assert_int_equal(ipc_client_call_async(w->client, name, params, NULL, 0, false, 0, on_answer, w), 0);
        UNTIL(w->event, w->answered);
}

static const char *get(const World *w, const char *key) {
        return json_string_value(json_object_get(w->answer, key)) ?: "";
}

static inline void register_run_of(World *w, const char *run, const char *workflow) {
        call(w, "Register", json_pack("{s:s, s:s, s:s}", "run", run, "workflow", workflow, "stage", "work"));
        if (w->error)
                fail_msg("%s %s", w->error, get(w, "reason"));
}

static inline void register_run(World *w, const char *run) {
        register_run_of(w, run, "net");
}

static inline void assert_error(const World *w, const char *name) {
        assert_non_null(w->error);
        assert_string_equal(strrchr(w->error, '.') + 1, name);
}

static inline void assert_denied(const World *w, const char *reason) {
        assert_null(w->error);
        assert_string_equal(get(w, "verdict"), "deny");
        assert_string_equal(get(w, "reason"), reason);
        assert_int_equal(json_array_size(json_object_get(w->answer, "addresses")), 0);
}

/* The synthetic address of an allowed name. */
static inline char *resolve(World *w, const char *name) {
        call(w, "Resolve", json_pack("{s:s, s:s}", "name", name, "qtype", "A"));
        assert_null(w->error);
        assert_string_equal(get(w, "verdict"), "allow");
        return strdup(get(w, "address"));
}

static inline void connect_tls(World *w, const char *address, const char *sni) {
        call(w, "Connect", json_pack("{s:s, s:i, s:s, s:s*}", "address", address, "port", 443, "protocol", "tls", "sni", sni));
}

static inline void interface_up(const char *name, uint32_t address) {
        struct ifreq req = {};
        struct sockaddr_in *in = (struct sockaddr_in *) &req.ifr_addr;
        int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

        (void) snprintf(req.ifr_name, sizeof(req.ifr_name), "%s", name);
        *in = (struct sockaddr_in) { .sin_family = AF_INET, .sin_addr.s_addr = htonl(address) };
        assert_int_equal(ioctl(fd, SIOCSIFADDR, &req), 0);
        req.ifr_flags = IFF_UP;
        assert_int_equal(ioctl(fd, SIOCSIFFLAGS, &req), 0);
        (void) close(fd);
}

static inline int enter_world(void **state) {
        Tree image = {};

        own_world_enter(CLONE_NEWNET);
        interface_up("lo", 0x7f000001);
        interface_up("lo:1", 0xcb007163); /* 203.0.113.99: ours */
        own_world_cover("/usr/lib");
        own_world_cover("/var/lib");
        tree_add_vendor(&image);
        tree_put(&image, "usr/lib/anchorhold/host.json", "{\"accel\": \"tcg\", \"resolvers\": [\"127.0.0.1\"], \"networks\": [\"203.0.113.0/24\"], \"max_runs\": 3}");
        tree_put(&image, "usr/lib/anchorhold/policy/egress/net.json",
                 "{\"allow\": [{\"name\": \"*.example.org\", \"ports\": [443], \"tls\": \"pass\"},"
                 " {\"name\": \"good.inspected.org\", \"ports\": [443], \"tls\": \"inspect\", \"paths\": [\"/v1/\"]}], \"deny\": []}");
        tree_put(&image, "usr/lib/anchorhold/policy/workflows/net.json",
                 "{\"template\": \"base\", \"repository\": false, \"egress\": \"net\", \"steps\": [{\"name\": \"exec\", \"kind\": \"exec\", \"timeout\": \"1h\"}],"
                 " \"limits\": {\"memory\": \"512M\", \"vcpus\": 2, \"disk\": \"4G\", \"run\": \"1h\", \"attempts\": 1, \"output\": \"64M\"}}");
        tree_put(&image, "usr/lib/anchorhold/policy/egress/paths.json",
                 "{\"allow\": [{\"name\": \"api.example.org\", \"ports\": [443], \"paths\": [\"/v1\"]},"
                 " {\"name\": \"git.example.org\", \"ports\": [443], \"git\": {\"repositories\": [\"team/app\"], \"fetch\": true}}]}");
        tree_put(&image, "usr/lib/anchorhold/policy/workflows/paths.json",
                 "{\"template\": \"base\", \"repository\": false, \"egress\": \"paths\", \"steps\": [{\"name\": \"exec\", \"kind\": \"exec\", \"timeout\": \"1h\"}],"
                 " \"limits\": {\"memory\": \"512M\", \"vcpus\": 2, \"disk\": \"4G\", \"run\": \"1h\", \"attempts\": 1, \"output\": \"64M\"}}");
        return 0;
}
