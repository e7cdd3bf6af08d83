/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * An /init for test templates: a guest that does not keep to the channel's rules. What it does comes from the
 * kernel's command line, rogue=MODE:
 *
 *      hang     never says a word
 *      reboot   ends at once
 *      garbage  bytes that are no frames
 *      hello    a hello that is no JSON
 *      flood    says hello, then sends output without end and without asking for credit
 *      twice    says hello a second time when it should run something
 *      silent   says hello, and never answers an exec
 *      escapes  says hello, prints and exits in terminal escapes
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vmm/channel.h"

#define HELLO "{\"protocol\":1,\"boot_id\":\"00000000-0000-0000-0000-000000000000\",\"kernel\":\"\\u001b[31mrogue\\u0007\",\"version\":\"\\u001b]0;x\\u0007\"}"

static int is_module(const struct dirent *e) {
        return strstr(e->d_name, ".ko") != NULL;
}

static void load_modules(void) {
        struct dirent **names = NULL;
        char path[300];
        int n = scandir("/modules", &names, is_module, alphasort);

        for (int i = 0; i < n; i++) {
                (void) snprintf(path, sizeof(path), "/modules/%s", names[i]->d_name);
                (void) syscall(SYS_finit_module, open(path, O_RDONLY | O_CLOEXEC), "", 0);
        }
}

static int open_port(void) {
        for (;;) {
                DIR *d = opendir("/dev");
                struct dirent *e;
                char path[300];

                while (d && (e = readdir(d)))
                        if (strncmp(e->d_name, "vport", 5) == 0) {
                                (void) snprintf(path, sizeof(path), "/dev/%s", e->d_name);
                                return open(path, O_RDWR | O_CLOEXEC);
                        }
                if (d)
                        (void) closedir(d);
                (void) usleep(10000);
        }
}

static int port;

static void send_bytes(const void *data, size_t size) {
        const char *p = data;

        while (size > 0) {
                ssize_t n = write(port, p, size);

                if (n < 0 && errno != EAGAIN)
                        (void) usleep(10000);
                if (n > 0) {
                        p += n;
                        size -= (size_t) n;
                }
        }
}

static void send_frame(ChannelType type, uint32_t stream, const char *payload, size_t size) {
        uint8_t header[CHANNEL_HEADER_SIZE];

        channel_encode_header(header, type, stream, (uint32_t) size);
        send_bytes(header, sizeof(header));
        send_bytes(payload, size);
}

static void send_text(ChannelType type, uint32_t stream, const char *text) {
        send_frame(type, stream, text, strlen(text));
}

/* An exec has come on this stream. */
static void on_exec(const char *mode, uint32_t stream) {
        static const char block[CHANNEL_PAYLOAD_MAX];

        if (strcmp(mode, "flood") == 0)
                for (;;)
                        send_frame(CHANNEL_STDOUT, stream, block, sizeof(block));
        if (strcmp(mode, "twice") == 0)
                send_text(CHANNEL_HELLO, 0, HELLO);
        if (strcmp(mode, "escapes") == 0) {
                send_text(CHANNEL_STDOUT, stream, "\033[31mred\033]0;title\007\033[2J\2331m\r\n");
                send_text(CHANNEL_STDOUT, stream, "");
                send_text(CHANNEL_STDERR, stream, "");
                send_text(CHANNEL_EXIT, stream, "{\"errno\":2,\"error\":\"\\u001b[31mno\"}");
        }
}

static void serve(const char *mode) {
        ChannelParser *p = NULL;

        if (channel_parser_new(&p, CHANNEL_FROM_HOST) < 0)
                return;

        for (;;) {
                ChannelFrame f;
                uint8_t *to;
                size_t room;
                ssize_t n;

                channel_parser_reserve(p, &to, &room);
                n = read(port, to, room);
                if (n <= 0) {
                        (void) usleep(10000);
                        continue;
                }
                channel_parser_commit(p, (size_t) n);
                while (channel_parser_next(p, &f) > 0)
                        if (f.type == CHANNEL_HELLO)
                                send_text(CHANNEL_HELLO, 0, strcmp(mode, "hello") == 0 ? "not JSON" : HELLO);
                        else if (f.type == CHANNEL_SEED || f.type == CHANNEL_CLOCK)
                                send_text(f.type, 0, "");
                        else if (f.type == CHANNEL_DATA && f.size == 0)
                                send_text(CHANNEL_EXIT, f.stream, "{\"status\":0}"); /* as if the file were there */
                        else if (f.type == CHANNEL_EXEC)
                                on_exec(mode, f.stream);
        }
}

static const char *find_mode(void) {
        static char cmdline[2048];
        int fd = open("/proc/cmdline", O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? -1 : read(fd, cmdline, sizeof(cmdline) - 1);
        char *mode;

        cmdline[n > 0 ? n : 0] = 0;
        mode = strstr(cmdline, "rogue=");
        if (!mode)
                return "hang";
        mode += strlen("rogue=");
        mode[strcspn(mode, " \n")] = 0;
        return mode;
}

int main(void) {
        static char garbage[4096];
        const char *mode;

        (void) mkdir("/proc", 0755);
        (void) mkdir("/dev", 0755);
        (void) mount("proc", "/proc", "proc", 0, NULL);
        (void) mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
        mode = find_mode();

        if (strcmp(mode, "hang") == 0)
                for (;;)
                        (void) pause();
        load_modules();
        if (strcmp(mode, "reboot") == 0)
                (void) reboot(RB_AUTOBOOT);

        port = open_port();
        memset(garbage, 0xff, sizeof(garbage));
        if (strcmp(mode, "garbage") == 0)
                send_bytes(garbage, sizeof(garbage));
        serve(mode);
        return 0;
}
