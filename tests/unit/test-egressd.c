/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The whole of egressd: what it grants, what it refuses, and that nothing is granted without a record. The kernel's maps are
 * played by arrays (this program's bpf_*() take the place of libbpf's), a DNS server and auditd by the test, in a
 * network of their own.
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

static size_t fake_find(const struct Fake *f, const void *key) {
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

static size_t n_granted(void) {
        return fakes[0].n;
}

static size_t n_live(void) {
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
        const char *as_run;
        PeerRole as_role;
        bool answered;
        char *error;                /* owned */
        json_t *answer;             /* owned */
        unsigned n_beats;
        json_int_t revoked;
        unsigned n_lookups;
        size_t n_granted_before;    /* when the record of a grant came */
} World;

static void on_append(const char *event, void *userdata) {
        World *w = userdata;

        if (strcmp(event, "egress.allow") == 0)
                w->n_granted_before = n_granted();
}

/* The real handlers; who calls is the test's word in place of the kernel's. */
static int on_call(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;
        Peer *peer = ipc_call_peer(call);

        strcpy(peer->run, w->as_run);
        peer->roles = PEER_ROOT | w->as_role; /* root: the next call of this connection comes here as well */
        peer->cgroup_id = strcmp(w->as_run, RUN) == 0 ? 77 : 88;
        for (const IpcMethod *m = egressd_methods; m->name; m++)
                if (strcmp(m->name, ipc_call_method(call)) == 0)
                        return m->handler(call, params, w->e);
        return -ENOSYS;
}

static IpcMethod played[16];

/* Every name has the address that its first label says. */
static int on_dns(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        static const struct { const char *label; uint32_t address; } hosts[] = {
                { "good", 0xcb007107 }, { "private", 0x0a000001 }, { "meta", 0xa9fea9fe }, { "own", 0xcb007163 },
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

static IpcServer *serve(World *w, const IpcMethod *methods, const char *path) {
        IpcServer *s = NULL;

        assert_int_equal(ipc_server_new(&s, w->event, methods, w), 0);
        assert_true(ipc_server_listen_fd(s, own_world_listen(path)) >= 0);
        return s;
}

static void begin_life(World *w) {
        static const char *const paths[] = { "/run/anchorhold/egress.sock", "/run/anchorhold/egress-api.sock" };

        own_world_pass(paths, 2, "egress:egress-api");
        assert_int_equal(egressd_new(&w->e, w->event), 0);
}

static int set_up(void **state) {
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
        for (size_t i = 0; egressd_methods[i].name; i++)
                played[i] = (IpcMethod) { egressd_methods[i].name, PEER_ROOT, on_call };
        w->server = serve(w, played, API);
        assert_int_equal(ipc_client_new(&w->client, w->event, API), 0);
        assert_int_equal(ipc_client_new(&w->watcher, w->event, API), 0);
        begin_life(w);
        *state = w;
        return 0;
}

static int tear_down(void **state) {
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

static void on_answer(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        World *w = userdata;

        w->answered = true;
        w->error = error ? strdup(error) : NULL;
        w->answer = json_incref(params);
}

static void call(World *w, const char *method, json_t *params) {
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

static void register_run(World *w, const char *run) {
        call(w, "Register", json_pack("{s:s, s:s, s:s}", "run", run, "workflow", "net", "stage", "work"));
        if (w->error)
                fail_msg("%s %s", w->error, get(w, "reason"));
}

static void assert_error(const World *w, const char *name) {
        assert_non_null(w->error);
        assert_string_equal(strrchr(w->error, '.') + 1, name);
}

static void assert_denied(const World *w, const char *reason) {
        assert_null(w->error);
        assert_string_equal(get(w, "verdict"), "deny");
        assert_string_equal(get(w, "reason"), reason);
        assert_int_equal(json_array_size(json_object_get(w->answer, "addresses")), 0);
}

/* The synthetic address of an allowed name. */
static char *resolve(World *w, const char *name) {
        call(w, "Resolve", json_pack("{s:s, s:s}", "name", name, "qtype", "A"));
        assert_null(w->error);
        assert_string_equal(get(w, "verdict"), "allow");
        return strdup(get(w, "address"));
}

static void connect_tls(World *w, const char *address, const char *sni) {
        call(w, "Connect", json_pack("{s:s, s:i, s:s, s:s*}", "address", address, "port", 443, "protocol", "tls", "sni", sni));
}

/* ---- registration and names ---- */

static void test_register(void **state) {
        World *w = *state;
        _cleanup_free_ char *digest = NULL;

        register_run(w, RUN);
        digest = strdup(get(w, "digest"));
        assert_int_equal(strlen(digest), 64);
        assert_non_null(strstr(w->auditd.records, "egress.registered"));
        register_run(w, RUN);
        assert_string_equal(get(w, "digest"), digest);

        call(w, "Register", json_pack("{s:s, s:s, s:s}", "run", RUN, "workflow", "net", "stage", "verify"));
        assert_error(w, "Conflict");
        call(w, "Register", json_pack("{s:s, s:s, s:s}", "run", OTHER, "workflow", "nothing", "stage", "work"));
        assert_error(w, "BadInput");
        call(w, "Register", json_pack("{s:s, s:s, s:s}", "run", "r1", "workflow", "net", "stage", "work"));
        assert_error(w, "BadInput");
        call(w, "Register", json_pack("{s:s, s:s, s:s, s:s}", "run", OTHER, "workflow", "net", "stage", "work", "allow", "*"));
        assert_error(w, "BadInput");

        w->auditd.refuses = "egress.registered";
        call(w, "Register", json_pack("{s:s, s:s, s:s}", "run", OTHER, "workflow", "net", "stage", "work"));
        assert_error(w, "Unavailable");
        assert_int_equal(egress_state_count(w->e->state), 1); /* what is not on record did not happen */
}

typedef struct Reply {
        bool answered;
        char error[64]; /* without its interface; "": none */
} Reply;

static void on_reply(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        Reply *reply = userdata;

        reply->answered = true;
        (void) snprintf(reply->error, sizeof(reply->error), "%s", error ? strrchr(error, '.') + 1 : "");
}

static void ask_for(IpcClient *c, Reply *reply, const char *method, const char *run, const char *workflow) {
        _cleanup_free_ char *name = text_format("io.anchorhold.Egress.%s", method);

        *reply = (Reply) {};
        assert_int_equal(ipc_client_call_async(c, name, json_pack("{s:s, s:s*, s:s*}", "run", run, "workflow", workflow, "stage", workflow ? "work" : NULL),
                                               NULL, 0, false, 0, on_reply, reply),
                         0);
}

static int count_frozen(void) {
        return WEXITSTATUS(system("exit $(ls /var/lib/anchorhold/egress/frozen | wc -l)"));
}

/* While a policy is being frozen others are answered, whoever asks for the same run waits, and a release is heard. */
static void test_register_takes_its_time(void **state) {
        World *w = *state;
        Reply first, second;

        ask_for(w->client, &first, "Register", RUN, "net");
        UNTIL(w->event, w->e->registrations);
        ask_for(w->watcher, &second, "Register", RUN, "net");
        UNTIL(w->event, first.answered && second.answered);
        assert_string_equal(first.error, "");
        assert_string_equal(second.error, "");
        assert_non_null(strstr(w->auditd.records, "egress.registered"));
        assert_null(strstr(strstr(w->auditd.records, "egress.registered") + 1, "egress.registered"));
        assert_int_equal(count_frozen(), 1);

        ask_for(w->client, &first, "Register", OTHER, "net");
        UNTIL(w->event, w->e->registrations);
        ask_for(w->watcher, &second, "Register", OTHER, "nothing");
        UNTIL(w->event, first.answered && second.answered);
        assert_string_equal(first.error, "");
        assert_string_equal(second.error, "Conflict");
        call(w, "Release", json_pack("{s:s}", "run", OTHER));
        assert_int_equal(count_frozen(), 1);

        /* released before it was there */
        ask_for(w->client, &first, "Register", OTHER, "net");
        UNTIL(w->event, w->e->registrations);
        ask_for(w->watcher, &second, "Release", OTHER, NULL);
        UNTIL(w->event, first.answered && second.answered);
        assert_string_equal(first.error, "Conflict");
        assert_string_equal(second.error, "");
        assert_int_equal(egress_state_count(w->e->state), 1);
        assert_int_equal(count_frozen(), 1);

        /* and the control */
        register_run(w, OTHER);
        assert_int_equal(count_frozen(), 2);
}

static void test_names(void **state) {
        _cleanup_free_ char *good = NULL, *again = NULL, *meta = NULL, *after = NULL;
        World *w = *state;

        call(w, "Resolve", json_pack("{s:s, s:s}", "name", "good.example.org", "qtype", "A"));
        assert_string_equal(get(w, "verdict"), "refused"); /* nobody registered this run */
        register_run(w, RUN);
        good = resolve(w, "good.example.org");
        again = resolve(w, "Good.Example.ORG");
        meta = resolve(w, "meta.example.org");
        assert_true(strncmp(good, "198.18.", 7) == 0 || strncmp(good, "198.19.", 7) == 0);
        assert_string_equal(good, again);
        assert_string_not_equal(good, meta);
        assert_int_equal(w->n_lookups, 0); /* a question of the guest's leaves the host only when it connects */

        call(w, "Resolve", json_pack("{s:s, s:s}", "name", "evil.example.com", "qtype", "A"));
        assert_string_equal(get(w, "verdict"), "refused");
        UNTIL(w->event, strstr(w->auditd.records, "evil.example.com"));
        call(w, "Resolve", json_pack("{s:s, s:s}", "name", "good.example.org", "qtype", "TXT"));
        assert_string_equal(get(w, "verdict"), "refused");

        /* names keep their addresses over a restart */
        w->e = egressd_free(w->e);
        begin_life(w);
        after = resolve(w, "good.example.org");
        assert_string_equal(good, after);
}

/* ---- connections ---- */

static void test_connect(void **state) {
        _cleanup_free_ char *good = NULL;
        World *w = *state;
        json_int_t grant;

        register_run(w, RUN);
        good = resolve(w, "good.example.org");
        call(w, "Look", json_pack("{s:s, s:i}", "address", good, "port", 443));
        assert_string_equal(get(w, "verdict"), "pass");
        assert_string_equal(get(w, "name"), "good.example.org");
        assert_int_equal(n_granted(), 0);

        connect_tls(w, good, "good.example.org");
        assert_null(w->error);
        assert_string_equal(get(w, "verdict"), "pass");
        assert_string_equal(json_string_value(json_array_get(json_object_get(w->answer, "addresses"), 0)), "203.0.113.7");
        assert_int_equal(n_granted(), 1);
        assert_int_equal(w->n_granted_before, 0); /* the kernel opened nothing that was not on record */
        assert_int_equal(n_live(), 1);
        assert_non_null(strstr(w->auditd.records, "egress.allow"));
        grant = json_integer_value(json_object_get(w->answer, "grant"));
        assert_true(grant > 0);

        /* another run cannot end it */
        w->as_run = OTHER;
        register_run(w, OTHER);
        call(w, "Done", json_pack("{s:I, s:i, s:i, s:i}", "grant", grant, "bytes_in", 1, "bytes_out", 2, "duration_us", 3));
        assert_int_equal(n_granted(), 1);
        w->as_run = RUN;
        call(w, "Done", json_pack("{s:I, s:i, s:i, s:i}", "grant", grant, "bytes_in", 1, "bytes_out", 2, "duration_us", 3));
        assert_null(w->error);
        assert_int_equal(n_granted(), 0);
        UNTIL(w->event, strstr(w->auditd.records, "conn.close"));
}

static void test_denials(void **state) {
        static const struct { const char *name, *reason; } targets[] = {
                { "private.example.org", "not-global" }, { "meta.example.org", "metadata" }, { "own.example.org", "own-address" },
                { "nowhere.example.org", "resolve-failed" },
        };
        _cleanup_free_ char *good = NULL;
        World *w = *state;

        register_run(w, RUN);
        good = resolve(w, "good.example.org");
        for (size_t i = 0; i < ELEMENTSOF(targets); i++) {
                _cleanup_free_ char *address = resolve(w, targets[i].name);

                connect_tls(w, address, targets[i].name);
                assert_denied(w, targets[i].reason);
        }

        call(w, "Look", json_pack("{s:s, s:i}", "address", "203.0.113.7", "port", 443));
        assert_denied(w, "literal-address");
        call(w, "Look", json_pack("{s:s, s:i}", "address", good, "port", 22));
        assert_denied(w, "port");
        connect_tls(w, "198.18.77.77", "good.example.org"); /* nobody was given that one */
        assert_string_equal(get(w, "verdict"), "deny");
        connect_tls(w, good, "evil.example.com");
        assert_denied(w, "fronting");
        connect_tls(w, good, NULL);
        assert_denied(w, "no-sni");
        call(w, "Connect", json_pack("{s:s, s:i, s:s, s:s, s:b}", "address", good, "port", 443, "protocol", "tls", "sni", "good.example.org", "ech", 1));
        assert_denied(w, "ech");
        call(w, "Connect", json_pack("{s:s, s:i, s:s}", "address", good, "port", 443, "protocol", "raw"));
        assert_denied(w, "protocol");
        w->as_run = OTHER; /* not registered; and an address of another run's is none of its own */
        connect_tls(w, good, "good.example.org");
        assert_string_equal(get(w, "verdict"), "deny");
        assert_int_equal(n_granted(), 0);
        assert_null(strstr(w->auditd.records, "egress.allow"));
}

/* Of all records of this event that auditd has taken. */
static json_int_t sum_of_counts(const World *w, const char *event) {
        _cleanup_free_ char *records = strdup(w->auditd.records ?: "");
        json_int_t sum = 0;

        for (char *save = NULL, *line = strtok_r(records, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
                _cleanup_json_ json_t *record = json_loads(line, 0, NULL);

                if (strcmp(json_string_value(json_object_get(record, "event")), event) == 0)
                        sum += json_integer_value(json_object_get(json_object_get(record, "data"), "count"));
        }
        return sum;
}

static void look_in_vain(World *w, unsigned n) {
        for (unsigned i = 0; i < n; i++) {
                call(w, "Look", json_pack("{s:s, s:i}", "address", "203.0.113.7", "port", 443));
                assert_denied(w, "literal-address");
        }
}

static uint64_t n_untold;

static void on_untold(const char *run, UntoldEvent event, uint64_t count, void *userdata) {
        n_untold += count;
}

/* What is in the file when nobody has it open. */
static uint64_t left_untold(void) {
        _cleanup_(untold_freep) Untold *u = NULL;

        assert_int_equal(untold_open(&u, EGRESSD_STATE_DIR), 0);
        n_untold = 0;
        untold_take(u, on_untold, NULL);
        return n_untold;
}

/* What auditd did not take is sent again, once, as soon as it takes something; so are counts whose run was released meanwhile. */
static void test_refused_denials(void **state) {
        World *w = *state;

        register_run(w, RUN);
        w->auditd.refuses = "egress.deny";
        look_in_vain(w, 1);
        w->as_run = OTHER;
        look_in_vain(w, 2);
        w->as_run = RUN;
        run_for(w->event, 2500000); /* a beat; it is refused again */
        look_in_vain(w, 4);
        call(w, "Release", json_pack("{s:s}", "run", RUN));
        assert_int_equal(sum_of_counts(w, "egress.deny"), 0);

        w->auditd.refuses = NULL;
        UNTIL(w->event, sum_of_counts(w, "egress.deny") >= 6);
        UNTIL(w->event, !w->e->tellings); /* the other run's second denial waits for its ten seconds, and is counted */
        run_for(w->event, 2500000);
        assert_int_equal(sum_of_counts(w, "egress.deny"), 6);
        w->e = egressd_free(w->e);
        assert_int_equal(left_untold(), 1);
}

static void until_the_loop_ends(World *w, uint64_t usec) {
        uint64_t end = time_monotonic() + usec;

        while (sd_event_get_state(w->event) != SD_EVENT_FINISHED) {
                assert_true(sd_event_run(w->event, 20000) >= 0);
                assert_true(time_monotonic() < end);
        }
}

static void test_stop(void **state) {
        World *w = *state;

        register_run(w, RUN);
        look_in_vain(w, 3);
        w->as_run = OTHER;
        look_in_vain(w, 2);
        UNTIL(w->event, sum_of_counts(w, "egress.deny") == 2); /* the first of each */

        assert_true(egressd_stop(w->e) >= 0);
        until_the_loop_ends(w, 2000000);
        assert_int_equal(sum_of_counts(w, "egress.deny"), 5);
        w->e = egressd_free(w->e);
        assert_int_equal(left_untold(), 0);
}

/* An auditd that takes nothing holds up nothing; what it did not take is kept for the next start. */
static void test_stop_unrecorded(void **state) {
        World *w = *state;
        uint64_t begin;

        register_run(w, RUN);
        w->auditd.refuses = "egress.deny";
        look_in_vain(w, 3);
        begin = time_monotonic();
        assert_true(egressd_stop(w->e) >= 0);
        until_the_loop_ends(w, 2000000);
        assert_true(time_monotonic() - begin < 2000000);
        w->e = egressd_free(w->e);
        assert_int_equal(left_untold(), 3);
}

static json_t *refused(const char *name, json_int_t count) {
        return json_pack("{s:s, s:s, s:s, s:I}", "event", "connection", "reason", "malformed", "name", name, "count", count);
}

/* What a proxy says of itself is bounded, whoever it has become; and saying it, or that a connection is over, takes a turn like any question. */
static void test_what_a_proxy_says(void **state) {
        char longest[1024 + 1] = {}, longer[1024 + 2] = {};
        World *w = *state;
        uint64_t begin;

        register_run(w, RUN);
        memset(longest, 'x', sizeof(longest) - 1);
        memset(longer, 'x', sizeof(longer) - 1);
        call(w, "Refused", refused("far.example.org", 100001));
        assert_error(w, "BadInput");
        call(w, "Refused", refused(longer, 1));
        assert_error(w, "BadInput");
        assert_null(strstr(w->auditd.records, "malformed"));
        call(w, "Refused", refused(longest, 100000));
        assert_null(w->error);
        UNTIL(w->event, strstr(w->auditd.records, "malformed"));

        begin = time_boottime();
        for (size_t i = 0; i < 700; i++) /* five hundred at once, then a thousand a second */
                call(w, i % 2 == 0 ? "Done" : "Refused", i % 2 == 0 ? json_pack("{s:i, s:i, s:i, s:i}", "grant", 7, "bytes_in", 0, "bytes_out", 0, "duration_us", 0) : refused("x", 1));
        assert_true(time_boottime() - begin >= 150 * 1000);
}

static void test_unrecorded(void **state) {
        _cleanup_free_ char *good = NULL;
        World *w = *state;

        register_run(w, RUN);
        good = resolve(w, "good.example.org");
        w->auditd.refuses = "egress.allow";
        connect_tls(w, good, "good.example.org");
        assert_denied(w, "unavailable");
        assert_int_equal(n_granted(), 0);
        w->auditd.refuses = NULL;
        fakes[0].limit = 0; /* on record, and then there is no room */
        connect_tls(w, good, "good.example.org");
        assert_denied(w, "unavailable");
        assert_int_equal(n_granted() + n_live(), 0);
        fakes[0].limit = ENTRIES_MAX;
        connect_tls(w, good, "good.example.org");
        assert_string_equal(get(w, "verdict"), "pass");
}

/* ---- the end of grants ---- */

static void on_watched(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        json_t *revoked = json_object_get(params, "revoked");
        World *w = userdata;

        w->n_beats++;
        if (json_array_size(revoked) > 0)
                w->revoked = json_integer_value(json_array_get(revoked, 0));
}

static void test_release(void **state) {
        _cleanup_free_ char *good = NULL, *new = NULL;
        World *w = *state;
        const char *closed;
        json_int_t grant;

        register_run(w, RUN);
        assert_int_equal(ipc_client_call_async(w->watcher, "io.anchorhold.Egress.Watch", NULL, NULL, 0, true, 0, on_watched, w), 0);
        UNTIL(w->event, w->n_beats > 0);
        assert_int_equal(fakes[2].n, 1); /* the kernel was told, too */
        good = resolve(w, "good.example.org");
        connect_tls(w, good, "good.example.org");
        grant = json_integer_value(json_object_get(w->answer, "grant"));
        connect_tls(w, good, "good.example.org"); /* once more to the same */
        assert_int_equal(n_granted(), 1);
        assert_null(strstr(w->auditd.records, "conn.close"));

        call(w, "Release", json_pack("{s:s}", "run", RUN));
        assert_null(w->error);
        assert_int_equal(n_granted(), 0);
        UNTIL(w->event, w->revoked == grant && strstr(w->auditd.records, "egress.released"));
        closed = strstr(w->auditd.records, "conn.close");
        assert_non_null(closed);
        assert_null(strstr(closed + 1, "conn.close")); /* one record for the two */
        assert_non_null(strstr(w->auditd.records, "\"reason\":\"released\""));
        assert_non_null(strstr(w->auditd.records, "\"count\":2"));
        connect_tls(w, good, "good.example.org");
        assert_string_equal(get(w, "verdict"), "deny");
        call(w, "Release", json_pack("{s:s}", "run", RUN));
        assert_null(w->error);
}

/* However often its policy was changed, the end of a run is on record; who asked gets all of them. */
static void test_release_of_many_policies(void **state) {
        World *w = *state;
        EgressRun *run;
        char digest[HEX_SHA256_SIZE];

        register_run(w, RUN);
        run = egress_state_find(w->e->state, RUN);
        for (int i = 1; i < 2000; i++) {
                (void) snprintf(digest, sizeof(digest), "%064d", i);
                assert_int_equal(json_array_append_new(run->digests, json_string(digest)), 0);
        }
        call(w, "Release", json_pack("{s:s}", "run", RUN));
        assert_null(w->error);
        assert_int_equal(json_array_size(json_object_get(w->answer, "digests")), 2000);
        UNTIL(w->event, strstr(w->auditd.records, "egress.released"));
        assert_non_null(strstr(w->auditd.records, "\"n_digests\":2000"));
        assert_non_null(strstr(w->auditd.records, "001999\"]"));
        assert_non_null(strstr(w->auditd.records, "001873\""));
        assert_null(strstr(w->auditd.records, "001872\""));
}

/* A new life goes on with the runs that it knows; without any it closes what the kernel still has. */
static void test_restart(void **state) {
        _cleanup_free_ char *good = NULL;
        World *w = *state;

        register_run(w, RUN);
        good = resolve(w, "good.example.org");
        connect_tls(w, good, "good.example.org");
        assert_int_equal(n_granted(), 1);
        w->e = egressd_free(w->e);
        assert_int_equal(n_granted(), 1); /* open connections go on meanwhile */
        begin_life(w);
        assert_int_equal(n_granted(), 0);
        assert_int_equal(n_live(), 1); /* … and on; only new ones need a new grant */
        call(w, "Release", json_pack("{s:s}", "run", RUN));
        assert_int_equal(n_live(), 0);

        w->e = egressd_free(w->e);
        assert_int_equal(bpf_map_update_elem(fakes[1].fd, &(uint64_t) { 5 }, &(struct fence_key) { .port = 5 }, 0), 0);
        begin_life(w);
        assert_int_equal(n_live(), 0);
}

static void interface_up(const char *name, uint32_t address) {
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

static int enter_world(void **state) {
        Tree image = {};

        own_world_enter(CLONE_NEWNET);
        interface_up("lo", 0x7f000001);
        interface_up("lo:1", 0xcb007163); /* 203.0.113.99: ours */
        own_world_cover("/usr/lib");
        own_world_cover("/var/lib");
        tree_add_vendor(&image);
        tree_put(&image, "usr/lib/anchorhold/host.json", "{\"accel\": \"tcg\", \"resolvers\": [\"127.0.0.1\"], \"networks\": [\"203.0.113.0/24\"], \"max_runs\": 3}");
        tree_put(&image, "usr/lib/anchorhold/policy/egress/net.json",
                 "{\"allow\": [{\"name\": \"*.example.org\", \"ports\": [443], \"tls\": \"pass\"}], \"deny\": []}");
        tree_put(&image, "usr/lib/anchorhold/policy/workflows/net.json",
                 "{\"template\": \"base\", \"repository\": false, \"egress\": \"net\", \"steps\": [{\"name\": \"exec\", \"kind\": \"exec\", \"timeout\": \"1h\"}],"
                 " \"limits\": {\"memory\": \"512M\", \"vcpus\": 2, \"disk\": \"4G\", \"run\": \"1h\", \"attempts\": 1, \"output\": \"64M\"}}");
        return 0;
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_register, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_register_takes_its_time, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_names, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_connect, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_denials, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_refused_denials, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_stop, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_stop_unrecorded, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_what_a_proxy_says, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_unrecorded, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_release, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_release_of_many_policies, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_restart, set_up, tear_down),
        };

        return cmocka_run_group_tests(tests, enter_world, NULL);
}
