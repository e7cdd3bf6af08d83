/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What the files of one connection share; see connection.c. */

#include "inject/tripwire-api.h"
#include "policy/policy.h"
#include "proxy/client-hello.h"
#include "proxy/hello-retry.h"
#include "proxy/http-head.h"
#include "proxy/proxy-private.h"
#include "proxy/refusal.h"
#include "proxy/relay.h"
#include "util/dial.h"

enum {
        FIRST_BYTES_USEC = 10 * 1000 * 1000,
        SILENT_USEC = 500 * 1000, /* of that, until it is asked whether the name leads anywhere */
        REFUSE_USEC = 400 * 1000,
        LINGER_USEC = 1000 * 1000,
        LOOK_USEC = 5 * 1000 * 1000,
        ASK_USEC = 12 * 1000 * 1000,
        HAND_USEC = 5 * 1000 * 1000,
        PEEK_MAX = CLIENT_HELLO_MAX,
};

typedef enum State { STATE_HEAD, STATE_LOOK, STATE_PEEK, STATE_ASK, STATE_DIAL, STATE_HAND, STATE_RELAY, STATE_REFUSE, STATE_LINGER } State;

struct Connection {
        Proxy *proxy;             /* borrowed */
        Connection *next, **prev;
        State state;
        bool dead;
        unsigned n_calls;         /* under way */
        int fd, origin_fd;        /* owned */
        sd_event_source *io, *timer, *defer; /* owned */
        Dial *dial;               /* owned */
        struct sockaddr_in peer;
        uint64_t began_usec;

        char address[INET_ADDRSTRLEN]; /* synthetic; or … */
        char asked_name[HTTP_HOST_MAX + 1]; /* … what the guest named to the explicit proxy */
        uint16_t port;
        bool by_proxy_head;       /* explicit, and the guest still expects an HTTP answer from us */
        bool absolute;            /* explicit, absolute-form: one request */

        EgressProtocol expected, seen;
        bool has_seen;
        bool looked_further;      /* as long as nothing comes of it, the name was resolved */
        bool speaks_http, speaks_tls; /* begins like a request, or a hello, even if it is none: so that a refusal can be read */
        ClientHello hello;
        char *host, *method, *path;    /* owned; of the request that is asked about */
        bool second_path;              /* its head names another one */
        char *reason, *rule, *name;    /* owned; egressd's answer */
        uint64_t grant;

        Relay *relay;             /* owned */
        HelloRetry retry;         /* of a TLS connection that passes through */
        HttpFollower *follower;   /* owned */
        size_t n_fed;             /* of the bytes that the filter held back, how many the follower has seen */
        bool first_head, waiting, approved, ended;
        Tripwire *content, *frames; /* owned; of a body: its content, and if that comes in chunks everything with what frames it; NULL before the first byte */
        bool misused, cut;        /* a sentinel is in what came; in a body, whose beginning the origin has */
        int failure;              /* while the follower reads; negative errno */
        uint8_t *prefix;          /* owned; the rewritten head of an absolute-form request */
        size_t n_prefix;
};

/* connection.c */
typedef struct Answer {
        const char *verdict, *protocol; /* borrowed from the reply */
} Answer;

Connection *connection_free(Connection *c);
void connection_reset(Connection *c);
void connection_quiet(Connection *c); /* no event source of it is left */
int connection_set_timer(Connection *c, uint64_t usec);
void connection_look(Connection *c);
void connection_read(Connection *c); /* what the port carries is known, and what may not be in it */
void connection_ask(Connection *c);
json_t *connection_params(const Connection *c);
/* Calls another process; the connection lives until `handler` has passed connection_called(), which is false if it is gone by then. */
int connection_call(Connection *c, IpcClient *client, const char *method, json_t *params, const int *fds, size_t n_fds,
                    uint64_t usec, IpcReply handler);
bool connection_called(Connection *c);
/* Keeps reason, rule and name of egressd's answer. False: there is none that can be used. */
bool connection_read_answer(Connection *c, const char *error, json_t *params, Answer *ret);
void connection_replace(char **at, const char *s);
int connection_remember_request(Connection *c, const HttpRequest *request);

/* connection-refuse.c: `reason` NULL is the one that egressd gave. One that it did not give it is told of, unless it is its own absence. */
void connection_refuse(Connection *c, const char *reason);
void connection_say_no(Connection *c);
Refusal connection_refusal(const Connection *c);

/* connection-peek.c */
void connection_watch_first_bytes(Connection *c, State state, uint64_t usec);

/* connection-relay.c */
void connection_relay(Connection *c);

/* connection-misuse.c */
/* Asks for the run's sentinels, if they are not known yet, and goes on with connection_read(). */
void connection_arm(Connection *c);
/* Is a sentinel in that head? Then it is on record, and the reason is set; what the request asks for is in c->method and c->path. */
bool connection_misuses_head(Connection *c, const void *head, size_t size);
/* From now on the content of bodies is searched; connection_misuses_body() says what was found in a piece that the follower has read. */
void connection_watch_body(Connection *c);
/* A piece of a body as it came, after the follower has read it; `last`: the message is over. 1: as above; 0; or negative errno. */
int connection_misuses_body(Connection *c, const void *data, size_t size, bool last);
