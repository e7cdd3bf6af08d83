/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * QEMU's command line for a run: the microvm machine, no firmware to speak of, no PCI, nothing that was not
 * asked for.
 *
 * Everything that QEMU works on was opened by the launcher and is named by number, so a
 * later change of a path changes nothing, and QEMU needs the right to open nothing. The console goes to a ring in QEMU's
 * memory, which QMP reads: a guest that floods it costs 64 KiB and no log line.
 *
 * The kernel's command line, for reasons found by experiment:
 *   tsc_early_khz  microvm has neither HPET nor PM timer; calibrating against the PIT under TCG now and
 *                  then fails, and the guest hangs without a word
 *   reboot=t       with panic=-1 and -no-reboot a panic ends QEMU at once instead of leaving a dead VM
 *   pci=off        there is no PCI to look for
 *   mitigations    of what speculates: nothing does under TCG
 */

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "vmm/channel.h"
#include "vmm/vm-spec.h"

enum { ARGV_MAX = 96 };

typedef struct Argv {
        char **v; /* owned */
        size_t n;
        int error;
} Argv;

char **vm_argv_free(char **argv) {
        for (char **p = argv; p && *p; p++)
                free(*p);
        free(argv);
        return NULL;
}

_printf_(2, 3) static void add(Argv *a, const char *format, ...) {
        va_list ap;
        int r;

        if (a->error < 0)
                return;
        if (a->n + 1 >= ARGV_MAX) {
                a->error = -E2BIG;
                return;
        }

        va_start(ap, format);
        r = vasprintf(&a->v[a->n], format, ap);
        va_end(ap);
        if (r < 0) {
                a->v[a->n] = NULL;
                a->error = -ENOMEM;
        } else
                a->n++;
}

static void add_machine(Argv *a, const VmSpec *spec, const VmParts *parts) {
        add(a, "qemu-system-x86_64");
        add(a, "-name");
        add(a, "%s,debug-threads=on", parts->name);
        add(a, "-nodefaults");
        add(a, "-no-user-config");
        add(a, "-no-reboot");
        add(a, "-display");
        add(a, "none");
        add(a, "-sandbox");
        add(a, "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
        add(a, "-M");
        add(a, "microvm,isa-serial=on,rtc=on,usb=off,dump-guest-core=off,mem-merge=off");
        add(a, "-accel");
        add(a, "%s", spec->kvm ? "kvm" : "tcg,thread=multi,tb-size=128");
        add(a, "-cpu");
        add(a, "%s", spec->kvm ? "host" : "max");
        add(a, "-smp");
        add(a, "%llu", (unsigned long long) spec->vcpus);
        add(a, "-m");
        add(a, "%lluM", (unsigned long long) spec->memory_mib);
}

static void add_kernel(Argv *a, const VmSpec *spec, const VmParts *parts) {
        char tsc[48] = "";

        if (parts->tsc_khz > 0)
                (void) snprintf(tsc, sizeof(tsc), " tsc_early_khz=%llu", (unsigned long long) parts->tsc_khz);

        add(a, "-kernel");
        add(a, "/proc/self/fd/%d", parts->kernel);
        add(a, "-initrd");
        add(a, "/proc/self/fd/%d", parts->initrd);
        add(a, "-append");
        add(a, "%s pci=off%s%s", parts->cmdline, tsc, spec->kvm ? "" : " mitigations=off");
}

static void add_disk(Argv *a, const char *serial, int fd, bool read_only) {
        add(a, "-add-fd");
        add(a, "fd=%d,set=%d", fd, fd);
        add(a, "-blockdev");
        add(a, "driver=raw,node-name=%s,read-only=%s,discard=unmap,file.driver=file,file.filename=/dev/fdset/%d,"
               "file.locking=off,file.aio=threads,cache.no-flush=on", serial, read_only ? "on" : "off", fd);
        add(a, "-device");
        /* A full disk of the host is an error in the guest, too: by default QEMU would stop the machine, and nobody would start it again. */
        add(a, "virtio-blk-device,drive=%s,serial=%s%s", serial, serial, read_only ? "" : ",werror=report,rerror=report");
}

static void add_channels(Argv *a, const VmParts *parts) {
        add(a, "-chardev");
        add(a, "ringbuf,id=console,size=65536");
        add(a, "-serial");
        add(a, "chardev:console");
        add(a, "-chardev");
        add(a, "socket,id=channel,fd=%d,server=on,wait=off", parts->channel);
        add(a, "-device");
        add(a, "virtio-serial-device,max_ports=2");
        add(a, "-device");
        add(a, "virtserialport,chardev=channel,nr=1,name=" CHANNEL_PORT_NAME);
        add(a, "-chardev");
        add(a, "socket,id=qmp,fd=%d,server=on,wait=off", parts->qmp);
        add(a, "-mon");
        add(a, "chardev=qmp,mode=control");
}

static void add_network(Argv *a, const VmParts *parts) {
        if (parts->tap < 0)
                return;

        add(a, "-netdev");
        add(a, "tap,id=net0,fd=%d,vhost=off", parts->tap);
        add(a, "-device");
        add(a, "virtio-net-device,netdev=net0,mac=02:00:00:00:00:02");
}

int vm_command_build(const VmSpec *spec, const VmParts *parts, char ***ret) {
        Argv a = {};

        a.v = calloc(ARGV_MAX, sizeof(*a.v));
        if (!a.v)
                return -ENOMEM;

        add_machine(&a, spec, parts);
        add_kernel(&a, spec, parts);
        add_disk(&a, "root", parts->root, true);
        add_disk(&a, "scratch", parts->scratch, false);
        if (parts->agent >= 0)
                add_disk(&a, "agent", parts->agent, true);
        add_channels(&a, parts);
        add_network(&a, parts);
        /* Never blocks: QEMU's own generator, fed by getrandom(). */
        add(&a, "-object");
        add(&a, "rng-builtin,id=rng0");
        add(&a, "-device");
        add(&a, "virtio-rng-device,rng=rng0");

        if (a.error < 0) {
                (void) vm_argv_free(a.v);
                return a.error;
        }

        *ret = a.v;
        return 0;
}
