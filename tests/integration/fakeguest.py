# SPDX-License-Identifier: LGPL-2.1-or-later
"""A stand-in for a run's microVM: a network namespace of its own whose only interface is wired to the run's tap0.

What the real guest's kernel would do with its virtio-net device, a pump does here: frames from the tap of the run's
namespace go to a tap of the guest's namespace and back. Everything above that is real: the same addresses, the same
nftables, the same proxy. Programs (Python functions) run inside with `guest.call(function, *args)`.
"""

import ctypes
import fcntl
import multiprocessing
import os
import select
import socket
import struct
import subprocess
import traceback

ADDRESS, GATEWAY = "10.255.255.2", "10.255.255.1"
CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
VNET_HDR = 10

libc = ctypes.CDLL(None, use_errno=True)


def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def open_tap(name, flags):
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    return fd


def let_go(mine):
    """Of what this process has open since it was forked, nothing is its own but `mine` and the standard streams. The rest may be of another thread there: whoever
    runs a command on the host waits for the end of a pipe, and would wait for the end of this process as well. The numbers stay taken, for objects
    that came along may still close them."""
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in (mine.fileno(), nothing):
            os.dup2(nothing, fd, inheritable=False)


def pump(run_netns, ready):
    """Inside its own process: makes the guest's namespace and carries frames until it is killed."""
    let_go(ready)
    run_fd = os.open(run_netns, os.O_RDONLY)
    check(libc.setns(run_fd, CLONE_NEWNET))
    outside = open_tap("tap0", IFF_TAP | IFF_NO_PI | IFF_VNET_HDR)
    check(libc.unshare(CLONE_NEWNET))
    inside = open_tap("eth0", IFF_TAP | IFF_NO_PI)
    for command in ("ip link set lo up", "ip link set eth0 up", "ip address add %s/30 dev eth0" % ADDRESS,
                    "ip route add default via %s" % GATEWAY):
        subprocess.run(command.split(), check=True)
    ready.send("ready")
    while True:
        for fd in select.select([outside, inside], [], [])[0]:
            frame = os.read(fd, 65536)
            try:
                if fd == outside:
                    os.write(inside, frame[VNET_HDR:])
                else:
                    os.write(outside, bytes(VNET_HDR) + frame)
            except OSError:
                pass  # an interface that is down loses frames, as it should


def call_inside(pid, function, args, result):
    let_go(result)
    fd = os.open("/proc/%d/ns/net" % pid, os.O_RDONLY)
    check(libc.setns(fd, CLONE_NEWNET))
    try:
        result.send((True, function(*args)))
    except Exception as error:  # noqa: BLE001  told to whoever called
        traceback.print_exc()
        result.send((False, "%s: %s" % (type(error).__name__, error)))


class FakeGuest:
    def __init__(self, host, run):
        self.context = multiprocessing.get_context("fork")
        ready, there = self.context.Pipe(False)
        self.process = self.context.Process(target=pump, args=("/proc/%d/root/run/netns/anchor-%s" % (host.pid, run), there), daemon=True)
        self.process.start()
        if not ready.poll(10):
            raise RuntimeError("the fake guest of %s does not start" % run)
        ready.recv()

    def call(self, function, *args, timeout=30):
        """Runs function(*args) inside the guest's namespace and returns what it returns."""
        result, there = self.context.Pipe(False)
        process = self.context.Process(target=call_inside, args=(self.process.pid, function, args, there), daemon=True)
        process.start()
        there.close()
        try:
            if not result.poll(timeout):
                raise TimeoutError("%s did not return in %d s" % (function.__name__, timeout))
            fine, value = result.recv()
        finally:
            process.kill()
            process.join()
        if not fine:
            raise AssertionError(value)
        return value

    def stop(self):
        self.process.kill()
        self.process.join()


# ---- what a guest tries: functions for FakeGuest.call() ----

def dns(name, qtype=1, server=GATEWAY, tcp=False, timeout=3):
    """(rcode, [addresses], source address of the answer)"""
    question = b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0" + struct.pack(">HH", qtype, 1)
    query = struct.pack(">HHHHHH", 0x4242, 0x0100, 1, 0, 0, 0) + question
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM) as s:
        s.settimeout(timeout)
        if tcp:
            s.connect((server, 53))
            s.sendall(struct.pack(">H", len(query)) + query)
            answer, source = s.recv(4096)[2:], server
        else:
            s.sendto(query, (server, 53))
            answer, (source, _) = s.recvfrom(4096)
    ident, flags, _, n_answers = struct.unpack(">HHHH", answer[:8])
    assert ident == 0x4242
    addresses, at = [], 12 + len(question)
    for _ in range(n_answers):
        kind, _, _, size = struct.unpack(">HHIH", answer[at + 2:at + 12])
        if kind == 1:
            addresses.append(socket.inet_ntoa(answer[at + 12:at + 16]))
        at += 12 + size
    return flags & 15, addresses, source


def exchange(address, port, data, timeout=5, tail=True):
    """What comes back for these bytes until the end, or the error's name."""
    try:
        with socket.create_connection((address, port), timeout=timeout) as s:
            s.sendall(data)
            if tail:
                s.shutdown(socket.SHUT_WR)
            parts = []
            while True:
                part = s.recv(65536)
                if not part:
                    return b"".join(parts)
                parts.append(part)
    except OSError as error:
        return type(error).__name__
