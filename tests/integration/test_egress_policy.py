# SPDX-License-Identifier: LGPL-2.1-or-later
"""Egress policy as a language: a table of questions whose answers a small model of its own gives, and what anchorctl says about the policy of a
run, of a workflow and of a file.

The model below knows the rules of precedence from docs/egress.md and nothing of the program: it looks at every rule for every question.
"""

import collections
import contextlib
import json
import random
import re
import subprocess
import unicodedata
import urllib.parse

import pytest

import world as worlds
from fakeguest import FakeGuest, dns, exchange
from test_run_egress import connect, records
from waiting import wait_for

RUN = "r000000policy"
FOLDER = "/run/test-policy"


# ---- the model ----

def covers(pattern, name):
    return name.endswith(pattern[1:]) and name != pattern[2:] if pattern.startswith("*.") else pattern == name


def specificity(pattern):
    return pattern[2:].count(".") + 1 if pattern.startswith("*.") else 1000


def ambiguous(path):
    """Can an origin read it in two ways? Only the kinds that the generator makes."""
    path = path.partition("?")[0]
    try:
        text = urllib.parse.unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        return True
    if any(set(unicodedata.normalize("NFKC", c)) & set("./\\%;?#") for c in text if not c.isascii()):
        return True
    return "//" in path or re.search(r"/\.{1,2}(/|;|%3b|$)", path, re.I) is not None or re.search(r"%(2e|2f|5c|61|41)", path, re.I) is not None


def path_covers(pattern, path):
    path = urllib.parse.unquote(path.partition("?")[0], "latin-1")
    pattern = urllib.parse.unquote(pattern.replace("%2A", "\0"), "latin-1")
    if "*" not in pattern:
        pattern = pattern.replace("\0", "*")
        return path == pattern or path.startswith(pattern if pattern.endswith("/") else pattern + "/")
    text = re.escape(pattern).replace("\0", r"\*")
    text = text.replace(r"/\*\*/", r"/(?:.*/)?").replace(r"\*\*", ".*")
    return re.fullmatch(re.sub(r"(?<!\\)\\\*(?!\0)", "[^/]*", text), path, re.S) is not None


def literal(pattern):
    return len(urllib.parse.unquote(pattern.replace("*", ""), "latin-1"))


def port_of(rule, port):
    for entry in rule.get("ports", []):
        if (entry["port"] if isinstance(entry, dict) else entry) == port:
            return entry["protocol"] if isinstance(entry, dict) else {443: "tls", 80: "http"}[port]
    return None


def fit(rule, deny, method, path):
    """How well a rule matches: the literal length of its path, 0 without, None if it does not. -1: cannot say yet."""
    if method is None:
        if not rule.get("methods") and not rule.get("paths"):
            return 0
        return -1 if deny else 9999 if rule.get("paths") else 0
    if rule.get("methods") and method not in rule["methods"]:
        return None
    if not rule.get("paths"):
        return 0
    if ambiguous(path):
        return 9999 if deny else None
    if deny and re.search("(;|%3b)", path.partition("?")[0], re.I):
        return 9999
    return max((literal(p) for p in rule["paths"] if path_covers(p, path)), default=None)


def model(policy, name, port, method=None, path=None):
    """(verdict, reason, rule) of one question."""
    name = name.rstrip(".").lower().encode("idna").decode()
    allow = [(i, r) for i, r in enumerate(policy["allow"]) if covers(r["name"], name)]
    level = max((specificity(r["name"]) for _, r in allow), default=0)
    allow = [(i, r) for i, r in allow if specificity(r["name"]) == level and port_of(r, port)]
    best = None
    for i, r in allow:
        f = fit(r, False, method, path)
        if f is not None and (best is None or f > best[0]):
            best = (f, i, r)

    undecided, denial = False, None
    for i, r in enumerate(policy["deny"]):
        if not covers(r["name"], name) or specificity(r["name"]) < level or ("ports" in r and port not in r["ports"]):
            continue
        f = fit(r, True, method, path)
        if f == -1:
            undecided = True
        elif f is not None and (specificity(r["name"]) > level or best is None or f >= best[0]):
            if denial is None or (specificity(r["name"]), f) > denial[:2]:
                denial = (specificity(r["name"]), f, i)

    if denial:
        return "deny", "denied-by-rule", "deny/%d" % denial[2]
    if best:
        _, i, r = best
        tls = port_of(r, port) == "tls"
        inspect = tls and (r.get("tls") == "inspect" or r.get("methods") or r.get("paths") or undecided)
        if tls and not inspect and method and model(policy, name, port)[0] == "inspect":
            inspect = True                                     # its connection is, or nobody would see the request
        return "inspect" if inspect else "pass", "allowed", "allow/%d" % i
    return "deny", None, None


# ---- the table ----

ZONES = ["example.org", "example.net", "a.example.org", "b.a.example.org", "xn--bcher-kva.example"]
HOSTS = ["a", "b", "c", "www", "x1"]
PATHS = ["/", "/v1", "/v1/", "/v1/items", "/v2/*", "/v2/**", "/*/raw", "/pkg/**/meta.json", "/repos/*/issues", "/v*/items", "/caf%C3%A9", "/x%2Ay", "/a!b"]
ASKED = ["/", "/v1", "/v1/items/7", "/v1x", "/v2/a", "/v2/a/b?q=//..", "/x/raw", "/x/y/raw", "/pkg/meta.json", "/pkg/a/b/meta.json", "/repos/me/issues",
         "/repos/me/issues/1", "/v3/items", "/caf%c3%a9/menu", "/x*y", "/x%2ay", "/a%21b", "/v1/../v2/a", "/v1//items", "/v1/%2e%2e/x", "/v1/%61", "/v1/./x", "/v1/..;p/x", "/v1/..%3bp/x",
         "/v1/items;p=1/7", "/v1%3Bp", "/;p/raw", "/v1/%c0%ae%c0%ae/x", "/v2/%E0%80%AE", "/v1/%ef%bc%8e%ef%bc%8e/x", "/repos/\uff0e\uff0e/issues", "/v2/a%ef%bc%8fb",
         "/v1/%e9", "/v2/%e6%97%a5%e6%9c%ac", "/repos/日本/issues"]
METHODS = ["GET", "POST", "DELETE", "PUT"]
PORTS = [443, 80, 8443, 5432]
PROTOCOLS = {443: "tls", 80: "http", 8443: "tls", 5432: "raw"}


def port_entry(port):
    return port if port in (443, 80) else {"port": port, "protocol": PROTOCOLS[port]}


def make_name(rng):
    zone = rng.choice(ZONES)
    return rng.choice(["*." + zone, zone, rng.choice(HOSTS) + "." + zone])


def conditions(rng, rule):
    if rng.random() < 0.6:
        rule["paths"] = rng.sample(PATHS, rng.randint(1, 3))
    if rng.random() < 0.4 or "paths" not in rule:
        rule["methods"] = rng.sample(METHODS, rng.randint(1, 2))


def make_policy(rng, n):
    """Rules that agree with each other: what one pattern does with TLS is drawn once."""
    inspected, allow, deny = {}, [], []
    for _ in range(n):
        name = make_name(rng)
        rule = {"name": name, "ports": [port_entry(p) for p in rng.sample(PORTS, rng.randint(1, 3))]}
        carried = {PROTOCOLS[p["port"] if isinstance(p, dict) else p] for p in rule["ports"]}
        if "tls" in carried and inspected.setdefault(name, rng.random() < 0.5):
            rule["tls"] = "inspect"
            if "raw" not in carried and rng.random() < 0.7:
                conditions(rng, rule)
        elif carried == {"http"} and rng.random() < 0.6:
            conditions(rng, rule)
        allow.append(rule)
    for _ in range(n // 2):
        rule = {"name": make_name(rng)}
        if rng.random() < 0.5:
            rule["ports"] = rng.sample(PORTS, rng.randint(1, 2))
        if rng.random() < 0.6:
            conditions(rng, rule)
        deny.append(rule)
    return {"allow": allow, "deny": deny}


def make_cases(rng, policy, n):
    for _ in range(n):
        name = rng.choice(HOSTS + ["nobody", "b.a"]) + "." + rng.choice(ZONES) if rng.random() < 0.8 else rng.choice(ZONES)
        port, method, path = rng.choice(PORTS), None, None
        if rng.random() < 0.7:
            method, path = rng.choice(METHODS), rng.choice(ASKED)
        verdict, reason, rule = model(policy, name, port, method, path)
        spelled = name.replace("xn--bcher-kva", rng.choice(["xn--bcher-kva", "bücher", "BÜCHER"]))
        spelled = rng.choice([spelled, spelled.upper() if spelled.isascii() else spelled, spelled + "."])
        case = {"expect": verdict, "target": "%s:%d" % (spelled, port), "method": method, "path": path, "reason": reason, "rule": rule}
        yield {k: v for k, v in case.items() if v is not None}


@pytest.fixture(scope="module")
def folder(host):
    host.run(["mkdir", "-p", FOLDER])
    yield FOLDER
    host.run(["rm", "-rf", FOLDER])


def run_table(host, folder, policy, cases):
    host.write(folder + "/policy.json", json.dumps(policy, ensure_ascii=False))
    host.write(folder + "/cases", "".join(json.dumps(c, ensure_ascii=False) + "\n" for c in cases))
    return host.anchorctl("policy", "test", folder + "/policy.json", folder + "/cases", check=False)


def test_generated_table(host, folder):
    rng, total, verdicts = random.Random(20260128), 0, {}
    for size in (3, 6, 12, 40, 120):
        policy = make_policy(rng, size)
        cases = list(make_cases(rng, policy, 240))
        done = run_table(host, folder, policy, cases)
        assert done.returncode == 0, json.dumps(policy) + "\n" + done.stdout + done.stderr
        assert "%d cases, 0 differ" % len(cases) in done.stderr
        total += len(cases)
        for case in cases:
            verdicts[case["expect"]] = verdicts.get(case["expect"], 0) + 1
    print(total, "cases:", verdicts)
    assert total >= 500 and min(verdicts[v] for v in ("pass", "inspect", "deny")) >= 50

    # and a table that is wrong is told apart from one that is right
    cases[0]["expect"] = "deny" if cases[0]["expect"] != "deny" else "pass"
    done = run_table(host, folder, policy, cases)
    assert done.returncode == 1 and "cases:1: " in done.stdout and "expected " in done.stdout and "got " in done.stdout


def test_nothing_allows_nothing(host, folder):
    for text in ("{}", '{"allow": []}', '{"allow": null}'):
        host.write(folder + "/none.json", text)
        host.write(folder + "/cases", "deny https://a.example.org/\ndeny 203.0.113.12:443\n")
        assert host.anchorctl("policy", "test", folder + "/none.json", folder + "/cases").returncode == 0


# ---- a run's policy, a workflow's, and the log ----

@contextlib.contextmanager
def guest_of(host, anchord, run):
    assert len(anchord.call("Register", run=run, workflow="exec-networks", stage="work")["digest"]) == 64
    host.systemctl("start", "anchor-proxy@%s.socket" % run)
    it = FakeGuest(host, run)
    yield it
    it.stop()
    host.run("systemctl stop anchor-proxy@%s.socket anchor-proxy@%s.service anchorhold-runs-%s.slice; true" % (run, run, run))
    anchord.call("Release", run=run)


@pytest.fixture(scope="module")
def guest(host, anchord):  # noqa: F811
    with guest_of(host, anchord, RUN) as it:
        yield it


def explain(host, subject, target, *options):
    done = host.anchorctl("policy", "explain", "--json=short", subject, target, *options, check=False)
    assert done.returncode in (0, 3), done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert (done.returncode == 3) == (answer["verdict"] == "deny")
    return answer


def test_explain_run_and_workflow_agree(host, guest):
    [registered] = records(host, "egress.registered", RUN)
    for target, verdict, line in (("https://www.example.org/x", "pass", "name\": \"www"), ("www.example.org:22", "deny", "name\": \"www"),
                                  ("http://git.example.org/public/x", "pass", "/public"), ("http://git.example.org/private", "deny", "/public"),
                                  ("%s:9000" % worlds.ORIGIN, "pass", "network"), ("%s:443" % worlds.OTHER, "deny", None), ("DENIED.example.org.:443", "deny", "denied")):
        of_run, of_workflow = explain(host, RUN, target), explain(host, "exec-networks", target)
        assert {k: of_run[k] for k in ("verdict", "reason", "rule", "file", "line", "digest")} == \
               {k: of_workflow[k] for k in ("verdict", "reason", "rule", "file", "line", "digest")}
        assert of_run["verdict"] == verdict and of_run["digest"] == registered["digest"]
        if line:
            assert of_run["file"] == "/etc/anchorhold/policy/egress/test-networks.json"
            text = host.run("cat " + of_run["file"]).stdout.splitlines()
            assert line in "".join(text[of_run["line"] - 1:of_run["line"] + 12])
    assert host.anchorctl("policy", "explain", "r00000nobody0", "a.example.org:443", check=False).returncode == 4

    # who is no operator is told nothing
    denied = host.run(["anchorctl", "policy", "explain", RUN, "www.example.org:443"], user="stranger", check=False)
    assert denied.returncode == 3 and "www.example.org:443 is" not in denied.stdout


def test_files_change_and_the_run_does_not(host, guest):
    path = "/etc/anchorhold/policy/egress/test-networks.json"
    before, text = explain(host, RUN, "www.example.org:443"), host.run("cat " + path).stdout
    try:
        host.write(path, json.dumps({"allow": [{"name": "new.example.org", "ports": [443]}]}))
        assert explain(host, RUN, "www.example.org:443") == before
        after = explain(host, "exec-networks", "www.example.org:443")
        assert after["verdict"] == "deny" and after["digest"] != before["digest"]
    finally:
        host.write(path, text)
    assert explain(host, "exec-networks", "www.example.org:443")["digest"] == before["digest"]


def through_proxy(target, request):
    return exchange("10.255.255.1", 3128, b"CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (target.encode(), target.encode()) + request, 5, False)


def test_literal_address_by_network(host, guest, world):
    """What a rule by network and host.json name together is reached by its address; its neighbour is not, nor is it without the proxy."""
    ca = world.path("world.pem")
    request = b"GET http://%s/literal HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % ((worlds.ORIGIN.encode(),) * 2)
    assert guest.call(exchange, "10.255.255.1", 3128, request, 5, False).startswith(b"HTTP/1.1 200 ")
    assert guest.call(exchange, "10.255.255.1", 3128, request.replace(worlds.ORIGIN.encode(), worlds.OTHER.encode()), 5, False).startswith(b"HTTP/1.1 403 ")
    assert wait_for(lambda: records(host, "egress.deny", RUN, name=worlds.OTHER, reason="literal-address"))
    assert guest.call(exchange, "10.255.255.1", 3128, request.replace(b"Host: " + worlds.ORIGIN.encode(), b"Host: www.example.org"), 5, False).split()[1] in (b"403", b"421")

    assert guest.call(connect, "%s:22" % worlds.ORIGIN, "www.example.org", ca).startswith("HTTP/1.1 403 ")
    assert "access denied" in guest.call(connect, "%s:443" % worlds.ORIGIN, "www.example.org", ca).lower()     # a server name: it is no literal address then
    for other in ("169.254.169.254", "127.0.0.1", worlds.GATEWAY, "[::ffff:%s]" % worlds.ORIGIN):
        assert guest.call(connect, other + ":443", "www.example.org", ca).startswith("HTTP/1.1 403 "), other
    direct = guest.call(exchange, worlds.ORIGIN, 80, request, 3, False)
    assert not (isinstance(direct, bytes) and direct.startswith(b"HTTP/1.1 200"))


def status_of(guest, request, name="git.example.org", fields=""):
    """What comes of "GET /path" through the explicit proxy, in the clear."""
    method, path = request.split(" ")
    head = f"{method} http://{name}{path} HTTP/1.1\r\nHost: {name}\r\n{fields}Content-Length: 0\r\nConnection: close\r\n\r\n"
    return int(guest.call(exchange, "10.255.255.1", 3128, head.encode(), 5, False).split()[1])


def blocked_for_want_of_a_rule(host):
    """What the log says was blocked so, as cases that a policy which would have allowed it passes."""
    cases, connected = set(), set()
    for denied in records(host, "egress.deny", RUN):
        name, port, reason = denied["name"], denied["port"], denied["reason"]
        if reason in ("no-rule", "port") and not re.fullmatch(r"[0-9.]+|.*:.*", name):
            cases.add(f"allow {name}:{port}")
        elif reason in ("path", "method"):
            for detail, _ in denied.get("details", [(denied["detail"], 1)]):
                method, path = detail.split(" ", 1)
                cases.add(f"allow {'https' if port == 443 else 'http'}://{name}{path} {method}")
        else:
            continue
        connected.add(name)
    return cases | {f"allow {r['name']}:443" for r in records(host, "dns.refused", RUN, reason="no-rule") if r["name"] not in connected}


def beside(rules):
    """Cases of what is next to each rule: another port, a name below, a path beside and another method."""
    ports = {(rule["name"], port if isinstance(port, int) else port["port"]) for rule in rules for port in rule["ports"]}
    cases = {f"deny {name}:{other}" for name, port in ports for other in (port - 1, port + 1) if (name, other) not in ports}
    cases |= {f"deny x.{name}:{port}" for name, port in ports}
    requests = {(rule["name"], path, method) for rule in rules for path in rule.get("paths", []) for method in rule["methods"] if path != "/*"}
    for name, path, method in requests:
        cases |= {f"deny http://{name}{path}x {method}", f"deny http://{name}{path} DELETE"}
    return cases


def smaller(rules):
    """The same without one rule, or without one of several ports, methods or paths of a rule."""
    for i, rule in enumerate(rules):
        yield rules[:i] + rules[i + 1:]
        for key in ("ports", "methods", "paths"):
            for j in range(len(rule.get(key, []))) if len(rule.get(key, [])) > 1 else ():
                yield [*rules[:i], {**rule, key: rule[key][:j] + rule[key][j + 1:]}, *rules[i + 1:]]


def test_suggest_what_was_blocked(host, guest, folder, world):
    """The minimal rules: all that was blocked for want of a rule would have passed, nothing beside it, and no part of a rule is idle."""
    ca = world.path("world.pem")
    assert guest.call(dns, "paste.example.net")[0] == 5
    for target in ("api.example.net:8443", "api.example.net:9443", "www.example.org:9443", "denied.example.org:443"):
        assert guest.call(connect, target, target.split(":")[0], ca).startswith("HTTP/1.1 403 ")
    assert status_of(guest, "GET /private") == 403
    for name, reason, n in (("api.example.net", "no-rule", 2), ("www.example.org", "port", 1), ("denied.example.org", "denied-by-rule", 1), ("git.example.org", "path", 1)):
        wait_for(lambda: len(records(host, "egress.deny", RUN, name=name, reason=reason)) >= n, explain=lambda: name)

    done = host.anchorctl("policy", "log", RUN, "--suggest", user="root")
    rules = json.loads(done.stdout)["allow"]
    names = {r["name"] for r in rules}
    assert names == {"paste.example.net", "api.example.net", "www.example.org", "git.example.org"}
    assert "never suggested" in done.stderr and "literal-address" in done.stderr and "denied-by-rule" in done.stderr
    host.write(folder + "/suggested.json", done.stdout)
    assert host.anchorctl("policy", "check", folder + "/suggested.json").returncode == 0

    def passes(allow, cases):
        host.write(folder + "/less.json", json.dumps({"allow": allow}))
        host.write(folder + "/cases", "\n".join(sorted(cases)) + "\n")
        done = host.anchorctl("policy", "test", folder + "/less.json", folder + "/cases", check=False)
        assert done.returncode in (0, 1), done.stderr
        return done.returncode == 0

    blocked = blocked_for_want_of_a_rule(host)
    assert len(blocked) >= 5 and passes(rules, blocked), (blocked, rules)
    assert passes(rules, beside(rules) | {"deny denied.example.org:443"}), rules
    for less in smaller(rules):
        assert not passes(less, blocked), (less, rules)


SAME_WINDOW = ["GET /private", "GET /other/a", "GET /other/b", "HEAD /other/a", "POST /private/x", "GET /other/a/below", "GET /other/a", "GET /other/b?token=hidden"]
BESIDE = ["GET /other", "GET /other/c", "GET /privately", "POST /other/a", "DELETE /private", "POST /private", "GET /public"]


@pytest.mark.parametrize("field", ["Destination: http://git.example.org/private", "destination: /public/y", "X-Amz-Copy-Source: /private", "X_Copy_From: private/x"])
def test_deny_a_second_path_where_rules_have_paths(host, guest, field):
    """WebDAV's MOVE and COPY say in a field where to, and object stores where from: no rule about paths sees that."""
    for request in "MOVE /public/x", "COPY /public/x", "PUT /public/x":
        answer = guest.call(exchange, "10.255.255.1", 3128, f"{request.replace(' ', ' http://git.example.org')} HTTP/1.1\r\nHost: git.example.org\r\n{field}\r\n"
                            "Content-Length: 0\r\nConnection: close\r\n\r\n".encode(), 5, False)
        assert answer.startswith(b"HTTP/1.1 403 ") and b"Anchorhold-Reason: second-path" in answer
    assert wait_for(lambda: records(host, "egress.deny", RUN, reason="second-path"))[0]["rule"] == "egress/test-networks.json#/allow/2"
    # the control: the same without it, and with a field that means nothing
    assert status_of(guest, "GET /public/x") != 403 and status_of(guest, "MOVE /public/x", fields="Destinations: /private\r\n") != 403


def test_suggested_is_loaded(host, anchord, folder):
    """All paths that one rule refused within ten seconds, in two records: the policy made from them, loaded, allows those and nothing beside."""
    path, run = "/etc/anchorhold/policy/egress/test-networks.json", "r000000pathsa"
    with guest_of(host, anchord, run) as guest:
        assert [status_of(guest, request) for request in SAME_WINDOW] == [403] * len(SAME_WINDOW)
    wait_for(lambda: sum(r["count"] for r in records(host, "egress.deny", run)) == len(SAME_WINDOW))
    denied = records(host, "egress.deny", run)
    assert len(denied) < len(SAME_WINDOW) and "hidden" not in str(denied)        # two, unless the machine took ten seconds for it
    told = collections.Counter()
    for record in denied:
        told.update(dict(record.get("details", [(record["detail"], record["count"])])))
    assert told == collections.Counter(request.partition("?")[0] for request in SAME_WINDOW)

    suggested, before = host.anchorctl("policy", "log", run, "--suggest", user="root").stdout, host.run("cat " + path).stdout
    rules = json.loads(suggested)["allow"]
    assert len(rules) == 3 and all(rule["ports"] == [80] for rule in rules), rules
    host.write(folder + "/suggested.json", suggested)
    assert host.anchorctl("policy", "check", folder + "/suggested.json").returncode == 0
    try:
        host.write(path, suggested)
        with guest_of(host, anchord, "r000000pathsb") as guest:
            assert 403 not in [status_of(guest, request) for request in SAME_WINDOW]
            assert [status_of(guest, request) for request in BESIDE] == [403] * len(BESIDE)
    finally:
        host.write(path, before)


def test_log_follows(host, guest):
    process = host.popen(["timeout", "20", "anchorctl", "policy", "log", RUN, "--blocked", "--follow"], stdout=subprocess.PIPE, text=True)
    assert RUN in process.stdout.readline()                     # what was there before
    assert guest.call(dns, "followed.example.net")[0] == 5
    line = next(line for line in process.stdout if "lookup of followed.example.net" in line)
    assert " denied " in line and RUN in line
    host.run("pkill -f -- '--blocked --follow'")
    process.wait(10)

    # who may not read the log is not left to wonder why nothing comes
    told = host.run(["timeout", "2", "anchorctl", "policy", "log", RUN, "--follow"], user="operator", check=False)
    assert told.stdout == "" and "as far as you may read" in told.stderr


def test_import_settings(host, folder):
    settings = {"network": {"allowedDomains": ["code.example.org", "*.packages.example.net"], "deniedDomains": ["gist.example.org"], "allowUnixSockets": ["/run/x"],
                            "allowLocalBinding": True}, "filesystem": {"denyRead": ["~/.ssh"], "allowWrite": ["."], "denyWrite": []}}
    host.write(folder + "/srt-settings.json", json.dumps(settings))
    done = host.anchorctl("policy", "import", folder + "/srt-settings.json", "--name", "agents")
    for key in ("network.allowUnixSockets", "network.allowLocalBinding", "filesystem.denyRead", "filesystem.allowWrite", "filesystem.denyWrite"):
        assert key + " has no counterpart" in done.stderr
    host.write(folder + "/agents.json", done.stdout)
    host.write(folder + "/cases", "pass https://code.example.org/\npass one.packages.example.net:443\ndeny packages.example.net:443\ndeny gist.example.org:443\ndeny code.example.org:22\n")
    assert host.anchorctl("policy", "check", folder + "/agents.json").returncode == 0
    assert host.anchorctl("policy", "test", folder + "/agents.json", folder + "/cases").returncode == 0
