#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""The other side of the demo and of the tests: a network namespace with everything that a run may reach.

203.0.113.0/24 (TEST-NET-3, RFC 5737), 2001:db8:113::/64 (RFC 3849) and no way out. The namespace belongs to one server process and goes with it;
it is joined to a booted image by a veth pair, whose other end is `uplink0`, 203.0.113.1 and 2001:db8:113::1.

    world = World(directory)      # certificates, zone, files for the image's /etc
    world.start()
    world.join(pid)               # the pid of the booted image's PID 1
    ...
    world.stop()
"""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import githubapp  # noqa: E402

GATEWAY = "203.0.113.1"
RESOLVER = "203.0.113.53"
PROVIDER = "203.0.113.10"
GIT = "203.0.113.11"
ORIGIN = "203.0.113.12"
ORIGIN6, GATEWAY6 = "2001:db8:113::12", "2001:db8:113::1"
OTHER = "203.0.113.13"   # serves as well, but no policy names it
WIRE = "203.0.113.14"    # notes to the byte what it got
H2 = "203.0.113.15"      # speaks HTTP/2
GITHUB = "203.0.113.16"  # mints tokens for an app
STRANGE = "203.0.113.17" # as WIRE, with a certificate for which nobody vouches
BENCH = "203.0.113.18"   # where the bench puts a server of its own
SILENT = "203.0.113.200" # nobody is there

ZONE = {
    "api.anthropic.com": {"A": [PROVIDER], "ttl": 1},
    "api.openai.com": {"A": [PROVIDER]},
    "git.example.org": {"A": [GIT]},
    "www.example.org": {"A": [ORIGIN]},
    "wire.example.org": {"A": [WIRE]},
    "h2.example.org": {"A": [H2]},
    "strange.example.org": {"A": [STRANGE]},
    "github.example.org": {"A": [GITHUB]},
    "alias.example.org": {"CNAME": "www.example.org"},
    "other.example.net": {"A": [OTHER]},
    "paste.example.net": {"A": [OTHER]},
    "metadata.example.org": {"A": ["169.254.169.254"]},
    "loopback.example.org": {"A": ["127.0.0.1"]},
    "host.example.org": {"A": [GATEWAY]},
    "refusing.example.org": {"A": [OTHER, ORIGIN]},     # only the second serves what the first does not
    **{f"{name}.example.org": {"A": [ORIGIN]} for name in ("login", "passing", "replacing", "elsewhere")},
    **{f"h2-{name}.example.org": {"A": [H2]} for name in ("www", "login", "passing", "replacing", "elsewhere")},
    "silent.example.org": {"A": [SILENT, ORIGIN]},
}
NAMES = sorted(ZONE) + ["*.example.org", "*.example.net"]
ECHO_PORT = 9000

# The key that the model provider really wants. Unmistakable, so that a search for it can say "not here".
REAL_KEY = "sk-ant-api03-REALKEYREALKEYREALKEYREALKEYREALKEYREALKEYREALKEYREALKEYREALKEYREALKEYREALKEYREAL-AA"
OPENAI_KEY = "sk-proj-REALKEYREALKEYREALKEYREALKEYREALKEYREALKEY"


def run(*argv, **kwargs):
    result = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            check=False, **kwargs)
    if result.returncode:
        raise RuntimeError("%s: %s" % (" ".join(argv), result.stdout.decode(errors="replace")))
    return result.stdout.decode(errors="replace")


class World:
    def __init__(self, directory, script="fix-csvsum", delay=0.0):
        self.directory = os.path.abspath(directory)
        self.script, self.delay = script, delay
        self.process = None
        os.makedirs(self.path("git"), exist_ok=True)
        if not os.path.exists(self.path("strange.pem")):
            self.make_certificates()
        self.set_zone(ZONE)

    def path(self, *parts):
        return os.path.join(self.directory, *parts)

    def make_certificates(self):
        """A CA, and one server certificate for every name of the world."""
        extension = self.path("names.ext")
        with open(extension, "w", encoding="ascii") as f:
            f.write("subjectAltName=%s\nextendedKeyUsage=serverAuth\n" % ",".join("DNS:" + n for n in NAMES))
        new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        run("openssl", "req", "-x509", *new_key, "-keyout", self.path("ca.key"), "-out", self.path("world.pem"),
            "-days", "30", "-subj", "/CN=Test world CA", "-addext", "basicConstraints=critical,CA:TRUE",
            "-addext", "keyUsage=critical,keyCertSign,cRLSign")
        run("openssl", "req", "-x509", *new_key, "-keyout", self.path("strange.key"), "-out", self.path("strange.pem"), "-days", "30",
            "-subj", "/CN=strange", "-addext", "subjectAltName=DNS:strange.example.org")
        run("openssl", "req", *new_key, "-keyout", self.path("server.key"), "-out", self.path("server.csr"),
            "-subj", "/CN=world")
        githubapp.make_key(self.path("app.pem"), self.path("app.pub"))
        run("openssl", "x509", "-req", "-in", self.path("server.csr"), "-CA", self.path("world.pem"),
            "-CAkey", self.path("ca.key"), "-CAcreateserial", "-days", "30", "-extfile", extension,
            "-out", self.path("server.pem"))

    def set_zone(self, zone):
        with open(self.path("zone.json.new"), "w", encoding="utf-8") as f:
            json.dump(zone, f, indent=1)
        os.rename(self.path("zone.json.new"), self.path("zone.json"))

    def add_repository(self, source, name):
        """A bare copy of a repository, to be fetched as https://git.example.org/NAME."""
        target = self.path("git", name)
        shutil.rmtree(target, ignore_errors=True)
        run("git", "clone", "--quiet", "--bare", source, target)
        return target

    def make_etc(self, policies=(), settings=None):
        """A folder to lay over the image's /etc: this resolver, this CA, this network, and besides, if they are
        given, policy files as (kind, name, object) and members of host.json."""
        etc = self.path("etc")
        shutil.rmtree(etc, ignore_errors=True)
        os.makedirs(os.path.join(etc, "anchorhold/upstream-ca.d"))
        shutil.copy(self.path("world.pem"), os.path.join(etc, "anchorhold/upstream-ca.d/world.pem"))
        files = {"host.json": {"resolvers": [RESOLVER], "networks": ["203.0.113.0/24", "2001:db8:113::/64"], **(settings or {})}}
        files.update({"policy/%s/%s.json" % (kind, name): value for kind, name, value in policies})
        for name, value in files.items():
            path = os.path.join(etc, "anchorhold", name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as f:
                json.dump(value, f, indent=2)
                f.write("\n")
        return etc

    def start(self):
        self.process = subprocess.Popen(
            ["unshare", "--net", "--", sys.executable, os.path.join(HERE, "world.py"), self.directory,
             self.script, str(self.delay)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=open(self.path("world.log"), "ab"))
        ready, _, _ = select.select([self.process.stdout], [], [], 20)
        line = self.process.stdout.readline() if ready else b""
        if line.strip() != b"ready":
            raise RuntimeError("the world does not start: see %s" % self.path("world.log"))

    def join(self, pid):
        """A veth pair between the world and the network namespace of pid. One to a boot that was there before is gone, or goes."""
        inside = ("nsenter", "--net", "--target", str(pid), "--")
        there = ("nsenter", "--net", "--target", str(self.process.pid), "--")
        subprocess.run([*there, "ip", "link", "delete", "world0"], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        run(*there, "ip", "link", "add", "world0", "type", "veth", "peer", "name", "uplink0", "netns", str(pid))
        for address in (PROVIDER, GIT, ORIGIN, OTHER, WIRE, H2, GITHUB, STRANGE, RESOLVER):
            run(*there, "ip", "address", "add", address + "/24", "dev", "world0")
        run(*there, "ip", "address", "add", ORIGIN6 + "/64", "dev", "world0", "nodad")
        run(*there, "ip", "link", "set", "world0", "up")
        run(*inside, "ip", "address", "add", GATEWAY + "/24", "dev", "uplink0")
        run(*inside, "ip", "address", "add", GATEWAY6 + "/64", "dev", "uplink0", "nodad")
        run(*inside, "ip", "link", "set", "uplink0", "up")

    def stop(self):
        if self.process:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(10)
            self.process.stdout.close()
            self.process = None

    def forget_logs(self):
        for name in ("provider", "git", "dns", "origin", "other", "web", "wire", "h2", "github", "strange"):
            if os.path.exists(self.path(name + ".jsonl")):
                os.unlink(self.path(name + ".jsonl"))

    def log(self, name):
        """The entries of provider, git, dns, origin, other, web, wire, h2, github or strange, oldest first."""
        try:
            with open(self.path(name + ".jsonl"), encoding="utf-8") as f:
                return [json.loads(line) for line in f]
        except FileNotFoundError:
            return []


def main():
    """The server process, inside its namespace."""
    sys.path.insert(0, HERE)
    import dnsserver
    import gitserver
    import h2origin
    import origin
    import protocols
    import provider
    import wire

    directory, script, delay = sys.argv[1], sys.argv[2], float(sys.argv[3])

    def path(name):
        return os.path.join(directory, name)

    # addresses come when the world is joined; until then they can be bound all the same
    for family in ("ipv4", "ipv6"):
        with open("/proc/sys/net/%s/ip_nonlocal_bind" % family, "w", encoding="ascii") as f:
            f.write("1")
    run("ip", "link", "set", "lo", "up")
    cert, key = path("server.pem"), path("server.key")
    provider.serve((PROVIDER, 443), cert, key, path("provider.jsonl"), script, delay)
    gitserver.serve((GIT, 443), cert, key, path("git"), path("git.jsonl"))
    origin.serve((ORIGIN, 443), path("origin.jsonl"), cert, key)
    origin.serve((ORIGIN, 80), path("origin.jsonl"))
    origin.serve((ORIGIN6, 80), path("origin.jsonl"))
    origin.serve((OTHER, 443), path("other.jsonl"), cert, key)
    origin.serve((OTHER, 80), path("other.jsonl"))
    origin.serve_echo((ORIGIN, ECHO_PORT))
    h2origin.Server((H2, 443), path("h2.jsonl"), cert, key)
    protocols.serve(ORIGIN, path("web.jsonl"), cert, key)
    githubapp.serve((GITHUB, 443), path("github.jsonl"), cert, key, path("github.json"), path("app.pub"))
    wire.serve((WIRE, 443), path("wire.jsonl"), cert, key)
    wire.serve((STRANGE, 443), path("strange.jsonl"), path("strange.pem"), path("strange.key"))
    dnsserver.serve((RESOLVER, 53), path("zone.json"), path("dns.jsonl"))
    print("ready", flush=True)
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.5)


if __name__ == "__main__":
    main()
