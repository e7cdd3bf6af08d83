# SPDX-License-Identifier: LGPL-2.1-or-later
"""The guest and its channel, without anchord and anchor-run: a microVM of the template, started by the
launcher, spoken to by an independent implementation of the channel."""

import hashlib
import json
import os
import time

import guestchannel
import pytest

SPEC = {"template": "base", "agent": None, "memory_mib": 512, "vcpus": 2, "disk_mib": 4096, "accel": "tcg", "digests": {}}


class Vm:
    def __init__(self, host, name):
        self.host = host
        self.folder = f"/run/test-{name}"
        host.run(f"mkdir -p {self.folder}")
        host.write(f"{self.folder}/vm", json.dumps(SPEC))
        self.process = host.popen([
            "systemd-socket-activate", "-E", f"CREDENTIALS_DIRECTORY={self.folder}",
            f"--listen={self.folder}/channel", f"--listen={self.folder}/qmp",
            "/usr/libexec/anchorhold/anchor-vm", "r000000000000", "/usr/lib/anchorhold/templates",
            "/var/lib/anchorhold/scratch", ""])
        host.run(f"until [ -S {self.folder}/qmp ]; do sleep 0.05; done", timeout=10)

    def connect(self):
        return guestchannel.connect(f"/proc/{self.host.pid}/root{self.folder}/channel")

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.host.run(f"rm -rf {self.folder}")


@pytest.fixture(scope="module")
def vm(host):
    there = Vm(host, "channel")
    yield there
    there.stop()


@pytest.fixture(scope="module")
def channel(vm):
    """The session that all tests but the last share."""
    there = vm.connect()
    there.send("hello", 0, {"protocol": 1, "hostname": "r000000000000"})
    there.hello = json.loads(there.expect("hello", 90))

    # Nothing runs before entropy and time have been set.
    there.send("exec", there.next_stream(), {"argv": ["true"]})
    assert b"come first" in there.expect("error")
    there.send("seed", 0, os.urandom(64))
    there.expect("seed")
    there.send("exec", there.next_stream(), {"argv": ["true"]})
    assert b"come first" in there.expect("error")
    there.send("clock", 0, {"realtime_us": time.time_ns() // 1000})
    there.expect("clock")
    return there


def test_hello(channel):
    assert channel.hello["protocol"] == 1
    assert len(channel.hello["boot_id"]) == 36
    assert channel.shell("hostname").stdout == b"r000000000000\n"
    assert abs(int(channel.shell("date +%s").stdout) - time.time()) < 5


def test_exit(channel):
    assert channel.run(["true"]).status == 0
    assert channel.shell("exit 7").status == 7
    assert channel.shell("kill -9 $$").status == -9
    assert channel.run(["/nonexistent"])["errno"] == 2
    assert channel.run(["pwd"], cwd="/usr").stdout == b"/usr\n"
    assert channel.run(["env"], env={"A": "b=c"}).stdout.split(b"\n").count(b"A=b=c") == 1


def test_output(channel):
    result = channel.shell("echo out; echo err >&2")
    assert (result.stdout, result.stderr) == (b"out\n", b"err\n")
    size = 10 << 20
    result = channel.shell(f"head -c {size} /dev/zero")
    assert len(result.stdout) == size


def test_stdin(channel):
    stream = channel.next_stream()
    channel.send("exec", stream, {"argv": ["sha256sum"], "stdin": True})
    channel.send("stdin", stream, b"abc")
    channel.send("stdin", stream)
    assert channel.wait(stream).stdout.split()[0].decode() == hashlib.sha256(b"abc").hexdigest()


def test_put_and_get(channel):
    data = os.urandom(10 << 20)
    assert channel.put("/workspace/some/where", data, mode=0o600).status == 0
    assert channel.shell("sha256sum </workspace/some/where").stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()
    assert channel.get("/workspace/some/where", 10 << 20).data == data
    assert channel.get("/workspace/some/where", 1000)["errno"] == 27
    assert channel.get("/nowhere", 1000)["errno"] == 2
    assert channel.put("/proc/nowhere", b"x")["errno"] > 0


def test_flood_does_not_starve_the_control_stream(channel):
    streams = [channel.start(["yes"]) for _ in range(4)]
    time.sleep(0.5)
    assert max(channel.ping() for _ in range(10)) < 1
    for stream in streams:
        channel.send("signal", stream, {"signal": 15})
    assert [channel.wait(stream).status for stream in streams] == [-15] * 4


def test_what_an_exec_leaves_behind_is_killed(channel):
    assert channel.shell("sleep 1000 & setsid sleep 1000 & echo started").stdout == b"started\n"
    assert channel.run(["pgrep", "sleep"]).status == 1


def test_the_template_is_read_only_and_the_rest_is_written_to_scratch(channel):
    assert channel.shell("touch /usr/bin/touched && rm /usr/bin/touched").status == 0
    mounts = channel.run(["cat", "/proc/mounts"]).stdout.decode()
    assert mounts.splitlines()[-1] and " / overlay " in mounts
    assert channel.shell("ls /sys/class/net").stdout.split() == [b"lo"]


def test_garbage_ends_the_session_and_nothing_else(vm, channel):
    channel.sock.sendall(b"\xff" * 64)
    channel.sock.close()
    again = vm.connect()
    assert again.open(timeout=30)["boot_id"] == channel.hello["boot_id"]
    assert again.run(["true"]).status == 0
    channel.sock, channel.buffer, channel.stream = again.sock, again.buffer, again.stream


def test_two_clones_are_distinct_and_poweroff_ends_both(host, vm, channel):
    script = "cat /etc/machine-id; head -c 16 /dev/urandom | sha256sum"
    first = channel.shell(script).stdout
    channel.poweroff()
    assert vm.process.wait(20) == 0

    other = Vm(host, "clone")
    try:
        clone = other.connect()
        assert clone.open()["boot_id"] != channel.hello["boot_id"]
        assert not set(clone.shell(script).stdout.split(b"\n")[:2]) & set(first.split(b"\n")[:2])
        clone.poweroff()
        assert other.process.wait(20) == 0
    finally:
        other.stop()
