# SPDX-License-Identifier: LGPL-2.1-or-later
"""The parts of `make demo`: what its host is told, that it fails if something is not shown, and how it ends. The demo itself is for a person to run."""

import copy
import json
import os
import pathlib
import signal
import subprocess
import sys

import host as hosting
import pytest
import world as worlds
from conftest import TOP
from waiting import wait_for

sys.path.insert(0, str(TOP / "tests" / "demo"))
import demo  # noqa: E402

EMPTY = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/nonexistent"}


# ---- what the host is told ----

def test_the_host_is_told_of_resolver_ca_and_network_alone(tmp_path):
    there = worlds.World(tmp_path / "world")
    etc = hosting.make_world_etc(there)
    files = {str(path.relative_to(etc)) for path in etc.rglob("*") if path.is_file()}
    assert files == {"anchorhold/host.json", "anchorhold/upstream-ca.d/world.pem", "sysusers.d/test-users.conf"}
    assert json.loads((etc / "anchorhold/host.json").read_text()) == {"resolvers": ["203.0.113.53"], "networks": ["203.0.113.0/24", "2001:db8:113::/64"]}
    # the control: the tests tell theirs more, by the same function
    etc = hosting.make_world_etc(there, [hosting.egress_with_git("anthropic")], {"accel": "tcg"}, hosting.USERS)
    assert (etc / "anchorhold/policy/egress/anthropic.json").exists() and json.loads((etc / "anchorhold/host.json").read_text())["accel"] == "tcg"


# ---- what is shown ----

REAL, SENTINEL = worlds.REAL_KEY, "sk-ant-api03-" + "s" * 95
ITEM = {"id": "i00000000demo", "state": "in_review", "cost_microusd": 1234}


def event(second, what, **more):
    return {"time": f"2026-01-01T00:00:{second:02}.000Z", "type": what, "run": "r0000000work" if second < 30 else "r000000check", **more}


EVENTS = [
    event(0, "state", to="submitted"), event(1, "note", kind="booting"), event(4, "note", kind="booted"),
    event(5, "step", name="agent", phase="started"), event(6, "output", stream="agent", data="x\ntest-csv: 20 of 21 cases passed\n"),
    event(20, "step", name="agent", phase="ended"),
    event(21, "step", name="check", phase="started"), event(22, "output", stream="check", data="test-csv: 21 of 21 cases passed\n"),
    event(23, "step", name="check", phase="ended"),
    event(31, "note", kind="booting"), event(34, "note", kind="booted"),
    event(35, "step", name="check", phase="started"), event(36, "output", stream="check", data="test-csv: 21 of 21 cases passed\n"),
    event(37, "step", name="check", phase="ended"), event(38, "state", to="in_review"),
]


def record(kind, name, **more):
    return {"event": kind, "time": "2026-01-01T00:00:05.000Z", "actor": "uid 1000", "data": {"name": name, "rule": "some", **more}}


LOG = [record("policy.changed", None, rule="git.example.org:443"), record("egress.allow", "api.anthropic.com"), record("egress.allow", "git.example.org"),
       record("dns.refused", "paste.example.net"), record("egress.deny", "169.254.169.254")]
GOOD = {"submit": 0, "allow": 0, "logs": 0, "state": "in_review", "cost": 1234, "accelerator": "tcg", "events": EVENTS, "log": LOG, "verify": 0,
        "diff": "--- a/x\n+++ b/x\n-a\n+b\n", "keys": [(REAL, SENTINEL)]}


class Stub:
    """The host and the world of the demo, as they are in GOOD."""

    def __init__(self, facts):
        self.facts = facts

    def argv(self, command, user):
        words = [word for word in command if not word.startswith(("env", "NO_COLOR="))]
        status = {("anchorctl", "submit"): "submit", ("anchorctl", "logs"): "logs", ("anchorctl", "audit"): "verify"}.get(tuple(words[:2]))
        return ["sh", "-c", f"exit {self.facts[status] if status else 0}"]

    def run(self, command):
        path = "policy/workflows/code-fix.json" if "workflows" in command else "policy/egress/anthropic.json"
        return subprocess.CompletedProcess(command, 0, (TOP / path).read_text(), "")

    def anchorctl(self, *args, check=True, user=None):
        out, status = "", 0
        if args[:2] == ("policy", "allow"):
            status = self.facts["allow"]
        elif args[:2] == ("policy", "log"):
            out = json.dumps(self.facts["log"])
        elif args[0] == "logs":
            out = "\n".join(map(json.dumps, self.facts["events"]))
        elif args[0] == "result":
            out = self.facts["diff"]
        return subprocess.CompletedProcess(args, status, out, "")

    def status(self):
        return {"accelerator": {"accel": self.facts["accelerator"]}}

    def items(self):
        return [ITEM]

    def show(self, item):
        return {**ITEM, "state": self.facts["state"], "cost_microusd": self.facts["cost"]}

    def journal(self, *args):
        return ""

    # the world's
    def log(self, name):
        return [{"x_api_key": key, "authorization": None, "body": {"messages": seen}} for key, seen in self.facts["keys"]]


def show_all(**other):
    stub, show = Stub({**copy.deepcopy(GOOD), **other}), demo.Shown()
    demo.show_host(stub, show)
    demo.show_all(stub, stub, "pi", show)
    return show


def test_everything_is_shown(capfd):
    show = show_all()
    assert show.status() == 0 and show.missing == []
    said = capfd.readouterr().out
    headings = [line for line in said.splitlines() if line.startswith("== ")]
    assert len(headings) == 12 and headings[-1].startswith("== done (") and all(heading.endswith(" s)") for heading in headings), headings
    for part in ("allow/0", "api.anthropic.com port 443, tls: inspect", "git.example.org:443, for this run, by uid 1000", "before  test-csv: 20 of 21",
                 "after   test-csv: 21 of 21 cases passed   (run r000000check)", "15.0 s  step agent", "38.0 s  from submission to review", SENTINEL[:32]):
        assert part in said, part


def less(records, name):
    return [each for each in records if each["data"]["name"] != name]


@pytest.mark.parametrize("other, missing", [
    ({"accelerator": None}, "whether microVMs run under KVM"),
    ({"submit": 1}, "a work item"),
    ({"allow": 1, "state": "failed", "logs": 1}, "the operator's rule for the git server"),
    ({"logs": 1}, "a run that ends in review"),
    ({"state": "failed"}, "a run that ends in review"),
    ({"cost": 0}, "what it cost"),
    ({"events": [each for each in EVENTS if each["type"] != "step"]}, "where the time went"),
    ({"events": EVENTS[:9]}, "where the time went"),                                           # no second microVM
    ({"events": EVENTS[:9]}, "tests that pass after, in a microVM of their own"),
    ({"events": [each for each in EVENTS if each.get("stream") != "agent"]}, "a test that fails before"),
    ({"diff": "--- a/x\n+++ b/x\n"}, "the diff"),
    ({"log": LOG[1:]}, "what the run could reach"),
    ({"log": less(LOG, "git.example.org")}, "that it reached the provider and the git server alone"),
    ({"log": [*LOG, record("egress.allow", "paste.example.net")]}, "that it reached the provider and the git server alone"),
    ({"log": less(LOG, "paste.example.net")}, "what it tried and was denied"),
    ({"log": less(LOG, "169.254.169.254")}, "what it tried and was denied"),
    ({"verify": 1}, "an audit log that verifies"),
    ({"keys": [(REAL, SENTINEL), ("other", SENTINEL)]}, "that the provider received the real key"),
    ({"keys": []}, "that the provider received the real key"),
    ({"keys": [(REAL, "nothing")]}, "the sentinel that the guest saw"),
    ({"keys": [(REAL, SENTINEL + " " + REAL)]}, "the sentinel that the guest saw"),
])
def test_what_is_missing_is_named_and_fails(monkeypatch, capfd, other, missing):
    monkeypatch.setattr(demo, "PROBE_SECONDS", 0)
    show = show_all(**other)
    assert show.status() == 1 and any(each.startswith(missing) for each in show.missing), show.missing
    said = capfd.readouterr().out
    assert f"! {missing}" in said and "NOT everything is as it should be" in said


@pytest.mark.parametrize("terminal, value, emphasis", [(True, None, True), (True, "", True), (True, "1", False), (False, None, False)])
def test_emphasis(monkeypatch, capfd, terminal, value, emphasis):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    if value is not None:
        monkeypatch.setenv("NO_COLOR", value)
    assert demo.colours() == emphasis


# ---- how it ends ----

@pytest.mark.parametrize("typed, said", [("", "Nobody can press Enter here"), ("\n", "")])
def test_enter_or_its_end(typed, said):
    """The demo ends well either way, and says which it was."""
    done = subprocess.run(["/usr/bin/python3", "-B", "-c", "import demo; demo.await_enter(); print('and on')"], cwd=TOP / "tests/demo", env=EMPTY,
                          input=typed, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and "The host is up" in done.stdout and "and on" in done.stdout and not done.stderr, done
    assert said in done.stdout and (said != "") == ("the host goes down" in done.stdout), done


# The demo, with a host and a world that only say what is done to them.
STAND_INS = """
import sys, time
import demo, host, world

class World:
    def __init__(self, *args): pass
    def start(self): print("world up", flush=True)
    def stop(self): print("world down", flush=True)
    forget_logs = add_repository = lambda self, *args: None

def start(*args):
    print("waiting", flush=True)
    time.sleep(60)

left = [True]                       # what an earlier one left
def remove(name):
    print("boot removed", flush=True)
    return left.pop() if left else True

world.World, host.start_in_world, host.remove_boot, host.make_repository = World, start, remove, lambda path: path
demo.OWNER = demo.pathlib.Path(sys.argv.pop(1))
demo.BUILD = demo.OWNER.parent
sys.exit(demo.main())
"""


def start_demo(lock):
    return subprocess.Popen([sys.executable, "-B", "-c", STAND_INS, lock], cwd=TOP / "tests/demo", env={**EMPTY, "PYTHONPATH": "."}, text=True,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def said_until(process, end):
    lines = []
    while not lines or lines[-1] != end:
        line = process.stdout.readline()
        assert line, (lines, process.communicate())
        lines.append(line.rstrip("\n"))
    return lines


@pytest.mark.parametrize("number", demo.SIGNALS, ids=lambda number: number.name)
def test_a_signal_ends_host_and_world(tmp_path, number):
    process = start_demo(tmp_path / "lock")
    try:
        before = said_until(process, "waiting")
        assert before[:2] == ["boot removed", "removed the host of an earlier demo that was killed"] and "world up" in before
        process.send_signal(number)
        rest, errors = process.communicate(timeout=60)
        assert process.returncode == 128 + number and rest.splitlines() == ["boot removed", "world down"] and errors == "", (rest, errors)
    finally:
        process.kill()
        process.communicate()


def test_one_demo_at_a_time(tmp_path):
    """The second one takes nothing from the first; once that was killed, the next goes on."""
    first = start_demo(tmp_path / "lock")
    others = []
    try:
        said_until(first, "waiting")
        others.append(start_demo(tmp_path / "lock"))
        out, errors = others[0].communicate(timeout=60)
        assert others[0].returncode == 1 and out == "" and errors.startswith("another demo is under way ("), (out, errors)
        first.kill()
        first.communicate()
        others.append(start_demo(tmp_path / "lock"))
        said_until(others[1], "waiting")
    finally:
        for process in (first, *others):
            process.kill()
            process.communicate()


# ---- on a boot ----

STARTS = """
import signal, sys
import host

def on_signal(number, frame):
    raise SystemExit(number)

signal.signal(signal.SIGTERM, on_signal)
host.start_boot(sys.argv[1])
print("up", flush=True)
signal.pause()
"""


@pytest.fixture
def starter():
    """A process that starts a boot, as the demo does, and that boot's name."""
    name = f"check-demo-{os.getpid()}"
    process = subprocess.Popen([sys.executable, "-B", "-c", STARTS, name], cwd=TOP / "tests/world", text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               env={**EMPTY, "PYTHONPATH": ".", "CACHE": os.environ["CACHE"]})
    yield process, name
    process.kill()
    process.communicate()
    hosting.remove_boot(name)


def leftovers(name):
    return [str(path) for path in hosting.BOOTS.glob(f"{name}*")]


def test_a_start_that_is_interrupted_leaves_nothing(starter):
    process, name = starter
    monitor = hosting.BOOTS / name / "monitor"
    wait_for(monitor.exists, 60)
    process.terminate()
    assert process.communicate(timeout=120)[0] == "" and process.returncode == signal.SIGTERM
    assert leftovers(name) == []


def test_what_a_killed_one_leaves_is_removed(starter):
    process, name = starter
    assert process.stdout.readline() == "up\n"
    leader = int((hosting.BOOTS / name / "leader").read_text())
    process.kill()
    process.wait()
    assert leftovers(name) and pathlib.Path(f"/proc/{leader}").exists()          # the control
    assert hosting.remove_boot(name)
    assert leftovers(name) == [] and not pathlib.Path(f"/proc/{leader}").exists()
    assert not hosting.remove_boot(name)
