/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The guest's side of one run: PID 1 of the microVM, from the initrd to the last exec. It holds nothing
 * secret and is trusted by nobody; what it promises is only to be quick and to be fair between streams. */

#include <jansson.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "vmm/channel.h"

enum {
        GUEST_STREAMS_MAX = 32,
        GUEST_CHUNK = 32 * 1024,             /* payload of one frame of output, so that others get a turn */
        GUEST_OUT_SIZE = 4 * CHANNEL_FRAME_MAX,
        GUEST_OUT_RESERVE = 64 * 1024,       /* room that bulk data leaves to answers */
        GUEST_DRAIN_USEC = 2 * 1000 * 1000,  /* how long a pipe may stay open after the exec's end */
};

typedef enum StreamKind { STREAM_FREE, STREAM_PROCESS, STREAM_PUT, STREAM_GET } StreamKind;

typedef struct Stream {
        StreamKind kind;
        uint32_t id;
        ChannelSender sender;     /* towards the host */
        ChannelReceiver receiver; /* from the host */

        int fd;                   /* owned; put, get: the file */
        uint64_t remaining;       /* get */
        int error;                /* put: what went wrong, told at the end */
        char *java_store;         /* owned; put: where its certificates go as well, as Java wants them */

        pid_t pid;
        int in, out, err;         /* owned; ends of the process's pipes */
        char *pending;            /* owned; stdin that did not fit into the pipe yet */
        size_t pending_start, pending_end;
        bool stdin_ended, reaped;
        int status;               /* as from waitpid() */
        uint64_t reaped_usec;
} Stream;

#define STREAM_INIT ((Stream) { .fd = -1, .in = -1, .out = -1, .err = -1 })

typedef struct Guest {
        int port;                 /* owned */
        int signals;              /* owned */
        ChannelParser *parser;    /* owned */
        bool greeted, seeded, clocked;
        Stream streams[GUEST_STREAMS_MAX];
        unsigned turn;            /* whose output goes first next time */
        uint8_t *out;             /* owned; encoded frames that the port did not take yet */
        size_t out_start, out_end;
} Guest;

/* guest-boot.c: from the kernel's hand-over to a working root file system. Negative errno. */
int guest_boot(void);
int guest_mount_agent(const char *name);
int guest_write_file(const char *path, const char *text);

/* guest-log.c */
uint64_t guest_now(void);
void guest_log(const char *format, ...) _printf_(1, 2);

/* guest-net.c */
int guest_setup_lo(void);
int guest_setup_network(const json_t *network);
int guest_setup_hostname(const char *name);

/* guest-unicast.c: from now on who sends to a broadcast address (of every network, or of the one with this address) or to a group fails with EPERM. */
int guest_refuse_groups(struct in_addr broadcast);

/* guest-session.c */
int guest_serve(void); /* returns only if it cannot go on: negative errno */
/* Its pieces: `port` is the guest's from now on, and guest_deinit() is due even if this fails. */
int guest_init(Guest *g, int port);
int guest_serve_once(Guest *g); /* waits for something to do, and does it */
void guest_deinit(Guest *g);    /* every exec is killed */
size_t guest_out_room(const Guest *g);
bool guest_has_room(const Guest *g); /* for a byte of bulk data */
void guest_send(Guest *g, ChannelType type, uint32_t stream, const void *payload, size_t size);
void guest_send_json(Guest *g, ChannelType type, uint32_t stream, json_t *object); /* takes it over */
void guest_send_exit_errno(Guest *g, uint32_t stream, int error, const char *what);
void guest_send_credit(Guest *g, Stream *s, uint32_t consumed);
/* Reads up to `size` bytes of fd straight into a frame: bytes read, 0 at end of file, negative errno. */
ssize_t guest_send_from(Guest *g, ChannelType type, Stream *s, int fd, size_t size);
void stream_done(Stream *s);

/* guest-process.c */
int process_start(Guest *g, Stream *s, const json_t *request);
void process_take_stdin(Guest *g, Stream *s, const uint8_t *data, size_t size);
void process_write_stdin(Guest *g, Stream *s);
void process_read_output(Guest *g, Stream *s, int *fd, ChannelType type);
void process_reap(Guest *g);
void process_signal(Stream *s, int signal);
/* Sends exit and frees the stream once the process and its output have ended. */
void process_settle(Guest *g, Stream *s);

/* guest-file.c */
void file_start_put(Guest *g, Stream *s, const json_t *request);
void file_take_data(Guest *g, Stream *s, const uint8_t *data, size_t size);
void file_start_get(Guest *g, Stream *s, const json_t *request);
void file_send_data(Guest *g, Stream *s);
