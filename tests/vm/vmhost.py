# SPDX-License-Identifier: LGPL-2.1-or-later
"""The image as a virtual machine, as the tests drive it: the boot of tests/world/host.py, which here outlives reboots."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "tests" / "world"), str(TOP / "tests" / "integration")]

import docs  # noqa: E402
from waiting import wait_for  # noqa: E402
import host as hosting  # noqa: E402

UP_S = 600
LOGS = TOP / "build" / "vm"
NEXT = "/run/next"


class Machine(hosting.Host):
    """One machine over its reboots."""

    def __init__(self, name):
        super().__init__(name)
        self.took = {}                                              # seconds, of what was timed

    def timed(self, what, do):
        begun = time.monotonic()
        result = do()
        self.took[what] = time.monotonic() - begun
        os.write(2, f"  … {what}: {self.took[what]:.0f} s\n".encode())
        return result

    @property
    def folder(self):
        return hosting.BOOTS / self.name

    def boot_id(self):
        return self.run("cat /proc/sys/kernel/random/boot_id").stdout.strip()

    def await_complete(self, other_than, seconds=UP_S):
        """Until another boot than that has passed its health check; the id of it. What a boot that is none of both says is not heard."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                said = self.run("cat /proc/sys/kernel/random/boot_id; systemctl is-active boot-complete.target", check=False, timeout=60).stdout.split()
                if len(said) == 2 and said[0] != other_than and said[1] == "active":
                    return said[0]
            except subprocess.TimeoutExpired:
                pass
            time.sleep(0.5)
        raise AssertionError(f"{self.name} is not up after {seconds} s:\n{self.console()[-4000:]}")

    def reboot(self):
        before = self.boot_id()
        self.run("systemctl reboot", check=False)
        return self.await_complete(before)

    def cut_power(self):
        """QEMU is killed where it stands; the machine boots by itself."""
        os.kill(int((self.folder / "machine").read_text()), signal.SIGUSR1)

    def await_start(self, than, seconds=UP_S):
        """Until the machine was started more often than that; it need not be up, or ever get there."""
        wait_for(lambda: self.starts() > than, seconds, self.console)

    def sealed(self):
        """What an upgrade leaves as it is, and a power cut as well."""
        return {"machine": self.run("cat /etc/machine-id").stdout, "items": self.items(),
                "credentials": self.run("cd /var/lib/anchorhold/credentials && find . -type f -exec sha256sum {} + | sort").stdout,
                "site": self.run("cd /etc/anchorhold && find . -type f -exec sha256sum {} + | sort").stdout}

    def starts(self):
        """How often the machine was started so far, as whoever starts it wrote down."""
        return sum(line.startswith("boot: ") for line in (self.folder / "setup.log").read_text().splitlines())

    def console(self):
        return (self.state / "console.log").read_text(errors="replace")

    def next_image(self, number):
        """The name of that image of the attached disk, which is mounted if it is not."""
        self.run(f"mountpoint -q {NEXT} || (mkdir -p {NEXT} && mount -o ro /dev/disk/by-id/virtio-attached {NEXT})")
        return f"dir:{NEXT}/{number}"

    def operator(self, *args, **options):
        """As root, which is an operator too: the image has no other user."""
        return self.anchorctl(*args, user=None, **options)

    def status(self):
        return json.loads(self.operator("status", "--json=short").stdout)

    def host_status(self):
        return json.loads(self.operator("host", "status", "--json=short").stdout)

    def deployments(self):
        """{role: digest} as `anchorctl host status` says."""
        return {each["role"]: each["digest"] for each in self.host_status()["deployments"]}

    def show(self, item):
        return json.loads(self.operator("show", item, "--json=short").stdout)

    def items(self):
        """{id: state} of all work items."""
        return {item["id"]: item["state"] for item in json.loads(self.operator("list", "--all", "--json=short").stdout)}

    def audit(self, event):
        """What the audit log has of that event, oldest first."""
        out = self.run(["journalctl", "--namespace=anchorhold", "-o", "json", f"ANCHORHOLD_EVENT={event}"]).stdout
        return [json.loads(json.loads(line)["ANCHORHOLD_DATA"]) for line in out.splitlines()]

    def ledger(self, query):
        """What SQLite says to that, asked as the ledger's owner."""
        return self.run(["setpriv", "--reuid=anchorhold", "--regid=anchorhold", "--clear-groups", "--",
                         "sqlite3", "-readonly", "/var/lib/anchorhold/ledger/ledger.db", query]).stdout.strip()

    def is_whole(self):
        """Ledger and audit log, once more than the health check of the boot looked."""
        assert self.ledger("PRAGMA integrity_check") == "ok"
        self.operator("audit", "verify", timeout=300)


def install(disk, efi=False):
    """The image that `make image` left, on a disk."""
    if not disk.exists():
        command = docs.command("install.md", "image/disk --efi", FILE=disk) if efi else docs.command("install.md", "image/disk --size", FILE=disk)
        subprocess.run(command, cwd=TOP, check=True, stdin=subprocess.DEVNULL, capture_output=True)


def start(name, *options, efi=False):
    command = docs.command("install.md", "image/boot --vm --efi", two=name) if efi else docs.command("install.md", "image/boot --vm --name", one=name)
    done = subprocess.run([*command, "--forget", "--fresh", "--timeout", str(UP_S), *map(str, options)],
                          cwd=TOP, capture_output=True, text=True, timeout=UP_S + 120, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise hosting.BootFailed(f"the image does not boot:\n{done.stdout}{done.stderr}")
    return Machine(name)


def end(machine):
    """Keeps what helps whoever looks for the cause of a failure, then ends the machine."""
    LOGS.mkdir(parents=True, exist_ok=True)
    try:
        journal = machine.run("journalctl --no-pager -o short-precise -n 20000; journalctl --no-pager --namespace=anchorhold -n 5000", check=False, timeout=120)
        (LOGS / "machine.journal").write_text(journal.stdout)
    finally:
        (LOGS / "machine.console").write_text(machine.console())
        (LOGS / "machine.starts").write_text((machine.folder / "setup.log").read_text())
        machine.stop()


@contextlib.contextmanager
def booted(name, *options, efi=False):
    """A machine on its first boot, until it is not needed any more."""
    machine = start(f"{name}-{os.getpid()}", *options, efi=efi)
    try:
        yield machine
    finally:
        end(machine)
