/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * anchor-vm RUN: launcher of a run's microVM. Started by systemd with the run's units, and again when somebody connects to the run's
 * channel after it ended; opens the template, the scratch disk and the tap device, and becomes QEMU, which serves both
 * listening sockets itself (the first is the guest channel, the second QMP).
 *
 * Before that it takes from itself what QEMU does not need: making files, and more of a disk than the scratch disk has.
 *
 * It runs as a dynamic user inside the run's network namespace and sees no byte of any guest.
 *
 * anchor-vm --measure: reads the files of all templates once and says so in $RUNTIME_DIRECTORY, for those that come after (vm-measured.h).
 * Started by anchor-templates.service.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <systemd/sd-daemon.h>

#include "util/io.h"
#include "util/json.h"
#include "util/log.h"
#include "util/text.h"
#include "vmm/vm-measured.h"
#include "vmm/vm-parts.h"

enum { SPEC_MAX = 64 * 1024 };

static const char *arg_templates = VM_TEMPLATE_DIR;
static const char *arg_scratch = VM_SCRATCH_DIR;
static const char *arg_tap = "tap0";

static int load_spec(VmSpec *ret) {
        const char *folder = getenv("CREDENTIALS_DIRECTORY");
        _cleanup_free_ char *path = NULL, *data = NULL, *reason = NULL;
        size_t size = 0;
        int r;

        if (!folder) {
                log_error("no $CREDENTIALS_DIRECTORY: this program is started by anchor-vm@.service");
                return -ENOENT;
        }

        path = text_format("%s/vm", folder);
        if (!path)
                return log_oom();

        r = io_read_file(AT_FDCWD, path, SPEC_MAX, &data, &size);
        if (r < 0)
                return log_error_errno(r, "cannot read the VM's specification");

        r = vm_spec_parse(data, size, ret, &reason);
        if (r < 0)
                return log_error_errno(r, "the VM's specification is wrong: %s", reason ?: "unreadable");

        return 0;
}

static int take_sockets(VmParts *parts) {
        int n = sd_listen_fds(1);

        if (n != 2) {
                log_error("expected two listening sockets from systemd, got %d", n);
                return -EINVAL;
        }

        parts->channel = SD_LISTEN_FDS_START;
        parts->qmp = SD_LISTEN_FDS_START + 1;
        return 0;
}

static int run(const char *name) {
        _cleanup_(vm_parts_done) VmParts parts = VM_PARTS_NULL;
        _cleanup_(vm_spec_done) VmSpec spec = {};
        _cleanup_(vm_argv_freep) char **argv = NULL;
        _cleanup_free_ char *cmdline = NULL;
        pid_t mke2fs = 0;
        VmTsc tsc;
        int r;

        vm_tsc_begin(&tsc);
        parts.name = name;
        r = load_spec(&spec);
        if (r < 0)
                return r;

        r = take_sockets(&parts);
        if (r < 0)
                return r;

        r = vm_parts_start_scratch(&parts, arg_scratch, spec.disk_mib, &mke2fs);
        if (r < 0)
                return r;

        r = vm_parts_open_template(&parts, &spec, arg_templates, SIGNATURE_KEYS, &cmdline);
        if (r < 0)
                return r;

        if (*arg_tap) {
                r = vm_parts_open_tap(&parts, arg_tap);
                if (r < 0)
                        return r;
        }

        r = vm_parts_finish_scratch(mke2fs);
        if (r >= 0)
                r = vm_parts_confine(spec.disk_mib);
        if (r < 0)
                return r;

        parts.cmdline = cmdline;
        parts.tsc_khz = vm_tsc_end(&tsc);
        r = vm_command_build(&spec, &parts, &argv);
        if (r < 0)
                return log_error_errno(r, "cannot build QEMU's command line");

        return vm_parts_exec(&parts, argv);
}

static int measure(void) {
        const char *folder = getenv("RUNTIME_DIRECTORY");
        _cleanup_free_ char *path = folder ? text_format("%s/" VM_MEASURED_FILE, folder) : NULL, *text = NULL;
        _cleanup_json_ json_t *measured = NULL;
        int r;

        if (!path)
                return log_error_errno(-ENOENT, "no $RUNTIME_DIRECTORY: this is started by anchor-templates.service");

        measured = vm_measured_make(arg_templates, SIGNATURE_KEYS, VM_MEASURED_SETTLE_USEC);
        text = measured ? json_canonical(measured) : NULL;
        if (!text)
                return log_oom();

        r = io_write_file_atomic(AT_FDCWD, path, text, strlen(text), 0644);
        if (r < 0)
                return log_error_errno(r, "cannot write %s", path);
        return 0;
}

int main(int argc, char *argv[]) {
        log_init("anchor-vm");

        if (argc == 2 && strcmp(argv[1], "--measure") == 0)
                return measure() < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
        if (argc < 2 || !text_is_id('r', argv[1])) {
                fprintf(stderr, "usage: anchor-vm RUN [TEMPLATES [SCRATCH [TAP]]]   (started by anchor-vm@.service)\n");
                return 2;
        }
        if (argc > 2)
                arg_templates = argv[2];
        if (argc > 3)
                arg_scratch = argv[3];
        if (argc > 4)
                arg_tap = argv[4]; /* "": no network */

        (void) run(argv[1]);
        return 1;
}
