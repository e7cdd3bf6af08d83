/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * anchor-accel: finds out, once a boot of the host, whether microVMs can run under KVM, and writes the answer
 * as one line of JSON to stdout, which anchor-accel.service makes /run/anchorhold/accel.
 *
 * An answer in any case: what cannot be found out is "tcg" with the reason.
 */

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "util/io.h"
#include "util/json.h"
#include "util/log.h"
#include "vmm/accel.h"
#include "vmm/vm-parts.h"

/* A broken KVM shows within a second. The limit is for one that hangs, and long enough for a KVM that
 * is itself emulated, where a boot takes ten seconds on an idle machine. */
enum { TIMEOUT_USEC = 60 * 1000 * 1000 };

int main(int argc, char *argv[]) {
        AccelProbe probe = {
                .templates = VM_TEMPLATE_DIR, .template_name = "base", .keys = SIGNATURE_KEYS, .scratch = "/var/tmp", .timeout_usec = TIMEOUT_USEC,
        };
        _cleanup_json_ json_t *j = NULL;
        _cleanup_free_ char *text = NULL;
        AccelResult result;
        char line[1024];
        int n, r;

        log_init("anchor-accel");
        if (argc > 1)
                probe.template_name = argv[1];
        if (argc > 2)
                probe.templates = argv[2];

        (void) signal(SIGPIPE, SIG_IGN);
        r = accel_probe(&probe, &result);
        if (r < 0)
                (void) snprintf(result.reason, sizeof(result.reason), "the probe failed: %s", strerror(-r));

        if (result.kvm)
                log_info("KVM runs template %s (hello after %llu ms)", probe.template_name, (unsigned long long) result.usec / 1000);
        else
                log_warning("microVMs will be emulated, which is slow: %s (%llu ms)", result.reason, (unsigned long long) result.usec / 1000);

        j = json_pack("{s:s, s:s, s:s, s:I}", "accel", result.kvm ? "kvm" : "tcg", "reason", result.reason,
                      "template", probe.template_name, "probe_ms", (json_int_t) (result.usec / 1000));
        text = j ? json_canonical(j) : NULL;
        if (!text)
                return 1;

        /* One write, so that a reader sees all of it or nothing. */
        n = snprintf(line, sizeof(line), "%s\n", text);
        return n > 0 && n < (int) sizeof(line) && io_write_full(STDOUT_FILENO, line, (size_t) n) >= 0 ? 0 : 1;
}
