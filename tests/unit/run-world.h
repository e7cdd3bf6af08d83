/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * For tests of anchor-run: the whole of it in the test's event loop. The test plays anchord, auditd, the guest behind the
 * channel's socket, and QMP; what the guest does with a command is each test's own.
 */

#include <fcntl.h>
#include <jansson.h>
#include <sys/mman.h>

#include "fake-auditd.h"
#include "ipc/ipc.h"
#include "own-world.h"
#include "run/run.h"
#include "util/cleanup.h"
#include "util/io.h"
#include "util/json.h"
#include "vmm/channel.h"

#define RUN "r0123456789ab"
#define BASE "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define CHANNEL_SOCKET "/run/channel"
#define QMP_SOCKET "/run/qmp"
#define API_SOCKET "/run/anchorhold/run-api.sock"

typedef struct World World;

struct World {
        sd_event *event;
        FakeAuditd auditd;
        uint64_t auditd_patience_usec, anchord_patience_usec;
        IpcServer *api;
        Run *run;

        /* anchord */
        json_t *spec;               /* owned */
        int seed, result;           /* owned */
        unsigned n_refused;         /* so many calls are refused as Unavailable before one is taken */
        const char *finish_refused; /* so is Finish, `n_finish_refused` times, with this error */
        unsigned n_finish_refused;
        const char *spec_error;
        char *calls;                /* owned: "Method {params}\n"… as they were taken */
        json_t *finish;             /* owned: its parameters */
        json_int_t last_seq, refused_seq;
        bool seq_wrong;

        /* guest */
        sd_event_source *channel_listen, *channel, *qmp_listen, *qmp;
        int channel_fd, qmp_fd;
        ChannelParser *parser;      /* owned */
        unsigned n_boots, n_dead;   /* the first n_dead boots end before hello */
        unsigned n_hung;            /* the first n_hung never say it */
        unsigned n_qmp;
        char *commands;             /* owned: what was executed, "argv0 …\n" */
        char *files;                /* owned: "PATH size [MODE] [+]\n" */
        char *signals;              /* owned: "15\n"… */
        char put_path[256], put_store[256], put_mode[16];
        char *put;                  /* owned; of the file that comes in */
        size_t put_size;
        bool put_appends, off;
        char *last_file;            /* owned; the last one that came in */
        /* Plays one command; argv and the whole request. */
        void (*exec)(World *w, uint32_t stream, const char *name, json_t *request);
        void (*signalled)(World *w, uint32_t stream, int number);
};

static inline void append(char **to, const char *format, ...) __attribute__((__format__(__printf__, 2, 3)));
static inline void append(char **to, const char *format, ...) {
        char *text, *more;
        va_list ap;

        va_start(ap, format);
        assert_true(vasprintf(&text, format, ap) >= 0);
        va_end(ap);
        assert_true(asprintf(&more, "%s%s", *to ?: "", text) >= 0);
        free(text);
        free(*to);
        *to = more;
}

static inline bool has(const char *text, const char *part) {
        if (!text || !strstr(text, part))
                print_error("no \"%s\" in:\n%s\n", part, text ?: "");
        return text && strstr(text, part);
}

#define HEAD(limits) "{\"run\":\"" RUN "\",\"item\":\"i0123456789ab\",\"workflow\":\"w\",\"template\":\"base\",\"attempt\":1,\"round\":1," \
                     "\"stage\":\"work\",\"limits\":{" limits "},"
#define LIMITS "\"boot_s\":1,\"run_s\":60,\"output_bytes\":100000,\"bundle_bytes\":1000"
#define EXEC "\"steps\":[{\"name\":\"exec\",\"kind\":\"exec\",\"argv\":[\"/bin/thing\"],\"timeout_s\":60}]}"

static inline json_t *parse(const char *text) {
        json_t *j = NULL;

        assert_int_equal(json_parse(text, strlen(text), &j, NULL), 0);
        return j;
}

/* ---- anchord ---- */

static inline int on_api(IpcCall *call, json_t *params, void *userdata) {
        const char *method = strrchr(ipc_call_method(call), '.') + 1;
        _cleanup_free_ char *text = json_canonical(params);
        json_int_t seq = json_integer_value(json_object_get(params, "seq"));
        World *w = userdata;

        if (w->n_refused > 0 && strcmp(method, "GetSpec") != 0) {
                w->n_refused--;
                w->refused_seq = seq;
                return ipc_call_refuse(call, "Unavailable", "restarting");
        }
        if (w->n_finish_refused > 0 && strcmp(method, "Finish") == 0) {
                w->n_finish_refused--;
                return ipc_call_refuse(call, w->finish_refused, "not yet");
        }
        /* counting up by one, and what was refused comes again under its number */
        w->seq_wrong |= seq != w->last_seq + 1;
        w->last_seq = seq;
        append(&w->calls, "%s %s\n", method, text);
        if (strcmp(method, "GetSpec") == 0) {
                if (w->spec_error)
                        return ipc_call_error(call, w->spec_error, NULL);
                if (w->seed >= 0)
                        assert_true(ipc_call_push_fd(call, fcntl(w->seed, F_DUPFD_CLOEXEC, 3)) >= 0);
                return ipc_call_reply(call, json_pack("{s:O}", "spec", w->spec));
        }
        if (strcmp(method, "Finish") == 0) {
                w->finish = json_incref(params);
                w->result = ipc_call_take_fd(call, 0);
        }
        return ipc_call_reply(call, NULL);
}

static const IpcMethod api_methods[] = {
        { "io.anchorhold.Run.GetSpec", PEER_ROOT, on_api },
        { "io.anchorhold.Run.Event", PEER_ROOT, on_api },
        { "io.anchorhold.Run.Output", PEER_ROOT, on_api },
        { "io.anchorhold.Run.Finish", PEER_ROOT, on_api },
        {},
};

/* ---- the guest ---- */

static inline void guest_say(World *w, ChannelType type, uint32_t stream, const void *data, size_t size) {
        uint8_t header[CHANNEL_HEADER_SIZE];

        channel_encode_header(header, type, stream, (uint32_t) size);
        if (w->channel_fd < 0 || io_write_full(w->channel_fd, header, sizeof(header)) < 0)
                return; /* the other end is gone */
        (void) io_write_full(w->channel_fd, data, size);
}

static inline void guest_text(World *w, ChannelType type, uint32_t stream, const char *text) {
        guest_say(w, type, stream, text, strlen(text));
}

static inline void guest_exit(World *w, uint32_t stream, int status) {
        char text[32];

        (void) snprintf(text, sizeof(text), "{\"status\":%d}", status);
        guest_text(w, CHANNEL_STDOUT, stream, "");
        guest_text(w, CHANNEL_STDERR, stream, "");
        guest_text(w, CHANNEL_EXIT, stream, text);
}

static inline void guest_die(World *w) {
        w->channel = sd_event_source_disable_unref(w->channel);
        w->channel_fd = fd_close(w->channel_fd);
}

static inline void guest_on_data(World *w, const ChannelFrame *f) {
        uint8_t credit[4];

        if (f->size > 0) {
                w->put = realloc(w->put, w->put_size + f->size + 1);
                memcpy(w->put + w->put_size, f->payload, f->size);
                w->put_size += f->size;
                w->put[w->put_size] = 0;
                channel_encode_u32(credit, f->size);
                guest_say(w, CHANNEL_CREDIT, f->stream, credit, 4);
                return;
        }
        append(&w->files, "%s %zu%s%s%s\n", w->put_path, w->put_size, w->put_mode, w->put_appends ? " +" : "", w->put_store);
        free(w->last_file);
        w->last_file = w->put;
        w->put = NULL;
        w->put_size = 0;
        guest_text(w, CHANNEL_EXIT, f->stream, "{\"status\":0}");
}

static inline void guest_on_request(World *w, const ChannelFrame *f) {
        _cleanup_json_ json_t *request = NULL;
        json_t *argv;
        const char *name;

        assert_int_equal(json_parse((const char *) f->payload, f->size, &request, NULL), 0);
        switch (f->type) {
        case CHANNEL_PUT:
                (void) snprintf(w->put_path, sizeof(w->put_path), "%s", json_string_value(json_object_get(request, "path")));
                w->put_mode[0] = 0;
                if (json_object_get(request, "mode"))
                        (void) snprintf(w->put_mode, sizeof(w->put_mode), " %04llo", json_integer_value(json_object_get(request, "mode")));
                w->put_appends = json_is_true(json_object_get(request, "append"));
                (void) snprintf(w->put_store, sizeof(w->put_store), "%s", json_string_value(json_object_get(request, "java_store")) ?: "");
                break;
        case CHANNEL_SIGNAL:
                append(&w->signals, "%lld\n", json_integer_value(json_object_get(request, "signal")));
                if (w->signalled)
                        w->signalled(w, f->stream, (int) json_integer_value(json_object_get(request, "signal")));
                break;
        case CHANNEL_MESSAGE:
                w->off = true;
                guest_die(w);
                break;
        default:
                argv = json_object_get(request, "argv");
                /* our own scripts by their $0 */
                name = json_string_value(json_array_get(argv, json_array_size(argv) > 3 ? 3 : 0));
                append(&w->commands, "%s\n", name);
                w->exec(w, f->stream, name, request);
                break;
        }
}

static inline void guest_on_frame(World *w, const ChannelFrame *f) {
        switch (f->type) {
        case CHANNEL_HELLO:
                guest_text(w, CHANNEL_HELLO, 0, "{\"protocol\":1,\"boot_id\":\"b\",\"kernel\":\"6.12\\u001b\",\"version\":\"1\"}");
                break;
        case CHANNEL_SEED:
        case CHANNEL_CLOCK:
                guest_say(w, f->type, 0, "", 0);
                break;
        case CHANNEL_PING:
                guest_say(w, CHANNEL_PING, 0, f->payload, f->size);
                break;
        case CHANNEL_DATA:
                guest_on_data(w, f);
                break;
        case CHANNEL_STDIN:
        case CHANNEL_CREDIT:
                break;
        default:
                guest_on_request(w, f);
                break;
        }
}

static inline int guest_on_io(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        World *w = userdata;
        uint8_t *space;
        size_t size;
        ssize_t n;
        ChannelFrame f;

        channel_parser_reserve(w->parser, &space, &size);
        n = read(fd, space, size);
        if (n <= 0) {
                guest_die(w);
                return 0;
        }
        channel_parser_commit(w->parser, (size_t) n);
        while (w->channel_fd >= 0 && channel_parser_next(w->parser, &f) == 1)
                guest_on_frame(w, &f);
        return 0;
}

static inline int guest_on_boot(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        World *w = userdata;
        int client = accept4(fd, NULL, NULL, SOCK_CLOEXEC);

        guest_die(w);
        w->n_boots++;
        if (w->n_boots <= w->n_dead) {
                (void) close(client);
                return 0;
        }
        w->channel_fd = client;
        channel_parser_reset(w->parser);
        if (w->n_boots > w->n_hung)
                assert_true(sd_event_add_io(w->event, &w->channel, client, EPOLLIN, guest_on_io, w) >= 0);
        return 0;
}

/* QEMU's monitor, as far as a hanging boot needs it. */
static inline int qmp_on_io(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        World *w = userdata;
        char text[2048] = {};

        if (read(fd, text, sizeof(text) - 1) <= 0) {
                w->qmp = sd_event_source_disable_unref(w->qmp);
                w->qmp_fd = fd_close(w->qmp_fd);
                return 0;
        }
        for (char *line, *rest = text; (line = strsep(&rest, "\n")) && *line;) {
                _cleanup_json_ json_t *request = parse(line);
                const char *command = json_string_value(json_object_get(request, "execute"));
                _cleanup_free_ char *answer = NULL;

                append(&answer, "{\"return\": %s, \"id\": %lld}\r\n", strcmp(command, "ringbuf-read") == 0 ? "\"Kernel panic\\u001b[1m\"" : "{}",
                       json_integer_value(json_object_get(request, "id")));
                (void) io_write_full(fd, answer, strlen(answer));
                if (strcmp(command, "quit") == 0)
                        guest_die(w);
        }
        return 0;
}

static inline int qmp_on_connection(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        static const char greeting[] = "{\"QMP\": {\"version\": {}, \"capabilities\": []}}\r\n";
        World *w = userdata;

        w->n_qmp++;
        w->qmp = sd_event_source_disable_unref(w->qmp);
        (void) fd_close(w->qmp_fd);
        w->qmp_fd = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
        (void) io_write_full(w->qmp_fd, greeting, strlen(greeting));
        return sd_event_add_io(w->event, &w->qmp, w->qmp_fd, EPOLLIN, qmp_on_io, w);
}

/* ---- all of it ---- */

static inline IpcServer *serve(World *w, const IpcMethod *methods, const char *path) {
        IpcServer *s = NULL;

        assert_int_equal(ipc_server_new(&s, w->event, methods, w), 0);
        assert_true(ipc_server_listen_fd(s, own_world_listen(path)) >= 0);
        return s;
}

static inline void listen_at(World *w, sd_event_source **ret, const char *path, sd_event_io_handler_t handler) {
        assert_true(sd_event_add_io(w->event, ret, own_world_listen(path), EPOLLIN, handler, w) >= 0);
        assert_true(sd_event_source_set_io_fd_own(*ret, true) >= 0);
}

static inline int set_up(void **state) {
        World *w = calloc(1, sizeof(*w));

        w->seed = w->result = w->channel_fd = w->qmp_fd = -1;
        assert_int_equal(sd_event_new(&w->event), 0);
        w->api = serve(w, api_methods, API_SOCKET);
        fake_auditd_start(&w->auditd, w->event);
        assert_int_equal(channel_parser_new(&w->parser, CHANNEL_FROM_HOST), 0);
        listen_at(w, &w->channel_listen, CHANNEL_SOCKET, guest_on_boot);
        listen_at(w, &w->qmp_listen, QMP_SOCKET, qmp_on_connection);
        *state = w;
        return 0;
}

static inline int tear_down(void **state) {
        World *w = *state;

        run_free(w->run);
        ipc_server_free(w->api);
        fake_auditd_stop(&w->auditd);
        guest_die(w);
        sd_event_source_disable_unref(w->channel_listen);
        sd_event_source_disable_unref(w->qmp_listen);
        sd_event_source_disable_unref(w->qmp);
        (void) fd_close(w->qmp_fd);
        channel_parser_free(w->parser);
        sd_event_unref(w->event);
        json_decref(w->spec);
        json_decref(w->finish);
        (void) fd_close(w->seed);
        (void) fd_close(w->result);
        free(w->calls);
        free(w->commands);
        free(w->files);
        free(w->signals);
        free(w->put);
        free(w->last_file);
        free(w);
        return 0;
}

static inline int enter_world(void **state) {
        own_world_enter(0);
        return mkdir("/run/credentials", 0700);
}

static inline int too_long(sd_event_source *s, uint64_t usec, void *userdata) {
        return sd_event_exit(sd_event_source_get_event(s), 99);
}

/* The whole run; what the process would return. */
static inline int drive(World *w) {
        const RunConfig config = { .id = RUN, .channel = CHANNEL_SOCKET, .qmp = QMP_SOCKET, .api = API_SOCKET, .credentials = "/run/credentials",
                                   .audit_patience_usec = w->auditd_patience_usec ?: 1200 * 1000,
                                   .anchord_patience_usec = w->anchord_patience_usec };

        assert_true(sd_event_add_time_relative(w->event, NULL, CLOCK_MONOTONIC, 8000000, 0, too_long, NULL) >= 0);
        assert_int_equal(run_new(&w->run, w->event, &config), 0);
        return sd_event_loop(w->event);
}

static inline void assert_finish(World *w, const char *outcome, const char *reason) {
        assert_non_null(w->finish);
        assert_string_equal(json_string_value(json_object_get(w->finish, "outcome")), outcome);
        assert_true(has(json_string_value(json_object_get(w->finish, "reason")), reason));
        assert_false(w->seq_wrong);
}

static inline json_int_t finish_fact(const World *w, const char *key) {
        return json_integer_value(json_object_get(json_object_get(w->finish, "facts"), key));
}

/* A command that does well. */
static inline void exec_good(World *w, uint32_t stream, const char *name, json_t *request) {
        assert_true(has(w->auditd.records, "run.step")); /* on record before it begins */
        guest_text(w, CHANNEL_STDOUT, stream, "hello\x1b\n");
        guest_text(w, CHANNEL_STDERR, stream, "warning");
        guest_exit(w, stream, 0);
}
