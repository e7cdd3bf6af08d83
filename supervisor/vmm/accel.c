/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The probe of KVM.
 *
 * A machine may have /dev/kvm and still not run a stock kernel (nested or paravirtual variants do that; tiny
 * guests that only halt prove nothing). So the probe is a real boot, with the same command line as a run's but for
 * the network, and three ways to end:
 *
 *      the guest says hello                              KVM
 *      QEMU ends, or reports "internal-error" on QMP     not KVM, at once; that is how a broken KVM shows
 *      nothing in time                                   not KVM
 */

#include "vmm/accel.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "util/io.h"
#include "util/json.h"
#include "util/log.h"
#include "util/text.h"
#include "vmm/guest-client.h"
#include "vmm/qmp.h"
#include "vmm/vm-parts.h"

enum {
        STATUS_USEC = 100 * 1000,
        CALL_USEC = 2 * 1000 * 1000,
        PROBE_MEMORY_MIB = 256,
        PROBE_DISK_MIB = 64,
        STDERR_MAX = 4096,
};

typedef struct Probe {
        sd_event *event;                    /* ref */
        sd_event_source *timer, *poller, *child; /* ref */
        GuestClient *client;                /* owned */
        QmpClient *qmp;                     /* owned */
        char channel_path[108], qmp_path[108]; /* unlinked at the end */
        pid_t pid;
        int pidfd, stderr_fd;               /* owned */
        int channel_fd, qmp_fd;             /* owned; listening until both are connected to, whether or not QEMU still lives */
        AccelResult *result;
} Probe;

static void probe_done(Probe *p) {
        p->client = guest_client_free(p->client);
        p->qmp = qmp_client_free(p->qmp);
        p->timer = sd_event_source_disable_unref(p->timer);
        p->poller = sd_event_source_disable_unref(p->poller);
        p->child = sd_event_source_disable_unref(p->child);
        if (p->pid > 0) {
                (void) kill(p->pid, SIGKILL);
                (void) waitpid(p->pid, NULL, 0);
        }
        p->pidfd = fd_close(p->pidfd);
        p->stderr_fd = fd_close(p->stderr_fd);
        p->channel_fd = fd_close(p->channel_fd);
        p->qmp_fd = fd_close(p->qmp_fd);
        if (p->channel_path[0])
                (void) unlink(p->channel_path);
        if (p->qmp_path[0])
                (void) unlink(p->qmp_path);
        p->event = sd_event_unref(p->event);
}

_printf_(3, 4) static void probe_decide(Probe *p, bool kvm, const char *format, ...) {
        va_list ap;

        p->result->kvm = kvm;
        va_start(ap, format);
        (void) vsnprintf(p->result->reason, sizeof(p->result->reason), format, ap);
        va_end(ap);
        (void) sd_event_exit(p->event, 0);
}

/* The first line that QEMU wrote about its trouble, if any. */
static void read_complaint(Probe *p, char *ret, size_t size) {
        char data[STDERR_MAX];
        ssize_t n = read(p->stderr_fd, data, sizeof(data) - 1);
        char *line = data;

        ret[0] = 0;
        if (n <= 0)
                return;

        data[n] = 0;
        line[strcspn(line, "\n")] = 0;
        (void) snprintf(ret, size, "%.160s", line);
}

static void on_ready(GuestClient *c, json_t *hello, void *userdata) {
        probe_decide(userdata, true, "%s", "");
}

static void on_lost(GuestClient *c, GuestLoss loss, const char *detail, void *userdata) {
        Probe *p = userdata;

        if (loss != GUEST_GONE) /* otherwise the child's end has more to say */
                probe_decide(p, false, "the guest's channel: %s", detail);
}

static const GuestClientHandler handler = { .ready = on_ready, .lost = on_lost };

static int on_child(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        Probe *p = userdata;
        char text[192];

        read_complaint(p, text, sizeof(text));
        probe_decide(p, false, "QEMU ended%s%s", *text ? ": " : "", text);
        return 0;
}

static int on_timeout(sd_event_source *s, uint64_t usec, void *userdata) {
        probe_decide(userdata, false, "no hello from the guest in time");
        return 0;
}

static void on_status(QmpClient *c, int r, json_t *result, void *userdata) {
        const char *status = r >= 0 ? json_string_value(json_object_get(result, "status")) : NULL;
        Probe *p = userdata;
        char text[192];

        if (status && strcmp(status, "internal-error") == 0) {
                read_complaint(p, text, sizeof(text));
                return probe_decide(p, false, "%s", *text ? text : "KVM internal error");
        }

        (void) sd_event_source_set_time_relative(p->poller, STATUS_USEC);
        (void) sd_event_source_set_enabled(p->poller, SD_EVENT_ONESHOT);
}

static int on_poll(sd_event_source *s, uint64_t usec, void *userdata) {
        Probe *p = userdata;

        (void) qmp_client_call(p->qmp, "query-status", NULL, CALL_USEC, on_status, p);
        return 0;
}

static int listen_at(const char *folder, const char *name, char path[108]) {
        struct sockaddr_un sa = { .sun_family = AF_UNIX };
        _cleanup_fd_ int fd = -1;

        if (snprintf(sa.sun_path, sizeof(sa.sun_path), "%s/accel-%s.%d", folder, name, getpid()) >= (int) sizeof(sa.sun_path))
                return -ENAMETOOLONG;

        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return -errno;

        (void) unlink(sa.sun_path);
        if (bind(fd, (struct sockaddr *) &sa, sizeof(sa)) < 0 || listen(fd, 4) < 0)
                return -errno;

        memcpy(path, sa.sun_path, sizeof(sa.sun_path));
        return TAKE_FD(fd);
}

static int start_qemu(Probe *p, const VmParts *parts, char *const argv[]) {
        int complaint[2];

        if (pipe2(complaint, O_CLOEXEC) < 0)
                return -errno;

        p->stderr_fd = complaint[0];
        (void) io_set_nonblock(p->stderr_fd, true);
        p->pid = fork();
        if (p->pid < 0) {
                (void) fd_close(complaint[1]);
                return -errno;
        }
        if (p->pid == 0) {
                (void) dup2(complaint[1], STDERR_FILENO);
                (void) vm_parts_exec(parts, argv);
                _exit(127);
        }

        (void) fd_close(complaint[1]);
        p->pidfd = pidfd_open(p->pid, 0);
        return p->pidfd < 0 ? -errno : 0;
}

static int boot(Probe *p, const AccelProbe *probe) {
        VmSpec spec = {
                .template_name = (char *) probe->template_name, .memory_mib = PROBE_MEMORY_MIB, .vcpus = 1,
                .disk_mib = PROBE_DISK_MIB, .kvm = true,
        };
        _cleanup_(vm_parts_done) VmParts parts = VM_PARTS_NULL;
        _cleanup_(vm_argv_freep) char **argv = NULL;
        _cleanup_free_ char *cmdline = NULL;
        pid_t mke2fs = 0;
        VmTsc tsc;
        int r;

        vm_tsc_begin(&tsc);
        p->channel_fd = listen_at(probe->scratch, "channel", p->channel_path);
        if (p->channel_fd < 0)
                return p->channel_fd;
        p->qmp_fd = listen_at(probe->scratch, "qmp", p->qmp_path);
        if (p->qmp_fd < 0)
                return p->qmp_fd;

        r = vm_parts_start_scratch(&parts, probe->scratch, PROBE_DISK_MIB, &mke2fs);
        if (r < 0)
                return r;
        r = vm_parts_finish_scratch(mke2fs);
        if (r < 0)
                return r;

        r = vm_parts_open_template(&parts, &spec, probe->templates, probe->keys, &cmdline);
        if (r < 0)
                return r;

        parts.name = "accel-probe";
        parts.cmdline = cmdline;
        parts.tsc_khz = vm_tsc_end(&tsc);
        parts.channel = p->channel_fd;
        parts.qmp = p->qmp_fd;
        r = vm_command_build(&spec, &parts, &argv);
        if (r < 0)
                return r;

        return start_qemu(p, &parts, argv);
}

static int watch(Probe *p, const AccelProbe *probe) {
        _cleanup_json_ json_t *hello = json_pack("{s:i}", "protocol", CHANNEL_VERSION);
        int fd, r;

        r = sd_event_add_io(p->event, &p->child, p->pidfd, EPOLLIN, on_child, p);
        if (r < 0)
                return r;

        fd = io_connect_unix(p->channel_path);
        if (fd < 0)
                return fd;
        r = hello ? guest_client_new(&p->client, p->event, fd, hello, &handler, p) : -ENOMEM;
        if (r < 0) {
                (void) fd_close(fd);
                return r;
        }

        r = qmp_client_new(&p->qmp, p->event, p->qmp_path);
        if (r < 0)
                return r;

        p->channel_fd = fd_close(p->channel_fd);
        p->qmp_fd = fd_close(p->qmp_fd);
        r = sd_event_add_time_relative(p->event, &p->poller, CLOCK_MONOTONIC, STATUS_USEC, 0, on_poll, p);
        if (r < 0)
                return r;

        return sd_event_add_time_relative(p->event, &p->timer, CLOCK_MONOTONIC, probe->timeout_usec, 0, on_timeout, p);
}

int accel_probe(const AccelProbe *probe, AccelResult *ret) {
        _cleanup_(probe_done) Probe p = { .pidfd = -1, .stderr_fd = -1, .channel_fd = -1, .qmp_fd = -1, .result = ret };
        uint64_t start = time_monotonic();
        int r;

        *ret = (AccelResult) {};
        if (access("/dev/kvm", R_OK | W_OK) < 0) {
                (void) snprintf(ret->reason, sizeof(ret->reason), "/dev/kvm: %s", strerror(errno));
                return 0;
        }

        r = sd_event_new(&p.event);
        if (r < 0)
                return r;

        r = boot(&p, probe);
        if (r >= 0)
                r = watch(&p, probe);
        if (r >= 0)
                r = sd_event_loop(p.event);
        ret->usec = time_monotonic() - start;
        return r < 0 ? r : 0;
}
