# SPDX-License-Identifier: LGPL-2.1-or-later
"""What dies in mid-run, or is frozen, or stopped: real units and real microVMs, and nothing left behind.

docs/architecture.md has the table of what is to happen; this file is what keeps it true.
"""

import json
import re
import threading
import time

import pytest

from liverun import assert_nothing_starts
from waiting import wait_for

PINS = "/sys/fs/bpf/anchorhold/prog"

# A call to the provider a second, each on a new connection, and beside it one connection that stays open.
GUEST = r"""
while :; do
        curl -sSN -m 120 https://www.example.org/slow/120 | while read line; do echo "open $line"; done
        echo cut; sleep 1
done &
while :; do
        curl -sS -m 4 -o /dev/null -w "call %{http_code}\n" -H "x-api-key: $ANTHROPIC_API_KEY" https://api.anthropic.com/v1/models || echo "call failed"
        sleep 0.7
done
"""

# Everything that a run has on the host, a line each. What is there without any run is not its.
TRACES = r"""
systemctl list-units --all --plain --no-legend 'anchor-*@*' 'anchorhold-runs-r*' | awk '{ print "unit", $1 }'
find /sys/fs/cgroup -type d \( -name 'anchorhold-runs-r*' -o -name 'anchor-*@*' \) -printf 'cgroup %p\n'
find /run/netns /run/anchorhold/run /run/credentials -mindepth 1 -printf 'path %p\n'
find /var/lib/anchorhold/scratch /var/lib/anchorhold/secret /var/lib/anchorhold/egress /var/lib/anchorhold/runs -mindepth 1 -name '*r????????????*' -printf 'path %p\n'
ip -o link | sed -E 's/^[0-9]+: ([^:@]+).*/link \1/'
grep -hoE '/run/(netns|anchorhold/run|credentials)/[^ ]*r[0-9a-z]{12}[^ ]*' /proc/[0-9]*/mountinfo /proc/net/unix | sed 's/^/in use /'
find /proc/[0-9]*/fd -lname '/var/lib/anchorhold/scratch/*' -printf 'disk %l\n'
find /proc/[0-9]*/ns /proc/[0-9]*/fd -lname 'net:*' -printf '%l %p\n' | sort -u -k 1,1 | while read -r name path; do
        ! nsenter --net="$path" ip -o link show tap0 >/dev/null 2>&1 || echo "namespace $name"
done
pgrep -l 'qemu|anchor-(run|vm|proxy|inject|import|net|check|netlog)' | awk '{ print "process", $2 }'
true
"""


def traces(host):
    return set(host.run(TRACES).stdout.splitlines())


class Live:
    """An item in a microVM, and what it prints, line by line with the time of each."""

    def __init__(self, host, workflow, script):
        self.host, self.lines, self.run = host, [], None
        self.item = host.anchorctl("submit", "--workflow", workflow, "--", "sh", "-c", script).stdout.strip()
        self.process = host.popen(["anchorctl", "logs", "--follow", self.item], user="operator", stdout=-1, stderr=-2, text=True)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line.rstrip("\n")))

    def show(self):
        return self.host.show(self.item)

    def said(self, pattern, since=0.0):
        return [line for when, line in list(self.lines) if when >= since and re.search(pattern, line)]

    def await_line(self, pattern, since=0.0, seconds=60):
        return wait_for(lambda: self.said(pattern, since), seconds,
                        lambda: f"no {pattern!r}:\n" + "\n".join(line for _, line in self.lines[-30:]))[0]

    def ready(self):
        self.await_line("^up$")
        self.run = self.show()["run"]
        return self

    def ended(self, seconds=20):
        """Until no more is to happen to the item; the item."""
        wait_for(lambda: self.process.poll() is not None, seconds, lambda: json.dumps(self.show(), indent=1))
        return self.show()


@pytest.fixture(scope="module")
def before(host):
    host.anchorctl("list")
    return traces(host)


@pytest.fixture(scope="module")
def live(host, before):
    """The run that outlives the daemons."""
    run = Live(host, "exec-model", "echo up\n" + GUEST).ready()
    run.await_line("^call 200$")
    run.await_line("^open ")
    yield run
    host.anchorctl("stop", "--all", check=False)


@pytest.fixture(scope="module")
def victims(host, live):
    """Two more at once. As long as they live there is room for no other."""
    runs = [Live(host, "exec", "echo up; dd if=/dev/zero of=/root/big bs=1M count=8 2>/dev/null; sleep 600") for _ in range(2)]
    return [run.ready() for run in runs]


def left_of(host, run):
    return {line for line in traces(host) if run in line}


def assert_gone(host, run):
    wait_for(lambda: not left_of(host, run), 15, lambda: f"left: {left_of(host, run)}")


def assert_as_before(host, before):
    wait_for(lambda: traces(host) <= before, 15, lambda: f"left: {traces(host) - before}")
    assert host.systemctl("--failed", "--no-legend", "--plain").stdout == ""


def test_the_traces_of_a_run_are_seen(host, before, victims):
    """The control of every check below that nothing is left."""
    run = victims[0].run
    seen = traces(host)
    for trace in (f"unit anchor-vm@{run}.service", f"unit anchor-vm@{run}.socket", f"path /run/netns/anchor-{run}", f"path /run/anchorhold/run/{run}/channel"):
        assert trace in seen, seen
    for kind in ("cgroup", "in use", "disk", "namespace", "process"):
        assert [line for line in seen - before if line.startswith(kind + " ")], kind


def test_qemu_killed(host, victims):
    victim = victims[0]
    host.systemctl("kill", "--signal=KILL", f"anchor-vm@{victim.run}.service")
    shown = victim.ended()
    assert shown["state"] == "exhausted" and shown["reason"] == f"anchor-vm@{victim.run}.service ended: signal 9: vm-gone: the virtual machine has ended", shown["reason"]
    assert shown["runs"][0]["outcome"] == "error"
    assert_gone(host, victim.run)


def test_anchor_run_killed(host, victims):
    victim = victims[1]
    host.systemctl("kill", "--signal=KILL", f"anchor-run@{victim.run}.service")
    shown = victim.ended()
    assert (shown["state"], shown["reason"]) == ("exhausted", f"anchor-run@{victim.run}.service ended without a result: signal 9")
    assert_gone(host, victim.run)


KILLED = [(unit, "KILL") for unit in ("anchor-secretd", "anchor-inject@RUN", "anchor-proxy@RUN", "anchor-netlog@RUN", "anchor-egressd", "anchor-auditd", "anchord")]
KILLED.append(("anchor-netlog@RUN", "TERM"))                   # which it takes for its end, and ends well


@pytest.mark.parametrize("unit, signal", KILLED)
def test_killed_and_the_run_goes_on(host, live, unit, signal):
    unit = unit.replace("RUN", live.run) + ".service"
    old = host.property(unit, "MainPID")
    assert old != "0"
    host.systemctl("kill", f"--signal={signal}", unit)
    wait_for(lambda: host.property(unit, "MainPID") not in ("0", old) and host.is_active(unit) == "active")
    since = time.monotonic()
    live.await_line("^call 200$", since, 20)
    live.await_line("^open ", since, 20)
    shown = live.show()
    assert (shown["state"], shown["run"], shown["attempt"]) == ("running", live.run, 1)


def test_each_line_is_told_once(host, before):
    """anchord is killed four times while a run writes: nobody misses a line or sees one twice, and it has booted once."""
    writer = Live(host, "exec", "i=0; while [ $i -lt 200 ]; do echo n $i; i=$((i+1)); sleep 0.03; done")
    writer.await_line("^n 5$")
    for _ in range(4):
        old = host.property("anchord.service", "MainPID")
        host.systemctl("kill", "--signal=KILL", "anchord.service")
        wait_for(lambda: host.property("anchord.service", "MainPID") not in ("0", old) and host.is_active("anchord.service") == "active")
        time.sleep(0.3)
    assert not writer.said("^n 199$"), "it had written everything before the last kill"
    shown = writer.ended(90)
    assert shown["state"] == "closed" and shown["runs"][0]["boots"] == 1
    expected = [f"n {i}" for i in range(200)]
    assert writer.said("^n ") == expected
    assert [line for line in host.anchorctl("logs", writer.item).stdout.splitlines() if line.startswith("n ")] == expected


@pytest.mark.parametrize("script, at", [("echo over", "booting"), ("echo up; sleep 5; echo over", "up")], ids=["a step is due", "the verdict is due"])
def test_a_run_waits_for_the_record(host, before, script, at):
    """auditd answers nobody just then: the run waits and says so, and each is on record once."""
    waiting = Live(host, "exec", script)
    waiting.await_line(at)
    with host.frozen("anchor-auditd"):
        waiting.await_line("the audit log does not answer; the run waits for it", seconds=40)
        assert bool(waiting.said("^over$")) == (at == "up")
    shown = waiting.ended(60)
    assert (shown["state"], len(shown["runs"])) == ("closed", 1), shown["reason"]
    records = host.run(f"journalctl --namespace=anchorhold -o json ANCHORHOLD_RUN={shown['runs'][0]['id']}").stdout.splitlines()
    events = [json.loads(line)["ANCHORHOLD_EVENT"] for line in records]
    assert (events.count("run.step"), events.count("run.verdict"), events.count("run.finished")) == (2, 1, 1), events
    assert_gone(host, shown["runs"][0]["id"])


GONE = {"stopped": lambda host, name: host.stopped(name), "frozen": lambda host, name: host.frozen(name)}


def notes_to_come(live, name):
    """A function: the texts of the notes of that kind about that enforcer, of those that there were not yet."""
    there = len(live.show()["notes"])       # newest first
    return lambda kind: [note["text"] for note in live.show()["notes"][:-there or None] if note["kind"] == kind and name in note["text"]]


@pytest.mark.parametrize("name, how", [("egressd", "stopped"), ("egressd", "frozen"), ("auditd", "stopped"), ("auditd", "frozen")])
def test_enforcer_gone_cuts_and_says_so(host, live, name, how):
    wait_for(host.is_enforced)              # what was taken away before is back, to anchord as well
    live.await_line("^open ", time.monotonic())
    new = notes_to_come(live, name)
    begin = time.monotonic()
    with GONE[how](host, f"anchor-{name}"):
        wait_for(lambda: any(f"{name} does not answer" in text for text in new("enforcer.lost")), 10, lambda: str(live.show()["notes"]))
        # what had been let through just before may still have been answered
        assert len(live.said("^call 200$", begin)) <= 3
        live.await_line("^cut$", begin, 15)
        last = time.monotonic()
        live.await_line("^call (?!200)", last, 10)
        assert not live.said("^call 200$", last)
        assert new("enforcer.lost")[0] in host.anchorctl("show", live.item).stdout
        assert_nothing_starts(host)
    comes_back(live, new)


def comes_back(live, new):
    since = time.monotonic()
    live.await_line("^call 200$", since, 20)
    live.await_line("^open ", since, 20)
    wait_for(lambda: new("enforcer.back"))
    assert live.show()["state"] == "running"


def test_a_frozen_enforcer_is_started_again(host, live):
    """Nobody thaws it: its watchdog ends it, until then it counts as gone, and with the next one everything goes on."""
    wait_for(host.is_enforced)
    unit, new = "anchor-egressd.service", notes_to_come(live, "egressd")
    old, since = host.property(unit, "MainPID"), host.journal_end()
    host.systemctl("kill", "--signal=STOP", unit)
    wait_for(lambda: new("enforcer.lost"), 10)
    assert host.property(unit, "MainPID") == old
    wait_for(lambda: host.property(unit, "MainPID") not in ("0", old) and host.is_active(unit) == "active", 30)
    assert host.failures(since) == [(unit, "watchdog")]
    comes_back(live, new)
    wait_for(host.is_enforced)


@pytest.mark.quiet
def test_runs_slice_stopped_without_anchord(host, before, live):
    """What an operator does when nothing else answers: every run is dead within five seconds, and nothing of it stays."""
    with host.stopped("anchord"):
        assert "process qemu-system-x86" in traces(host)
        begin = time.monotonic()
        host.systemctl("stop", "anchorhold-runs.slice")
        assert time.monotonic() - begin < 5
        # what egressd and secretd keep of it on disk goes when anchord tells them
        assert [line for line in traces(host) - before if not re.search("/var/lib/anchorhold/(egress|secret)/", line)] == []
        host.systemctl("start", "anchorhold-runs.slice")           # made anew: only since when shows that it was stopped
    shown = live.ended()
    assert (shown["state"], shown["reason"]) == ("exhausted", "anchorhold-runs.slice was stopped: anchor-run ended while the supervisor was away")
    assert_as_before(host, before)


@pytest.mark.quiet
def test_all_stopped_and_held(host, before, live):
    two = [Live(host, "exec", "echo up; sleep 600") for _ in range(2)]
    for run in two:
        run.ready()
    try:
        begin = time.monotonic()
        host.anchorctl("stop", "--all", "--hold")
        assert not [line for line in traces(host) if line.startswith("process qemu")]
        assert time.monotonic() - begin < 5
        assert [run.ended()["state"] for run in two] == ["cancelled", "cancelled"]
        assert_as_before(host, before)
        waiting = Live(host, "exec", "echo up")
        time.sleep(2)
        assert waiting.show()["state"] == "queued" and traces(host) <= before
    finally:
        host.anchorctl("release")
    wait_for(lambda: waiting.show()["state"] in ("leased", "running"), 5)
    host.anchorctl("stop", waiting.item)
    assert waiting.ended()["state"] == "cancelled"


def bpf_state(host):
    return host.status()["enforcers"]["bpf"]


def test_no_run_starts_without_a_program(host, before, live):
    """Removed by root, and the slice made anew without it: systemd only warns, but no run starts, and no item pays for it."""
    host.run(["rm", f"{PINS}/connect4"])
    try:
        host.systemctl("stop", "anchorhold-runs.slice")
        waiting = Live(host, "exec", "echo up")
        # whoever notices first: the run's own first step, or the warden
        wait_for(lambda: bpf_state(host) != "ok", 40)
        wait_for(lambda: waiting.show()["state"] == "queued", 30)
        if runs_of_item := waiting.show()["runs"]:
            assert "eBPF" in runs_of_item[0]["reason"] and "anchor-bpf" in runs_of_item[0]["reason"], runs_of_item
            assert f"no pinned program {PINS}/connect4" in host.journal("-u", f"anchor-net@{runs_of_item[0]['id']}.service")
        assert_as_before(host, before)
        tried = len(waiting.show()["runs"])
        time.sleep(3)
        shown = waiting.show()
        assert (shown["state"], shown["attempt"], len(shown["runs"])) == ("queued", 1, tried)
    finally:
        host.systemctl("restart", "anchor-bpf.service")
    assert waiting.ended(60)["state"] == "closed"
    assert bpf_state(host) == "ok"
    assert_as_before(host, before)


def test_leases_wait_while_the_fence_is_not_whole(host, before, live):
    """A pin is gone while anchor-bpf.service is active: the warden says so, nothing is leased, and what is missing is named."""
    since = host.run(["date", "+%s"]).stdout.strip()
    host.run(["mv", f"{PINS}/egress", f"{PINS}/elsewhere"])
    try:
        wait_for(lambda: "egress" in bpf_state(host), 10)
        assert host.is_active("anchor-bpf.service") == "active" and "anchor-warden" in bpf_state(host)
        waiting = Live(host, "exec", "echo up")
        time.sleep(3)
        shown = waiting.show()
        assert (shown["state"], shown["attempt"], shown["runs"]) == ("queued", 1, [])
        assert "egress" in shown["enforcers"]
        assert "Waits for: the eBPF programs are not whole" in host.anchorctl("show", waiting.item).stdout
        assert "No run starts: bpf: the eBPF programs are not whole" in host.anchorctl("list").stdout
        assert "not whole" in host.anchorctl("doctor", check=False).stdout
        lost = host.run(f"journalctl --namespace=anchorhold --since=@{since} -o cat ANCHORHOLD_EVENT=enforcer.lost").stdout
        assert "bpf" in lost
    finally:
        # control: whole again, and the item goes without another word
        host.run(["mv", f"{PINS}/elsewhere", f"{PINS}/egress"])
    assert waiting.ended(60)["state"] == "closed" and waiting.show()["attempt"] == 1
    assert bpf_state(host) == "ok"
    host.anchorctl("doctor")  # finds nothing any more, nor leaves its unit failed

    # nobody watches any more: that is not good either
    host.systemctl("stop", "anchor-warden.service")
    try:
        wait_for(lambda: "anchor-warden" in bpf_state(host), 5)
    finally:
        host.systemctl("start", "anchor-warden.service")
    wait_for(lambda: bpf_state(host) == "ok", 5)
    assert_as_before(host, before)
    host.run("anchorctl audit verify")
