# SPDX-License-Identifier: LGPL-2.1-or-later
"""The same as test_egress_never_off.py, for daemons, listeners, the slice and the helpers of a run. (test_run_crash.py has egressd and
auditd frozen.)
"""

import contextlib
import json
import time

import pytest

from egressrun import records
from liverun import assert_nothing_starts
from test_egress_never_off import assert_cut, calling, comes_back, fence_reason, live  # noqa: F401
from waiting import wait_for


@contextlib.contextmanager
def sleep_instead(host, name):
    """The program of a service is another one, which answers nothing."""
    program = f"/usr/libexec/anchorhold/{name}"
    host.write("/run/sleep-instead", "#!/bin/sh\nexec sleep infinity\n")
    host.run(f"chmod 755 /run/sleep-instead; mount --bind /run/sleep-instead {program}")
    try:
        host.systemctl("restart", "--no-block", f"{name}.service")
        yield
    finally:
        host.run(f"umount {program}")
        host.stop_daemon(name)                                     # or else the sleeper may be taken for it
        host.start_daemon(name)


DAEMONS = {
    "egressd stopped": (lambda host: host.stopped("anchor-egressd"), "egressd"),
    "egressd is sleep": (lambda host: sleep_instead(host, "anchor-egressd"), "egressd"),
    "auditd stopped": (lambda host: host.stopped("anchor-auditd"), "auditd"),
}


@pytest.mark.parametrize("what", DAEMONS)
def test_deny_all_without_a_daemon(host, live, what):
    take, named = DAEMONS[what]
    # anchord, too, has seen that it is back since the last one: what it never missed it cannot miss again
    wait_for(host.is_enforced, 15)
    before, begin = len(live.show()["notes"]), time.monotonic()       # newest first

    def told():
        notes = live.show()["notes"]
        return any(named in note["text"] for note in notes[:len(notes) - before] if note["kind"] == "enforcer.lost")

    def told_and_nothing_starts():
        wait_for(told, 15, lambda: json.dumps(live.show()["notes"], indent=1))
        assert_nothing_starts(host)

    with take(host):
        assert_cut(live, begin, told_and_nothing_starts)
    comes_back(live)


def test_deny_all_without_listeners(host, live):
    """The proxy's listeners are the only way; with their socket unit they are gone, and `show` names it."""
    begin = time.monotonic()
    host.stop_units(f"anchor-proxy@{live.run}.socket", f"anchor-proxy@{live.run}.service")
    said = f"anchor-proxy@{live.run}.socket was stopped: nothing goes out through it"
    assert_cut(live, begin, lambda: wait_for(lambda: any(note["text"] == said for note in live.show()["notes"]), 15,
                                             lambda: json.dumps(live.show()["notes"], indent=1)))
    host.systemctl("start", f"anchor-proxy@{live.run}.socket")
    comes_back(live)


def test_the_slice_made_anew_is_fenced(host, live):
    """It ends the run, which says why wherever it is asked, and what is made then has all programs: a new run reaches what it may, and nothing else is
    said. (That a machine which just dies is not blamed on a slice: test_run_crash.py.)"""
    begin = time.monotonic()
    host.systemctl("stop", "anchorhold-runs.slice")
    wait_for(lambda: live.show()["state"] != "running", 15, lambda: live.show()["reason"])
    assert time.monotonic() - begin < 15
    shown = live.ended()
    assert shown["state"] == "exhausted" and shown["reason"].startswith("anchorhold-runs.slice was stopped: "), shown["reason"]
    listed = next(item for item in host.items() if item["id"] == live.item)
    assert listed["reason"] == shown["reason"] == shown["runs"][0]["reason"]
    wait_for(lambda: records(host, "run.finished", live.run), 10)
    assert [data["reason"] for data in records(host, "run.finished", live.run)] == [shown["reason"]]
    assert host.exec_run("echo again", workflow="exec").stdout.endswith("again\n")
    host.run("/usr/libexec/anchorhold/anchor-bpf --check")
    assert fence_reason(host) == ""


@pytest.mark.parametrize("program", ["anchor-fence", "anchor-check", "anchor-probe", "anchor-net", "anchor-netlog", "anchor-proxy", "anchor-inject"])
def test_no_run_without_a_helper(host, program):
    path = f"/usr/libexec/anchorhold/{program}"
    host.run(f"mount --bind /dev/null {path}")
    try:
        item = host.anchorctl("submit", "--workflow", "exec-small", "--", "/bin/true").stdout.strip()
        # its attempt ends in an error, or does not count when it was the fence that was missed
        wait_for(lambda: any(run["outcome"] == "error" for run in host.show(item)["runs"]), 40, lambda: json.dumps(host.show(item), indent=1))
        shown = host.show(item)
        said = json.dumps(shown)
        assert "running" not in [t["to"] for t in shown["history"]], said
        assert program in shown["runs"][0]["reason"], said
    finally:
        host.run(f"umount {path}")
        host.anchorctl("stop", "--all", check=False)
        host.systemctl("reset-failed", check=False)
