/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* HTTP/1.1 to the letter, in both directions: what is carried, what is changed, what is refused. WebSocket is test-exchange-websocket's. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <zlib.h>

#include <cmocka.h>

#include "exchange-world.h"

/* ---- the origin ---- */

#define BODY "{\"key\":\"" SECRET "\", \"words\":\"and so on, and so on, and so on\"}"

static bool send_gzip(SSL *ssl, const char *fields, const void *data, size_t size, size_t cut) {
        _cleanup_free_ char *head = NULL;
        uint8_t *encoded;
        z_stream z = {};
        bool good;

        if (deflateInit2(&z, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK)
                return false;
        encoded = malloc(deflateBound(&z, size));
        z.next_in = (Bytef *) data;
        z.avail_in = (uInt) size;
        z.next_out = encoded;
        z.avail_out = (uInt) deflateBound(&z, size);
        (void) deflate(&z, Z_FINISH);
        (void) deflateEnd(&z);
        head = text_format("HTTP/1.1 200 OK\r\n%sContent-Length: %lu\r\n\r\n", fields, z.total_out - cut);
        good = origin_send(ssl, head) && SSL_write(ssl, encoded, (int) (z.total_out - cut)) > 0;
        free(encoded);
        return good;
}

/* Answers that nobody can read in one way only. */
static const char *const broken_answers[] = {
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nzz",
        "HTTP/1.1 200 OK\r\nX-A: b\r\n c\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\nContent-Length: 0\n\n",
        "HTTP/1.1 200 OK\r\nX-A: b\rX-B: c\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX-A: b\x01\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX-A : b\r\nContent-Length: 0\r\n\r\n",
        "HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 99 No\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 600 No\r\nContent-Length: 0\r\n\r\n",
        "ICY 200 OK\r\n\r\n",
};

/* What the client guesses of the secret comes back in two pieces, with a pause in the midst of it. */
static const char *guess;

static bool origin_echo(World *w, SSL *ssl) {
        _cleanup_free_ char *one = text_format("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%zx\r\nit is: %.*s\r\n", strlen(guess) / 2 + 7,
                                               (int) strlen(guess) / 2, guess);
        _cleanup_free_ char *two = text_format("%zx\r\n%s and\r\n0\r\n\r\n", (strlen(guess) + 1) / 2 + 4, guess + strlen(guess) / 2);

        if (!origin_send(ssl, one))
                return false;
        while (sem_wait(&w->may_go_on) < 0)
                ;
        return origin_send(ssl, two);
}

static bool origin_answer(World *w, SSL *ssl, ssize_t length) {
        static const char zeros[4 * 1024 * 1024];

        if (strstr(w->seen, " /v1/broken/"))
                return origin_send(ssl, broken_answers[strtoul(strstr(w->seen, "/v1/broken/") + 11, NULL, 10)]);
        if (strstr(w->seen, " /v1/echo"))
                return origin_echo(w, ssl);
        if (strstr(w->seen, " /v1/gzip"))
                return send_gzip(ssl, "Content-Encoding: gzip\r\nContent-MD5: abc\r\nRepr-Digest: x\r\nX-Kept: 1\r\n", BODY, strlen(BODY), 0);
        if (strstr(w->seen, " /v1/x-gzip"))
                return send_gzip(ssl, "Content-Encoding: X-GZIP\r\n", BODY, strlen(BODY), 0);
        if (strstr(w->seen, " /v1/cut-gzip"))
                return send_gzip(ssl, "Content-Encoding: gzip\r\n", BODY, strlen(BODY), 4);
        if (strstr(w->seen, " /v1/bomb"))
                return send_gzip(ssl, "Content-Encoding: gzip\r\n", zeros, sizeof(zeros), 0);
        if (strstr(w->seen, " /v1/br"))
                return origin_send(ssl, "HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 2\r\n\r\nzz");
        if (strstr(w->seen, " /v1/twice"))
                return origin_send(ssl, "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nzz");
        if (strstr(w->seen, " /v1/part"))
                return origin_send(ssl, "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-3/24\r\nContent-Length: 4\r\n\r\nsk-a");
        if (strstr(w->seen, " /v1/fields"))
                return origin_send(ssl, "HTTP/1.1 200 " SECRET "\r\nAlt-Svc: h3=\":443\"\r\nSet-Cookie: k=" SECRET "; Path=/\r\n"
                                        "Location: https://h/?k=sk%2Dant-the-real-one-0123\r\nX-Basic: dTpzay1hbnQtdGhlLXJlYWwtb25lLTAxMjM=\r\n"
                                        "Content-Length: 0\r\n\r\n");
        if (strstr(w->seen, " /v1/digests")) {
                _cleanup_free_ char *text = text_format("HTTP/1.1 200 OK\r\nContent-MD5: HEAD\r\nContent-Digest: sha-256=:HEAD:\r\nRepr-Digest: sha-256=:HEAD:\r\nDigest: sha-256=HEAD\r\n"
                                                        "ETag: \"tag\"\r\nTransfer-Encoding: chunked\r\n\r\n%zx\r\nhas " SECRET "\r\n0\r\nDigest: sha-256=TRAIL\r\nX-End: 1\r\n\r\n",
                                                        strlen("has " SECRET));

                return origin_send(ssl, text);
        }
        if (strstr(w->seen, " /v1/trailer"))
                return origin_send(ssl, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n"
                                        "2;ext=1\r\nok\r\n0\r\nX-Sum: 12\r\nX-Key: " SECRET "\r\nSet-Cookie: late=1\r\n\r\n");
        if (strstr(w->seen, " /v1/chunks")) { /* reads it to its end, and sends back what came with the framing */
                size_t n = strlen(w->seen) + 2;

                while (!strstr(w->seen + n, "0\r\n") || !strstr(strstr(w->seen + n, "0\r\n"), "\r\n\r\n")) {
                        int k = SSL_read(ssl, w->seen + strlen(w->seen), (int) (sizeof(w->seen) - 1 - strlen(w->seen)));

                        if (k <= 0)
                                return false;
                }
                return origin_send(ssl, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n");
        }
        return origin_send(ssl, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
}

/* ---- encoded answers ---- */

CLIENT(client_of_gzip, GET("/v1/gzip") KEY "Accept-Encoding: gzip, br\r\nConnection: close\r\n\r\n",
       EXPECT(strstr(text, "HTTP/1.1 200 "));
       EXPECT(strstr(text, "{\"key\":\"" SENTINEL "\", \"words\":\"and so on, and so on, and so "));
       EXPECT(strstr(text, "X-Kept: 1\r\n")); EXPECT(!strstr(text, "Content-Encoding")); EXPECT(!strstr(text, "MD5")); EXPECT(!strstr(text, "Digest"));
       EXPECT(strstr(text, "0\r\n\r\n")); EXPECT(!strstr(text, SECRET)); EXPECT(proper);)
CLIENT(client_of_x_gzip, GET("/v1/x-gzip") "Accept-Encoding: gzip\r\nConnection: close\r\n\r\n", EXPECT(strstr(text, SENTINEL)); EXPECT(proper);)
CLIENT(client_of_cut_gzip, GET("/v1/cut-gzip") KEY "\r\n", EXPECT(strstr(text, "HTTP/1.1 200 ")); EXPECT(!strstr(text, "0\r\n\r\n")); EXPECT(!proper);)
CLIENT(client_of_br, GET("/v1/br") KEY "\r\n", EXPECT(strstr(text, "HTTP/1.1 502 ")); EXPECT(strstr(text, "encoded-response"));)
CLIENT(client_of_twice, GET("/v1/twice") KEY "\r\n", EXPECT(strstr(text, "HTTP/1.1 502 ")); EXPECT(strstr(text, "encoded-response"));)

static void client_of_bomb(World *w) {
        SSL *ssl = client_connect(w, NAME);
        static char scrap[65536];
        size_t size = 0;
        int n;

        EXPECT(ssl);
        if (!ssl)
                return;
        EXPECT(client_send(ssl, GET("/v1/bomb") KEY "\r\n"));
        while ((n = SSL_read(ssl, scrap, sizeof(scrap))) > 0)
                size += (size_t) n;
        EXPECT(size < 2 * 1024 * 1024);
        EXPECT(!(SSL_get_shutdown(ssl) & SSL_RECEIVED_SHUTDOWN));
        SSL_free(ssl);
        ERR_clear_error();
}

static void test_encoded(void **state) {
        World *w = *state;

        play(w, client_of_gzip);
        assert_non_null(strstr(w->seen, "Accept-Encoding: identity\r\n")); /* beside a secret */
        play(w, client_of_x_gzip);
        assert_non_null(strstr(w->seen, "Accept-Encoding: gzip\r\n"));
        play(w, client_of_cut_gzip);
        play(w, client_of_br);
        play(w, client_of_twice);
        play(w, client_of_bomb);
        assert_true(logged(w, "\"reason\":\"encoded-response\""));
}

/* ---- parts and reflections ---- */

CLIENT(client_of_range, GET("/v1/x") KEY "Range: bytes=0-9\r\n\r\n", EXPECT(strstr(text, "HTTP/1.1 422 ")); EXPECT(strstr(text, "cannot-substitute"));)
CLIENT(client_of_if_range, GET("/v1/x") KEY "IF-RANGE: \"a\"\r\n\r\n", EXPECT(strstr(text, "HTTP/1.1 422 ")); EXPECT(strstr(text, "cannot-substitute"));)
CLIENT(client_of_trace, "TRACE /v1/x HTTP/1.1\r\nHost: " NAME "\r\n" KEY "\r\n", EXPECT(strstr(text, "HTTP/1.1 422 ")); EXPECT(strstr(text, "cannot-substitute"));)
CLIENT(client_of_part, GET("/v1/part") KEY "\r\n", EXPECT(strstr(text, "HTTP/1.1 502 ")); EXPECT(strstr(text, "partial-response")); EXPECT(!strstr(text, "sk-a"));)
CLIENT(client_of_plain_range, GET("/v1/x") "Range: bytes=0-9\r\nConnection: close\r\n\r\n", EXPECT(strstr(text, "HTTP/1.1 200 "));)
CLIENT(client_of_plain_part, GET("/v1/part") "Connection: close\r\n\r\n", EXPECT(strstr(text, "HTTP/1.1 206 ")); EXPECT(strstr(text, "sk-a"));)

static void test_parts(void **state) {
        static void (*const refused[])(World *) = { client_of_range, client_of_if_range, client_of_trace };
        json_t *methods = json_pack("[ss]", "GET", "TRACE");
        World *w = *state;

        w->credentials[0].methods = methods;
        for (size_t i = 0; i < ELEMENTSOF(refused); i++)
                play(w, refused[i]);
        assert_int_equal(w->n_accepted, 0);
        play(w, client_of_part);
        assert_true(logged(w, "\"reason\":\"partial-response\""));

        /* without a credential they are as good as any other */
        play(w, client_of_plain_range);
        assert_non_null(strstr(w->seen, "Range: bytes=0-9\r\n"));
        play(w, client_of_plain_part);
        json_decref(methods);
}

CLIENT(client_of_fields, GET("/v1/fields") KEY "Connection: close\r\n\r\n",
       EXPECT(strstr(text, "HTTP/1.1 200 " SENTINEL "\r\n")); EXPECT(!strcasestr(text, "alt-svc")); EXPECT(strstr(text, "Set-Cookie: k=" SENTINEL "; Path=/\r\n"));
       EXPECT(strstr(text, "Location: https://h/?k=" SENTINEL "\r\n")); EXPECT(strstr(text, "X-Basic: dTpzay1hbnQtYXBpMDMtU2VudGluZWww"));)

static void test_answer_fields(void **state) {
        play(*state, client_of_fields);
}

/* ---- what a guess tells ---- */

static struct timeval quiet = { .tv_usec = 200 * 1000 };
static size_t got_before, got_after;

/* How much there is when nothing more comes, before and after the origin's pause. */
static void client_of_guess(World *w) {
        SSL *ssl = client_connect(w, NAME);
        char text[4096];
        int n;

        got_before = got_after = 0;
        EXPECT(ssl);
        if (!ssl)
                return;
        EXPECT(client_send(ssl, GET("/v1/echo") KEY "\r\n"));
        EXPECT(setsockopt(w->guest_fd, SOL_SOCKET, SO_RCVTIMEO, &quiet, sizeof(quiet)) == 0);
        while ((n = SSL_read(ssl, text, sizeof(text))) > 0)
                got_before += (size_t) n;
        (void) sem_post(&w->may_go_on);
        while ((n = SSL_read(ssl, text, sizeof(text))) > 0)
                got_after += (size_t) n;
        SSL_free(ssl);
        ERR_clear_error();
}

/* A guess that is right but for its end comes back in the same pieces as one that is wrong from its beginning; also in another form. */
static void test_guesses(void **state) {
        static const char *const guesses[][3] = {
                { "sk-ant-the-real-one-012x", "sk-ant-the-reaX-one-0123", "xxxxxxxxxxxxxxxxxxxxxxxx" },
                { "c2stYW50LXRoZS1yZWFsLW9uZS0wMTIy", "c2stYW50LXRoZS1yZWFsLW9uZS0wMTAw", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx" },
                { "sk%2Dant-the-real%2Done-0122", "xx%2Dant-the-real%2Done-0122", "xx%2Exxxxxxxxxxxx%2Exxxxxxxx" },
        };
        World *w = *state;

        for (size_t i = 0; i < ELEMENTSOF(guesses); i++) {
                size_t before = 0, after = 0;

                for (size_t k = 0; k < ELEMENTSOF(guesses[i]); k++) {
                        guess = guesses[i][k];
                        play(w, client_of_guess);
                        if (k == 0) {
                                before = got_before;
                                after = got_after;
                        }
                        assert_true(got_before > 0 && got_after > strlen(guess)); /* all of it waited */
                        assert_int_equal(got_before, before);
                        assert_int_equal(got_after, after);
                }
        }
}

/* ---- framing, strictly ---- */

static const struct {
        const char *what;
        const char *text; /* behind it: "Host", and the end of the head, unless it has one */
        size_t size;
} broken[] = {
#define BROKEN(what, text) { what, text, sizeof(text) - 1 }
#define POST "POST /v1/x HTTP/1.1\r\nHost: " NAME "\r\n" KEY
#define END "\r\n\r\n"
        BROKEN("two lengths that differ", POST "Content-Length: 1\r\nContent-Length: 2" END "ab"),
        BROKEN("two lengths that do not", POST "Content-Length: 1\r\nContent-Length: 1" END "a"),
        BROKEN("two lengths in one field", POST "Content-Length: 1, 1" END "a"),
        BROKEN("a signed length", POST "Content-Length: +1" END "a"),
        BROKEN("a negative length", POST "Content-Length: -1" END),
        BROKEN("a hexadecimal length", POST "Content-Length: 0x1" END "a"),
        BROKEN("an empty length", POST "Content-Length: " END),
        BROKEN("a length of more than 64 bits", POST "Content-Length: 18446744073709551617" END "a"),
        BROKEN("length and chunks", POST "Content-Length: 3\r\nTransfer-Encoding: chunked" END "0" END),
        BROKEN("chunks and length", POST "Transfer-Encoding: chunked\r\nContent-Length: 3" END "0" END),
        BROKEN("another coding", POST "Transfer-Encoding: gzip" END),
        BROKEN("another coding and chunks", POST "Transfer-Encoding: gzip, chunked" END "0" END),
        BROKEN("chunks and another coding", POST "Transfer-Encoding: chunked, identity" END "0" END),
        BROKEN("chunks twice", POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked" END "0" END),
        BROKEN("a disguised coding", POST "Transfer-Encoding: xchunked" END "0" END),
        BROKEN("a coding with a tab in it", POST "Transfer-Encoding: \x0b" "chunked" END "0" END),
        BROKEN("a blank before the colon", POST "Transfer-Encoding : chunked" END "0" END),
        BROKEN("a folded line", POST "X-A: b\r\n c" END),
        BROKEN("a folded first line", "POST /v1/x HTTP/1.1\r\n Host: x\r\nHost: " NAME END),
        BROKEN("a bare line feed", "POST /v1/x HTTP/1.1\nHost: " NAME "\r\n" KEY END),
        BROKEN("a bare line feed behind a field", POST "X-A: b\nX-B: c" END),
        BROKEN("a bare carriage return", POST "X-A: b\rX-B: c" END),
        BROKEN("a carriage return at the end", POST "X-A: b\r\r\n\r\n"),
        BROKEN("a zero byte in a value", POST "X-A: b\0c" END),
        BROKEN("a zero byte in a name", POST "X-\0A: b" END),
        BROKEN("another control character", POST "X-A: b\x01" "c" END),
        BROKEN("a name that is none", POST "X(A): b" END),
        BROKEN("a field without a colon", POST "X-A" END),
        BROKEN("a field without a name", POST ": b" END),
        BROKEN("another version", "POST /v1/x HTTP/1.0\r\nHost: " NAME END),
        BROKEN("a version that does not exist", "POST /v1/x HTTP/1.2\r\nHost: " NAME END),
        BROKEN("another protocol", "POST /v1/x RTSP/1.0\r\nHost: " NAME END),
        BROKEN("no version", "GET /v1/x" END),
        BROKEN("a method that does not exist", "GETT /v1/x HTTP/1.1\r\nHost: " NAME END),
        BROKEN("CONNECT", "CONNECT " NAME ":443 HTTP/1.1\r\nHost: " NAME END),
        BROKEN("an absolute target", "GET https://" NAME "/v1/x HTTP/1.1\r\nHost: " NAME END),
        BROKEN("a target that is an asterisk", "OPTIONS * HTTP/1.1\r\nHost: " NAME END),
        BROKEN("a target with a byte beyond ASCII", "GET /v1/\xc3\xa4 HTTP/1.1\r\nHost: " NAME END),
        BROKEN("the preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        /* in the body, whose head was good */
        BROKEN("a chunk's size that is none", POST "Transfer-Encoding: chunked" END "x\r\n"),
        BROKEN("a chunk's size with a sign", POST "Transfer-Encoding: chunked" END "+1\r\na\r\n0" END),
        BROKEN("a chunk's size of more than 64 bits", POST "Transfer-Encoding: chunked" END "10000000000000001\r\na\r\n0" END),
        BROKEN("a chunk that is longer than it says", POST "Transfer-Encoding: chunked" END "1\r\nabc\r\n0" END),
        BROKEN("a chunk with a bare line feed", POST "Transfer-Encoding: chunked" END "1\na\r\n0" END),
        BROKEN("a chunk's end with a bare line feed", POST "Transfer-Encoding: chunked" END "1\r\na\n0" END),
        BROKEN("a trailer with a bare line feed", POST "Transfer-Encoding: chunked" END "0\r\nX-A: b\nX-B: c" END),
        BROKEN("a trailer with a control character", POST "Transfer-Encoding: chunked" END "0\r\nX-A: b\x01" END),
        BROKEN("a credential in a trailer", POST "Transfer-Encoding: chunked" END "0\r\nAuthorization: Bearer x" END),
};

static const char *broken_text;
static size_t broken_size;

static void client_of_broken(World *w) {
        SSL *ssl = client_connect(w, NAME);
        char text[4096] = "";

        EXPECT(ssl);
        if (!ssl)
                return;
        EXPECT(SSL_write(ssl, broken_text, (int) broken_size) > 0);
        (void) client_await(ssl, "never", text, sizeof(text));
        EXPECT(strstr(text, "HTTP/1.1 400 "));
        EXPECT(strstr(text, "\r\nConnection: close\r\n"));
        EXPECT(SSL_get_shutdown(ssl) & SSL_RECEIVED_SHUTDOWN);
        SSL_free(ssl);
        ERR_clear_error();
}

/* Each is answered with 400 and recorded, and none reaches the origin as a whole. */
static void test_broken(void **state) {
        World *w = *state;

        for (size_t i = 0; i < ELEMENTSOF(broken); i++) {
                broken_text = broken[i].text;
                broken_size = broken[i].size;
                buffer_clear(&w->log);
                notes_tell(w->context.notes); /* which aggregates for a while */
                play(w, client_of_broken);
                if (!logged(w, "\"event\":\"conn.deny\""))
                        fail_msg("%s is not recorded", broken[i].what);
        }
}

static size_t broken_answer;

static void client_of_broken_answer(World *w) {
        _cleanup_free_ char *request = text_format("GET /v1/broken/%zu HTTP/1.1\r\nHost: " NAME "\r\n" KEY "\r\n", broken_answer);
        char text[4096];

        EXPECT(one_request(w, request, text, sizeof(text)));
        EXPECT(strstr(text, "HTTP/1.1 502 "));
        EXPECT(strstr(text, "origin-malformed"));
}

static void test_broken_answers(void **state) {
        World *w = *state;

        for (broken_answer = 0; broken_answer < ELEMENTSOF(broken_answers); broken_answer++)
                play(w, client_of_broken_answer);
        assert_int_equal(w->n_accepted, ELEMENTSOF(broken_answers));
}

static void client_of_large_head(World *w) {
        SSL *ssl = client_connect(w, NAME);
        char text[4096] = "", line[1000];

        EXPECT(ssl);
        if (!ssl)
                return;
        memset(line, 'x', sizeof(line));
        memcpy(line, "X-A: ", 5);
        memcpy(line + sizeof(line) - 2, "\r\n", 2);
        EXPECT(client_send(ssl, POST));
        for (int i = 0; i < 70; i++)
                (void) SSL_write(ssl, line, sizeof(line));
        (void) client_await(ssl, "never", text, sizeof(text));
        EXPECT(strstr(text, "HTTP/1.1 400 "));
        EXPECT(strstr(text, "head-too-large"));
        SSL_free(ssl);
        ERR_clear_error();
}

static void client_of_many_fields(World *w) {
        SSL *ssl = client_connect(w, NAME);
        char text[4096] = "";

        EXPECT(ssl);
        if (!ssl)
                return;
        EXPECT(client_send(ssl, POST));
        for (int i = 0; i < 130; i++)
                (void) client_send(ssl, "A: b\r\n");
        (void) client_await(ssl, "never", text, sizeof(text));
        EXPECT(strstr(text, "HTTP/1.1 400 "));
        EXPECT(strstr(text, "head-too-large"));
        SSL_free(ssl);
        ERR_clear_error();
}

static void test_large_head(void **state) {
        World *w = *state;

        play(w, client_of_large_head);
        assert_true(logged(w, "\"reason\":\"head-too-large\""));
        play(w, client_of_many_fields);
        assert_int_equal(w->n_accepted, 0);
}

/* ---- what is carried ---- */

#define CHUNKED(path) "POST " path " HTTP/1.1\r\nHost: " NAME "\r\n" KEY "Transfer-Encoding: chunked\r\n"

CLIENT(client_of_chunks, CHUNKED("/v1/chunks") "Trailer: X-Sum\r\nConnection: close\r\n\r\n3;a=b\r\nxyz\r\n2\r\nuv\r\n0\r\nX-Sum: 5\r\nRange: x\r\n\r\n",
       EXPECT(strstr(text, "HTTP/1.1 200 "));
       EXPECT(strstr(text, "Transfer-Encoding: chunked\r\n")); EXPECT(strstr(text, "0\r\n\r\n")); EXPECT(proper);)

static void test_chunks(void **state) {
        World *w = *state;
        const char *body;

        play(w, client_of_chunks);
        body = strstr(w->seen, "Transfer-Encoding: chunked\r\n");
        assert_non_null(body);
        assert_null(strstr(w->seen, "a=b"));
        assert_null(strstr(w->seen, "Trailer:"));
        assert_null(strstr(w->seen, "Range:")); /* which may not stand in a trailer */
        assert_non_null(strstr(w->seen, "0\r\nX-Sum: 5\r\n\r\n"));
}

CLIENT(client_of_trailer, GET("/v1/trailer") KEY "TE: trailers\r\nConnection: close, TE\r\n\r\n",
       EXPECT(strstr(text, "2\r\nok\r\n0\r\nX-Sum: 12\r\nX-Key: " SENTINEL "\r\n\r\n")); EXPECT(!strstr(text, SECRET)); EXPECT(!strstr(text, "Cookie"));
       EXPECT(proper);)
CLIENT(client_of_digests, GET("/v1/digests") KEY "TE: trailers\r\nConnection: close, TE\r\n\r\n", EXPECT(proper); EXPECT(strstr(text, SENTINEL)); EXPECT(!strstr(text, SECRET));
       EXPECT(strstr(text, "ETag: \"tag\"\r\n")); EXPECT(strstr(text, "X-End: 1\r\n")); EXPECT(!strstr(text, "HEAD")); EXPECT(!strstr(text, "TRAIL"));)
CLIENT(client_of_plain_digests, GET("/v1/digests") "TE: trailers\r\nConnection: close, TE\r\n\r\n", EXPECT(proper);
       EXPECT(strstr(text, "Content-MD5: HEAD\r\nContent-Digest: sha-256=:HEAD:\r\nRepr-Digest: sha-256=:HEAD:\r\nDigest: sha-256=HEAD\r\n")); EXPECT(strstr(text, "Digest: sha-256=TRAIL\r\n"));)

/* What the value can be tested against without asking anybody does not reach the guest; in a run without credentials nothing is masked. */
static void test_digests(void **state) {
        World *w = *state;

        play(w, client_of_digests);
        w->context.n_credentials = 0;
        play(w, client_of_plain_digests);
}

CLIENT(client_of_trailer_misuse, CHUNKED("/v1/chunks") "\r\n0\r\nX-Sum: " SENTINEL "\r\n\r\n", EXPECT(strstr(text, "HTTP/1.1 403 ")); EXPECT(strstr(text, "credential-misuse"));)

static void test_trailers(void **state) {
        World *w = *state;

        play(w, client_of_trailer);
        play(w, client_of_trailer_misuse);
        assert_null(strstr(w->seen, SENTINEL));
        assert_true(logged(w, "\"event\":\"credential.misuse\""));
}

/* A client that is done sending still gets its answer. */
static void client_of_half_close(World *w) {
        SSL *ssl = client_connect(w, NAME);
        char text[4096] = "";

        EXPECT(ssl);
        if (!ssl)
                return;
        EXPECT(client_send(ssl, POST "Content-Length: 2\r\n\r\nab"));
        (void) SSL_shutdown(ssl);
        (void) shutdown(w->guest_fd, SHUT_WR);
        (void) client_await(ssl, "never", text, sizeof(text));
        EXPECT(strstr(text, "HTTP/1.1 200 "));
        EXPECT(strstr(text, "ok"));
        EXPECT(SSL_get_shutdown(ssl) & SSL_RECEIVED_SHUTDOWN);
        SSL_free(ssl);
        ERR_clear_error();
}

static void test_half_close(void **state) {
        play(*state, client_of_half_close);
}

CLIENT(client_of_expect, POST "Content-Length: 2\r\nExpect: a miracle\r\n\r\nab", EXPECT(strstr(text, "HTTP/1.1 417 "));)
CLIENT(client_of_refused_expect, POST "Cookie: " SENTINEL "\r\nContent-Length: 2000000\r\nExpect: 100-continue\r\n\r\n",
       EXPECT(strstr(text, "HTTP/1.1 403 "));
       EXPECT(!strstr(text, "100 Continue")); EXPECT(proper);)
/* An offer to switch to something else is not taken, which RFC 9110, 7.8 leaves to the server. */
CLIENT(client_of_upgrade, GET("/v1/x") KEY "Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c, foo\r\nHTTP2-Settings: AAMAAABk\r\n\r\n",
       EXPECT(strstr(text, "HTTP/1.1 200 "));
       EXPECT(!strcasestr(text, "upgrade")); EXPECT(proper);)
CLIENT(client_of_pipeline, GET("/v1/a") "\r\n" GET("/v1/b") "\r\n", EXPECT(strstr(text, "HTTP/1.1 200 ")); EXPECT(strstr(text, "Connection: close\r\n"));
       EXPECT(!strstr(strstr(text, "200 ") + 1, "200 ")); EXPECT(proper);)

static void test_offers(void **state) {
        World *w = *state;

        play(w, client_of_expect);
        play(w, client_of_refused_expect);
        assert_int_equal(w->n_accepted, 0);
        play(w, client_of_upgrade);
        assert_null(strcasestr(w->seen, "upgrade"));
        assert_null(strcasestr(w->seen, "settings"));
        play(w, client_of_pipeline);
        assert_null(strstr(w->seen, "/v1/b"));
}

static int set_up_origin(void **state) {
        int r = set_up(state);

        ((World *) *state)->answer = origin_answer;
        return r;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_origin, tear_down)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(test_encoded),
                TEST(test_parts),
                TEST(test_answer_fields),
                TEST(test_guesses),
                TEST(test_broken),
                TEST(test_broken_answers),
                TEST(test_large_head),
                TEST(test_chunks),
                TEST(test_trailers),
                TEST(test_digests),
                TEST(test_half_close),
                TEST(test_offers),
        };

        return cmocka_run_group_tests(tests, enter_own_world, NULL);
}
