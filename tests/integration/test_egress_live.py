# SPDX-License-Identifier: LGPL-2.1-or-later
"""A run's policy changed by an operator while the run goes on."""

import json
import os
import re
import select
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from egressrun import under_way
from fakeguest import FakeGuest, dns, exchange
from test_run_egress import address_of, records
from waiting import wait_for

RUN, MODEL_RUN, PLACES_RUN = "r000000live01", "r000000live02", "r000000live03"
POLICY = "/etc/anchorhold/policy/egress/test-live.json"
REFUSED = 5


def register(host, anchord, run, workflow):  # noqa: F811
    digest = anchord.call("Register", run=run, workflow=workflow, stage="work")["digest"]
    host.systemctl("start", "anchor-proxy@%s.socket" % run)
    return digest


def release(host, anchord, run):  # noqa: F811
    host.run("systemctl stop anchor-proxy@%s.socket anchor-proxy@%s.service anchorhold-runs-%s.slice; true" % (run, run, run))
    return anchord.call("Release", run=run)


@pytest.fixture(scope="module")
def digests(host, anchord):  # noqa: F811
    """Of the run's policy, the first one first; the tests add to it."""
    yield [register(host, anchord, RUN, "exec-live")]


@pytest.fixture(scope="module")
def guest(host, anchord, digests):  # noqa: F811
    it = FakeGuest(host, RUN)
    yield it
    it.stop()
    assert release(host, anchord, RUN)["digests"] == digests
    [record] = wait_for(lambda: records(host, "egress.released", RUN))
    assert record["digests"] == digests


def operate(host, verb, *args, user="operator", check=True):
    return host.anchorctl("policy", verb, *args, user=user, check=check)


@pytest.fixture
def change(host, digests):
    """anchorctl policy VERB RUN RULE; what it says. Counts the digests."""
    def run(verb, *rule):
        said = json.loads(operate(host, verb, RUN, *rule, "--json=short").stdout)
        if said["changed"]:
            digests.append(said["digest"])
        return said
    return run


def first_answer(name, seconds):
    """When a request under this name was first answered with what the origin says; None: never."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        rcode, addresses, _ = dns(name)
        if rcode == 0:
            answer = exchange(addresses[0], 80, b"GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % name.encode(), 2, False)
            if isinstance(answer, bytes) and answer.startswith(b"HTTP/1.1 200 "):
                return time.monotonic()
        time.sleep(0.05)
    return None


def get(guest, name):
    address = address_of(guest, name)
    answer = guest.call(exchange, address, 80, b"GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % name.encode(), 10, False)
    assert isinstance(answer, bytes), answer
    status = int(answer.split()[1])
    return status if status == 200 else (status, json.loads(answer.partition(b"\r\n\r\n")[2])["rule"])


def test_digest_at_the_start_is_what_explain_prints(host, guest, digests):
    [record] = records(host, "egress.registered", RUN)
    assert record["digest"] == digests[0]
    for subject in ("exec-live", RUN):
        explained = json.loads(host.anchorctl("policy", "explain", subject, "www.example.org:80", "--json=short").stdout)
        assert explained["digest"] == digests[0] and explained["verdict"] == "pass"


@pytest.mark.quiet
def test_allow_takes_effect_and_is_recorded(host, guest, change, digests):
    """Within a second of the moment at which the operator typed it: the guest asks all the while."""
    assert guest.call(dns, "other.example.net")[0] == REFUSED
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(guest.call, first_answer, "other.example.net", 8)
        begin = time.monotonic()
        said = change("allow", "other.example.net:80")
        assert 0 < (first.result() or 0) - begin < 1
    assert said["changed"] and said["cut"] == 0 and said["digest"] != digests[0]
    [record] = records(host, "policy.changed", RUN)
    assert record == {"change": "allow", "rule": "other.example.net:80", "from": digests[0], "digest": digests[1]}
    uid = host.run("id -u operator").stdout.strip()
    line = json.loads(host.run(["journalctl", "--namespace=anchorhold", "-o", "json", "ANCHORHOLD_RUN=" + RUN, "ANCHORHOLD_EVENT=policy.changed"]).stdout)
    assert line["ANCHORHOLD_ACTOR"] == f"uid {uid}" and "was changed by uid" in line["MESSAGE"]
    # only what was said: not another port, not another name
    assert guest.call(exchange, address_of(guest, "other.example.net"), 443, b"x", 5, False) == "ConnectionResetError"
    assert guest.call(dns, "paste.example.net")[0] == REFUSED
    # the same once more is no change
    assert not change("allow", "other.example.net:80")["changed"]


@pytest.mark.quiet
def test_deny_cuts_what_is_open_and_nothing_else(host, guest, world, change):
    """Two streams from one address and port, under two names: the proxy and the kernel cut the right one, within a second of the operator's word."""
    change("allow", "paste.example.net:80")
    addresses = {name: address_of(guest, name) for name in ("www.example.org", "other.example.net", "paste.example.net")}
    results, before = {}, {name: len(records(host, "egress.allow", RUN, name=name)) for name in addresses}

    def follow(name, seconds):
        results[name] = guest.call(slow, addresses[name], name, seconds, timeout=40)

    threads = [threading.Thread(target=follow, args=(name, 14)) for name in addresses]
    with under_way(world, "/slow/14"), under_way(world, "/slow/14", "other", 2):
        for thread in threads:
            thread.start()
        wait_for(lambda: all(len(records(host, "egress.allow", RUN, name=name)) > before[name] for name in addresses))
    begin = time.monotonic()
    said = change("deny", "other.example.net")
    for thread in threads:
        thread.join()
    assert 0 < results["other.example.net"][2] - begin < 1
    assert said["cut"] == 1
    assert results["other.example.net"][1] != "end" and results["other.example.net"][0] < 14
    assert results["www.example.org"][1] == "end" and results["paste.example.net"][1] == "end"   # the same origin as what was cut
    [closed] = [r for r in records(host, "conn.close", RUN, name="other.example.net") if "reason" in r]
    assert closed["reason"] == "policy-changed" and closed["bytes_in"] > 0                        # its proxy said what went over it
    assert guest.call(dns, "other.example.net")[0] == REFUSED
    answer = guest.call(exchange, addresses["other.example.net"], 80, b"GET / HTTP/1.1\r\nHost: other.example.net\r\n\r\n", 5, False)
    assert answer.startswith(b"HTTP/1.1 403 ") and b'"rule": "live/' in answer
    assert get(guest, "paste.example.net") == 200


def stay(here, there):
    here.touch()
    wait_for(there.exists)


def test_the_guests_stand_in_keeps_nobody_waiting(guest, tmp_path):
    """As above the guest does something while we ask the host: the end of a pipe that this process had open at that moment is not kept open there."""
    ours, theirs = os.pipe()
    here, there = tmp_path / "here", tmp_path / "there"
    with ThreadPoolExecutor(1) as pool, open(ours, "rb") as f:
        staying = pool.submit(guest.call, stay, here, there)
        try:
            wait_for(here.exists)
            os.close(theirs)
            assert select.select([f], [], [], 5)[0] and f.read() == b"" and not staying.done()
        finally:
            there.touch()
        staying.result()


def slow(address, name, seconds, *behind):
    """Reads a line a second; (how many came, how it ended, when). What is `behind` is asked for at once as well, before that answer."""
    paths = [f"/slow/{seconds}", *behind]
    n = 0
    try:
        with socket.create_connection((address, 80), timeout=30) as s:
            s.sendall("".join(f"GET {path} HTTP/1.1\r\nHost: {name}\r\n{'Connection: close' if path is paths[-1] else 'X: y'}\r\n\r\n" for path in paths).encode())
            while part := s.recv(4096):
                n += part.count(b"\r\n1\r\n") + 1
            return n, "end", time.monotonic()
    except OSError as error:
        return n, type(error).__name__, time.monotonic()


def test_deny_one_path_of_a_stream(host, guest, world, change):
    """Requests in the clear are decided one by one; one that goes on is cut when its path is denied, also if others were asked for behind it."""
    address = address_of(guest, "www.example.org")
    before = len(records(host, "egress.allow", RUN, path="/behind"))
    with ThreadPoolExecutor(2) as pool:
        with under_way(world, "/slow/20", n=2):
            ends = [pool.submit(guest.call, slow, address, "www.example.org", 20, *behind, timeout=40) for behind in ((), ("/behind",))]
        wait_for(lambda: len(records(host, "egress.allow", RUN, path="/behind")) > before)
        begin = time.monotonic()
        assert change("deny", '{"name": "www.example.org", "ports": [80], "paths": ["/slow"]}')["cut"] == 2
        for end in ends:
            n, how, when = end.result()
            assert n < 20 and how != "end" and when - begin < 5
    assert get(guest, "www.example.org") == 200
    answer = guest.call(exchange, address, 80, b"GET /slow/1 HTTP/1.1\r\nHost: www.example.org\r\n\r\n", 5, False)
    assert answer.startswith(b"HTTP/1.1 403 ")


def restart_egressd(host):
    old = host.property("anchor-egressd.service", "MainPID")
    host.systemctl("kill", "--signal=KILL", "anchor-egressd.service")
    wait_for(lambda: host.property("anchor-egressd.service", "MainPID") not in ("0", old) and host.is_active("anchor-egressd.service") == "active", 10)


def explain(host, target):
    return json.loads(host.anchorctl("policy", "explain", RUN, target, "--json=short", check=False).stdout)


def test_survives_a_restart_of_egressd(host, guest, digests):
    restart_egressd(host)
    assert wait_for(lambda: guest.call(dns, "paste.example.net")[0] == 0, 10)
    assert get(guest, "paste.example.net") == 200
    assert guest.call(dns, "other.example.net")[0] == REFUSED


def test_a_label_is_one_rule_s_also_after_a_restart_of_egressd(host, guest, change):
    """The log names rules by their labels: that of a rule which is taken back, and with it the last one, is nobody's afterwards."""
    def add(name):
        change("allow", name + ":80")
        return explain(host, name + ":80")["rule"]

    change("deny", taken := add("late.example.net"))
    restart_egressd(host)
    later = add("later.example.net")
    assert explain(host, "late.example.net:80")["verdict"] == "deny"
    number = [int(re.fullmatch("live/([0-9]+)", label)[1]) for label in (taken, later)]
    assert number[1] == number[0] + 1
    # the control: while it holds, its label is the same after a restart
    restart_egressd(host)
    assert explain(host, "later.example.net:80")["rule"] == later
    change("deny", later)


def test_cut_after_a_restart_of_egressd(host, guest, world, change):
    """What an earlier life granted is still known one by one."""
    address, results = address_of(guest, "paste.example.net"), {}
    change("allow", "git.example.org:9000/raw")
    thread = threading.Thread(target=lambda: results.update({"paste.example.net": guest.call(slow, address, "paste.example.net", 12, timeout=40)}))
    with under_way(world, "/slow/12", "other"):
        thread.start()
    restart_egressd(host)
    wait_for(lambda: guest.call(dns, "paste.example.net")[0] == 0, 10)
    assert change("deny", "paste.example.net")["cut"] == 1
    thread.join(5)
    assert not thread.is_alive()
    assert results["paste.example.net"][1] != "end"
    assert get(guest, "www.example.org") == 200


def test_reload_reads_the_files_and_keeps_live_rules(host, guest, change):
    before = host.run(["cat", POLICY]).stdout
    policy = json.loads(before)
    policy["allow"].append({"name": "git.example.org", "ports": [80]})
    host.write(POLICY, json.dumps(policy))
    try:
        assert guest.call(dns, "git.example.org")[0] == 0          # by the live rule for another port
        assert guest.call(exchange, address_of(guest, "git.example.org"), 80, b"x", 5, False) == "ConnectionResetError"
        assert change("reload")["changed"]
        explained = json.loads(host.anchorctl("policy", "explain", RUN, "git.example.org:80", "--json=short").stdout)
        assert explained["verdict"] == "pass"
        assert guest.call(dns, "other.example.net")[0] == REFUSED   # denied live, and still is
        assert not change("reload")["changed"]

        host.write(POLICY, "{")
        done = operate(host, "reload", RUN, check=False)
        assert done.returncode == 3 and "test-live.json" in done.stderr and "goes on to hold" in done.stderr
        assert get(guest, "www.example.org") == 200
    finally:
        host.write(POLICY, before)
        change("reload")


@pytest.mark.quiet
def test_reload_takes_effect_and_cuts(host, guest, world, change):
    """As a live rule: within a second of the operator's word a name that the files have now is there, and what they do not have any more is cut, and nothing else."""
    before = host.run(["cat", POLICY]).stdout
    goes, stays = "passing.example.org", "replacing.example.org"

    def write(*names):
        policy = json.loads(before)
        policy["allow"] += [{"name": name, "ports": [80]} for name in names]
        host.write(POLICY, json.dumps(policy))

    try:
        write(goes, stays)
        assert guest.call(dns, goes)[0] == REFUSED
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(guest.call, first_answer, goes, 8)
            begin = time.monotonic()
            assert change("reload")["changed"]
            assert 0 < (first.result() or 0) - begin < 1

        with ThreadPoolExecutor(2) as pool:
            with under_way(world, "/slow/9", n=2):
                ends = {name: pool.submit(guest.call, slow, address_of(guest, name), name, 9, timeout=40) for name in (goes, stays)}
            write(stays)
            begin = time.monotonic()
            said = change("reload")
            n, how, when = ends[goes].result()
            assert said["changed"] and said["cut"] == 1
            assert 0 < when - begin < 1 and how != "end" and n < 9
            assert ends[stays].result()[1] == "end"               # the same origin and port
        [closed] = [r for r in records(host, "conn.close", RUN, name=goes) if "reason" in r]
        assert closed["reason"] == "policy-changed" and closed["bytes_in"] > 0 and closed["bytes_out"] > 0
        assert guest.call(dns, goes)[0] == REFUSED and get(guest, stays) == 200
    finally:
        host.write(POLICY, before)
        change("reload")


def test_allow_that_a_denial_beats_says_so(host, guest, change):
    def explained():
        return json.loads(host.anchorctl("policy", "explain", RUN, "beaten.example.net:80", "--json=short", check=False).stdout)

    assert "overruled" not in change("allow", "beaten.example.net:80") and explained()["verdict"] == "pass"
    change("deny", "beaten.example.net")
    rule = explained()["rule"]
    assert guest.call(dns, "beaten.example.net")[0] == REFUSED
    done = operate(host, "allow", RUN, "beaten.example.net:80", check=False)
    assert done.returncode == 3 and "stays denied" in done.stderr and f'"anchorctl policy allow {RUN} {rule}"' in done.stderr, (done.returncode, done.stderr)
    assert explained()["verdict"] == "deny"
    # the denial is taken back as it says, and the permission behind it holds
    assert change("allow", rule)["changed"] and explained()["verdict"] == "pass"
    assert guest.call(dns, "beaten.example.net")[0] == 0


@pytest.mark.parametrize("rule, status, text", [
    ("www.example.org", 2, "HOST:PORT"),
    ("*.com:443", 2, "public suffix"),
    ("169.254.169.254:80", 2, ""),
    ('{"name": "www.example.org", "ports": [443], "wrong": 1}', 2, "wrong"),
    ('{"name": "metadata.google.internal", "ports": [80]}', 3, "metadata service"),
    ("*.google.internal:80", 3, "metadata.google.internal would be allowed"),
    ('{"name": "www.example.org", "ports": [443], "tls": "inspect"}', 3, "from the next run on"),
    ('{"name": "api.example.org", "ports": [443], "paths": ["/v1"]}', 3, "from the next run on"),
])
def test_deny_rules_that_cannot_be_added(host, guest, rule, status, text):
    before = len(records(host, "policy.changed", RUN))
    done = operate(host, "allow", RUN, rule, check=False)
    assert done.returncode == status and text in done.stderr, (done.returncode, done.stderr)
    assert len(records(host, "policy.changed", RUN)) == before


def test_deny_who_is_no_operator(host, guest):
    done = operate(host, "allow", RUN, "paste.example.net:80", user="stranger", check=False)
    assert done.returncode == 3 and "anchorhold-operators" in done.stderr
    assert operate(host, "allow", "r00000nosuch1", "paste.example.net:80", check=False).returncode == 4
    # nor does a way lead through anchord, or through the runs' socket for one of them
    for method, params in (("Amend", {"run": RUN, "allow": True, "rule": "paste.example.net:80"}), ("Reload", {"run": RUN})):
        done = host.run(["setpriv", "--reuid=anchorhold", "--regid=anchorhold", "--init-groups", "--", "varlinkctl", "call", "/run/anchorhold/egress-api.sock",
                         "io.anchorhold.Egress." + method, json.dumps(params)], check=False)
        assert done.returncode != 0 and re.search("denied|Permission", done.stderr, re.I)


def test_deny_change_without_a_record(host, guest):
    """No audit, no change."""
    with host.frozen("anchor-auditd"):
        done = operate(host, "allow", RUN, "api.anthropic.com:80", check=False)
        assert done.returncode == 1 and "nothing was changed" in done.stderr
    assert wait_for(lambda: guest.call(dns, "www.example.org")[0] == 0, 20)
    assert guest.call(dns, "api.anthropic.com")[0] == REFUSED


LOGIN = '{"name": "login.example.org", "ports": [443], "methods": ["%s"], "paths": ["/%s"]}'


def test_deny_storing_where_a_value_may_be_content(host, anchord):  # noqa: F811
    """What policy check asks of a workflow's policy for its credentials' sake, an operator's word does not undo; nor do files that have other credentials by now."""
    places, login = (f"/etc/anchorhold/policy/{kind}.json" for kind in ("egress/test-places", "credentials/test-login"))
    before = {path: host.run(["cat", path]).stdout for path in (places, login)}
    wider = json.loads(before[places])
    wider["allow"].append(json.loads(LOGIN % ("PUT", "notes")))
    register(host, anchord, PLACES_RUN, "exec-places")
    try:
        for rule, why in ((LOGIN % ("PUT", "notes"), "could store the value"), (LOGIN.replace(', "paths": ["/%s"]', "") % "POST", "could store the value"),
                          ("login.example.org:443", "could store the value"), ("*.example.org:443", "could store the value")):
            done = operate(host, "allow", PLACES_RUN, rule, check=False)
            assert done.returncode == 3 and why in done.stderr and "test-login" in done.stderr, done.stderr
        assert not records(host, "policy.changed", PLACES_RUN)
        # the controls: what stores nothing, what is elsewhere, and a denial
        for verb, rule in (("allow", LOGIN % ("GET", "notes")), ("allow", (LOGIN % ("PUT", "notes")).replace("login", "www")), ("deny", LOGIN % ("PUT", "notes"))):
            assert json.loads(operate(host, verb, PLACES_RUN, rule, "--json=short").stdout)["changed"]

        # what is wrong with the files themselves is told as such
        host.write(places, json.dumps(wider))
        done = operate(host, "reload", PLACES_RUN, check=False)
        assert done.returncode == 3 and "exec-places" in done.stderr and "could store the value" in done.stderr, done.stderr
        # with another credential they load, and would do for the next run
        host.write(login, json.dumps(dict(json.loads(before[login]), places=[{"header": "x-key"}])))
        done = operate(host, "reload", PLACES_RUN, check=False)
        assert done.returncode == 3 and "began with other credentials" in done.stderr and "goes on to hold" in done.stderr, done.stderr
        explained = host.anchorctl("policy", "explain", PLACES_RUN, "https://login.example.org/notes", "--method=PUT", "--json=short", check=False)
        assert json.loads(explained.stdout)["verdict"] == "deny"
    finally:
        for path, text in before.items():
            host.write(path, text)
        release(host, anchord, PLACES_RUN)


def test_inspected_host(host, anchord):  # noqa: F811
    """What the run's CA signs for may be changed; what it does not must wait for the next run."""
    register(host, anchord, MODEL_RUN, "exec-model")
    try:
        done = operate(host, "allow", MODEL_RUN, '{"name": "git.example.org", "ports": [443], "tls": "inspect"}', check=False)
        assert done.returncode == 3 and "from the next run on" in done.stderr
        said = json.loads(operate(host, "deny", MODEL_RUN, '{"name": "api.anthropic.com", "methods": ["DELETE"]}', "--json=short").stdout)
        assert said["changed"]
        explained = host.anchorctl("policy", "explain", MODEL_RUN, "https://api.anthropic.com/v1/messages", "--method=DELETE", "--json=short", check=False)
        assert json.loads(explained.stdout)["verdict"] == "deny"
    finally:
        release(host, anchord, MODEL_RUN)
