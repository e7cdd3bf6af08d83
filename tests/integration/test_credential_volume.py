# SPDX-License-Identifier: LGPL-2.1-or-later
"""Much at once through inject, on the booted image, and peers that take their time: what it holds meanwhile, and that nobody waits for somebody else's."""

import hashlib
import http.client
import os
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from h2origin import pattern

from egressrun import InjectRun
from injectclient import H2Client, ask, connect
from waiting import wait_for

WIRE, H2 = "wire.example.org", "h2.example.org"
REAL = "client-REALCLIENTREALCLIENTREALCLIENTREALCLIENT"
RUN = "r000000volum1"
N_STREAMS, ANSWER, UPLOAD, WINDOW = 64, 1 << 20, 500_000_000, 65535
# What may wait of one connection of HTTP/2 is 4 MiB; in buffers that grow by doubling, on their way from one to the other, and with all that belongs to
# four connections and sixty-four streams, that was 15 MiB.
BOUND = 24 << 20


@pytest.fixture(scope="module")
def guest(host, world, anchord):
    host.seal_credential_once("test-client", REAL)
    world.forget_logs()
    it = InjectRun(host, anchord, RUN, "exec-client")
    yield it
    it.stop()


@pytest.fixture(scope="module")
def addresses(guest):
    return {name: guest.address_of(name) for name in (WIRE, H2)}


def ask_h2(address, n):
    """The statuses of so many requests over HTTP/2, one after the other."""
    client = H2Client(address, H2)
    for _ in range(n):
        stream = client.ask("/")
        while stream not in client.ended:
            client.read()
    return list(client.status.values())


def read_slowly(address, folder):
    """Asks for many answers at once, and takes a window's worth of each and no more until it is told to; those that have theirs fill what may wait of the
    connection, so that not all get that far. Which of them came otherwise than they were sent."""
    client = H2Client(address, H2)
    client.holds = True
    streams = [client.ask(f"/?do=much&size={ANSWER}&seed={i}") for i in range(N_STREAMS)]
    while sum(client.got(stream) == WINDOW for stream in streams) < N_STREAMS // 4:
        client.read()
    (folder / "stalled").touch()
    while not (folder / "go").exists():
        time.sleep(0.02)
    client.release()
    while not client.ended.issuperset(streams):
        client.read()
    return [i for i, stream in enumerate(streams) if client.status[stream] != 200 or b"".join(client.pieces[stream]) != pattern(ANSWER, i)]


def upload(address):
    """What the origin makes of it, and what it is."""
    piece, digest = os.urandom(1 << 20), hashlib.sha256()
    with connect(address, WIRE) as s:
        s.sendall(b"POST /held HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n" % (WIRE.encode(), UPLOAD))
        for i in range(0, UPLOAD, len(piece)):
            part = struct.pack(">Q", i) + piece[8:min(len(piece), UPLOAD - i)]
            digest.update(part)
            s.sendall(part)
        response = http.client.HTTPResponse(s)
        response.begin()
        return response.read().decode(), digest.hexdigest()


def test_slow_peers(guest, addresses, world, tmp_path):
    """Sixty-four answers for a client that does not read on, and 500 MB for an origin that does not: both wait, others do not, and little lies in between."""
    def ask_wire(*paths):
        return [status for status, _ in guest.call(ask, addresses[WIRE], WIRE, *paths)]

    assert ask_wire("/x") == guest.call(ask_h2, addresses[H2], 1) == [200]
    before = guest.peak()
    with ThreadPoolExecutor(2) as pool:
        reader = pool.submit(guest.call, read_slowly, addresses[H2], tmp_path, timeout=180)
        sender = pool.submit(guest.call, upload, addresses[WIRE], timeout=180)
        try:
            assert wait_for(lambda: reader.done() or (tmp_path / "stalled").exists(), 60)
            assert wait_for(lambda: sender.done() or any("held" in entry for entry in world.log("wire")), 60)
            assert not reader.done() and not sender.done()
            assert guest.call(ask_h2, addresses[H2], 20) == [200] * 20
            assert ask_wire(*["/meanwhile"] * 20) == [200] * 20
            assert not reader.done() and not sender.done()
        finally:
            (tmp_path / "go").touch()
            ask_wire("/release")
        assert reader.result() == []
        said, sent = sender.result()
    assert said == f"{sent} {UPLOAD}\n"
    used = guest.peak() - before
    assert used < BOUND >> 10, f"{used} KiB, {before} KiB before"
