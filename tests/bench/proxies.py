# SPDX-License-Identifier: LGPL-2.1-or-later
"""The run's way out beside other proxies: squid (ssl-bump) and mitmproxy from Debian, and a plain splice relay, under the same loads.

Proxies and what they need run on CPU 1; the origin (nginx) and the client (bench-load) on CPU 0. The client is in a namespace of its own, wired by
veth pairs to the booted image's namespace, where the other proxies listen, and to a run's, in place of QEMU's tap. It asks each of them for the origin with
CONNECT; none resumes TLS toward the client, toward the origin each does what it does by itself (nginx offers tickets), all verify the origin, all set one header field of each request. CPU is user and system time of
all processes: of ours anchor-proxy, anchor-inject, egressd, auditd and the journal; what of that is the record of each request is said beside it.
"""

import contextlib
import ctypes
import functools
import json
import multiprocessing
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import time

import world as worlds
from egressrun import Anchord
from fakeguest import CLONE_NEWNET, GATEWAY, dns

TOP = pathlib.Path(__file__).resolve().parents[2]
NAME, TUNNEL = "bench.example.org", "tunnel.example.org"
HERE, CLIENT = "10.254.0.1", "10.254.0.2"        # the booted image's end, and the client's
REAL = "bench-REALBENCHREALBENCHREALBENCHREALBENCHREAL"
SQUID, MITMPROXY, RELAY = 3128, 3129, 3130
MIB = 1 << 20
PLAIN = {"connections": 8, "seconds": 8}
BIG = 100 * MIB

POLICIES = [
    ("egress", "bench", {"description": "An origin that is inspected, and one that is passed through.",
                         "allow": [{"name": NAME, "ports": [443], "tls": "inspect"}, {"name": TUNNEL, "ports": [443], "tls": "pass"}], "deny": []}),
    ("credentials", "bench", {"description": "Of the bench's origin.", "sentinel": {"prefix": "bench-", "alphabet": "base64url", "length": 46},
                              "hosts": [NAME], "ports": [443], "places": [{"header": "x-bench-key"}], "on_foreign": "replace"}),
    ("workflows", "exec-bench", {"description": "What a run of the bench may do.", "template": "base", "egress": "bench", "credentials": ["bench"], "repository": False,
                                 "limits": {"memory": "512M", "vcpus": 2, "disk": "4G", "run": "1h", "attempts": 1, "output": "64M"},
                                 "steps": [{"name": "exec", "kind": "exec", "timeout": "1h", "env": {"BENCH_KEY": {"sentinel": "bench"}}}]}),
]

NGINX = """
user root; worker_processes 1; pid /tmp/nginx.pid; error_log /dev/null crit;
events {{ worker_connections 2048; }}
http {{
    access_log off; keepalive_requests 1000000; sendfile on; tcp_nodelay on;
    server {{ listen {origin}:443 ssl backlog=1024; ssl_certificate {world}/server.pem; ssl_certificate_key {world}/server.key; root {files}; }}
}}
"""
SQUID_CONF = """
http_port {here}:{port} ssl-bump cert={folder}/ca-both.pem generate-host-certificates=on dynamic_cert_mem_cache_size=4MB options=NO_TICKET
sslcrtd_program /usr/lib/squid/security_file_certgen -s /tmp/certs -M 4MB
sslcrtd_children 1
acl first at_step SslBump1
ssl_bump peek first
ssl_bump bump all
tls_outgoing_options cafile={world}/world.pem
request_header_access X-Bench-Key deny all
request_header_replace X-Bench-Key {real}
http_access allow all
cache deny all
cache_mem 8 MB
access_log none
cache_log /tmp/squid.log
cache_store_log none
pid_filename none
coredump_dir /tmp
dns_nameservers {resolver}
visible_hostname bench
shutdown_lifetime 0 seconds
"""
MITM_SCRIPT = """
def server_connect(data):
    data.server.address = ("{origin}", 443)

def request(flow):
    if "x-bench-key" in flow.request.headers:
        flow.request.headers["x-bench-key"] = "{real}"

def responseheaders(flow):
    flow.response.stream = True
"""


@functools.lru_cache
def root(release):
    return subprocess.run([TOP / "image" / "benchroot", release], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def in_net(pid, cpu, command, release=None, **options):
    """A program of a bench root (or of the build root) in a process' network namespace, on one CPU."""
    environment = {"PATH": os.environ["PATH"], "CACHE": os.environ.get("CACHE", "/var/cache/anchorhold")}
    if release:
        environment["IN_ROOT"] = root(release)
    return subprocess.Popen(["taskset", "-c", str(cpu), "nsenter", "--net", "--target", str(pid), "--", TOP / "image" / "in-buildroot", *map(str, command)],
                            env=environment, cwd=TOP, **{"stdin": subprocess.DEVNULL, **options})


def tree(pid):
    """A process and all below it, in the numbers of this machine."""
    parents = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents.setdefault(int(path.read_text().rpartition(") ")[2].split()[1]), []).append(int(path.parent.name))
    found, new = [], [pid]
    while new:
        found.append(new.pop())
        new += parents.get(found[-1], [])
    return found


def cpu_of(pids):
    """Seconds of CPU so far, with children that have ended."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            ticks += sum(map(int, pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def rss_of(pids):
    """MiB that are resident."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            found = re.search(r"VmRSS:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text())
            total += int(found.group(1)) if found else 0
    return total / 1024


def outer_pid(host, unit):
    """The main process of a unit in the numbers of this machine."""
    inner = host.property(unit, "MainPID")
    assert inner != "0", f"{unit} does not run"
    for pid in tree(host.pid):
        with contextlib.suppress(OSError):
            if re.search(rf"^NSpid:\s+.*\b{inner}$", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M):
                return pid
    raise AssertionError(f"no process {inner} of {unit}")


def inside(pid, function, *args):
    """A Python function in the network namespace of a process."""
    def enter(result):
        assert ctypes.CDLL(None).setns(os.open(f"/proc/{pid}/ns/net", os.O_RDONLY), CLONE_NEWNET) == 0
        result.send(function(*args))

    result, there = multiprocessing.get_context("fork").Pipe(False)
    process = multiprocessing.get_context("fork").Process(target=enter, args=(there,), daemon=True)
    process.start()
    assert result.poll(30)
    value = result.recv()
    process.join()
    return value


class Peer:
    """Another proxy: its name and version, where it listens, its processes."""

    def __init__(self, name, version, port, process, issuer):
        self.name, self.version, self.process = name, version, process
        self.load = {"address": HERE, "port": port, "name": NAME, "connect": 1, **({"issuer": issuer} if issuer else {})}
        self.header = "X-Bench-Key: sentinel"

    def groups(self):
        return {"all": [pid for pid in tree(self.process.pid)]}


class Ours:
    """A registered run whose tap was taken for a veth; a new one for each round, since a run may have 50,000 records only."""

    name, number = "anchorhold", 0

    def __init__(self, bench):
        self.bench, host, anchord = bench, bench.host, bench.anchord
        Ours.number += 1
        self.run = run = f"r000000bench{Ours.number % 10}"
        self.version = host.anchorctl("--version").stdout.split()[-1]
        anchord.call("Register", run=run, workflow="exec-bench", stage="work")
        anchord.call("Register", "Secret", "secret-api", run=run, workflow="exec-bench", item="i0000000bench", stage="work",
                     expires_usec=int((time.time() + 3600) * 1e6))
        host.systemctl("start", f"anchor-inject@{run}.socket", f"anchor-proxy@{run}.socket")
        host.systemctl("start", f"anchor-inject@{run}.service", f"anchor-proxy@{run}.service")
        self.wire()
        self.load = {"address": GATEWAY, "port": 3128, "name": NAME, "connect": 1}
        self.header = "X-Bench-Key: whatever"           # replaced, as the credential's file says
        for pids in self.groups().values():
            for pid in pids:
                subprocess.run(["taskset", "-acp", "1", str(pid)], check=True, stdout=subprocess.DEVNULL)

    def wire(self):
        netns = f"/proc/{self.bench.host.pid}/root/run/netns/anchor-{self.run}"
        there, client = ("nsenter", f"--net={netns}", "--"), self.bench.client
        worlds.run(*there, "ip", "link", "delete", "tap0")
        worlds.run(*there, "ip", "link", "add", "tap0", "type", "veth", "peer", "name", "eth0", "netns", str(client))
        worlds.run(*there, "ip", "address", "add", GATEWAY + "/30", "dev", "tap0")
        worlds.run(*there, "ip", "link", "set", "tap0", "up")
        inside_client = ("nsenter", "--net", "--target", str(client), "--")
        worlds.run(*inside_client, "ip", "address", "add", "10.255.255.2/30", "dev", "eth0")
        worlds.run(*inside_client, "ip", "link", "set", "eth0", "up")
        worlds.run(*inside_client, "ip", "route", "replace", "default", "via", GATEWAY)

    def groups(self):
        units = {"proxy": f"anchor-proxy@{self.run}", "inject": f"anchor-inject@{self.run}", "egressd": "anchor-egressd",
                 "auditd": "anchor-auditd", "journal": "systemd-journald@anchorhold"}
        return {name: [outer_pid(self.bench.host, unit + ".service")] for name, unit in units.items()}

    def stop(self):
        run, host, anchord = self.run, self.bench.host, self.bench.anchord
        host.run(f"systemctl stop anchor-proxy@{run}.socket anchor-inject@{run}.socket anchorhold-runs-{run}.slice anchor-net@{run}.service; true")
        anchord.call("Release", run=run)
        anchord.call("Release", "Secret", "secret-api", run=run)


class Bench:
    def __init__(self, host, world):
        self.host, self.world = host, world
        self.folder = TOP / "build" / "bench" / "proxies"
        self.processes, self.peers, self.anchord = [], [], None
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "files").mkdir(parents=True)

    def start(self):
        self.make_files()
        host, world = self.host, self.world
        clients = subprocess.Popen(["unshare", "--net", "--", "sleep", "3600"])
        self.processes.append(clients)
        self.client = clients.pid
        while os.readlink(f"/proc/{self.client}/ns/net") == os.readlink("/proc/self/ns/net"):
            time.sleep(0.01)
        boot, there = (("nsenter", "--net", "--target", str(pid), "--") for pid in (host.pid, self.client))
        worlds.run(*boot, "ip", "link", "add", "bench0", "type", "veth", "peer", "name", "eth1", "netns", str(self.client))
        for where, device, address in ((boot, "bench0", HERE), (there, "eth1", CLIENT)):
            worlds.run(*where, "ip", "address", "add", address + "/30", "dev", device)
            worlds.run(*where, "ip", "link", "set", device, "up")
        worlds.run("nsenter", "--net", "--target", str(world.process.pid), "--", "ip", "address", "add", worlds.BENCH + "/24", "dev", "world0")
        world.set_zone({**worlds.ZONE, NAME: {"A": [worlds.BENCH]}, TUNNEL: {"A": [worlds.BENCH]}})
        self.nginx = in_net(world.process.pid, 0, ["nginx", "-c", self.folder / "nginx.conf", "-g", "daemon off;"], "trixie")
        self.processes.append(self.nginx)
        host.seal_credential("bench", REAL)
        self.anchord = Anchord(host)
        self.start_peers()
        time.sleep(2)

    def make_files(self):
        f, values = self.folder, {"origin": worlds.BENCH, "world": self.world.directory, "files": self.folder / "files", "folder": self.folder, "here": HERE, "port": SQUID,
                                  "real": REAL, "resolver": worlds.RESOLVER}
        (f / "files" / "1k").write_bytes(b"x" * 1024)
        with open(f / "files" / "100M", "wb") as big:
            for _ in range(100):
                big.write(b"x" * MIB)
        (f / "nginx.conf").write_text(NGINX.format(**values))
        (f / "squid.conf").write_text(SQUID_CONF.format(**values))
        (f / "script.py").write_text(MITM_SCRIPT.format(**values))
        worlds.run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f / "ca.key", "-out", f / "ca.pem", "-days", "30",
                   "-subj", "/CN=Bench proxy CA", "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
        (f / "ca-both.pem").write_text((f / "ca.key").read_text() + (f / "ca.pem").read_text())
        (f / "mitm").mkdir()
        shutil.copy(f / "ca-both.pem", f / "mitm" / "mitmproxy-ca.pem")

    def version(self, release, *command):
        process = in_net(self.host.pid, 1, command, release, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return re.search(r"\d+(\.\d+)+", process.communicate(timeout=60)[0]).group(0)

    def start_peers(self):
        pid, f = self.host.pid, self.folder
        squid = in_net(pid, 1, ["sh", "-c", f"/usr/lib/squid/security_file_certgen -c -s /tmp/certs -M 4MB && chown -R proxy /tmp/certs && "
                                            f"touch /tmp/squid.log && chown proxy /tmp/squid.log && exec squid -N -f {f}/squid.conf"],
                       "trixie", stdout=subprocess.DEVNULL)
        mitm = in_net(pid, 1, ["mitmdump", "-q", "--listen-host", HERE, "-p", MITMPROXY, "--set", f"confdir={f}/mitm", "--set", "connection_strategy=lazy",
                               "--set", f"ssl_verify_upstream_trusted_ca={self.world.directory}/world.pem", "-s", f / "script.py"], "bookworm")
        relay = in_net(pid, 1, ["build/plain/bench/bench-relay", HERE, RELAY, worlds.BENCH, 443])
        self.processes += [squid, mitm, relay]
        self.squid = Peer("squid ssl-bump", self.version("trixie", "squid", "-v"), SQUID, squid, "Bench proxy CA")
        self.mitm = Peer("mitmproxy", self.version("bookworm", "mitmdump", "--version"), MITMPROXY, mitm, "Bench proxy CA")
        self.relay = Peer("splice relay", "", RELAY, relay, None)
        self.relay.load.pop("connect")
        self.nginx_version = self.version("trixie", "nginx", "-v")
        self.direct = {"address": worlds.BENCH, "port": 443, "name": NAME}

    def command(self, mode, load):
        return ["build/plain/bench/bench-load", mode, *(f"{k}={v}" for k, v in load.items())]

    def run_load(self, mode, load, pid=None):
        client = in_net(pid or self.client, 0, self.command(mode, load), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        out, errors = client.communicate(timeout=180)
        if client.returncode:
            raise AssertionError(f"{mode} {load}: {errors}")
        return json.loads(out)

    def measure(self, proxy, mode, header=False, **load):
        """What the client saw, and the CPU of each of the proxy's processes."""
        groups = proxy.groups()
        before = {name: cpu_of(pids) for name, pids in groups.items()}
        seen = self.run_load(mode, {**proxy.load, **PLAIN, **load, **({"header": proxy.header} if header else {})})
        seen["cpu"] = {name: cpu_of(pids) - before[name] for name, pids in groups.items()}
        seen["rate"] = seen["requests"] / seen["seconds"]
        return seen

    def hold(self, proxy, n):
        """MiB of each process with n connections open."""
        client = in_net(self.client, 0, self.command("hold", {**proxy.load, "path": "/1k", "connections": n}), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert client.stdout.readline(), f"{proxy.name} does not hold {n} connections"
        resident = {name: rss_of(pids) for name, pids in proxy.groups().items()}
        client.stdin.close()
        client.wait(30)
        return resident

    @contextlib.contextmanager
    def ours(self):
        it = Ours(self)
        try:
            yield it
        finally:
            it.stop()

    def stop(self):
        for process in self.processes:
            for pid in reversed(tree(process.pid)):            # squid, which has changed its user, does not end with its parent
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
        if self.anchord:
            self.anchord.restore()
        for big in self.folder.glob("files/100M"):
            big.unlink()


# ---- the table ----

def cpu10k(seen, own=False):
    """Seconds of CPU for ten thousand requests; own: without what records them."""
    return sum(v for name, v in seen["cpu"].items() if not own or name in ("all", "proxy", "inject")) * 10000 / seen["requests"]


def show(label, seen):
    parts = "  ".join(f"{name} {value * 10000 / seen['requests']:.2f}" for name, value in seen["cpu"].items() if name != "all")
    print(f"  {label:32} {seen['rate']:9.0f} /s  CPU {cpu10k(seen):7.2f} s/10k  p50 {seen['p50_us']:8.0f} µs  p99 {seen['p99_us']:8.0f} µs  {parts}", flush=True)


def best(rounds, key="rate"):
    """The round in the middle."""
    return sorted(rounds, key=lambda r: r[key])[len(rounds) // 2]


def small_requests(bench, rounds):
    """Kept connections, 1 KiB: in turn, each a few times."""
    seen = {"squid": [], "ours": [], "key": []}
    for _ in range(rounds):
        seen["squid"].append(bench.measure(bench.squid, "requests", path="/1k", count=40000, seconds=4))
        with bench.ours() as ours:
            seen["ours"].append(bench.measure(ours, "requests", path="/1k", count=15000, seconds=4))
            seen["key"].append(bench.measure(ours, "requests", header=True, path="/1k", count=15000, seconds=4))
    seen["mitm"] = [bench.measure(bench.mitm, "requests", path="/1k", count=5000, seconds=4)]
    return {name: best(values) for name, values in seen.items()} | {
        "p99": statistics.median(b["p99_us"] / a["p99_us"] for a, b in zip(seen["squid"], seen["ours"]))}


def figures(host, world, rounds=5):
    bench = Bench(host, world)
    try:
        bench.start()
        print(f"\nproxies side by side: anchorhold, squid-openssl {bench.squid.version}, mitmproxy {bench.mitm.version}; origin nginx {bench.nginx_version}")
        bench.run_load("requests", {**bench.squid.load, "path": "/1k", "count": 100})
        bench.run_load("requests", {**bench.mitm.load, "path": "/1k", "count": 20})

        print("small requests (1 KiB) on eight kept connections")
        small = small_requests(bench, rounds)
        for label, name in (("squid", "squid"), ("mitmproxy", "mitm"), ("anchorhold", "ours"), ("anchorhold, with a credential", "key")):
            show(label, small[name])

        print("new intercepted connections, one request each")
        new = {"squid": bench.measure(bench.squid, "connections", path="/1k", count=2000), "mitmproxy": bench.measure(bench.mitm, "connections", path="/1k", count=400)}
        bodies = {name: bench.measure(peer, "body", path="/100M", connections=1, count=3, seconds=20) for name, peer in (("squid", bench.squid), ("mitmproxy", bench.mitm))}
        bodies["direct"] = bench.run_load("body", {**bench.direct, "path": "/100M", "connections": 1, "count": 3}, pid=host.pid)
        idle = {"squid": bench.squid.groups(), "mitmproxy": bench.mitm.groups()}
        resident = {name: (rss_of(pids["all"]), sum(bench.hold(peer, 256).values())) for (name, pids), peer in zip(idle.items(), (bench.squid, bench.mitm))}
        with bench.ours() as ours:
            resting = {name: rss_of(pids) for name, pids in ours.groups().items() if name in ("proxy", "inject")}
            new["anchorhold"] = bench.measure(ours, "connections", path="/1k", count=2000)
            bodies["anchorhold"] = bench.measure(ours, "body", path="/100M", connections=1, count=3, seconds=20)
        with bench.ours() as ours:
            held = {name: mib for name, mib in bench.hold(ours, 256).items() if name in resting}
            tunnel = {**ours.load, "name": TUNNEL, "port": 443, "address": inside(bench.client, dns, TUNNEL)[1][0]}
            tunnel.pop("connect")
            ours.load = tunnel
            passed = {mode: (bench.measure(bench.relay, mode, **load), bench.measure(ours, mode, **load)) for mode, load in (
                ("requests", {"path": "/1k", "count": 40000, "seconds": 4}), ("connections", {"path": "/1k", "count": 2000}),
                ("body", {"path": "/100M", "connections": 1, "count": 3, "seconds": 20}))}
        for name, seen in new.items():
            show(name, seen)

        print("bodies of 100 MiB")
        for name, seen in bodies.items():
            cpu = f"  CPU {sum(seen['cpu'].values()) * 100 * MIB / seen['bytes']:.2f} s each" if "cpu" in seen else ""
            print(f"  {name:32} {seen['bytes'] / seen['seconds'] / 1e6:9.0f} MB/s{cpu}")

        print("resident, idle and with 256 connections")
        for name, (a, b) in resident.items():
            print(f"  {name:32} {a:9.1f} MiB  {b:9.1f} MiB")
        for name in resting:
            print(f"  {'anchor-' + name:32} {resting[name]:9.1f} MiB  {held[name]:9.1f} MiB")

        print("connections passed through, against a splice relay")
        for mode, (a, b) in passed.items():
            print(f"  {mode:32} {b['rate'] / a['rate'] if mode != 'body' else b['bytes'] * a['seconds'] / (a['bytes'] * b['seconds']):9.2f} of its rate"
                  f"  CPU {cpu10k(b) / max(cpu10k(a), 1e-9):5.2f} times  p99 {b['p99_us'] / a['p99_us']:5.2f} times")

        print("aims")
        squid, ours, mitm = small["squid"], small["ours"], small["mitm"]
        body_rate = {name: seen["bytes"] / seen["seconds"] for name, seen in bodies.items()}
        for what, value, aim, fine in (
                ("small requests: CPU against squid's", cpu10k(ours) / cpu10k(squid), "≤ 0.6", lambda v: v <= 0.6),
                ("  of which proxy and inject alone", cpu10k(ours, True) / cpu10k(squid), "", None),
                ("small requests: rate against squid's", ours["rate"] / squid["rate"], "≥ 1.5", lambda v: v >= 1.5),
                ("small requests: p99 against squid's (median of pairs)", small["p99"], "≤ 1.1", lambda v: v <= 1.1),
                ("new connections: CPU against squid's", cpu10k(new["anchorhold"]) / cpu10k(new["squid"]), "≤ 0.45", lambda v: v <= 0.45),
                ("  of which proxy and inject alone", cpu10k(new["anchorhold"], True) / cpu10k(new["squid"]), "", None),
                ("small requests: CPU of mitmproxy against ours", cpu10k(mitm) / cpu10k(ours), "≥ 10", lambda v: v >= 10),
                ("100 MiB: rate against direct", body_rate["anchorhold"] / body_rate["direct"], "≥ 0.5", lambda v: v >= 0.5),
                ("idle: MiB of inject", resting["inject"], "≤ 12", lambda v: v <= 12),
                ("256 connections: MiB of inject", held["inject"], "≤ 24", lambda v: v <= 24),
                ("passed through: kept requests against the relay", passed["requests"][1]["rate"] / passed["requests"][0]["rate"], "≥ 0.9", lambda v: v >= 0.9)):
            print(f"  {what:55} {value:7.2f}  {aim:7} {'' if fine is None else 'met' if fine(value) else 'missed'}")
    finally:
        bench.stop()
