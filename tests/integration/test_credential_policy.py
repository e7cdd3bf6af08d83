# SPDX-License-Identifier: LGPL-2.1-or-later
"""anchorctl credential: what an operator sees and may do, and how a change reaches a run that is under way."""

import json
import re
import time

import pytest
import world as world_module

from conftest import TOP
from liverun import LiveRun
from waiting import wait_for

REAL = world_module.REAL_KEY
SECOND = REAL.replace("REALKEY", "NEXTKEY")
THIRD = REAL.replace("REALKEY", "LASTKEY")
FOLDER = "/var/lib/anchorhold/credentials"

# Waits for a word on what to do next, one file a word: /go.N. "call" is a request on a connection of its own; "kept" goes on with one connection.
CLIENT = r"""
import http.client, os, ssl, time
key, headers = os.environ["ANTHROPIC_API_KEY"], {}
headers = {"x-api-key": key}
def connect(): return http.client.HTTPSConnection("api.anthropic.com", timeout=20)
def ask(c):
    try:
        c.request("GET", "/v1/models", headers=headers); r = c.getresponse(); r.read(); return str(r.status)
    except (OSError, http.client.HTTPException) as e: return "cut"
kept = connect(); print("kept", ask(kept), flush=True)
for i in range(600):
    time.sleep(0.25)
    print("kept", ask(kept) if kept.sock else "closed", flush=True)
    if not kept.sock: kept.close(); kept = connect(); kept.connect()
    print("call", ask(connect()), flush=True)
"""


def credential(host, *args, user=None, check=True, **options):
    command = ["anchorctl", "credential", *args]
    return host.run(command, user=user, check=check, **options)


def listed(host, name, user="operator"):
    entries = json.loads(credential(host, "list", "--json=short", user=user).stdout)
    return next((entry for entry in entries if entry["name"] == name), None)


def events(host, event):
    lines = host.run(["journalctl", "--namespace=anchorhold", "--no-pager", "-o", "json", f"ANCHORHOLD_EVENT={event}"]).stdout.splitlines()
    return [json.loads(line) for line in lines]


def test_list_says_what_there_is_and_never_a_value(host):
    entry = listed(host, "anthropic")
    assert entry["value"] and entry["kind"] == "static" and entry["hosts"] == ["api.anthropic.com"] and entry["ports"] == [443]
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry["set"])
    assert {"code-fix", "exec-model"} <= set(entry["workflows"]) and entry["items"] == []
    table = credential(host, "list", user="operator").stdout
    assert re.search(r"^anthropic +static +yes +20\S+Z +api\.anthropic\.com +\S", table, re.M)
    assert REAL not in table and REAL not in json.dumps(entry)


def test_only_root_changes_one(host):
    for verb in ("add", "rotate"):
        done = credential(host, verb, "anthropic", user="operator", check=False, input=SECOND)
        assert (done.returncode, done.stderr) == (3, "Only root may change credentials.\n")
    assert credential(host, "remove", "anthropic", user="operator", check=False).returncode == 3
    assert host.run(["cat", f"{FOLDER}/anthropic"], user="operator", check=False).returncode == 1


@pytest.mark.parametrize("args, value, status, text", [
    (["add", "anthropic"], SECOND, 5, '"anchorctl credential rotate anthropic" replaces it'),
    (["rotate", "nobody"], SECOND, 4, '"anchorctl credential add nobody" adds one'),
    (["remove", "nobody"], "", 4, "There is no value for nobody."),
    (["add", "No-body"], SECOND, 2, "is no credential's name"),
    (["add", "../x"], SECOND, 2, "is no credential's name"),
    (["add", "nobody", "VALUE"], "", 2, "one operand too many"),
    (["add", "nobody"], "", 2, "it is empty"),
    (["add", "nobody"], "short\n", 2, "shorter than 8 bytes"),
    (["add", "nobody"], "two words and more\n", 2, "no visible ASCII character"),
    (["add", "nobody"], "x" * 8193, 2, "longer than 8192 bytes"),
    (["add", "nobody", "--from=/nonexistent"], "", 4, "No such file"),
])
def test_wrong_use_changes_nothing(host, args, value, status, text):
    before = host.run(f"ls -l --time-style=full-iso {FOLDER}").stdout
    done = credential(host, *args, check=False, input=value)
    assert done.returncode == status and text in done.stderr
    assert host.run(f"ls -l --time-style=full-iso {FOLDER}").stdout == before


def test_add_and_remove(host):
    """The file: root's, encrypted, called as PID 1 wants it; the record before it; and what is left of it afterwards."""
    host.write("/run/value", "a-value-of-a-test\n", mode=0o600)
    host.write(f"{FOLDER}/.#left-by-a-crash", "junk")               # what a crash in the middle may leave is no trouble
    done = credential(host, "add", "test-only", "--from=/run/value")
    assert "test-only is added." in done.stderr and "credentials/test-only.json" in done.stderr
    assert host.run(f"stat -c '%U %a' {FOLDER}/test-only").stdout == "root 600\n"
    assert "a-value-of-a-test" not in host.run(f"cat {FOLDER}/test-only; base64 -d <{FOLDER}/test-only", check=False, text=False).stdout.decode("latin-1")
    assert host.run(f"systemd-creds decrypt --name=cred_test-only {FOLDER}/test-only -").stdout == "a-value-of-a-test"
    entry = listed(host, "test-only")
    assert entry["value"] and entry["hosts"] is None and entry["workflows"] == []
    assert host.is_active("anchor-secretd.service") == "active"

    done = credential(host, "remove", "test-only")
    assert "test-only is removed." in done.stderr
    assert listed(host, "test-only") is None
    for event in ("credential.added", "credential.removed"):
        record = events(host, event)[-1]
        assert record["ANCHORHOLD_ACTOR"] == "uid 0" and json.loads(record["ANCHORHOLD_DATA"])["credential"] == "test-only"
    assert "a-value-of-a-test" not in host.journal("--namespace=*", "-o", "export", "--all")
    host.run(f"rm {FOLDER}/.#left-by-a-crash /run/value")


def test_without_a_record_nothing_changes(host):
    with host.stopped("anchor-auditd"):
        done = credential(host, "add", "test-only", check=False, input="a-value-of-a-test")
    assert done.returncode == 1 and "Nothing is changed, because the audit log does not take the record" in done.stderr
    assert listed(host, "test-only") is None
    credential(host, "add", "test-only", input="a-value-of-a-test")      # the control
    credential(host, "remove", "test-only")


@pytest.fixture(scope="module")
def live(host, world):
    world.forget_logs()
    run = LiveRun(host, "exec-model", f"cat >/c.py <<'X'\n{CLIENT}\nX\nexec python3 /c.py")
    run.await_line("call 200")
    yield run
    host.anchorctl("stop", "--all", check=False)
    run.rest()


def keys(world):
    return [entry["x_api_key"] for entry in world.log("provider") if entry["path"] == "/v1/models"]


def test_a_run_is_a_user(host, live):
    assert host.items()[0]["id"] in listed(host, "anthropic")["items"]
    assert "exec-model" in credential(host, "list", user="operator").stdout and "(1 running)" in credential(host, "list", user="operator").stdout


def test_rotated(host, world, live):
    """From when the command returned, nothing but the new value arrives; the open connection was cut; nobody restarted."""
    inject = host.property(f"anchor-inject@{live.run}.service", "MainPID")
    assert set(keys(world)) == {REAL}
    done = credential(host, "rotate", "anthropic", input=SECOND + "\n")
    world.forget_logs()
    assert "1 run uses the new value from now on." in done.stderr
    live.await_line("kept cut")
    live.await_line("call 200")
    live.await_line("kept 200")
    assert set(keys(world)) == {SECOND}
    assert host.property(f"anchor-inject@{live.run}.service", "MainPID") == inject
    assert json.loads(events(host, "credential.rotated")[-1]["ANCHORHOLD_DATA"])["credential"] == "anthropic"


def test_a_fresh_inject_has_the_new_value(host, world, live):
    host.systemctl("kill", "--signal=KILL", f"anchor-inject@{live.run}.service")
    live.await_line("kept cut")
    live.await_line("call 200")
    live.await_line("call 200")
    assert set(keys(world)) == {SECOND}


# In place of anchor-inject@: PID 1 has given it its credential, and it does not go on before somebody writes a line.
HELD = """[Service]
ExecStart=
ExecStart=/bin/sh -c 'read -r line </etc/anchorhold/hold; exec /usr/libexec/anchorhold/anchor-inject %i'
"""


def test_rotate_waits_for_an_inject_that_starts(host, world, live):
    """It has been given the value of before, and is not listening yet; when the command returns it has the new one all the same."""
    unit = f"anchor-inject@{live.run}.service"
    host.run(f"mkfifo /etc/anchorhold/hold; mkdir -p /run/systemd/system/{unit}.d")
    host.write(f"/run/systemd/system/{unit}.d/hold.conf", HELD)
    host.systemctl("daemon-reload")
    try:
        host.systemctl("kill", "--signal=KILL", unit)
        wait_for(lambda: host.property(unit, "SubState") == "start" and host.run(["cat", f"/proc/{host.property(unit, 'MainPID')}/comm"], check=False).stdout == "sh\n")
        before = host.property("anchor-secretd.service", "InvocationID")
        host.write("/run/value", THIRD, mode=0o600)
        rotating = host.popen("anchorctl credential rotate anthropic --from=/run/value", stdout=-1, stderr=-2, text=True)
        wait_for(lambda: host.property("anchor-secretd.service", "InvocationID") != before and host.is_active("anchor-secretd.service") == "active")
        end = time.monotonic() + 2
        while time.monotonic() < end:
            assert rotating.poll() is None, rotating.communicate()[0]
            time.sleep(0.1)
        host.run("echo >/etc/anchorhold/hold")
        out, _ = rotating.communicate(timeout=30)
    finally:
        host.run(f"rm -rf /run/systemd/system/{unit}.d /etc/anchorhold/hold /run/value")
        host.systemctl("daemon-reload")
    assert rotating.returncode == 0 and "1 run uses the new value from now on." in out
    world.forget_logs()
    wait_for(lambda: len(keys(world)) > 2)
    assert set(keys(world)) == {THIRD}


def test_removed_and_added_again(host, world, live):
    done = credential(host, "remove", "anthropic")
    world.forget_logs()
    assert "1 run lost it." in done.stderr
    live.await_line("call 403")
    live.await_line("call 403")
    assert keys(world) == []
    refused = host.exec_run("true", workflow="exec-model")
    assert refused.returncode != 0 and "anchorctl credential add anthropic" in refused.stdout + refused.stderr

    credential(host, "add", "anthropic", input=REAL)
    live.await_line("call 200")
    assert set(keys(world)) == {REAL}


def test_changes_disturb_no_run(host, live):
    """One change after the other, more than a unit may usually start in a minute; runs are leased and released meanwhile."""
    host.write("/run/value", REAL, mode=0o600)
    rotating = host.popen("n=0; while [ ! -e /run/enough ] || [ $n -le 20 ]; do anchorctl credential rotate --quiet anthropic --from=/run/value || exit 1; "
                          "n=$((n + 1)); done; echo $n", stdout=-1, stderr=-2, text=True)
    try:
        for _ in range(2):
            done = host.exec_run("true", workflow="exec-model")
            assert done.returncode == 0, done.stdout + done.stderr       # of one attempt
    finally:
        host.write("/run/enough", "")
        out, _ = rotating.communicate(timeout=90)
        host.run("rm /run/enough /run/value")
    assert rotating.returncode == 0, out
    assert int(out.splitlines()[-1]) > 20
    live.await_line("call 200")


def test_a_run_may_have_much(host, world):
    """What PID 1 gives its inject is read whole, also if that is more than a credential ever is; what would be more than PID 1 gives is refused."""
    policy = "/etc/anchorhold/policy"
    workflow = json.loads((TOP / "tests/integration/policy/workflows/exec-model.json").read_text())
    second = json.loads((TOP / "tests/integration/policy/credentials/test-second.json").read_text())
    ask = 'curl -sS -o /dev/null -w "status=%{http_code}" -H "x-api-key: $ANTHROPIC_API_KEY" https://api.anthropic.com/v1/models'
    host.write(f"{policy}/workflows/exec-much.json", json.dumps({**workflow, "credentials": ["anthropic", "test-much"]}))
    try:
        for size in (300_000, 1_030_000):
            host.write(f"{policy}/credentials/test-much.json", json.dumps({**second, "description": "x" * size}))
            if size < 1_000_000:
                credential(host, "add", "test-much", input="a-value-of-a-test")
            world.forget_logs()
            done = host.exec_run(ask, workflow="exec-much")
            if size < 1_000_000:
                assert "status=200" in done.stdout, done.stdout + done.stderr
                assert set(keys(world)) == {REAL}
            else:
                assert done.returncode != 0 and "workflow exec-much: its credentials" in done.stdout + done.stderr
    finally:
        credential(host, "remove", "--quiet", "test-much", check=False)
        host.run(f"rm -f {policy}/workflows/exec-much.json {policy}/credentials/test-much.json")


def test_values_are_in_no_record(host, live):
    everything = host.run("journalctl --no-pager --namespace='*' -o export --all; find /var/lib/anchorhold -type f -exec cat {} +",
                          text=False, timeout=120).stdout
    assert not any(value.encode() in everything for value in (REAL, SECOND, THIRD))
    assert b"credential.rotated" in everything                       # the control: what was looked through has the change
