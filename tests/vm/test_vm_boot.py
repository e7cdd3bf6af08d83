# SPDX-License-Identifier: LGPL-2.1-or-later
"""A host as a full virtual machine: read-only where it should be, microVMs under real KVM, limits that the kernel keeps."""

import json

import docs
from waiting import wait_for


def locks(machine):
    """Of everybody, against a reboot or sleep, as logind has them."""
    return machine.run("systemd-inhibit --list --no-legend --no-pager").stdout.splitlines()


def test_first_boot_is_complete_and_asks_nothing(machine):
    assert machine.run(docs.command("install.md", "systemctl is-system-running"), check=False).stdout == "running\n", machine.systemctl("--failed").stdout
    assert machine.is_active("boot-complete.target") == "active"
    doctor = machine.run(docs.command("install.md", "anchorctl doctor"), check=False)
    assert "kvm" in doctor.stdout.lower(), doctor.stdout + doctor.stderr
    assert machine.run(docs.command("install.md", "anchorctl host status")).stdout.split()[:3] == ["ROLE", "IMAGE", "HEALTH"]


def test_root_is_the_image_and_read_only(machine):
    """composefs: not even root with a remount writes to the deployment."""
    kinds = dict(line.split()[:2] for line in machine.run("findmnt -rno TARGET,FSTYPE / ; findmnt -rno TARGET,FSTYPE /var; findmnt -rno TARGET,FSTYPE /sysroot").stdout.splitlines())
    assert kinds["/"] == "overlay" and "composefs" in machine.run("findmnt -rno SOURCE /").stdout
    for path in ("/x", "/usr/x", "/usr/lib/anchorhold/x", "/usr/bin/x", "/sysroot/x", "/boot/x"):
        refused = machine.run(["touch", path], check=False)
        assert refused.returncode and "Read-only" in refused.stderr, path
    assert machine.run("mount -o remount,rw / && touch /usr/x", check=False).returncode
    assert machine.run("echo x >>/usr/bin/anchorctl", check=False).returncode
    for path in ("/etc/x", "/var/x", "/run/x", "/tmp/x"):
        machine.run(["touch", path])
        machine.run(["rm", path])


def test_machine_has_one_id_for_all_its_boots(machine):
    """The one that systemd drew at the first boot is in /etc, and not mounted over it: else the next boot draws another, and begins journals of its own."""
    here = machine.run("cat /etc/machine-id").stdout.strip()
    assert len(here) == 32 and int(here, 16)
    assert machine.run("findmnt -no SOURCE /etc/machine-id", check=False).stdout == ""
    assert machine.is_active("systemd-machine-id-commit.service") == "active"
    assert machine.run("ls /var/log/journal").stdout.split() == [here, f"{here}.anchorhold"]


def test_first_boot_enabled_nothing(machine):
    """What starts is said by links in /usr; the presets, which a first boot applies, added none. systemd-resolved is there for whoever starts it: the control."""
    def resolver():
        """What listens for names: for programs of the host, and by mDNS and LLMNR for everybody."""
        return {line.split()[4].rsplit(":", 1)[1] for line in machine.run("ss -Hlntu '( sport = 53 or sport = 5353 or sport = 5355 )'").stdout.splitlines()}

    in_etc, of_image = (machine.run(f"cd {etc} && find systemd/system -type l | sort").stdout for etc in ("/etc", "/usr/etc"))
    assert in_etc == of_image
    assert machine.run("systemctl is-enabled systemd-resolved.service", check=False).stdout == "disabled\n"
    assert machine.is_active("systemd-resolved.service") == "inactive"
    assert resolver() == set()
    machine.systemctl("start", "systemd-resolved.service")
    assert resolver() >= {"53", "5355"}
    machine.systemctl("stop", "systemd-resolved.service")
    assert resolver() == set()


def test_microvms_run_under_kvm(machine):
    accelerator = machine.status()["accelerator"]
    assert accelerator["accel"] == "kvm" and accelerator["boot_timeout_s"] == 45, accelerator
    item = machine.operator("run", "--workflow", "exec", "--json=short", "--", "/bin/true", check=False)
    assert item.returncode == 0, item.stdout + item.stderr
    newest = json.loads(machine.operator("list", "--all", "--json=short").stdout)[-1]
    run = machine.show(newest["id"])["runs"][-1]
    assert run["accel"] == "kvm"


def test_bpf_lsm_is_there_and_told_and_nothing_of_ours_asks_for_it(machine):
    """The image's kernel has it in its own list, so no lsm= is on the command line. That it works is tried by what systemd does with it; the control is the same
    command without that property."""
    assert "bpf" in machine.run("cat /sys/kernel/security/lsm").stdout.strip().split(",") and "lsm=" not in machine.run("cat /proc/cmdline").stdout
    [told] = [f for f in json.loads(machine.run("anchorctl doctor --json=short", check=False).stdout) if f["check"] == "bpf-lsm"]
    assert (told["health"], told["text"]) == ("good", "active; not relied on")
    def read(*properties):
        return machine.run(["systemd-run", "--quiet", "--wait", "--pipe", "--collect", *properties, "cat", "/sys/kernel/security/lsm"], check=False)

    refused = read("--property=RestrictFileSystems=~securityfs")
    assert refused.returncode and "Operation not permitted" in refused.stdout + refused.stderr, refused
    assert "bpf" in read().stdout
    assert machine.run("grep -rl RestrictFileSystems /usr/lib/systemd/system --include='anchor*' --include='host-*'", check=False).stdout == ""


def test_reboot_is_refused_while_a_run_is_live(machine):
    """Root's as well. The control: with the run the lock is gone, and what follows in these files reboots."""
    item = machine.operator("submit", "--workflow", "wait", "--", "sh", "-c", "echo up; sleep infinity").stdout.strip()
    wait_for(lambda: "up" in machine.operator("logs", item).stdout, 300, lambda: machine.show(item))
    boot = machine.boot_id()
    refused = machine.run("systemctl reboot", check=False)
    assert refused.returncode == 1 and "denied" in refused.stderr, refused.stderr
    lock, = [line for line in locks(machine) if "Anchorhold" in line]
    assert "shutdown:sleep" in lock and "block" in lock and "host drain" in lock
    assert machine.boot_id() == boot and machine.show(item)["state"] == "running"
    machine.operator("stop", item)
    wait_for(lambda: machine.is_active("host-inhibit.service") == "inactive", 120)
    assert not [line for line in locks(machine) if "Anchorhold" in line]
    assert machine.run("systemctl --failed --no-legend --plain").stdout == ""


def test_memory_limit_ends_a_run_and_the_item_says_so(machine):
    """The control is every other run here: they fit."""
    machine.write("/etc/systemd/system/anchorhold-runs-.slice.d/50-test.conf", "[Slice]\nMemoryMax=96M\n")
    machine.systemctl("daemon-reload")
    try:
        ended = machine.operator("run", "--workflow", "exec", "--", "/bin/true", check=False)
        newest = json.loads(machine.operator("list", "--all", "--json=short").stdout)[-1]
        item = machine.show(newest["id"])
    finally:
        machine.run("rm -r /etc/systemd/system/anchorhold-runs-.slice.d")
        machine.systemctl("daemon-reload")
    assert ended.returncode == 1
    assert "oom" in json.dumps(item).lower() or "memory" in json.dumps(item).lower(), item
    assert machine.operator("run", "--workflow", "exec", "--", "/bin/true").returncode == 0
