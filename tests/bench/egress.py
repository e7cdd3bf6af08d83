# SPDX-License-Identifier: LGPL-2.1-or-later
"""Figures of a run's way out, seen from the guest's side of its namespace: names answered, to one run, which has a limit, and to several at once, with what an answer
costs those who give it; and what a connection that is passed through costs more than the same one made by the host itself."""

import ctypes
import multiprocessing
import os
import socket
import ssl
import statistics
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import world as worlds
from fakeguest import CLONE_NEWNET, GATEWAY, dns
from egressrun import Anchord, EgressRun

RUN, NAME = "r000000bench1", "www.example.org"
OTHERS = ["r0000bench%03d" % n for n in range(2, 9)]
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


def cpu_seconds(host, runs):
    """What those who answer have used of a processor so far."""
    units = ["anchor-egressd.service", *(f"anchor-proxy@{run}.service" for run in runs)]
    return sum(int(host.property(unit, "CPUUsageNSec")) for unit in units) / 1e9


def answers(host, guests, what):
    """How many names are answered when all these guests ask at once, and what one costs those who answer."""
    before = cpu_seconds(host, guests)
    with ThreadPoolExecutor(len(guests)) as pool:
        told = list(pool.map(lambda guest: guest.call(ask, NAME, SECONDS), guests.values()))
    used, (given, refused) = cpu_seconds(host, guests) - before, map(sum, zip(*told))
    print(f"  {given:8.0f} /s   addresses given for an allowed name to {what}, and {refused:.0f} /s refusals of what was beyond a run's limit "
          f"({given / len(guests):.0f} /s a run); {used / SECONDS / (given + refused) * 1e6:.0f} µs of a processor for each, in the proxies and egressd")


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
    runs = []
    try:
        for run in (RUN, *OTHERS):
            runs.append(EgressRun(host, anchord, run, "exec-net"))
            rcode, addresses, _ = runs[-1].call(dns, NAME)
            assert rcode == 0
        guests, guest = {run.run: run.guest for run in runs}, runs[0].guest
        print("\na run's way out, from the guest's side of its namespace")
        answers(host, {RUN: guest}, "one run")
        answers(host, guests, f"{len(guests)} runs at once")
        address = guest.call(dns, NAME)[1][0]
        added(host, guest, address, ca, "over TLS that is passed through")
        added(host, guest, address, None, "in the clear, of which each is decided")
    finally:
        for run in runs:
            run.stop()
        anchord.restore()
