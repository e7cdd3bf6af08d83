/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Every local socket of ours speaks varlink through this wrapper: JSON in and out as jansson values,
 * descriptors alongside, and the peer's roles checked against the method's before its handler runs.
 * Only ipc/ and api/ know sd-varlink and sd-json.
 */

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "ipc/peer.h"
#include "util/cleanup.h"

typedef struct IpcServer IpcServer;
typedef struct IpcCall IpcCall;
typedef struct IpcClient IpcClient;

/* Handles one call. `params` is borrowed and an object. The handler answers with exactly one of
 * ipc_call_reply() and ipc_call_error(), now or later (then it holds a reference). A negative return
 * answers `<interface>.Unavailable` with the error's text. */
typedef int (*IpcHandler)(IpcCall *call, json_t *params, void *userdata);

typedef struct IpcMethod {
        const char *name;    /* "io.anchorhold.Audit.Append" */
        unsigned roles;      /* PeerRole mask: who may call it; others get PermissionDenied */
        IpcHandler handler;
} IpcMethod;

/* At most 32 methods a server, 8 descriptors a call. One-way calls are ignored. A connection's next call is read only
 * after its last was answered: a handler that answers late holds up that client's connection, nothing else.
 * `methods` ends with a NULL name and must outlive the server. `userdata` is borrowed. */
int ipc_server_new(IpcServer **ret, sd_event *event, const IpcMethod *methods, void *userdata);
IpcServer *ipc_server_free(IpcServer *s);
DEFINE_CLEANUP(IpcServer *, ipc_server_free)

/* Adds a listening descriptor; takes it over on success. */
int ipc_server_listen_fd(IpcServer *s, int fd);

/* Takes the listening descriptors that systemd passed and that carry this FileDescriptorName=. The
 * number added; -ENOENT if there is none. */
int ipc_server_listen_systemd(IpcServer *s, const char *fd_name);

/* Called whenever a client's connection is gone, with the same peer object its calls had. */
void ipc_server_set_disconnect(IpcServer *s, void (*handler)(const Peer *peer, void *userdata));

/* Limits: connections in total (default 1024) and for each uid (default 128). */
void ipc_server_set_limits(IpcServer *s, unsigned connections, unsigned per_uid);
/* How many bytes a call may have, about (default 2 MiB): a connection with a larger one is closed. */
void ipc_server_set_message_max(IpcServer *s, size_t bytes);

/* No method takes a descriptor: the kernel drops what comes along. Else each connection may hold some hundreds that nobody asked for, until its call is answered. */
void ipc_server_set_no_fds(IpcServer *s);

IpcCall *ipc_call_ref(IpcCall *c);
IpcCall *ipc_call_unref(IpcCall *c);
DEFINE_CLEANUP(IpcCall *, ipc_call_unref)

Peer *ipc_call_peer(IpcCall *c);
const char *ipc_call_method(IpcCall *c);
bool ipc_call_wants_more(IpcCall *c);
/* False once the client has gone: stop sending notifications and drop the reference. */
bool ipc_call_is_live(IpcCall *c);
/* Is output for this client still waiting to be taken? What was just queued is, until the loop
 * had its turn: whoever sends many notifications asks before each bounded piece of them. */
bool ipc_call_is_backed_up(IpcCall *c);

/* Closes the client's connection, so that it notices: what it should have been told it cannot be. */
void ipc_call_hang_up(IpcCall *c);

/* Descriptor number i that came with the call: the caller's from now on, or -EINVAL. */
int ipc_call_take_fd(IpcCall *c, unsigned i);
/* Adds a descriptor to the next reply; takes it over on success. Its number, or negative errno. */
int ipc_call_push_fd(IpcCall *c, int fd);

/* Each takes `params` over, also on failure; NULL is an empty object. */
int ipc_call_reply(IpcCall *c, json_t *params);
int ipc_call_notify(IpcCall *c, json_t *params); /* one of several replies, with `more` */
/* `error` is a full name, or one without a dot, which gets the method's interface as its prefix ("Denied"). */
int ipc_call_error(IpcCall *c, const char *error, json_t *params);
/* `error` with {"reason": …}. */
int ipc_call_refuse(IpcCall *c, const char *error, const char *format, ...)
        __attribute__((__format__(__printf__, 3, 4)));

/*
 * Client. With an event loop, calls are asynchronous, and a connection that breaks answers every call
 * under way with error "io.anchorhold.Disconnected"; the next call connects anew. Without one (event
 * NULL) only ipc_client_call() may be used.
 */
typedef void (*IpcReply)(IpcClient *c, const char *error, json_t *params, bool more, void *userdata);

int ipc_client_new(IpcClient **ret, sd_event *event, const char *path);
IpcClient *ipc_client_free(IpcClient *c); /* calls no handler any more */
DEFINE_CLEANUP(IpcClient *, ipc_client_free)

/* A client sends a call only when the one before was answered, so that calls arrive strictly in the order in which they
 * were made, and one that takes long holds up those behind it. With n > 1 (64 at most), up to n are under way at
 * once, each on a connection of its own, in no particular order. `more` calls always have their own connection.
 * At most 4096 calls may wait or be under way (-EBUSY beyond). */
void ipc_client_set_parallel(IpcClient *c, unsigned n);

/* The listening socket must be uid 0's (PID 1 makes ours) or our own; another's is treated as not there. */

/* One call and one answer, waiting at most timeout_usec. 0 and *ret_params (the caller's), or
 * negative errno; -EREMOTEIO for a varlink error, whose name and parameters are then in *ret_error (the
 * caller's) and *ret_params. Descriptors in `fds` are duplicated, stay the caller's. Received ones come in ret_fds. */
int ipc_client_call(IpcClient *c, const char *method, json_t *params, const int *fds, size_t n_fds,
                    uint64_t timeout_usec, json_t **ret_params, char **ret_error,
                    int *ret_fds, size_t max_fds);

/* Calls and returns at once; `handler` gets the answer, an error, or (timeout_usec, 0 for none)
 * "io.anchorhold.Timeout". `params` is taken over. With more set, the handler is called for every
 * reply, the last with more false. */
int ipc_client_call_async(IpcClient *c, const char *method, json_t *params, const int *fds, size_t n_fds,
                          bool more, uint64_t timeout_usec, IpcReply handler, void *userdata);

/* Is it that error ("BadInput"), of whatever interface? */
bool ipc_error_is(const char *error, const char *name);
/* Is the same call worth repeating, as it is? The other side was not there, did not answer, or said that it cannot just now (`Unavailable`). */
bool ipc_error_is_passing(const char *error);

/* Inside a reply handler: descriptor i that came with it, the caller's from now on. */
int ipc_client_take_fd(IpcClient *c, unsigned i);

/* For the command line: reads answers of a `more` call one by one in an event-free client.
 * After ipc_client_observe(), each ipc_client_next() waits for one: 1 with *ret_params, 0 after the
 * last (whose parameters are still given), negative errno, or -EREMOTEIO as above. */
int ipc_client_observe(IpcClient *c, const char *method, json_t *params, const int *fds, size_t n_fds);
int ipc_client_next(IpcClient *c, uint64_t timeout_usec, json_t **ret_params, char **ret_error);

/* While one of these waits, `handler` is called at those intervals, so that it can be shown to a person. NULL: no more. */
typedef void (*IpcWaiting)(void *userdata);
int ipc_client_set_waiting(IpcClient *c, uint64_t every_usec, IpcWaiting handler, void *userdata);
