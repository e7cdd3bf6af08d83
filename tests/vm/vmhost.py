# SPDX-License-Identifier: LGPL-2.1-or-later
"""The image as a virtual machine, as the tests drive it: the boot of tests/world/host.py, which here outlives reboots."""

import json
import os
import pathlib
import subprocess
import sys
import time

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests" / "world"))

import host as hosting  # noqa: E402

UP_S = 300


class Machine(hosting.Host):
    """One machine over its reboots."""

    def boot_id(self):
        return self.run("cat /proc/sys/kernel/random/boot_id").stdout.strip()

    def await_boot(self, other_than=None, seconds=UP_S):
        """Until systemd has done everything that it wants to do; the id of that boot."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                boot = self.run("cat /proc/sys/kernel/random/boot_id", check=False, timeout=60).stdout.strip()
                if boot and boot != other_than:
                    self.run("systemctl is-system-running --wait", check=False, timeout=max(1, deadline - time.monotonic()))
                    if self.run("cat /proc/sys/kernel/random/boot_id", check=False, timeout=60).stdout.strip() == boot:
                        return boot
                    other_than = boot
            except subprocess.TimeoutExpired:
                pass
            time.sleep(0.5)
        raise AssertionError(f"{self.name} is not up after {seconds} s:\n{self.console()[-4000:]}")

    def reboot(self):
        before = self.boot_id()
        self.run("systemctl reboot", check=False)
        return self.await_boot(before)

    def console(self):
        return (self.state / "console.log").read_text(errors="replace")

    def operator(self, *args, **options):
        """As root, which is an operator too: the image has no other user."""
        return self.anchorctl(*args, user=None, **options)

    def status(self):
        return json.loads(self.operator("status", "--json=short").stdout)

    def deployments(self):
        """{role: digest} as `anchorctl host status` says."""
        return {each["role"]: each["digest"] for each in json.loads(self.operator("host", "status", "--json=short").stdout)["deployments"]}

    def show(self, item):
        return json.loads(self.operator("show", item, "--json=short").stdout)

    def audit(self, event):
        """What the audit log has of that event, oldest first."""
        out = self.run(["journalctl", "--namespace=anchorhold", "-o", "json", f"ANCHORHOLD_EVENT={event}"]).stdout
        return [json.loads(json.loads(line)["ANCHORHOLD_DATA"]) for line in out.splitlines()]


def start(name, *options):
    done = subprocess.run([TOP / "image" / "boot", "--vm", "--keep", "--forget", "--fresh", "--name", name, *map(str, options)],
                          capture_output=True, text=True, timeout=UP_S + 120, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise hosting.BootFailed(f"the image does not boot:\n{done.stdout}{done.stderr}")
    return Machine(name)


def name_of(what):
    return f"check-vm-{what}-{os.getpid()}"
