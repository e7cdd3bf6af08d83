/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The host's side of the channel against frames that a guest, honest or not, might send. */

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "util/io.h"
#include "util/json.h"
#include "vmm/guest-client.h"

typedef struct Seen {
        sd_event *event;
        GuestClient *client;
        GuestStream *stream;
        int ready, lost, exits;
        GuestLoss loss;
        char detail[256];
        char output[4096];
        size_t n_output;
        bool keep; /* give no credit back */
        GuestExit exit;
} Seen;

static void on_output(GuestStream *s, ChannelType type, const uint8_t *data, size_t size, void *userdata) {
        Seen *seen = userdata;

        if (seen->n_output + size < sizeof(seen->output))
                memcpy(seen->output + seen->n_output, data, size);
        seen->n_output += size;
        if (!seen->keep)
                guest_stream_consumed(s, size);
}

static void on_exit_event(GuestStream *s, const GuestExit *e, void *userdata) {
        Seen *seen = userdata;

        seen->exits++;
        seen->exit = *e;
        (void) sd_event_exit(seen->event, 0);
}

static const GuestStreamHandler stream_handler = { .output = on_output, .exit = on_exit_event };

static void on_ready(GuestClient *c, json_t *hello, void *userdata) {
        Seen *seen = userdata;

        seen->ready++;
        assert_string_equal(json_string_value(json_object_get(hello, "boot_id")), "b");
        assert_int_equal(guest_client_start(c, CHANNEL_EXEC, json_pack("{s:[s]}", "argv", "true"), -1, &stream_handler, seen,
                                            &seen->stream),
                         0);
}

static void on_lost(GuestClient *c, GuestLoss loss, const char *detail, void *userdata) {
        Seen *seen = userdata;

        seen->lost++;
        seen->loss = loss;
        (void) snprintf(seen->detail, sizeof(seen->detail), "%s", detail);
        (void) sd_event_exit(seen->event, 0);
}

static const GuestClientHandler client_handler = { .ready = on_ready, .lost = on_lost };

typedef struct Script {
        uint8_t data[600 * 1024];
        size_t size;
} Script;

static void say(Script *s, ChannelType type, uint32_t stream, const void *payload, size_t size) {
        assert_true(s->size + CHANNEL_HEADER_SIZE + size <= sizeof(s->data));
        channel_encode_header(s->data + s->size, type, stream, (uint32_t) size);
        memcpy(s->data + s->size + CHANNEL_HEADER_SIZE, payload, size);
        s->size += CHANNEL_HEADER_SIZE + size;
}

static void say_text(Script *s, ChannelType type, uint32_t stream, const char *text) {
        say(s, type, stream, text, strlen(text));
}

static Script *script_new(bool handshake) {
        Script *s = calloc(1, sizeof(*s));

        assert_non_null(s);
        if (handshake) {
                say_text(s, CHANNEL_HELLO, 0, "{\"protocol\":1,\"boot_id\":\"b\"}");
                say_text(s, CHANNEL_SEED, 0, "");
                say_text(s, CHANNEL_CLOCK, 0, "");
        }
        return s;
}

/* Plays the script as a guest from another process, so that neither side can block the other. */
static void play(Script *script, Seen *seen, int input_fd) {
        _cleanup_json_ json_t *hello = json_pack("{s:i}", "protocol", 1);
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        int pair[2];
        pid_t pid;

        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        pid = fork();
        if (pid == 0) {
                char sink[4096];

                (void) close(pair[0]);
                (void) io_write_full(pair[1], script->data, script->size);
                (void) shutdown(pair[1], SHUT_WR);
                while (read(pair[1], sink, sizeof(sink)) > 0)
                        ;
                _exit(0);
        }
        (void) close(pair[1]);

        assert_int_equal(sd_event_new(&event), 0);
        seen->event = event;
        assert_int_equal(guest_client_new(&seen->client, event, pair[0], hello, &client_handler, seen), 0);
        assert_int_equal(sd_event_loop(event), 0);
        seen->client = guest_client_free(seen->client);
        free(script);
}

static void test_run(void **state) {
        Script *s = script_new(true);
        Seen seen = {};

        say_text(s, CHANNEL_STDOUT, 1, "hello ");
        say_text(s, CHANNEL_STDERR, 1, "world");
        say_text(s, CHANNEL_STDOUT, 1, "");
        say_text(s, CHANNEL_STDERR, 1, "");
        say_text(s, CHANNEL_EXIT, 1, "{\"status\":3}");
        play(s, &seen, -1);

        assert_int_equal(seen.ready, 1);
        assert_int_equal(seen.exits, 1);
        assert_int_equal(seen.exit.kind, GUEST_EXIT_STATUS);
        assert_int_equal(seen.exit.value, 3);
        assert_int_equal(seen.n_output, 11);
        assert_memory_equal(seen.output, "hello world", 11);
}

static void expect_loss(Script *s, bool keep, GuestLoss loss, const char *word) {
        Seen seen = { .keep = keep };

        play(s, &seen, -1);
        assert_int_equal(seen.lost, 1);
        assert_int_equal(seen.loss, loss);
        if (!strstr(seen.detail, word))
                fail_msg("\"%s\" lacks \"%s\"", seen.detail, word);
}

static void test_hostile(void **state) {
        static const struct {
                bool handshake;
                ChannelType type;
                uint32_t stream;
                const char *payload, *word;
        } cases[] = {
                { false, CHANNEL_SEED, 0, "", "instead of hello" },
                { false, CHANNEL_STDOUT, 1, "x", "instead of hello" },
                { false, CHANNEL_HELLO, 0, "{\"protocol\":2,\"boot_id\":\"b\"}", "hello" },
                { false, CHANNEL_HELLO, 0, "{\"protocol\":1}", "hello" },
                { false, CHANNEL_HELLO, 0, "no JSON", "hello" },
                { true, CHANNEL_HELLO, 0, "{\"protocol\":1,\"boot_id\":\"c\"}", "booted anew" },
                { true, CHANNEL_STDOUT, 2, "x", "not open" },
                { true, CHANNEL_DATA, 1, "x", "data on a stream of exec" },
                { true, CHANNEL_EXIT, 1, "{}", "exit" },
                { true, CHANNEL_EXIT, 1, "{\"status\":256}", "exit" },
                { true, CHANNEL_EXIT, 1, "{\"status\":\"0\"}", "exit" },
                { true, CHANNEL_EXIT, 1, "{\"signal\":0}", "exit" },
                { true, CHANNEL_CREDIT, 1, "\1\0\0\0", "not open" }, /* replaced below */
                { true, CHANNEL_PING, 0, "12345678", "ping" },
                { true, CHANNEL_SEED, 0, "", "not open" },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                Script *s = script_new(cases[i].handshake);

                if (cases[i].type == CHANNEL_CREDIT) {
                        say(s, CHANNEL_CREDIT, 1, "\1\0\0\0", 4);
                        expect_loss(s, false, GUEST_CHANNEL_ERROR, "credit beyond");
                        continue;
                }
                say_text(s, cases[i].type, cases[i].stream, cases[i].payload);
                expect_loss(s, false, GUEST_CHANNEL_ERROR, cases[i].word);
        }
}

static void test_after_end(void **state) {
        Script *s = script_new(true);

        say_text(s, CHANNEL_STDOUT, 1, "");
        say_text(s, CHANNEL_STDOUT, 1, "more");
        expect_loss(s, false, GUEST_CHANNEL_ERROR, "after its end");

        s = script_new(true);
        say_text(s, CHANNEL_ERROR, 0, "{\"reason\":\"no \\u001b[31m disk\"}");
        expect_loss(s, false, GUEST_REFUSED, "\\x1b");

        expect_loss(script_new(true), false, GUEST_GONE, "ended");
        expect_loss(script_new(false), false, GUEST_GONE, "ended");

        s = script_new(true);
        s->data[s->size++] = 99;
        memset(s->data + s->size, 0, 11);
        s->size += 11;
        expect_loss(s, false, GUEST_CHANNEL_ERROR, "version");
}

/* A guest that sends on although nobody gave credit back is stopped after one window. */
static void test_flood(void **state) {
        static uint8_t block[CHANNEL_PAYLOAD_MAX];
        Script *s = script_new(true);

        for (unsigned i = 0; i < CHANNEL_WINDOW / sizeof(block); i++)
                say(s, CHANNEL_STDOUT, 1, block, sizeof(block));
        say_text(s, CHANNEL_STDOUT, 1, "x");
        expect_loss(s, true, GUEST_CHANNEL_ERROR, "beyond the stream's credit");

        /* The same is fine when what came was consumed. */
        s = script_new(true);
        for (unsigned i = 0; i < 8; i++)
                say(s, CHANNEL_STDOUT, 1, block, sizeof(block));
        say_text(s, CHANNEL_EXIT, 1, "{\"signal\":9}");
        {
                Seen seen = {};

                play(s, &seen, -1);
                assert_int_equal(seen.exits, 1);
                assert_int_equal(seen.exit.kind, GUEST_EXIT_SIGNAL);
                assert_int_equal(seen.n_output, 8 * sizeof(block));
        }
}

int main(void) {
        static const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_run),
                cmocka_unit_test(test_hostile),
                cmocka_unit_test(test_after_end),
                cmocka_unit_test(test_flood),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
