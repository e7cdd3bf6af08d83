# SPDX-License-Identifier: LGPL-2.1-or-later
"""Space: below the reserve nothing is leased, with numbers; what ended items left is pruned, and whoever asks for it is told; a vacuumed audit log verifies."""

import json
import os

import pytest

import host as hosting
from waiting import wait_for

COMMIT = "cd /workspace/repo && echo more >>README.md && git -c user.name=a -c user.email=a@example.org commit -qam more"


@pytest.fixture(scope="module")
def host(tmp_path_factory, repository):
    """A boot of its own: its limits change all the time. Its agents are scripts."""
    etc = hosting.make_etc(tmp_path_factory.mktemp("etc"), {"accel": "tcg"}, ["workflows/script-agent.json", "harness/test-script.json"])
    with hosting.boot_of_its_own(f"check-{os.getpid()}-space", "--fresh", "--etc", etc) as booted:
        booted.run("install -d -o operator -g operator /var/home/operator")
        booted.copy_in(repository, hosting.REPOSITORY)
        wait_for(lambda: booted.status().get("ready"))
        yield booted


def limit(host, **space):
    """From here on these are the limits; what is not named is the vendor's."""
    host.write("/etc/anchorhold/.host.json", json.dumps({"accel": "tcg", "space": space}))
    host.run("mv /etc/anchorhold/.host.json /etc/anchorhold/host.json")                    # at once: anchord reads it any time


def events(host, name):
    wait_for(lambda: host.status()["audit_waiting"] == 0)
    lines = host.run(["journalctl", "--namespace=anchorhold", "-b", "-o", "json", f"ANCHORHOLD_EVENT={name}"]).stdout.splitlines()
    return [(json.loads(line)["ANCHORHOLD_ACTOR"], json.loads(json.loads(line)["ANCHORHOLD_DATA"])) for line in lines]


def submit(host, *command):
    return host.anchorctl("submit", "--workflow", "exec", "--", *command).stdout.strip()


def files(host, item):
    return set(host.run(f"ls /var/lib/anchorhold/items/{item}", check=False).stdout.split())


@pytest.fixture(scope="module")
def reviewed(host):
    """An item that is in review: it has a seed, a result and a diff, and somebody is still to look at them."""
    host.anchorctl("run", "--workflow", "script-agent", "--repo", hosting.REPOSITORY, "--base", "main", "--task", COMMIT, timeout=300)
    item = host.items()[0]
    assert item["state"] == "in_review"
    return item["id"]


@pytest.fixture(scope="module")
def ended(host, reviewed):
    """One that ended: it was cancelled, and has a seed and a log."""
    host.anchorctl("stop", "--all", "--hold")
    item = host.anchorctl("submit", "--workflow", "script-agent", "--repo", hosting.REPOSITORY, "--base", "main", "--task", "true").stdout.strip()
    host.anchorctl("stop", item)
    host.anchorctl("release")
    assert host.show(item)["state"] == "cancelled" and files(host, item) == {"seed.bundle", "events.jsonl"}
    return item


# ---- the reserve ----

def test_below_the_reserve_nothing_is_leased(host):
    assert not host.status()["space"]["low"] and host.exec_run("true").returncode == 0      # the control, before
    limit(host, reserve={"size": "1000T"})
    items = [submit(host, "true"), submit(host, "true")]
    wait_for(lambda: host.status()["space"]["low"])
    space = host.status()["space"]
    assert space["reserve"] == 1000 << 40 and 0 < space["free"] < space["total"] < space["reserve"]

    free = f"{space['total'] >> 20} MiB are free in /var/lib/anchorhold/"
    said = {"show": host.anchorctl("show", items[1]).stdout, "list": host.anchorctl("list").stdout, "doctor": host.anchorctl("doctor", check=False).stdout}
    for who, text in said.items():
        assert free in text and f"{1000 << 20} are kept in reserve" in text, who
    assert "bad" in next(line for line in said["doctor"].splitlines() if " disk " in line)
    refused = host.anchorctl("submit", "--workflow", "script-agent", "--repo", hosting.REPOSITORY, "--base", "main", "--task", "true", check=False)
    assert refused.returncode == 1 and "no room for the seed bundle" in refused.stderr

    # looked at every two seconds, and by two lives of anchord: recorded once
    host.systemctl("restart", "anchord.service")
    wait_for(lambda: host.status().get("ready") and host.status()["space"]["low"])
    assert {host.show(item)["state"] for item in items} == {"queued"}
    (actor, told), = events(host, "space.low")
    assert told["reserve"] == 1000 << 40 and 0 < told["free"] < told["total"]
    assert events(host, "space.back") == []

    limit(host)
    wait_for(lambda: {host.show(item)["state"] for item in items} == {"closed"}, 120)
    assert len(events(host, "space.low")) == len(events(host, "space.back")) == 1
    assert "space" not in host.show(items[0])


def test_disks_of_microvms_have_a_quota(host):
    limit(host, scratch={"size": "6G"})                                                # a disk of workflow "exec" has 4 GiB
    first, second = submit(host, "sleep", "600"), submit(host, "true")
    wait_for(lambda: host.show(first)["state"] == "running")
    wait_for(lambda: "may take 6144 MiB" in host.show(second).get("space", ""))
    assert host.show(second)["state"] == "queued"
    limit(host, scratch={"size": "8G"})
    wait_for(lambda: host.show(second)["state"] == "closed", 120)
    assert host.show(first)["state"] == "running"
    host.anchorctl("stop", first)
    limit(host)


# ---- a file that nobody understands ----

@pytest.mark.parametrize("text", ['{"accel": "tcg", "space": {"bundles": {}},}', '{"accel": "tcg", "max_runs": 0}', '{"accel": "tcg", "spaces": {}}'],
                         ids=["no JSON", "out of range", "unknown member"])
def test_host_file_that_cannot_be_used(host, ended, text):
    """Nobody knows then what the host allows and keeps: nothing is leased or pruned, and everybody who asks is told why."""
    before = files(host, ended)
    host.anchorctl("stop", "--all", "--hold")
    item = submit(host, "true")
    try:
        host.write("/etc/anchorhold/.host.json", text)
        host.run("mv /etc/anchorhold/.host.json /etc/anchorhold/host.json")
        host.anchorctl("release")                                       # leased by what was read before; what the run reads then puts it back
        reason = wait_for(lambda: host.status()["host_problem"])
        wait_for(lambda: host.show(item)["state"] == "queued")
        assert reason in host.anchorctl("show", item).stdout and f"host.json cannot be used: {reason}" in host.anchorctl("list").stdout
        assert "bad" in next(line for line in host.anchorctl("doctor", check=False).stdout.splitlines() if " host.json " in line)
        refused = host.anchorctl("prune", "--age=0s", check=False)
        assert refused.returncode == 5 and "host.json cannot be used" in refused.stderr, refused
        assert host.show(item)["state"] == "queued" and files(host, ended) == before
    finally:
        limit(host)
    wait_for(lambda: host.show(item)["state"] == "closed", 120)
    assert host.status()["host_problem"] is None and "would be pruned" in host.anchorctl("prune", "--dry-run", "--age=0s").stdout


# ---- pruning ----

def test_dry_run_removes_nothing(host, reviewed, ended):
    told = json.loads(host.anchorctl("prune", "--dry-run", "--json=short").stdout)
    assert told["items"] == [] and {part["part"]: part["age_s"] for part in told["parts"]} == {"bundles": 90 * 86400, "logs": 365 * 86400}
    text = host.anchorctl("prune", "--dry-run", "--age=0s").stdout
    assert ended in text and "would be pruned" in text and reviewed not in text
    assert files(host, ended) == {"seed.bundle", "events.jsonl"}
    assert events(host, "space.pruned") == []


def test_pruned_by_age_and_what_is_in_review_stays(host, reviewed, ended):
    before = files(host, reviewed)
    assert before >= {"seed.bundle", "checked.bundle", "diff", "events.jsonl"}
    limit(host, bundles={"age": "1s"}, logs={})
    wait_for(lambda: json.loads(host.anchorctl("prune", "--dry-run", "--json=short").stdout)["items"])
    told = json.loads(host.anchorctl("prune", "--json=short").stdout)
    assert [(entry["item"], entry["part"], entry["why"]) for entry in told["items"]] == [(ended, "bundles", "age")]
    assert files(host, ended) == {"events.jsonl"} and files(host, reviewed) == before

    gone = host.anchorctl("result", ended, "--bundle=-", check=False)
    assert gone.returncode == 5 and f"the bundles of {ended} were pruned on 20" in gone.stderr
    assert "Pruned: bundles on 20" in host.anchorctl("result", ended).stdout and "Pruned: bundles on 20" in host.anchorctl("show", ended).stdout
    assert host.anchorctl("logs", ended).returncode == 0
    assert host.anchorctl("result", reviewed, "--diff").stdout.count("+more") == 1        # the control
    (actor, record), = events(host, "space.pruned")
    assert actor == f"uid {host.run('id -u operator').stdout.strip()}"
    assert record["bundles"]["items"] == 1 and record["bundles"]["bytes"] > 0 and record["logs"] == {"items": 0, "bytes": 0}
    assert record["items"] == [[ended, "bundles", "age"]]


def test_pruned_by_time_over_the_quota(host, reviewed, ended):
    """By anchord itself, soon after its start and then once an hour."""
    logs = [item["id"] for item in host.items() if "events.jsonl" in files(host, item["id"])]
    assert len(logs) > 3 and ended in logs
    before = files(host, reviewed)
    limit(host, bundles={}, logs={"size": "1B"})
    host.systemctl("restart", "anchord.service")
    wait_for(lambda: [item for item in logs if files(host, item)] == [reviewed], 120)
    assert files(host, reviewed) == before
    actor, record = events(host, "space.pruned")[-1]
    assert actor == "anchord" and record["logs"]["items"] == len(logs) - 1 and {entry[2] for entry in record["items"]} == {"quota"}
    gone = host.anchorctl("logs", ended, check=False)
    assert gone.returncode == 5 and f"the logs of {ended} were pruned on 20" in gone.stderr
    assert host.run(f"ls /var/lib/anchorhold/items/{ended}", check=False).returncode != 0
    limit(host)
    assert host.exec_run("true").returncode == 0
    host.run(["anchorctl", "audit", "verify"])


def test_only_operators_prune(host):
    refused = host.anchorctl("prune", "--age=0s", user="stranger", check=False)
    assert refused.returncode == 3
    assert host.anchorctl("prune", "--age=soon", check=False).returncode == 2


# ---- the audit log ----

def test_a_vacuumed_log_verifies(host):
    """Its beginning goes, as journald's limits would have it; what is left verifies, at once and by what was signed."""
    host.run(["anchorctl", "audit", "verify"])
    host.run("journalctl --namespace=anchorhold --rotate")
    assert host.exec_run("true").returncode == 0
    wait_for(lambda: host.status()["audit_waiting"] == 0)
    host.run("journalctl --namespace=anchorhold --rotate && journalctl --namespace=anchorhold --vacuum-files=2")
    said = host.run(["anchorctl", "audit", "verify"]).stdout
    assert "vacuumed, as a checkpoint confirms" in said
    told = json.loads(host.run(["anchorctl", "audit", "verify", "--json=short"]).stdout)
    assert told["first_seq"] > 1 and told["vacuumed"]
    host.systemctl("restart", "anchor-auditd.service")
    assert host.exec_run("true").returncode == 0
    assert json.loads(host.run(["anchorctl", "audit", "verify", "--json=short"]).stdout)["first_seq"] == told["first_seq"]
    # the control: an export of it that begins later than what was signed
    host.run("anchorctl audit export --quiet >/run/export")
    host.run(["anchorctl", "audit", "verify", "--file", "/run/export"])
    lines = host.run("cat /run/export").stdout.split("\n\n")
    host.write("/run/cut", "\n\n".join(entry for entry in lines if f"\nANCHORHOLD_SEQ={told['first_seq']}\n" not in entry))
    cut = host.run(["anchorctl", "audit", "verify", "--file", "/run/cut"], check=False)
    assert cut.returncode == 1 and f"began with record {told['first_seq']}" in cut.stdout
