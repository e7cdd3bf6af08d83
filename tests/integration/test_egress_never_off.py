# SPDX-License-Identifier: LGPL-2.1-or-later
"""An enforcer that is taken away: no run starts, a running one loses egress within 15 seconds, and what is said names the enforcer.

One real run calls out all the time. Each enforcer is taken away in turn and given back; between them the run calls out
again, which is the control. At the end comes what a run does not survive. (test_run_crash.py has egressd and auditd frozen, and
test_egress_agreement.py what is changed in a run's namespace.)
"""

import json
import time

import pytest

from test_run_crash import GUEST, Live, wait_for

PINS, SLICE = "/sys/fs/bpf/anchorhold/prog", "/sys/fs/cgroup/anchorhold.slice/anchorhold-runs.slice"
EGRESSD = "/usr/libexec/anchorhold/anchor-egressd"


@pytest.fixture(scope="module")
def live(host):
    run = Live(host, "exec-model", "echo up\n" + GUEST).ready()
    run.await_line("^call 200$")
    run.await_line("^open ")
    yield run
    host.anchorctl("stop", "--all", check=False)


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


def detach(host, hook, name):
    host.run(f"bpftool cgroup detach {SLICE} {hook} pinned {PINS}/{name}")
    return lambda: host.run(f"bpftool cgroup attach {SLICE} {hook} pinned {PINS}/{name} multi")


def detach_uplink(host):
    links = host.run("ls /sys/fs/bpf/anchorhold/uplink").stdout.split()
    assert links
    for link in links:
        host.run(f"bpftool link detach pinned /sys/fs/bpf/anchorhold/uplink/{link}")
    return lambda: host.systemctl("restart", "anchor-warden.service")


def freeze(host, unit):
    host.systemctl("kill", "--signal=STOP", unit)
    # systemd's watchdog ends what hangs, and starts it again: it must not come back by itself here
    return lambda: host.systemctl("kill", "--signal=CONT", unit)


def stop(host, name):
    host.stop_daemon(name)
    return lambda: host.start_daemon(name)


def sleep_instead(host, name):
    """The program of a service is another one, which answers nothing."""
    dropin = f"/run/systemd/system/{name}.service.d/sleep.conf"
    host.write(dropin, "[Service]\nType=exec\nExecStart=\nExecStart=/bin/sleep infinity\nWatchdogSec=0\n")
    host.systemctl("daemon-reload")
    host.systemctl("restart", f"{name}.service")

    def back():
        host.run(f"rm {dropin}; systemctl daemon-reload")
        host.systemctl("restart", f"{name}.service")
    return back


def fence_reason(host):
    return json.loads(host.run("cat /run/anchorhold/fence.json").stdout)["reason"]


# what is taken away, how, and what must be named: in the warden's state, or in the run's notes
FENCE = {
    "pin missing": (lambda host: remove_pin(host, "sendmsg4"), "prog/sendmsg4"),
    "another program pinned": (lambda host: replace_pin(host, "bind4", "bind6"), "prog/bind4"),
    "program detached from the slice": (lambda host: detach(host, "egress", "egress"), "egress"),
    "program detached from the devices": (detach_uplink, "uplink"),
}
DAEMONS = {
    "egressd stopped": (lambda host: stop(host, "anchor-egressd"), "egressd"),
    "egressd is sleep": (lambda host: sleep_instead(host, "anchor-egressd"), "egressd"),
    "auditd stopped": (lambda host: stop(host, "anchor-auditd"), "auditd"),
}


def assert_cut(live, begin):
    """Within fifteen seconds nothing gets out any more, and nothing did for three."""
    live.await_line("^call (?!200)", begin, 15)
    assert time.monotonic() - begin <= 15
    quiet = time.monotonic()
    time.sleep(3)
    assert not live.said("^call 200$", quiet)


def assert_nothing_starts(host):
    item = host.anchorctl("submit", "--workflow", "exec", "--", "/bin/true", check=False).stdout.strip()
    time.sleep(3)
    if item:                                                  # without auditd not even that is taken
        shown = host.show(item)
        assert shown["state"] not in ("running", "verifying", "in_review"), shown
        host.anchorctl("stop", item, check=False)


def comes_back(live):
    since = time.monotonic()
    live.await_line("^call 200$", since, 25)
    assert live.show()["state"] == "running"


@pytest.mark.parametrize("what", FENCE)
def test_deny_all_without_a_part_of_the_fence(host, live, what):
    take, named = FENCE[what]
    begin = time.monotonic()
    give = take(host)
    try:
        wait_for(lambda: named in fence_reason(host), 10, lambda: fence_reason(host))
        assert_cut(live, begin)
        check = host.run("/usr/libexec/anchorhold/anchor-bpf --check", check=False)
        assert check.returncode == 1 and named.split("/")[-1] in check.stderr
        doctor = host.anchorctl("doctor", check=False)
        assert doctor.returncode != 0 and named in doctor.stdout
        assert_nothing_starts(host)
    finally:
        give()
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


@pytest.mark.parametrize("what", DAEMONS)
def test_deny_all_without_a_daemon(host, live, what):
    take, named = DAEMONS[what]
    begin = time.monotonic()
    give = take(host)
    try:
        assert_cut(live, begin)
        assert any(named in note["text"] for note in live.show()["notes"] if note["kind"] == "enforcer.lost")
        assert_nothing_starts(host)
    finally:
        give()
    comes_back(live)


def test_deny_all_without_listeners(host, live):
    """The proxy's listeners are the only way; with their socket unit they are gone, and `show` names the unit if it failed."""
    begin = time.monotonic()
    host.systemctl("stop", f"anchor-proxy@{live.run}.socket", f"anchor-proxy@{live.run}.service")
    assert_cut(live, begin)
    host.systemctl("start", f"anchor-proxy@{live.run}.socket")
    comes_back(live)


def test_the_slice_made_anew_is_fenced(host, live):
    """It ends the run, and what is made then has all programs: a new run reaches what it may, and nothing else is said."""
    host.systemctl("stop", "anchorhold-runs.slice")
    assert wait_for(lambda: live.show()["state"] != "running", 30)
    assert host.exec_run("echo again", workflow="exec").stdout.endswith("again\n")
    host.run("/usr/libexec/anchorhold/anchor-bpf --check")
    assert fence_reason(host) == ""


@pytest.mark.parametrize("program", ["anchor-fence", "anchor-check", "anchor-net"])
def test_no_run_without_a_helper(host, program):
    path = f"/usr/libexec/anchorhold/{program}"
    host.run(f"mount --bind /dev/null {path}")
    try:
        item = host.anchorctl("submit", "--workflow", "exec-small", "--", "/bin/true").stdout.strip()
        wait_for(lambda: host.show(item)["state"] not in ("submitted", "queued", "leased", "running") or host.show(item)["failures"], 40,
                 lambda: json.dumps(host.show(item), indent=1))
        said = json.dumps(host.show(item))
        assert "running" not in [t["to"] for t in host.show(item)["history"]], said
        assert "anchor-" in said
    finally:
        host.run(f"umount {path}")
        host.anchorctl("stop", "--all", check=False)
        host.systemctl("reset-failed", check=False)
