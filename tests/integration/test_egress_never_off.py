# SPDX-License-Identifier: LGPL-2.1-or-later
"""An enforcer that is taken away: no run starts, a running one loses egress within 15 seconds, and what is said names the enforcer.

One real run calls out all the time. Each enforcer is taken away in turn and given back; between them the run calls out
again, which is the control. Here the programs of the fence; test_egress_never_off_daemons.py has the rest, test_egress_agreement.py what
is changed in a run's namespace.
"""

import json
import time

import pytest

from liverun import assert_nothing_starts
from test_run_crash import GUEST, Live
from waiting import wait_for

PINS, SLICE = "/sys/fs/bpf/anchorhold/prog", "/sys/fs/cgroup/anchorhold.slice/anchorhold-runs.slice"


@pytest.fixture(scope="module")
def calling(host):
    """A function: the run that calls out now, which is another one when the last has ended."""
    runs = []

    def now():
        if not runs or runs[-1].process.poll() is not None:
            runs.append(Live(host, "exec-model", "echo up\n" + GUEST).ready())
            runs[-1].await_line("^call 200$")
            runs[-1].await_line("^open ")
        return runs[-1]

    yield now
    host.anchorctl("stop", "--all", check=False)


@pytest.fixture(scope="module")
def live(calling):
    return calling()


def program_id(host, name):
    return json.loads(host.run(f"bpftool -j prog show pinned {PINS}/{name}").stdout)["id"]


def remove_pin(host, name):
    number = program_id(host, name)
    host.run(f"rm {PINS}/{name}")
    return lambda: host.run(f"bpftool prog pin id {number} {PINS}/{name}")


def replace_pin(host, name, other):
    """The pin of one program is another's: still a program, and not the one."""
    number, wrong = program_id(host, name), program_id(host, other)
    host.run(f"rm {PINS}/{name}; bpftool prog pin id {wrong} {PINS}/{name}")
    return lambda: host.run(f"rm {PINS}/{name}; bpftool prog pin id {number} {PINS}/{name}")


def remove_map(host, name):
    path = f"/run/anchorhold/maps/{name}"
    number = json.loads(host.run(f"bpftool -j map show pinned {path}").stdout)["id"]
    mode = host.run(f"stat -c '%a %g' {path}").stdout.split()
    host.run(f"rm {path}")
    return lambda: host.run(f"bpftool map pin id {number} {path} && chmod {mode[0]} {path} && chgrp {mode[1]} {path}")


def replace_map(host, name):
    """The pin is another map's, of the same form, which no program asks."""
    path, give = f"/run/anchorhold/maps/{name}", remove_map(host, name)
    host.run(f"bpftool map create {path} type hash key 4 value 8 entries 1 name other")
    return lambda: (host.run(f"rm {path}"), give())


def unmount(host, path, options=None):
    """What was pinned there is gone with it, and lives on in programs that are attached. Given back as operate.md says."""
    host.run(f"umount {path}")
    assert host.run(f"mountpoint -q {path}", check=False).returncode != 0

    def give():
        if options:                                            # whose mount no unit of ours makes
            host.run(f"mount -t bpf -o {options} bpf {path}")
        host.systemctl("restart", "anchor-bpf.service")
        host.run("systemctl stop anchorhold-runs.slice; true")
    return give


def detach(host, hook, name):
    host.run(f"bpftool cgroup detach {SLICE} {hook} pinned {PINS}/{name}")
    return lambda: host.run(f"bpftool cgroup attach {SLICE} {hook} pinned {PINS}/{name} multi")


def detach_uplink(host):
    links = host.run("ls /sys/fs/bpf/anchorhold/uplink").stdout.split()
    assert links
    for link in links:
        host.run(f"bpftool link detach pinned /sys/fs/bpf/anchorhold/uplink/{link}")
    return lambda: host.systemctl("restart", "anchor-warden.service")


def fence_reason(host):
    return json.loads(host.run("cat /run/anchorhold/fence.json").stdout)["reason"]


# what is taken away, how, and what must be named
FENCE = {
    "pin missing": (lambda host: remove_pin(host, "sendmsg4"), "prog/sendmsg4"),
    "pin of the floor missing": (lambda host: remove_pin(host, "floor_egress"), "prog/floor_egress"),
    "another program pinned": (lambda host: replace_pin(host, "connect6", "bind6"), "prog/connect6"),
    "program detached from the slice": (lambda host: detach(host, "egress", "egress"), "egress"),
    "program detached from the devices": (detach_uplink, "uplink"),
}


def assert_cut(live, begin, meanwhile=lambda: None):
    """Within fifteen seconds nothing gets out any more, and nothing does while that goes on, which is three seconds at least."""
    live.await_line("^call (?!200)", begin, 15)
    assert time.monotonic() - begin <= 15
    cut = time.monotonic()
    meanwhile()
    time.sleep(max(0, cut + 3 - time.monotonic()))
    assert not live.said("^call 200$", cut)


def comes_back(live):
    since = time.monotonic()
    live.await_line("^call 200$", since, 25)
    assert live.show()["state"] == "running"


def last_checked(host):
    """What every program compares with the time."""
    return host.run("bpftool -j map dump pinned /sys/fs/bpf/anchorhold/maps/checked").stdout


@pytest.mark.parametrize("what", FENCE)
def test_deny_all_without_a_part_of_the_fence(host, live, what):
    take, named = FENCE[what]
    begin = time.monotonic()
    give = take(host)
    try:
        wait_for(lambda: named in fence_reason(host), 10, lambda: fence_reason(host))
        checked = last_checked(host)
        check = host.run("/usr/libexec/anchorhold/anchor-bpf --check", check=False)
        assert check.returncode == 1 and named.split("/")[-1] in check.stderr
        doctor = host.anchorctl("doctor", check=False)
        assert doctor.returncode != 0 and named in doctor.stdout
        wait_for(lambda: not host.is_enforced(), 10)           # the supervisor has been told as well
        assert_cut(live, begin, lambda: assert_nothing_starts(host))
        assert last_checked(host) == checked                   # ten seconds later nothing passes
    finally:
        give()
    wait_for(lambda: fence_reason(host) == "", 20, lambda: fence_reason(host))
    comes_back(live)
    host.run("/usr/libexec/anchorhold/anchor-bpf --check")


def test_deny_all_without_the_warden(host, live):
    begin = time.monotonic()
    host.systemctl("stop", "anchor-warden.service")
    try:
        assert_cut(live, begin)
        assert "anchor-warden.service is inactive" in host.anchorctl("doctor", check=False).stdout
    finally:
        host.systemctl("start", "anchor-warden.service")
    comes_back(live)


# Maps and file systems come last: the runs' own checks open maps as well, and end theirs if they look before the warden has cut it off. So there is a run for
# each, which is the control of the one before.
# What is taken away, how, what the warden must name, and what anchor-bpf.
MAPS = {
    "pin missing": (lambda host: remove_map(host, "grants"), "maps/grants", "grants"),
    "another map pinned": (lambda host: replace_map(host, "heartbeat"), "maps/heartbeat", "heartbeat"),
    "file system of the maps unmounted": (lambda host: unmount(host, "/run/anchorhold/maps"), "/run/anchorhold/maps/grants", "grants"),
    "file system of the programs unmounted": (lambda host: unmount(host, "/sys/fs/bpf", "nosuid,nodev,noexec,mode=0700"), "prog/floor_connect4", "/sys/fs/bpf/"),
}


@pytest.mark.parametrize("what", MAPS)
def test_nothing_runs_without_the_maps(host, calling, what):
    take, named, named_too = MAPS[what]
    run = calling()
    begin = time.monotonic()
    give = take(host)
    try:
        wait_for(lambda: named in fence_reason(host), 10, lambda: fence_reason(host))
        check = host.run("/usr/libexec/anchorhold/anchor-bpf --check", check=False)
        assert check.returncode == 1 and named_too in check.stderr, check.stderr
        doctor = host.anchorctl("doctor", check=False)
        assert doctor.returncode != 0 and named in doctor.stdout
        wait_for(lambda: run.said("^call (?!200)", begin) or run.show()["state"] != "running", 15)
        cut = time.monotonic()
        wait_for(lambda: not host.is_enforced(), 10)
        assert_nothing_starts(host)
        assert not run.said("^call 200$", cut)
    finally:
        give()
        host.anchorctl("stop", run.item, check=False)
    wait_for(lambda: fence_reason(host) == "", 20, lambda: fence_reason(host))
    shown = run.ended(30)
    # by its own check, by what gave the file system back, or by us
    assert shown["state"] == "cancelled" or any(words in shown["reason"] for words in ("maps", "anchorhold-runs.slice was stopped")), shown
    assert calling().run != run.run                               # the control, once they are back: it calls out
    host.run("/usr/libexec/anchorhold/anchor-bpf --check")
