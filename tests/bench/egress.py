# SPDX-License-Identifier: LGPL-2.1-or-later
"""Figures of a run's way out, seen from the guest's side of its namespace: names answered, and what a connection that is passed through
costs more than the same one made by the host itself."""

import ctypes
import multiprocessing
import os
import socket
import ssl
import statistics
import struct
import time

import world as worlds
from fakeguest import CLONE_NEWNET, GATEWAY, FakeGuest, dns
from egressrun import Anchord

RUN, NAME = "r000000bench1", "www.example.org"
SECONDS, REQUESTS, ROUNDS = 3, 100, 5


def ask(name, seconds, window=8):
    """Questions for one name over UDP, so many at a time: answers and refusals a second."""
    query = b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0" + struct.pack(">HH", 1, 1)
    answers = refused = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect((GATEWAY, 53))
        s.settimeout(1)
        begin = time.monotonic()
        for i in range(window):
            s.send(struct.pack(">HHHHHH", i, 0x0100, 1, 0, 0, 0) + query)
        while time.monotonic() - begin < seconds:
            answer = s.recv(512)
            answers, refused = answers + 1, refused + (answer[3] & 15 != 0)
            s.send(struct.pack(">HHHHHH", answers & 0xffff, 0x0100, 1, 0, 0, 0) + query)
        took = time.monotonic() - begin
        return (answers - refused) / took, refused / took


def requests(address, ca, n):
    """Seconds from connect() to the answer's first bytes, of n requests: over TLS, or in the clear without a CA."""
    took, context = [], ssl.create_default_context(cafile=ca) if ca else None
    for _ in range(n):
        begin = time.monotonic()
        with socket.create_connection((address, 443 if ca else 80), timeout=10) as raw, context.wrap_socket(raw, server_hostname=NAME) if ca else raw as s:
            s.sendall(b"GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % NAME.encode())
            assert s.recv(65536).startswith(b"HTTP/1.1 200 ")
        took.append(time.monotonic() - begin)
    return took


def from_host(host, function, *args):
    """The same in the host's own network namespace."""
    def inside(result):
        fd = os.open("/proc/%d/ns/net" % host.pid, os.O_RDONLY)
        assert ctypes.CDLL(None).setns(fd, CLONE_NEWNET) == 0
        result.send(function(*args))

    result, there = multiprocessing.get_context("fork").Pipe(False)
    process = multiprocessing.get_context("fork").Process(target=inside, args=(there,), daemon=True)
    process.start()
    assert result.poll(60)
    value = result.recv()
    process.join()
    return value


def added(host, guest, address, ca, kind):
    """What a request on a new connection costs more than the host's own."""
    guest.call(requests, address, ca, 10)
    through, direct, ratios = [], [], []
    for _ in range(ROUNDS):
        direct.append(statistics.median(from_host(host, requests, worlds.ORIGIN, ca, REQUESTS)))
        through.append(statistics.median(guest.call(requests, address, ca, REQUESTS)))
        ratios.append(through[-1] / direct[-1])
    print(f"  {(statistics.median(through) - statistics.median(direct)) * 1000:8.2f} ms  added to a request on a new connection, {kind}; ratio to the host's own: "
          f"median {statistics.median(ratios):.2f}  least {min(ratios):.2f}  most {max(ratios):.2f}  ({len(ratios)} pairs)")


def figures(host, ca):
    anchord = Anchord(host)
    guest = None
    try:
        anchord.call("Register", run=RUN, workflow="exec-net", stage="work")
        host.systemctl("start", "anchor-proxy@%s.socket" % RUN)
        guest = FakeGuest(host, RUN)
        rcode, addresses, _ = guest.call(dns, NAME)
        assert rcode == 0
        rate, refused = guest.call(ask, NAME, SECONDS)
        print("\na run's way out, from the guest's side of its namespace")
        print(f"  {rate:8.0f} /s   addresses given for an allowed name, which is as many as one run may ask for, and {refused:.0f} /s refusals of what was beyond that")
        added(host, guest, addresses[0], ca, "over TLS that is passed through")
        added(host, guest, addresses[0], None, "in the clear, of which each is decided")
    finally:
        if guest:
            guest.stop()
        host.run("systemctl stop anchor-proxy@%s.socket anchor-proxy@%s.service anchorhold-runs-%s.slice; true" % (RUN, RUN, RUN))
        anchord.call("Release", run=RUN)
        anchord.restore()
