/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A client that loads a proxy, and says what it saw in one line of JSON. One thread a connection, blocking; every load ends after so many
 * requests or so many seconds, whichever is first. TLS without resumption; TCP_NODELAY, as everywhere here.
 *
 *   bench-load MODE key=value…
 *     requests     on kept connections: rate and latencies
 *     connections  a new one for each request
 *     body         one request after the other, whole bodies: bytes a second
 *     hold         opens the connections, one request on each, says so, and keeps them until standard input ends
 *
 *   address=, port=   where to connect: the origin's (synthetic) address, or the proxy's
 *   name=, path=      what is asked for
 *   connect=1         ask for the name with CONNECT first
 *   header=           one more line of each request
 *   issuer=           the common name of whoever must have signed the certificate (so that it is known who ends TLS)
 *   connections=, count=, seconds=
 */

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CONNECTIONS_MAX = 512, BUFFER = 256 * 1024 };

typedef struct Options {
        const char *mode, *address, *port, *name, *path, *header, *issuer;
        bool connect;
        unsigned long connections, count, seconds;
} Options;

typedef struct Client {
        const Options *options; /* borrowed */
        SSL_CTX *tls; /* borrowed */
        SSL *ssl; /* owned */
        int fd;
        char *buffer; /* owned */
        uint64_t *took; /* owned; nanoseconds of each request that was whole */
        size_t n_took;
        uint64_t bytes;
        bool failed;
        pthread_t thread;
} Client;

static atomic_ulong left;          /* requests not begun yet */
static uint64_t begun_ns, end_ns;

static uint64_t now_ns(void) {
        struct timespec t;

        (void) clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t) t.tv_sec * 1000000000 + (uint64_t) t.tv_nsec;
}

static bool fail(Client *c, const char *what) {
        if (!c->failed)
                (void) fprintf(stderr, "%s: %s: %s\n", c->options->mode, what, ERR_peek_error() ? ERR_reason_error_string(ERR_peek_error()) : strerror(errno));
        c->failed = true;
        return false;
}

static void hang_up(Client *c) {
        SSL_free(c->ssl);
        c->ssl = NULL;
        if (c->fd >= 0)
                (void) close(c->fd);
        c->fd = -1;
}

static bool open_tunnel(Client *c) {
        char text[1024];
        size_t size = 0;
        ssize_t n;

        n = snprintf(text, sizeof(text), "CONNECT %s:443 HTTP/1.1\r\nHost: %s:443\r\n\r\n", c->options->name, c->options->name);
        if (send(c->fd, text, (size_t) n, 0) != n)
                return fail(c, "CONNECT");
        while (size < 4 || memcmp(text + size - 4, "\r\n\r\n", 4) != 0) {
                if (size == sizeof(text) || (n = recv(c->fd, text + size, sizeof(text) - size, 0)) <= 0)
                        return fail(c, "CONNECT's answer");
                size += (size_t) n;
        }
        return memcmp(text + 8, " 200", 4) == 0 ? true : fail(c, "CONNECT was refused");
}

static bool check_issuer(Client *c) {
        X509 *cert = SSL_get0_peer_certificate(c->ssl);
        char issuer[256] = "";

        if (!c->options->issuer)
                return true;
        if (cert)
                (void) X509_NAME_oneline(X509_get_issuer_name(cert), issuer, sizeof(issuer));
        return strstr(issuer, c->options->issuer) ? true : fail(c, issuer);
}

static bool dial(Client *c) {
        const Options *o = c->options;
        struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t) strtoul(o->port, NULL, 10)) };
        struct timeval patience = { .tv_sec = 30 };
        const int on = 1;

        (void) inet_pton(AF_INET, o->address, &to.sin_addr);
        c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (c->fd < 0)
                return fail(c, "socket");
        (void) setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
        (void) setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        if (connect(c->fd, (struct sockaddr *) &to, sizeof(to)) < 0)
                return fail(c, "connect");
        if (o->connect && !open_tunnel(c))
                return false;

        c->ssl = SSL_new(c->tls);
        if (!c->ssl || SSL_set_fd(c->ssl, c->fd) != 1 || SSL_set_tlsext_host_name(c->ssl, o->name) != 1 || SSL_connect(c->ssl) != 1)
                return fail(c, "TLS");
        return check_issuer(c);
}

/* The size of the body, whichever way it is framed; the buffer holds the head and `size` bytes in all. */
static bool read_body(Client *c, size_t size) {
        char *body = strstr(c->buffer, "\r\n\r\n") + 4, *length = strcasestr(c->buffer, "\r\ncontent-length:");
        size_t have = size - (size_t) (body - c->buffer), n, whole;

        if (length && length < body) {
                whole = strtoul(length + 17, NULL, 10);
                for (c->bytes += whole; have < whole; have += n)
                        if (SSL_read_ex(c->ssl, c->buffer, BUFFER - 1, &n) != 1)
                                return fail(c, "body");
                return have == whole ? true : fail(c, "more than the body");
        }

        /* in chunks: these end with the only line that is a zero, and a body here has no zeros */
        memmove(c->buffer, body, have);
        for (;;) {
                c->bytes += have;
                if (have >= 5 && memcmp(c->buffer + have - 5, "0\r\n\r\n", 5) == 0)
                        return true;
                /* the last five bytes stay, since they may be half of that line */
                whole = have < 4 ? have : 4;
                memmove(c->buffer, c->buffer + have - whole, whole);
                if (SSL_read_ex(c->ssl, c->buffer + whole, BUFFER - 1 - whole, &n) != 1)
                        return fail(c, "chunks");
                c->bytes -= whole;
                have = whole + n;
        }
}

static bool request(Client *c, bool keep) {
        const Options *o = c->options;
        size_t size = 0, n;
        char text[1024];
        int length;

        length = snprintf(text, sizeof(text), "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: bench\r\nAccept: */*\r\n%s%s%s\r\n", o->path, o->name,
                          o->header ? o->header : "", o->header ? "\r\n" : "", keep ? "" : "Connection: close\r\n");
        if (SSL_write_ex(c->ssl, text, (size_t) length, &n) != 1)
                return fail(c, "request");
        do {
                if (size >= 64 * 1024 || SSL_read_ex(c->ssl, c->buffer + size, BUFFER - 1 - size, &n) != 1)
                        return fail(c, "answer");
                size += n;
                c->buffer[size] = 0;
        } while (!strstr(c->buffer, "\r\n\r\n"));
        if (size < 12 || memcmp(c->buffer + 8, " 200", 4) != 0) {
                c->buffer[strcspn(c->buffer, "\r\n")] = 0;
                errno = 0;
                return fail(c, c->buffer);
        }
        return read_body(c, size);
}

static bool take_one(void) {
        unsigned long n = atomic_load(&left);

        while (n > 0)
                if (atomic_compare_exchange_weak(&left, &n, n - 1))
                        return now_ns() < end_ns;
        return false;
}

static void *work(void *userdata) {
        Client *c = userdata;
        bool anew = strcmp(c->options->mode, "connections") == 0;

        if (!anew && !dial(c))
                return NULL;
        while (take_one()) {
                uint64_t begin = now_ns();

                if ((anew && !dial(c)) || !request(c, !anew))
                        return NULL;
                if (anew)
                        hang_up(c);
                c->took[c->n_took++] = now_ns() - begin;
        }
        return NULL;
}

static int compare(const void *a, const void *b) {
        uint64_t x = *(const uint64_t *) a, y = *(const uint64_t *) b;

        return (x > y) - (x < y);
}

static void hold(Client *clients, const Options *o) {
        for (size_t i = 0; i < o->connections; i++)
                if (!dial(&clients[i]) || !request(&clients[i], true))
                        return;
        (void) printf("{\"held\": %lu}\n", o->connections);
        (void) fflush(stdout);
        while (getchar() != EOF)
                ;
}

static int load(Client *clients, const Options *o) {
        uint64_t *all, bytes = 0, took;
        size_t n = 0, started = 0, middle, high;
        bool failed = false;

        for (; started < o->connections; started++)
                if (pthread_create(&clients[started].thread, NULL, work, &clients[started]) != 0)
                        break;
        for (size_t i = 0; i < started; i++) {
                (void) pthread_join(clients[i].thread, NULL);
                failed = failed || clients[i].failed;
        }
        took = now_ns() - begun_ns;

        all = calloc(o->count, sizeof(*all));
        if (!all)
                return 1;
        for (size_t i = 0; i < started; i++) {
                memcpy(all + n, clients[i].took, clients[i].n_took * sizeof(*all));
                n += clients[i].n_took;
                bytes += clients[i].bytes;
        }
        qsort(all, n, sizeof(*all), compare);
        middle = n / 2;
        high = n * 99 / 100;
        (void) printf("{\"requests\": %zu, \"seconds\": %.6f, \"bytes\": %llu, \"p50_us\": %.1f, \"p99_us\": %.1f}\n", n, (double) took / 1e9,
                      (unsigned long long) bytes, n ? (double) all[middle] / 1e3 : 0.0, n ? (double) all[high] / 1e3 : 0.0);
        free(all);
        return failed || n == 0;
}

static void read_options(Options *o, int argc, char **argv) {
        const struct { const char *key; const char **value; } texts[] = {
                { "address=", &o->address }, { "port=", &o->port }, { "name=", &o->name }, { "path=", &o->path },
                { "header=", &o->header },   { "issuer=", &o->issuer },
        };
        const struct { const char *key; unsigned long *value; } numbers[] = {
                { "connections=", &o->connections }, { "count=", &o->count }, { "seconds=", &o->seconds },
        };

        for (int i = 2; i < argc; i++) {
                for (size_t k = 0; k < sizeof(texts) / sizeof(texts[0]); k++)
                        if (strncmp(argv[i], texts[k].key, strlen(texts[k].key)) == 0)
                                *texts[k].value = argv[i] + strlen(texts[k].key);
                for (size_t k = 0; k < sizeof(numbers) / sizeof(numbers[0]); k++)
                        if (strncmp(argv[i], numbers[k].key, strlen(numbers[k].key)) == 0)
                                *numbers[k].value = strtoul(argv[i] + strlen(numbers[k].key), NULL, 10);
                o->connect = o->connect || strcmp(argv[i], "connect=1") == 0;
        }
}

int main(int argc, char **argv) {
        Options o = { .mode = argc > 1 ? argv[1] : "", .address = "127.0.0.1", .port = "443", .name = "localhost", .path = "/", .connections = 1, .count = 1, .seconds = 10 };
        Client *clients;
        SSL_CTX *tls;
        int r = 0;

        read_options(&o, argc, argv);
        clients = calloc(CONNECTIONS_MAX, sizeof(*clients));
        tls = SSL_CTX_new(TLS_client_method());
        if (!clients || !tls || o.connections > CONNECTIONS_MAX)
                return 1;
        /* whose certificate it is says `issuer`; the proxies are the ones who verify */
        (void) SSL_CTX_set_session_cache_mode(tls, SSL_SESS_CACHE_OFF);
        for (size_t i = 0; i < o.connections; i++) {
                clients[i] = (Client) { .options = &o, .tls = tls, .fd = -1 };
                clients[i].buffer = malloc(BUFFER);
                clients[i].took = calloc(o.count, sizeof(uint64_t));
                if (!clients[i].buffer || !clients[i].took)
                        return 1;
        }
        atomic_store(&left, o.count);
        begun_ns = now_ns();
        end_ns = begun_ns + o.seconds * 1000000000;

        if (strcmp(o.mode, "hold") == 0)
                hold(clients, &o);
        else
                r = load(clients, &o);
        for (size_t i = 0; i < o.connections; i++) {
                hang_up(&clients[i]);
                free(clients[i].buffer);
                free(clients[i].took);
        }
        SSL_CTX_free(tls);
        free(clients);
        return r;
}
