# SPDX-License-Identifier: LGPL-2.1-or-later
"""anchord against the real systemd, polkit, auditd, egressd and secretd, with stand-ins for what runs
inside the slice of a run: scripts that speak io.anchorhold.Run as anchor-run@ and anchor-import@ do. So every
end that a run can come to is reached in seconds, without a microVM."""

import json
import os
import pathlib
import re
import subprocess
import time

import pytest

import host as hosting
from waiting import wait_for

API = "/run/anchorhold/api.sock"
COMMIT = "c" * 40

UNIT = """[Unit]
Description=Stand-in
[Service]
Type=exec
DynamicUser=yes
SupplementaryGroups=anchorhold-runs
Slice=anchorhold-runs-%i.slice
ExecStart=/etc/stand-in/{kind}
"""

# varlinkctl of systemd 257 passes no descriptors; the image's perl can, by hand: CALL SOCKET METHOD PARAMETERS [FILE...]
CALL = r"""#!/usr/bin/perl
use strict; use Socket;
my ($path, $method, $parameters, @files) = @ARGV;
socket(my $socket, AF_UNIX, SOCK_STREAM, 0) or die "socket: $!";
connect($socket, pack_sockaddr_un($path)) or die "connect: $!";
my @handles = map { open(my $h, "<", $_) or die "$_: $!"; $h } @files;
my $message = "{\"method\":\"$method\",\"parameters\":$parameters}\0";
my $iov = pack("PQ", $message, length $message);
my $rights = @handles ? pack("Q l l l*", 16 + 4 * @handles, SOL_SOCKET, 1, map { fileno $_ } @handles) : "";
$rights .= "\0" x (-length($rights) % 8);
my $header = pack("Q L x4 P Q P Q l x4", 0, 0, $iov, 1, $rights, length $rights, 0);
syscall(46, fileno $socket, $header, 0) == length $message or die "sendmsg: $!";
$/ = "\0"; my $reply = <$socket>; defined $reply or die "no answer\n"; chomp $reply;
if ($reply =~ /"error"/) { print STDERR "$reply\n"; exit 1 }
$reply =~ s/^\{"parameters":(.*)\}$/$1/s; print "$reply\n";
"""

VM = """[Unit]
Description=Stand-in
[Service]
Type=oneshot
DynamicUser=yes
Slice=anchorhold-runs-%i.slice
LoadCredential=vm:/run/anchorhold/spec.sock
ExecStart=/bin/cat ${CREDENTIALS_DIRECTORY}/vm
"""

# Asks for a credential as PID 1 does, but is somebody else: UNIT ID
FORGE = r"""#!/usr/bin/perl
use strict; use Socket;
socket(my $socket, AF_UNIX, SOCK_STREAM, 0) or die;
bind($socket, pack_sockaddr_un("\0forged/unit/$ARGV[0]/$ARGV[1]")) or die "bind: $!";
connect($socket, pack_sockaddr_un($ARGV[2])) or do { print "no connection\n"; exit };
local $/; my $blob = <$socket>; print length $blob, " bytes\n";
"""

RUN = r"""#!/bin/bash
call() { /etc/stand-in/call /run/anchorhold/run-api.sock "io.anchorhold.Run.$1" "${@:2}"; }
finish() { call Finish "{\"outcome\":\"$1\",\"reason\":\"$2\",\"facts\":{\"status\":$3}}" "${@:4}"; }
spec=$(call GetSpec '{}') || exit 1
echo "$spec"
scenario=$(grep -o '"/scenario","[a-z-]*"' <<<"$spec" | head -n1 | cut -d'"' -f4)
[ -n "$scenario" ] || scenario=$(grep -o '"task":"[a-z-]*"' <<<"$spec" | cut -d'"' -f4)
[[ $spec != *'"stage":"verify"'* ]] || scenario=verify
call Event '{"kind":"booting","data":{}}' >/dev/null
call Event '{"kind":"step-started","data":{"name":"one","kind":"exec"}}' >/dev/null
call Output '{"stream":"stdout","step":"one","data":"hello \u001b[31mred\n"}' >/dev/null
case $scenario in
        ok) finish ok "" 0 ;;
        fails) finish failed "exit status 1" 1 ;;
        dies) kill -KILL $$ ;;
        leaves) exit 3 ;;
        hangs) sleep 1000 ;;
        short) sleep 4; finish ok "" 0 || { sleep 2; finish ok "" 0; } ;;
        stubborn) trap '' TERM; while :; do sleep 1; done ;;
        floods) for ((i = 0; i < 60; i++)); do
                        call Output "{\"stream\":\"stdout\",\"step\":\"one\",\"data\":\"$(head -c 40000 /dev/zero | tr '\0' x)\"}" >/dev/null
                done; finish ok "" 0 ;;
        repo) echo result >"/tmp/result"; finish ok "" 0 /tmp/result ;;
        repo-late) echo result >/tmp/result; sleep 4; until finish ok "" 0 /tmp/result; do sleep 0.5; done ;;
        no-result) finish ok "" 0 ;;
        too-large) head -c 2000000 /dev/zero >/tmp/result; finish ok "" 0 /tmp/result ;;
        large) truncate -s 1536M /tmp/result; until finish ok "" 0 /tmp/result; do sleep 0.25; done; sleep 1000 ;;
        rejected) echo rejected >/tmp/result; finish ok "" 0 /tmp/result ;;
        verify) if grep -q refuse-check <<<"$spec"; then finish failed "make check failed" 2; else finish ok "" 0; fi ;;
esac
"""

IMPORT = r"""#!/bin/bash
call() { /etc/stand-in/call /run/anchorhold/run-api.sock "io.anchorhold.Run.$1" "${@:2}"; }
call GetImport '{}' || exit 1
! call GetSpec '{}' || exit 9   # not an import's to ask
echo checked >/tmp/checked; echo difference >/tmp/diff
call Imported '{"ok":OK,"reason":"REASON","commit":COMMIT,"facts":{}}' /tmp/checked /tmp/diff
"""

HARNESS = {"description": "Stand-in.", "argv": ["/bin/sh", "-c", "{task}"], "files": [], "output": "json-lines"}

WORKFLOW = {
    "description": "Stand-in.", "template": "base", "harness": "stand-in", "repository": True,
    "limits": {"memory": "512M", "vcpus": 1, "disk": "1G", "run": "1h", "attempts": 2, "output": "1M", "bundle": "1M"},
    "steps": [{"name": "agent", "kind": "agent", "timeout": "1min"}, {"name": "check", "kind": "check", "argv": ["make", "check"], "timeout": "1min"}],
    "verify": {"egress": None, "steps": [{"name": "check", "kind": "check", "argv": ["make", "check"], "timeout": "1min"}]},
}


def workflow(**changes):
    return json.dumps({**WORKFLOW, **changes})


def make_etc(path):
    def put(name, text, mode=0o644):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
        (path / name).chmod(mode)

    refuse = {"egress": None, "steps": [{"name": "refuse-check", "kind": "check", "argv": ["refuse-check"], "timeout": "1min"}]}
    put("anchorhold/host.json", json.dumps({"accel": "tcg", "resolvers": [], "networks": [], "max_runs": 2}))
    put("anchorhold/policy/harness/stand-in.json", json.dumps(HARNESS))
    put("anchorhold/policy/workflows/stand-in.json", workflow())
    put("anchorhold/policy/workflows/stand-in-once.json", workflow(limits={**WORKFLOW["limits"], "attempts": 1}))
    put("anchorhold/policy/workflows/stand-in-refuse.json", workflow(verify=refuse, limits={**WORKFLOW["limits"], "attempts": 1}))
    put("anchorhold/policy/workflows/stand-in-large.json", workflow(limits={**WORKFLOW["limits"], "attempts": 1, "bundle": "2G"}))
    put("anchorhold/policy/workflows/stand-in-broken.json", workflow(template=7))
    put("systemd/system/anchor-vm@.service", VM)
    for kind in ("run", "import"):
        put(f"systemd/system/anchor-{kind}@.service", UNIT.format(kind=kind))
    put("stand-in/call", CALL, 0o755)
    put("stand-in/forge", FORGE, 0o755)
    put("stand-in/run", RUN, 0o755)
    put("stand-in/import", IMPORT.replace("OK", "true").replace("REASON", "").replace("COMMIT", f'"{COMMIT}"'), 0o755)
    return path


@pytest.fixture(scope="module")
def boot(tmp_path_factory):
    booted = hosting.start_boot(f"check-{os.getpid()}-supervisor", "--fresh", "--etc", make_etc(tmp_path_factory.mktemp("etc")))
    try:
        wait_for(lambda: status(booted).get("ready") and set(status(booted)["enforcers"].values()) == {"ok"}, 30,
                 lambda: booted.journal("-u", "anchor*"))
        yield booted
    finally:
        print(booted.journal("-u", "anchord"))
        booted.stop()


def call(booted, method, parameters=None, *options, check=True, files=()):
    """One varlink call as root; the replies."""
    argv = ["varlinkctl", "call", *options] if not files else ["/etc/stand-in/call"]
    done = booted.run([*argv, API, f"io.anchorhold.Manager.{method}", json.dumps(parameters or {}), *files], check=check)
    replies = [json.loads(line) for line in done.stdout.replace("\x1e", "").splitlines() if line.strip()]
    return done if not check else replies[-1] if "--more" not in options else replies


def status(booted):
    return call(booted, "Status")


def submit(booted, scenario, **more):
    return call(booted, "Submit", {"workflow": "exec", "command": ["/scenario", scenario], "options": {}, **more})["item"]


def show(booted, item):
    return call(booted, "Show", {"item": item})["item"]


def wait_state(booted, item, *states, seconds=30):
    wait_for(lambda: show(booted, item)["state"] in states, seconds, lambda: json.dumps(show(booted, item), indent=1))
    return show(booted, item)


def wait_running(booted, item):
    return wait_state(booted, item, "running")


def units(booted):
    lines = booted.systemctl("list-units", "--all", "--plain", "--no-legend", "anchor-*@*", "anchorhold-runs-r*").stdout
    return [line.split()[0] for line in lines.splitlines()]


def assert_nothing_left(booted):
    wait_for(lambda: not units(booted), 15, lambda: str(units(booted)))
    assert booted.systemctl("--failed", "--no-legend", "--plain").stdout == ""
    slices = booted.run("find /sys/fs/cgroup -type d -name 'anchorhold-runs-r*'").stdout
    assert slices == ""


@pytest.fixture(scope="module")
def seed(tmp_path_factory):
    """A repository of one commit as a seed bundle, and that commit."""
    path = tmp_path_factory.mktemp("seed")
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(path), **{f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}}
    git = lambda *argv: subprocess.run(["git", *argv], cwd=path, env=environment, check=True, stdout=subprocess.PIPE).stdout.decode().strip()
    git("init", "--quiet", ".")
    git("commit", "--quiet", "--allow-empty", "--message=base")
    commit = git("rev-parse", "HEAD")
    git("update-ref", "refs/anchorhold/base", commit)
    git("bundle", "create", "--quiet", "seed.bundle", "refs/anchorhold/base")
    return (path / "seed.bundle").read_bytes(), commit


@pytest.fixture(scope="module")
def submit_repo(boot, seed):
    boot.write("/run/seed.bundle", seed[0])

    def file(scenario, name="stand-in-once", check=True, **more):
        return call(boot, "Submit", {"workflow": name, "task": scenario, "repo": "/somewhere", "base": seed[1], "options": {}, **more},
                    files=["/run/seed.bundle"], check=check)
    return file


def test_exec_to_the_end(boot):
    item = submit(boot, "ok")
    events = [reply["event"] for reply in call(boot, "Follow", {"item": item}, "--more")]
    states = [event["to"] for event in events if event["type"] == "state"]
    assert states == ["submitted", "queued", "leased", "running", "verifying", "in_review", "closed"]
    assert events[-1]["type"] == "end" and events[-1]["state"] == "closed"
    assert [event["seq"] for event in events[:-1]] == list(range(1, len(events)))
    output = [event for event in events if event["type"] == "output"]
    assert output[0]["data"] == "hello \x1b[31mred\n" and output[0]["stream"] == "stdout"

    shown = show(boot, item)
    assert [row["to"] for row in shown["history"]] == states
    assert shown["reason"] == "nothing to review" and shown["requester"] == "uid 0"
    assert shown["runs"][0]["outcome"] == "ok" and shown["runs"][0]["accel"] == "tcg"
    assert_nothing_left(boot)


def test_logs_again_and_from_a_place(boot):
    item = submit(boot, "ok")
    wait_state(boot, item, "closed")
    all_events = [reply["event"] for reply in call(boot, "Logs", {"item": item}, "--more")]
    rest = [reply["event"] for reply in call(boot, "Follow", {"item": item, "from": 4}, "--more")]
    assert [e.get("seq") for e in rest] == [e.get("seq") for e in all_events[3:]]
    run = show(boot, item)["run"]
    of_run = [reply["event"] for reply in call(boot, "Logs", {"item": item, "run": run}, "--more")]
    assert of_run and all(event.get("run") == run for event in of_run)


def test_same_submission_twice_is_two_items(boot):
    first, second = submit(boot, "ok"), submit(boot, "ok")
    assert first != second
    for item in (first, second):
        wait_state(boot, item, "closed")
    assert show(boot, first)["runs"][0]["id"] != show(boot, second)["runs"][0]["id"]


def test_source_makes_duplicates(boot):
    first = submit(boot, "hangs", source="ticket:7")
    second = submit(boot, "ok", source="ticket:7")
    assert wait_state(boot, second, "duplicate")
    call(boot, "Stop", {"item": first})
    wait_state(boot, first, "cancelled")


@pytest.mark.parametrize("scenario, reason", [
    ("fails", "exit status 1"),
    ("dies", r"anchor-run@r\w{12}.service ended without a result: signal 9"),
    ("leaves", "ended without a result: exit status 3"),
])
def test_run_that_fails(boot, scenario, reason):
    shown = wait_state(boot, submit(boot, scenario), "exhausted")
    assert re.search(reason, shown["reason"]), shown["reason"]
    assert re.search(reason, shown["failures"][0]["reason"])
    assert_nothing_left(boot)


def test_stop(boot):
    item = submit(boot, "hangs")
    wait_running(boot, item)
    began = time.monotonic()
    call(boot, "Stop", {"item": item, "reason": "enough \x1b[2J"})
    shown = wait_state(boot, item, "cancelled")
    assert time.monotonic() - began < 5
    assert shown["reason"] == "stopped by uid 0: enough \\x1b[2J"
    refused = call(boot, "Stop", {"item": item}, check=False)
    assert refused.returncode and "Conflict" in refused.stderr
    assert_nothing_left(boot)


def test_stop_all_and_hold(boot):
    running = [submit(boot, "hangs"), submit(boot, "stubborn")]
    for item in running:
        wait_running(boot, item)
    began = time.monotonic()
    try:
        stopped = call(boot, "StopAll", {"hold": True})["stopped"]
        assert time.monotonic() - began < 5
        assert sorted(stopped) == sorted(running)
        assert [show(boot, item)["state"] for item in running] == ["cancelled", "cancelled"]
        assert_nothing_left(boot)

        waiting = submit(boot, "ok")
        time.sleep(1)
        assert show(boot, waiting)["state"] == "queued" and status(boot)["hold"]
    finally:
        call(boot, "Hold", {"on": False})
    wait_state(boot, waiting, "closed")


def test_no_more_runs_than_configured(boot):
    items = [submit(boot, "hangs") for _ in range(3)]
    for item in items[:2]:
        wait_running(boot, item)
    time.sleep(0.5)
    assert show(boot, items[2])["state"] == "queued"
    call(boot, "StopAll", {"hold": False})
    wait_running(boot, items[2])
    call(boot, "Stop", {"item": items[2]})
    wait_state(boot, items[2], "cancelled")


def test_supervisor_killed_in_mid_run(boot):
    """The run goes on without it, and its end is not lost."""
    item = submit(boot, "short")
    wait_running(boot, item)
    boot.run("systemctl kill --signal=KILL anchord.service")
    shown = wait_state(boot, item, "closed")
    assert len(shown["runs"]) == 1 and shown["attempt"] == 1
    assert_nothing_left(boot)


def test_stop_all_is_the_first_thing_asked(boot):
    """An anchord that is just being started knows its runs when it answers."""
    item = submit(boot, "hangs")
    wait_running(boot, item)
    try:
        stopped = boot.run(f"systemctl kill --signal=KILL anchord.service; varlinkctl call {API} io.anchorhold.Manager.StopAll '{{\"hold\": true}}'").stdout
        assert json.loads(stopped)["stopped"] == [item]
        shown = show(boot, item)
        assert shown["state"] == "cancelled" and [run["outcome"] for run in shown["runs"]] == ["stopped"]
        assert_nothing_left(boot)
    finally:
        call(boot, "Hold", {"on": False})


def test_policy_edited_in_mid_run(boot, submit_repo):
    """A run goes on as it began, whatever becomes of anchord, and its result is verified by the steps that held then, as soon as the file can be used again."""
    path = "/etc/anchorhold/policy/workflows/stand-in-once.json"
    before = boot.run(f"cat {path}").stdout
    edited = {**json.loads(before), "verify": {"egress": None, "steps": [{"name": "other", "kind": "check", "argv": ["other"], "timeout": "1min"}]}}
    item = submit_repo("repo-late")["item"]
    wait_running(boot, item)
    try:
        boot.write(path, b"{")
        boot.run("systemctl kill --signal=KILL anchord.service")
        wait_for(lambda: any(note["kind"] == "verify.waits" for note in show(boot, item)["notes"]), 40, lambda: json.dumps(show(boot, item), indent=1))
        assert show(boot, item)["state"] == "verifying"
        boot.write(path, json.dumps(edited).encode())
        shown = wait_state(boot, item, "in_review", "exhausted", seconds=40)
    finally:
        boot.write(path, before.encode())
    assert shown["state"] == "in_review" and shown["attempt"] == 1, shown["reason"]
    work, verify = shown["runs"]
    spec = json.loads(next(line for line in boot.journal("-o", "cat", f"_SYSTEMD_UNIT=anchor-run@{verify['id']}.service").splitlines()
                           if line.startswith("{") and "spec" in line))["spec"]
    assert [step["name"] for step in spec["steps"]] == ["check"] and spec["run"] == verify["id"]
    assert_nothing_left(boot)


def test_run_ends_while_supervisor_is_away(boot):
    item = submit(boot, "hangs")
    run = wait_running(boot, item)["run"]
    with boot.stopped("anchord"):
        boot.systemctl("stop", f"anchor-run@{run}.service")
    shown = wait_state(boot, item, "exhausted")
    assert shown["reason"] == "anchor-run ended while the supervisor was away"
    assert_nothing_left(boot)


def test_unknown_run_is_stopped_at_start(boot):
    boot.run("systemctl start anchor-run@r000000000000.service || true; mkdir -p /run/systemd/system/anchor-import@r000000000001.service.d;"
             "printf '[Service]\\nExecStart=\\nExecStart=/bin/sleep 1000\\n' >/run/systemd/system/anchor-import@r000000000001.service.d/x.conf;"
             "systemctl daemon-reload; systemctl start anchor-import@r000000000001.service")
    assert boot.is_active("anchor-import@r000000000001.service") == "active"
    boot.systemctl("restart", "anchord.service")
    assert_nothing_left(boot)
    boot.run("rm -r /run/systemd/system/anchor-import@r000000000001.service.d; systemctl daemon-reload")


def test_repository_to_review(boot, submit_repo, seed):
    item = submit_repo("repo")["item"]
    shown = wait_state(boot, item, "in_review", "exhausted")
    assert shown["state"] == "in_review", shown["reason"]
    assert shown["result_commit"] == COMMIT and shown["base"] == seed[1]
    work, verify = shown["runs"]
    assert (work["stage"], verify["stage"]) == ("work", "verify") and work["id"] != verify["id"]
    assert shown["evidence"]["run"] == verify["id"] and shown["evidence"]["commit"] == COMMIT
    spec = json.loads(next(line for line in boot.journal("-o", "cat", f"_SYSTEMD_UNIT=anchor-run@{verify['id']}.service").splitlines()
                           if line.startswith("{") and "spec" in line))["spec"]
    assert spec["repository"] == {"base": COMMIT, "ref": "refs/anchorhold/result", "result_ref": "refs/anchorhold/result"}
    assert spec["task"] is None and spec["agent"] is None
    files = boot.run(f"cd /var/lib/anchorhold/items/{item} && cat result.bundle checked.bundle diff && cmp seed.bundle /run/seed.bundle").stdout
    assert files == "result\nchecked\ndifference\n"
    assert_nothing_left(boot)


def test_large_repository_to_review(boot, submit_repo):
    """While a result is being stored anchord dies, and then the unit that sent it: it is stored all the same, once, and nothing half-made is left."""
    item = submit_repo("large", "stand-in-large")["item"]
    run = wait_running(boot, item)["run"]
    folder = f"/var/lib/anchorhold/items/{item}"
    copies = lambda: [line for line in boot.run(f"ls -A {folder}").stdout.split() if line.startswith(".result.bundle")]
    wait_for(lambda: len(copies()) == 1, 30)
    pid = boot.property("anchord.service", "MainPID")
    boot.run("systemctl kill --signal=KILL anchord.service")
    assert len(copies()) == 1, "it had been stored before anchord was killed"
    wait_for(lambda: boot.property("anchord.service", "MainPID") not in ("0", pid) and status(boot)["ready"], 30)
    wait_for(lambda: len(copies()) == 1, 30)
    boot.run(f"systemctl kill --signal=KILL anchor-run@{run}.service")
    wait_for(lambda: not boot.is_active(f"anchor-run@{run}.service") == "active", 30)
    assert len(copies()) == 1, "it had been stored before the unit was killed"
    shown = wait_state(boot, item, "in_review", "exhausted", seconds=120)
    assert (shown["state"], shown["attempt"], len(shown["runs"])) == ("in_review", 1, 2), shown["reason"]
    assert boot.run(f"cd {folder} && stat -c %s result.bundle && ls -A").stdout.split() == [str(1536 << 20), "checked.bundle", "diff", "events.jsonl", "result.bundle", "seed.bundle"]
    records = boot.run(f"journalctl --namespace=anchorhold -o cat ANCHORHOLD_RUN={run} ANCHORHOLD_EVENT=run.started").stdout.splitlines()
    assert len(records) == 1, records
    assert_nothing_left(boot)


@pytest.mark.parametrize("scenario, workflow_name, reason", [
    ("no-result", "stand-in-once", "the run ended without a result: no commit was made"),
    ("too-large", "stand-in-once", "the result is larger than the workflow allows"),
    ("repo", "stand-in-refuse", "verify: make check failed"),
])
def test_result_that_does_not_get_there(boot, submit_repo, scenario, workflow_name, reason):
    shown = wait_state(boot, submit_repo(scenario, workflow_name)["item"], "exhausted", "in_review")
    assert (shown["state"], shown["reason"]) == ("exhausted", reason)
    assert_nothing_left(boot)


def test_import_that_rejects(boot, submit_repo):
    boot.run("sed 's/\"ok\":true,\"reason\":\"\"/\"ok\":false,\"reason\":\"a submodule\"/' /etc/stand-in/import >/run/import && chmod 755 /run/import"
             " && mount --bind /run/import /etc/stand-in/import")
    try:
        shown = wait_state(boot, submit_repo("repo")["item"], "exhausted", "in_review")
        assert (shown["state"], shown["reason"]) == ("exhausted", "import: a submodule")
    finally:
        boot.run("umount /etc/stand-in/import")


def test_attempts_are_bound(boot, submit_repo):
    item = submit_repo("no-result", "stand-in")["item"]
    shown = wait_state(boot, item, "exhausted", seconds=40)
    assert shown["attempt"] == 2 and [run["attempt"] for run in shown["runs"]] == [1, 2]
    assert len(shown["failures"]) == 2


def test_output_is_bounded(boot):
    item = submit(boot, "floods")
    wait_state(boot, item, "closed", seconds=60)
    size = int(boot.run(f"stat -c %s /var/lib/anchorhold/items/{item}/events.jsonl").stdout)
    assert size > 2_000_000      # the exec workflow's limit is larger: all of it is kept


def error_of(done):
    assert done.returncode
    return done.stdout + done.stderr


def test_bad_submissions(boot, submit_repo, seed):
    def refused(parameters, *files):
        return error_of(call(boot, "Submit", {"options": {}, **parameters}, files=files, check=False))

    assert "NoSuchWorkflow" in refused({"workflow": "nosuch"})
    assert "BadInput" in refused({"workflow": "../x"})
    broken = refused({"workflow": "stand-in-broken"})
    assert "BadInput" in broken and "NoSuchWorkflow" not in broken
    assert "BadInput" in refused({"workflow": "exec"})
    assert "BadInput" in refused({"workflow": "exec", "command": []})
    assert "BadInput" in refused({"workflow": "stand-in", "task": "x", "base": seed[1]})
    boot.write("/run/no.bundle", "not a bundle")
    assert "BadInput" in refused({"workflow": "stand-in", "task": "x", "base": seed[1]}, "/run/no.bundle")
    assert "BadInput" in refused({"workflow": "stand-in", "task": "x", "base": "f" * 40}, "/run/seed.bundle")
    assert "BadInput" in refused({"workflow": "stand-in", "task": "x", "base": seed[1]}, "/dev/zero")
    assert "NoSuchItem" in error_of(call(boot, "Show", {"item": "i000000000000"}, check=False))
    assert "NoSuchItem" in error_of(call(boot, "Show", {"item": "../../etc"}, check=False))
    assert "BadInput" in error_of(call(boot, "List", {"limit": 0}, "--more", check=False))
    items = boot.run("ls /var/lib/anchorhold/items").stdout.split()
    listed = [reply["item"]["id"] for reply in call(boot, "List", {"limit": 10000}, "--more")]
    assert sorted(items) == sorted(listed)      # nothing refused left files behind


def test_run_api_is_for_runs(boot):
    for method in ("GetSpec", "GetImport", "Finish"):
        refused = boot.run(["varlinkctl", "call", "/run/anchorhold/run-api.sock", f"io.anchorhold.Run.{method}", "{}"], check=False)
        assert refused.returncode, method
    forged = boot.run("systemd-run --wait --pipe --unit=anchor-run@r00000000000z.service varlinkctl call /run/anchorhold/run-api.sock"
                      " io.anchorhold.Run.GetSpec '{}'", check=False)
    assert forged.returncode and '"spec"' not in forged.stdout


def test_forged_credential_request(boot):
    """The name that asks is self-declared: only PID 1, and only for the process of that very unit, gets a byte."""
    item = submit(boot, "hangs")
    run = wait_running(boot, item)["run"]
    unit = f"anchor-vm@{run}.service"
    try:
        for who in ("root", "anchorhold", "anchor-egress"):
            for socket, name in (("spec", "vm"), ("secret", "guest"), ("secret", "inject")):
                got = boot.run(["/etc/stand-in/forge", unit, name, f"/run/anchorhold/{socket}.sock"], user=who).stdout.strip()
                assert got == ("0 bytes" if who == "root" else "no connection"), (who, socket, got)
        boot.systemctl("start", unit)                    # control: the unit itself
        journal = boot.journal("-o", "cat", f"_SYSTEMD_UNIT={unit}")
        assert '"template":"base"' in journal and '"accel":"tcg"' in journal
    finally:
        call(boot, "Stop", {"item": item})
    wait_state(boot, item, "cancelled")
    boot.systemctl("start", unit, check=False)           # no run of that id any more: nothing, also for the unit itself
    journal = boot.journal("-o", "cat", f"_SYSTEMD_UNIT={unit}")
    assert journal.count('"template"') == 1
    boot.systemctl("stop", unit, f"anchorhold-runs-{run}.slice", check=False)
    boot.systemctl("reset-failed", unit, check=False)


def test_enforcer_lost_and_back(boot):
    item = submit(boot, "hangs")
    wait_running(boot, item)
    with boot.stopped("anchor-egressd"):
        wait_for(lambda: status(boot)["enforcers"]["egressd"] != "ok", 15)
        shown = show(boot, item)
        assert shown["state"] == "running"
        assert any(note["kind"] == "enforcer.lost" and "egressd" in note["text"] for note in shown["notes"])
        waiting = submit(boot, "ok")
        time.sleep(1.5)
        assert show(boot, waiting)["state"] == "queued"
    wait_state(boot, waiting, "closed")
    assert any(note["kind"] == "enforcer.back" for note in show(boot, item)["notes"])
    call(boot, "Stop", {"item": item})
    wait_state(boot, item, "cancelled")


def test_nothing_starts_without_audit(boot):
    with boot.stopped("anchor-auditd"):
        wait_for(lambda: status(boot)["enforcers"]["auditd"] != "ok", 15)
        item = submit(boot, "ok")
        time.sleep(1.5)
        assert show(boot, item)["state"] == "queued" and not units(boot)
        assert status(boot)["audit_waiting"] > 0
    wait_state(boot, item, "closed")
    wait_for(lambda: status(boot)["audit_waiting"] == 0)


def test_every_transition_is_in_the_audit_log(boot):
    item = submit(boot, "ok")
    wait_state(boot, item, "closed")
    wait_for(lambda: status(boot)["audit_waiting"] == 0)
    lines = boot.run(f"journalctl --namespace=anchorhold -o json ANCHORHOLD_ITEM={item}").stdout.splitlines()
    records = [json.loads(line) for line in lines]
    recorded = [json.loads(r["ANCHORHOLD_DATA"])["to"] for r in records if r["ANCHORHOLD_EVENT"] == "item.transition"]
    assert recorded == [row["to"] for row in show(boot, item)["history"]][1:]
    events = [r["ANCHORHOLD_EVENT"] for r in records]
    for event in ("item.submitted", "run.leased", "run.started", "run.finished"):
        assert events.count(event) == 1, events


def test_supervisor_keeps_its_size(boot):
    pid = boot.property("anchord.service", "MainPID")
    measure = lambda: (int(boot.run(f"grep VmRSS /proc/{pid}/status").stdout.split()[1]), len(boot.run(f"ls /proc/{pid}/fd").stdout.split()))
    submit_and_wait = lambda: wait_state(boot, submit(boot, "ok"), "closed")
    for _ in range(16):         # opens its ways to auditd, one by one
        submit_and_wait()
    before = measure()
    for _ in range(8):
        submit_and_wait()
    after = measure()
    assert after[0] <= before[0] * 1.1 + 512 and after[1] <= before[1] + 2
