# SPDX-License-Identifier: LGPL-2.1-or-later
"""The agreement check: the same probes to each layer of a run's enforcement, before it begins and while it lasts.

Each kind of damage is done to a live run, by root; the run must end for that reason. The control is the run itself, which went on
for several rounds before.
"""

import json
import pathlib
import re
import time

import pytest

import frames
from inside import reach, unix
from liverun import LiveRun
from waiting import wait_for

PROBES = {"metadata", "loopback", "host-address", "unlisted-name", "unlisted-port", "allowed-control"}
LAYERS = {"guest-network", "cgroup", "policy"}


def mismatches(host, run):
    lines = host.run(["journalctl", "--namespace=anchorhold", "-o", "json", "--no-pager", f"ANCHORHOLD_RUN={run}",
                      "ANCHORHOLD_EVENT=enforcement.mismatch"], check=False).stdout.splitlines()
    return [json.loads(json.loads(line)["ANCHORHOLD_DATA"]) for line in lines if line.startswith("{")]


@pytest.fixture
def live(host):
    run = LiveRun(host, "exec-net", "echo up; sleep 600")
    run.await_line("up")
    yield run
    host.anchorctl("stop", "--all", check=False)
    run.rest()


def in_netns(host, run, command):
    return host.run(f"ip netns exec anchor-{run} {command}")


DAMAGE = {
    "rules flushed": ("nft flush ruleset", "missing: "),
    "rule added": ("nft insert rule inet anchorhold guest accept", "there is: rule "),
    "another table": ("nft 'add table ip x; add chain ip x c { type filter hook prerouting priority -300; }'", "there is: table "),
    "table asleep": ("nft 'add table inet anchorhold { flags dormant; }'", "missing: table "),
    "route added": ("ip route add 192.0.2.0/24 via 10.255.255.2", "route family 2 to 24"),
    "device added": ("ip link add up0 type veth peer name up1", "there is: link "),
    "forwarding": ("sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'", "ip_forward 0"),
}


def assert_halves_apart(host, live):
    """Who may write grants reads nothing of a run; who reads something of it has no access to a map: neither by name nor, with CAP_SYS_ADMIN, by number."""
    probe, check = live.pid("anchor-probe"), live.pid("anchor-check")
    status = pathlib.Path(f"/proc/{probe}/status").read_text()
    assert re.search(r"^CapEff:\s+0+$", status, re.M) and re.search(r"^CapBnd:\s+0+$", status, re.M)
    assert not re.search(r"^Uid:\s+0\s", status, re.M)
    root = pathlib.Path(f"/proc/{probe}/root")
    assert (root / "run/anchorhold/maps/grants").exists()
    assert {p.name for p in (root / "run").iterdir()} == {"anchorhold", "anchorhold-probe", "systemd"}
    assert {p.name for p in (root / "run/anchorhold").iterdir()} == {"maps"}
    assert [p.name for p in (root / "run/anchorhold-probe").iterdir()] == [live.run]
    assert not list((root / "sys/fs/bpf").iterdir())
    present = [unix(path) for path in host.run("find /run -type s", check=False).stdout.split() if path != "/run/systemd/notify"]
    assert len(present) > 10 and set(reach(probe, present)) <= {"ENOENT", "EACCES"}

    root = pathlib.Path(f"/proc/{check}/root")
    assert (root / f"run/netns/anchor-{live.run}").exists() and (root / f"run/anchorhold-probe/{live.run}/result").exists()
    assert not (root / "run/anchorhold/maps/grants").exists() and not list((root / "sys/fs/bpf").iterdir())
    assert f"anchor-probe@{live.run}.service" in host.property(f"anchor-check@{live.run}.service", "BindsTo")


def test_a_run_under_way_agrees_and_each_damage_ends_it(host, live):
    """One run, which goes on for three rounds; then its rules go, and it goes."""
    unit = f"anchor-check@{live.run}.service"
    since = time.monotonic()
    while time.monotonic() < since + 12:
        assert host.is_active(unit) == "active"
        time.sleep(1)
    assert not mismatches(host, live.run)
    assert host.is_active(f"anchor-run@{live.run}.service") == "active"
    assert_halves_apart(host, live)

    item = host.items()[0]["id"]
    in_netns(host, live.run, DAMAGE["rules flushed"][0])
    since = time.monotonic()
    wait_for(lambda: host.show(item)["state"] not in ("running", "leased"), 15, explain=lambda: host.show(item))
    assert time.monotonic() - since < 15
    shown = host.show(item)
    assert "enforcement.mismatch" in shown["reason"] and "nftables" in shown["reason"], shown["reason"]
    found = mismatches(host, live.run)
    assert len(found) == 1 and "nftables" in found[0]["reason"]
    tried = {(p["layer"], p["probe"]): p["result"] for p in found[0]["probes"]}
    assert tried[("cgroup", "allowed-control")] == "allowed" and tried[("cgroup", "metadata")] == "denied"


CGROUP = "/sys/fs/cgroup/anchorhold.slice/anchorhold-runs.slice"
PROGRAMS = "/sys/fs/bpf/anchorhold/prog"
# What a process below the slice may connect to is nobody's question any more; what it sends still is, so that nothing leaves.
CONNECTS_FREELY = "\n".join(f"bpftool cgroup detach {CGROUP} {hook} pinned {PROGRAMS}/{program}" for hook, program in
                            (("cgroup_inet4_connect", "connect4"), ("cgroup_inet6_connect", "connect6")))


def put_programs_back(host):
    host.run("systemctl stop anchorhold-runs.slice; systemctl restart anchor-bpf.service; systemctl start anchor-warden.service")


def test_a_layer_that_lets_through_ends_a_run_under_way(host, live):
    """The programs at the run's cgroup alone: the other two layers deny as before, so that it is their disagreement that is found."""
    [item] = [entry["id"] for entry in host.items() if host.show(entry["id"]).get("run") == live.run]
    assert not mismatches(host, live.run)
    try:
        host.run(CONNECTS_FREELY)
        wait_for(lambda: host.show(item)["state"] not in ("running", "leased"), 15, explain=lambda: host.show(item))
        [found] = mismatches(host, live.run)
        assert found["reason"] == "layer cgroup: metadata is allowed"
        tried = {(p["layer"], p["probe"]): p["result"] for p in found["probes"]}
        assert tried["guest-network", "metadata"] == "denied" and tried["cgroup", "loopback"] == "allowed"
        shown = host.show(item)
        assert "enforcement.mismatch" in shown["reason"] and "layer cgroup" in shown["reason"], shown["reason"]
    finally:
        put_programs_back(host)


@pytest.fixture
def check_unit(host):
    """Writes a drop-in for the check of runs to come."""
    folder = "/run/systemd/system/anchor-check@.service.d"

    def write(text):
        host.write(f"{folder}/test.conf", text)
        host.systemctl("daemon-reload")

    yield write
    host.run(f"rm -r {folder}; systemctl daemon-reload")


def steps(host, item):
    events = [json.loads(line) for line in host.anchorctl("logs", item, "--json=short").stdout.splitlines()]
    return [event["phase"] for event in events if event["type"] == "step"]


def test_a_machine_boots_before_the_first_round_and_does_nothing_until_all_agreed(host, check_unit):
    check_unit("[Service]\nTimeoutStartSec=60\nExecStartPre=/usr/bin/sleep 12\n")
    run = LiveRun(host, "exec-net", "echo up")
    item = host.items()[0]["id"]
    check, machine = f"anchor-check@{run.run}.service", f"anchor-vm@{run.run}.service"
    wait_for(lambda: host.is_active(machine) == "active" and host.is_active(check) == "activating", 20)
    looks = 0
    while True:
        seen = host.is_active(f"anchor-run@{run.run}.service"), host.is_active(machine), steps(host, item)
        if host.is_active(check) != "activating":
            break
        assert seen == ("inactive", "active", [])
        looks += 1
    assert looks > 2
    # the control: once they agreed, the same machine does what was asked
    assert "up" in run.rest() and run.process.returncode == 0
    assert steps(host, item) == ["started", "finished"] and not host.show(item)["failures"]


def test_a_first_round_that_fails_ends_the_run_before_its_first_step(host, check_unit):
    check_unit("[Service]\nExecStartPre=/usr/bin/sleep 3\nExecStart=\nExecStart=/usr/bin/false\n")
    run = LiveRun(host, "exec-net", "echo up")
    item = host.items()[0]["id"]
    wait_for(lambda: host.is_active(f"anchor-vm@{run.run}.service") == "active", 20)
    assert "\nup\n" not in run.rest() and run.process.returncode == 1
    assert not steps(host, item)
    assert "anchor-check@" in host.show(item)["reason"], host.show(item)
    assert not [line for line in host.run("pgrep -l qemu", check=False).stdout.splitlines()]


@pytest.fixture
def networks(host):
    """Writes what test-net allows besides, by networks that host.json lists then."""
    path, config = "/etc/anchorhold/policy/egress/test-net.json", "/etc/anchorhold/host.json"
    before, config_before = host.run("cat " + path).stdout, host.run("cat " + config).stdout

    def write(*rules, deny=()):
        policy, wide = json.loads(before), json.loads(config_before)
        policy["allow"] += [{"ports": [{"port": 22, "protocol": "raw"}]} | rule for rule in rules]
        policy["deny"] += deny
        wide["networks"] = [*wide.get("networks", []), *(rule["network"] for rule in rules)]
        host.write(config, json.dumps(wide))
        host.write(path, json.dumps(policy))
        return [line for line in host.anchorctl("policy", "check", check=False).stdout.splitlines() if line.startswith(path)]

    yield write
    host.write(path, before)
    host.write(config, config_before)


def test_a_policy_that_lets_through_ends_a_run_before_its_first_step(host, check_unit, networks):
    """The third layer alone. No file may allow what the check asks for, so this check asks for what an operator's files do allow, which the other two deny as before."""
    other = "/var/lib/anchor-check"
    host.run(f"sed 's/192\\.0\\.2\\.1/192.0.9.1/g' /usr/libexec/anchorhold/anchor-check >{other} && chmod 755 {other}")
    check_unit(f"[Service]\nExecStart=\nExecStart={other} %i\n")
    try:
        assert networks({"network": "192.0.9.0/24"}) == []
        done = host.anchorctl("run", "--workflow", "exec-net", "--", "echo", "up", check=False, timeout=120)
        item = host.items()[0]["id"]
        shown = host.show(item)
        assert done.returncode == 1 and "\nup\n" not in done.stdout and not steps(host, item)
        assert "enforcement.mismatch" in shown["reason"] and "layer policy" in shown["reason"], shown["reason"]
        [found] = mismatches(host, shown["runs"][0]["id"])
        assert found["reason"] == "layer policy: host-address is allowed"
        tried = {(p["layer"], p["probe"]): p["result"] for p in found["probes"]}
        assert tried["policy", "unlisted-name"] == tried["cgroup", "metadata"] == tried["guest-network", "metadata"] == "denied"
        # the control: without that rule the same begins
        networks()
        assert "\nup\n" in "\n" + host.anchorctl("run", "--workflow", "exec-net", "--", "echo", "up", timeout=120).stdout
    finally:
        host.run(f"rm {other}")


def test_a_network_that_is_a_runs_own_is_refused_where_it_is_written(host, live, networks):
    """Each run with such a rule would be ended at once, or would have it to no avail."""
    for network, taken in (("192.0.2.0/24", "192.0.2.1/32"), ("198.18.0.0/15", "198.18.0.0/15"), ("198.18.7.0/24", "198.18.0.0/15"),
                           ("10.255.255.0/30", "10.255.255.0/30"), ("127.0.0.0/8", "127.0.0.0/8"), ("169.254.0.0/16", "169.254.0.0/16")):
        [line] = networks({"network": network})
        assert "/allow/6/network" in line and taken in line, line
        done = host.anchorctl("run", "--workflow", "exec-net", "--", "echo", "up", check=False, timeout=60)
        assert done.returncode != 0 and "\nup\n" not in "\n" + done.stdout and taken in done.stderr, (network, done)
        reload = host.anchorctl("policy", "reload", live.run, check=False)
        assert reload.returncode != 0 and taken in reload.stderr, (network, reload)
        allow = host.anchorctl("policy", "allow", live.run, json.dumps({"network": network, "ports": [443]}), check=False)
        assert allow.returncode != 0 and "network" in allow.stderr, (network, allow)

    # the control: the rest of such a network, and one that has the asked address taken out; each is a policy that a run lives with
    deny = [{"network": "192.0.2.1/32"}]
    assert networks({"network": "192.0.2.0/24"}, {"network": "10.0.0.0/8"}, deny=deny) == []
    assert "\nup\n" in "\n" + host.anchorctl("run", "--workflow", "exec-net", "--", "echo", "up", timeout=120).stdout
    assert host.anchorctl("policy", "reload", live.run).returncode == 0
    assert mismatches(host, live.run) == [] and host.is_active(f"anchor-run@{live.run}.service") == "active"


def test_a_policy_that_names_metadata_is_refused_where_it_is_written(host):
    path = "/etc/anchorhold/policy/egress/test-net.json"
    before = host.run("cat " + path).stdout
    try:
        for name, refused in (("metadata.google.internal", True), ("*.google.internal", True), ("metadata.google.example", False)):
            policy = json.loads(before)
            policy["allow"].append({"name": name, "ports": [80]})
            host.write(path, json.dumps(policy))
            found = [line for line in host.anchorctl("policy", "check", check=False).stdout.splitlines() if line.startswith(path)]
            assert len(found) == refused and all("/name" in line and "metadata service" in line for line in found), (name, found)
    finally:
        host.write(path, before)


@pytest.mark.parametrize("half, signal, seconds", [("check", "KILL", 10), ("probe", "STOP", 30)])
def test_no_half_of_the_check_ends_and_the_run_goes_on(host, live, half, signal, seconds):
    """Killed, which ends what is bound to it; or stopped, so that the other half finds its word too old."""
    assert host.is_active(f"anchor-run@{live.run}.service") == "active"
    host.systemctl("kill", f"--signal={signal}", f"anchor-{half}@{live.run}.service")
    wait_for(lambda: host.is_active(f"anchor-run@{live.run}.service") in ("inactive", "failed"), seconds)


def test_doctor_asks_all_layers(host):
    result = host.anchorctl("doctor", "--json=short", check=False)
    findings = json.loads(result.stdout)
    assert result.returncode == 0, findings
    good = {f["check"] for f in findings if f["health"] == "good"}
    assert {"agreement", "fence", "units", "policy", "anchord", "cgroup2", "audit", "disk"} <= good, findings
    table = json.loads(host.run("cat /run/anchorhold/doctor.json").stdout)
    assert table["agree"] and {p["probe"] for p in table["probes"]} == PROBES
    assert {p["layer"] for p in table["probes"]} == LAYERS
    for p in table["probes"]:
        assert p["result"] == ("allowed" if p["probe"] == "allowed-control" else "denied"), p
    # whether what a guest sends by ways that there are none is answered
    answered = frames.are_answered(host)
    [told] = [f["text"] for f in findings if f["check"] == "frames"]
    assert table["answers_frames"] == answered and ("refused at once" if answered else "dropped in silence") in told
    # on a terminal it is a table of layers and probes
    assert "unlisted-name" in host.anchorctl("doctor").stdout


BPF_LSM = {
    "lockdown,landlock,bpf,ipe": "active; not relied on",
    "lockdown,landlock,notbpf,bpfnot": "not active; not relied on",
    None: "unknown (securityfs is not mounted); not relied on",
}


@pytest.mark.parametrize("lsm", BPF_LSM, ids=["active", "not-active", "unknown"])
def test_doctor_tells_of_bpf_lsm_and_relies_on_it_nowhere(host, lsm):
    """With a list of our own where the kernel has its, for doctor alone. A kernel that has it: tests/vm/test_vm_boot.py."""
    listed = f"echo {lsm} >/sys/kernel/security/lsm; " if lsm else ""
    script = f"mount -t tmpfs none /sys/kernel/security; {listed}anchorctl doctor --json=short || :"
    told = json.loads(host.run(["unshare", "--mount", "sh", "-ec", script]).stdout)
    [finding] = [f for f in told if f["check"] == "bpf-lsm"]
    assert (finding["health"], finding["text"]) == ("good", BPF_LSM[lsm])
    # whichever it is, the fence and its layers are as good
    assert {f["check"]: f["health"] for f in told if f["check"] in ("fence", "agreement")} == {"fence": "good", "agreement": "good"}


def test_doctor_is_for_operators(host):
    refused = host.run(["systemctl", "start", "anchor-doctor.service"], user="stranger", check=False)
    assert refused.returncode != 0
    # nor may an operator start anything else that way
    assert host.run(["systemctl", "start", "anchor-accel.service"], user="operator", check=False).returncode != 0
    host.run(["systemctl", "start", "anchor-doctor.service"], user="operator")


RUN = "r0000check000"


@pytest.fixture(scope="module")
def network(host):
    """A run's network without anchord and without a microVM, in which the check itself is started by hand."""
    with host.stopped("anchord"):
        try:
            for kind in ("check", "probe", "net"):
                host.write(f"/run/systemd/system/anchor-{kind}@{RUN}.service.d/test.conf",
                           "[Unit]\nStartLimitIntervalSec=0\n" + ("StopWhenUnneeded=no\n" if kind == "check" else ""))
            host.systemctl("daemon-reload")
            yield
        finally:
            host.systemctl("stop", "anchorhold-runs.slice", f"anchor-net@{RUN}.service", check=False)
            host.run(f"rm -r /run/systemd/system/anchor-{{check,probe,net}}@{RUN}.service.d; systemctl daemon-reload; systemctl reset-failed", check=False)


def once(host, damage=None, fence=True, before="check"):
    """What the check says of a fresh network after `damage`, done as the last thing before that half starts: its reason, from the journal. egressd
    does not know this run, which the check says when nothing else is wrong."""
    dropin = f"/run/systemd/system/anchor-{before}@{RUN}.service.d/damage.conf"
    host.systemctl("stop", f"anchor-check@{RUN}.service", f"anchor-probe@{RUN}.service", f"anchor-net@{RUN}.service", check=False)
    host.run("systemctl reset-failed", check=False)
    if damage:
        host.write("/etc/damage", damage + "\n")
        host.write(dropin, "[Service]\n" + ("" if fence else "ExecStartPre=\n") + "ExecStartPre=+/bin/sh -e /etc/damage\n")
    host.systemctl("daemon-reload")
    begin = host.run("date +%s.%N").stdout.strip()
    try:
        assert host.systemctl("start", f"anchor-check@{RUN}.service", check=False).returncode != 0
    finally:
        host.run(f"rm -f {dropin} /etc/damage; systemctl daemon-reload")
    return host.journal(f"--since=@{begin}", "-u", f"anchor-check@{RUN}.service", "-u", f"anchor-probe@{RUN}.service")


@pytest.mark.parametrize("name", [None, *DAMAGE])
def test_damage_is_found(host, network, name):
    if name is None:
        assert "egressd has no policy for this run" in once(host)  # the control: up to there all was well
        return
    command, words = DAMAGE[name]
    said = once(host, f"ip netns exec anchor-{RUN} {command}")
    assert "is not as it was made" in said and words in said, said


def test_no_check_begins_without_the_programs(host, network):
    """The slice loses its programs before the check is there: its first half finds that out by itself and does not begin."""
    try:
        assert "not fenced: the kernel did not refuse this" in once(host, CONNECTS_FREELY, fence=False, before="probe")
    finally:
        put_programs_back(host)
    assert "egressd has no policy for this run" in once(host)


def bpf_in(host, half, filters):
    """Whether a program in that unit, with its privileges and filter, gets hold of the grants by the map's number."""
    number = json.loads(host.run("bpftool -j map show pinned /run/anchorhold/maps/grants").stdout)["id"]
    dropin = f"/run/systemd/system/anchor-{half}@{RUN}.service.d/bpf.conf"
    host.systemctl("stop", f"anchor-check@{RUN}.service", f"anchor-probe@{RUN}.service", check=False)
    host.run("systemctl reset-failed", check=False)
    host.write(dropin, f"[Service]\nType=oneshot\n{filters}ExecStart=\nExecStart=bpftool map show id {number}\n")
    host.systemctl("daemon-reload")
    try:
        return host.systemctl("start", f"anchor-{half}@{RUN}.service", check=False).returncode == 0
    finally:
        host.run(f"rm -f {dropin}; systemctl daemon-reload")


def test_the_judging_half_has_no_bpf(host, network):
    assert not bpf_in(host, "check", "")
    assert bpf_in(host, "check", "SystemCallFilter=bpf\n")            # the control: nothing but its filter keeps it from that
    assert not bpf_in(host, "probe", "")                              # which may open its pins, and nothing by number
    for unit in ("anchor-doctor.service", f"anchor-check@{RUN}.service"):
        assert "bpf" not in host.property(unit, "SystemCallFilter").split()
