# SPDX-License-Identifier: LGPL-2.1-or-later
"""A run whose egress is tested from its guest's side: the place of anchord is taken for the calls that only it may make, the microVM's by a namespace with the
guest's address (fakeguest.py). Everything between the two is the image's own.
"""

import contextlib
import http.client
import json
import os
import re
import shlex
import socket
import ssl
import time

from fakeguest import FakeGuest, dns
from waiting import wait_for

OVERRIDE = "/run/systemd/system/anchord.service.d/test.conf"

class Anchord:
    """Calls egressd as anchord would: from a process of anchord.service, whose program is replaced meanwhile."""

    def __init__(self, host):
        self.host, self.n = host, 0

    def take(self):
        self.host.stop_daemon("anchord")

    def shell(self, script):
        """Runs a script as that process; what it prints."""
        # a client that waits at a socket of anchord's has the unit started again and again: each may be the one before, or this one more than once
        self.n += 1
        # so the script has a name of its own as well: whoever starts the unit by its former definition runs the former script. And it says when it
        # is through: one that somebody else has started may be in the middle of its answer
        answer, call = f"/run/anchord-answer.{self.n}", f"/run/anchord-call.{self.n}"
        self.host.run(f"rm -f /run/anchord-answer.* /run/anchord-call.{self.n - 2}")
        self.host.write(call, "#!/bin/sh\n(\n%s\n)\nprintf '\\n= %%s\\n' $?\n" % script, 0o755)
        self.host.write(OVERRIDE, "[Unit]\nRequires=\nStartLimitIntervalSec=0\n[Service]\nType=oneshot\nRestart=no\nSockets=\nExecStart=\n"
                                  f"ExecStart={call}\nStandardOutput=append:{answer}\nStandardError=inherit\nWatchdogSec=0\n")
        self.host.systemctl("daemon-reload")

        def answered():
            self.host.systemctl("start", "anchord.service", check=False)
            return re.match(r"(.*?)\n= (\d+)\n", self.host.run(["cat", answer], check=False).stdout, re.S)

        whole = wait_for(answered, 60, lambda: self.host.journal("-u", "anchord.service", "-n", "20") + self.host.run(["cat", answer], check=False).stdout)
        assert whole[2] == "0", whole[1]
        return whole[1]

    def call(self, method, interface="Egress", sock="egress", **params):
        said = self.shell("exec varlinkctl --json=short call /run/anchorhold/%s.sock io.anchorhold.%s.%s %s" % (
            sock, interface, method, shlex.quote(json.dumps(params))))
        return json.loads(said)

    def restore(self):
        """The place is anchord's, and it hears every enforcer: not before, for whoever comes next builds on that."""
        # one that is just being started would be judged by the real unit's rules when it ends
        self.host.stop_daemon("anchord")
        self.host.run(f"rm -rf {os.path.dirname(OVERRIDE)} /run/anchord-answer.* /run/anchord-call.*")
        self.host.systemctl("daemon-reload")
        self.host.systemctl("reset-failed", "anchord.service", check=False)
        self.host.start_daemon("anchord")
        wait_for(self.host.is_enforced, 60, self.host.status)


class EgressRun:
    """A registered run with its namespace, its proxy and a stand-in for its guest."""

    def __init__(self, host, anchord, run, workflow):
        self.host, self.anchord, self.run = host, anchord, run
        assert len(anchord.call("Register", run=run, workflow=workflow, stage="work")["digest"]) == 64
        host.systemctl("start", f"anchor-proxy@{run}.socket")
        self.guest = FakeGuest(host, run)
        self.call = self.guest.call

    def records(self, event, **fields):
        return records(self.host, event, self.run, **fields)

    def address_of(self, name):
        return address_of(self.guest, name)

    def stop(self):
        self.guest.stop()
        self.host.run("systemctl stop anchor-proxy@{0}.socket anchor-proxy@{0}.service anchorhold-runs-{0}.slice; true".format(self.run))
        self.anchord.call("Release", run=self.run)


class InjectRun(EgressRun):
    """The same with its inject, for a workflow with credentials; egressd may be told another one."""

    def __init__(self, host, anchord, run, workflow, to_egressd=None):
        super().__init__(host, anchord, run, to_egressd or workflow)
        self.secret("Register", workflow=workflow, item="i" + run[1:], stage="work", expires_usec=int((time.time() + 3600) * 1e6))
        host.systemctl("start", f"anchor-inject@{run}.socket")

    def secret(self, method, **params):
        return self.anchord.call(method, "Secret", "secret-api", run=self.run, **params)

    def peak(self):
        """How much memory inject has had at most so far, in KiB."""
        pid = self.host.property(f"anchor-inject@{self.run}.service", "MainPID")
        return int(re.search(r"VmHWM:\s+(\d+) kB", self.host.run(f"cat /proc/{pid}/status").stdout).group(1))

    def stop(self):
        self.host.run(f"systemctl stop anchor-inject@{self.run}.socket anchor-inject@{self.run}.service; true")
        super().stop()
        self.secret("Release")


def records(host, event, run, **fields):
    """Audit records of one kind whose data has these fields, oldest first."""
    lines = host.run(["journalctl", "--namespace=anchorhold", "--no-pager", "-o", "json", "ANCHORHOLD_RUN=" + run, "ANCHORHOLD_EVENT=" + event],
                     check=False).stdout.splitlines()
    data = [json.loads(json.loads(line)["ANCHORHOLD_DATA"]) for line in lines if line.startswith("{")]
    return [d for d in data if all(d.get(k) == v for k, v in fields.items())]


def tls(address, name, ca, request=None, timeout=5, alpn=None):
    """(status, body) over TLS, or the error."""
    context = ssl.create_default_context(cafile=ca)
    try:
        with socket.create_connection((address, 443), timeout=timeout) as raw:
            with context.wrap_socket(raw, server_hostname=name) as s:
                s.sendall(request or b"GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % name.encode())
                response = http.client.HTTPResponse(s)
                response.begin()
                return response.status, response.read().decode()
    except OSError as error:
        return type(error).__name__, str(error)


def address_of(guest, name):
    rcode, addresses, _ = guest.call(dns, name)
    assert rcode == 0 and len(addresses) == 1
    return addresses[0]


@contextlib.contextmanager
def under_way(world, path, log="origin", n=1):
    """When the block ends, the origin has been asked for this path n times more: what the block began is under way."""
    def asked():
        return sum(r["path"] == path for r in world.log(log))

    before = asked()
    yield
    wait_for(lambda: asked() >= before + n, 15)
