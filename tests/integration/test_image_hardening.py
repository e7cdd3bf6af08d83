# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a host has not: a way in over the network, a password, a group that is as good as root; who owns its files under another image; and how
much each unit of ours may do, as systemd-analyze counts it."""

import os

from conftest import TOP

UNITS = sorted(path.name for path in (TOP / "units").glob("*.service"))
TARGET = 2.0

# Units that cannot get below the target, what they get, and why.
ABOVE = {
    "anchor-bpf.service": (3.0, "root, loads and attaches programs: CAP_BPF, CAP_NET_ADMIN, /sys/fs/bpf and the cgroups writable, inet sockets to try the fence"),
    "anchor-check@.service": (2.7, "enters a run's network namespace, which takes CAP_SYS_ADMIN, and reads its rules by netlink"),
    "anchor-doctor.service": (2.7, "anchor-check once for the host"),
    "anchor-net@.service": (4.0, "its result is a mount in /run/netns: whatever gives it a mount namespace of its own would hide that"),
    "anchor-warden.service": (2.5, "looks at every program by its id, which takes CAP_SYS_ADMIN, and attaches to devices"),
    "host-begin.service": (3.1, "may have to do what host-rollback.service does, early in a boot"),
    "host-bless.service": (2.3, "mounts the partition that UEFI boots from, which takes CAP_SYS_ADMIN and a disk, and asks ostree"),
    "host-esp.service": (2.2, "the same, while the host goes down"),
    "host-health.service": (2.2, "root as an operator is: asks ostree (a mount namespace), reads the ledger as its owner"),
    "host-upgrade.service": (4.1, "root as an operator is: fetches from a registry, writes deployments with whatever their files have"),
    "host-rollback.service": (3.1, "writes deployments and /boot, and ostree looks at PID 1's namespace"),
}

# Set-id programs of Debian's that the image has; each is there for root alone to use, or as PAM and polkit need it.
SET_ID = {"/usr/bin/chage", "/usr/bin/chfn", "/usr/bin/chsh", "/usr/bin/expiry", "/usr/bin/gpasswd", "/usr/bin/mount", "/usr/bin/newgrp", "/usr/bin/passwd", "/usr/bin/su",
          "/usr/bin/umount", "/usr/lib/dbus-1.0/dbus-daemon-launch-helper", "/usr/lib/polkit-1/polkit-agent-helper-1", "/usr/sbin/unix_chkpwd"}

# Who owns files of the image itself, besides Debian's static numbers (below 100). A host keeps the numbers in its /etc, so another image must
# have the same ones.
OWNERS = {"messagebus": 997, "polkitd": 991}


def database(host, name):
    """{entry: its other fields} of passwd, group or shadow."""
    return {entry: fields for entry, *fields in (line.split(":") for line in host.run(["getent", name]).stdout.splitlines())}


def listeners(host):
    lines = [line.split() for line in host.run("cat /proc/net/tcp /proc/net/tcp6").stdout.splitlines()]
    return {str(int(fields[1].rpartition(":")[2], 16)) for fields in lines if fields[3] == "0A"}


def test_deny_ssh(host):
    assert host.run("command -v sshd dropbear", check=False).stdout == ""
    assert host.run("systemctl list-unit-files --no-legend --type=service,socket 'ssh*' 'dropbear*'", check=False).stdout == ""
    assert "22" not in listeners(host)
    # the control: one that there is would be seen
    server = host.popen(["perl", "-MIO::Socket::INET", "-e", 'my $s = IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1:22") or die; $| = 1; print "up\n"; sleep 60'],
                        stdout=-1, text=True)
    try:
        assert server.stdout.readline() == "up\n"
        assert "22" in listeners(host)
    finally:
        server.kill()
        server.communicate()


def test_deny_passwords(host):
    """Nobody has one, so none opens anything. The control: one that root is given does."""
    assert {entry: fields[0] for entry, fields in database(host, "shadow").items() if not fields[0].startswith(("!", "*"))} == {}

    def su():
        return host.run(["su", "root", "-c", "id -u"], user="stranger", input="sesame\n", check=False)

    assert su().returncode != 0
    locked = database(host, "shadow")["root"][0]
    host.run(["usermod", "-p", host.run(["openssl", "passwd", "-6", "sesame"]).stdout.strip(), "root"])
    try:
        done = su()
    finally:
        host.run(["usermod", "-p", locked, "root"])
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    assert su().returncode != 0


def test_no_group_is_as_good_as_root(host):
    groups = {name: set(fields[2].split(",")) - {""} for name, fields in database(host, "group").items()}
    assert not groups.keys() & {"docker", "lxd", "libvirt", "wheel"}
    assert {name: members for name, members in groups.items() if members and not name.startswith("anchorhold-")} == {}
    assert "operator" in groups["anchorhold-operators"]            # the control
    assert host.run("command -v sudo doas pkexec", check=False).stdout == ""


def test_set_id_programs_are_the_known_ones(host):
    assert set(host.run("find / -xdev -perm /6000 -type f").stdout.split()) == SET_ID
    assert host.run("getcap -r /usr 2>/dev/null", check=False).stdout == ""


def test_numbers_of_our_users_are_fixed(host):
    """A backup of /var is another host's, and an image that adds a user shifts none."""
    users, groups = database(host, "passwd"), database(host, "group")
    for line in (TOP / "units/sysusers.d/anchorhold.conf").read_text().splitlines():
        kind, name, number, *_ = [*line.split(), "", "", ""]
        if kind in ("u", "g"):
            assert (users[name][1] if kind == "u" else number, groups[name][1]) == (number, number), line
    numbers = [fields[1] for fields in groups.values()]
    assert len(numbers) == len(set(numbers))


def test_owners_of_the_images_files_have_the_same_number_in_each_image(host):
    users, groups = database(host, "passwd"), database(host, "group")
    for name, number in OWNERS.items():
        assert users[name][1] == groups[name][1] == str(number), f"{name}: hosts that are upgraded have {number} in their /etc"
    found = {int(number) for line in host.run(r"find /usr /etc/polkit-1 -xdev \( ! -uid 0 -o ! -gid 0 \) -printf '%U %G\n'").stdout.splitlines() for number in line.split()}
    assert found - set(range(100)) <= set(OWNERS.values()), found


def exposure(host, unit):
    """systemd-analyze's figure, 0 (nothing) to 10 (everything)."""
    out = host.run(["systemd-analyze", "security", "--offline=yes", "--no-pager", f"/usr/lib/systemd/system/{unit}"], check=False).stdout
    line, = (line for line in out.splitlines() if "Overall exposure level" in line)
    return float(line.rpartition(": ")[2].split()[0])


def test_units_may_do_no_more_than_they_must(host):
    """The table goes to the terminal: what each unit gets, its target, and the reason if that is above two."""
    found = {unit: exposure(host, unit) for unit in UNITS}
    table = "".join(f"  {unit:28} {value:4}  {ABOVE.get(unit, (TARGET, ''))[0]:4}  {ABOVE.get(unit, (TARGET, ''))[1]}\n" for unit, value in sorted(found.items()))
    os.write(2, f"\n  {'unit':28} {'has':>4}  {'may':>4}  why more than {TARGET}\n{table}".encode())
    assert {unit: value for unit, value in found.items() if value > ABOVE.get(unit, (TARGET, ""))[0]} == {}
    # a reason that does not hold any more goes
    assert {unit for unit in ABOVE if found[unit] <= TARGET} == set()
    # the control: a unit that says nothing may do nearly everything
    host.write("/run/systemd/system/check-bare.service", "[Service]\nExecStart=/bin/true\n")
    out = host.run(["systemd-analyze", "security", "--offline=yes", "--no-pager", "/run/systemd/system/check-bare.service"], check=False).stdout
    host.run("rm /run/systemd/system/check-bare.service")
    assert float(out.rpartition("Overall exposure level")[2].rpartition(": ")[2].split()[0]) > 9
