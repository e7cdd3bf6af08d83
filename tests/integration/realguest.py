# SPDX-License-Identifier: LGPL-2.1-or-later
"""A run in a real microVM, for tests that were written for the stand-in (fakeguest.py): the same functions are called, in the guest.

The guest is told what to do over a connection that it makes itself, through proxy and fence, to a port of an allowed host, where this process
listens in the world's place. It gets the tests' own modules first; of pytest, which it has not, a shadow.
"""

import io
import os
import pathlib
import pickle
import queue
import shlex
import socket
import time
import zipfile

import egressrun
import world as worlds
from guestside import PLACE, receive, send
from inside import enter
from liverun import LiveRun

HERE = pathlib.Path(__file__).parent
WORKERS = 12
SHADOW = """
class Anything:
    def __getattr__(self, name):
        return self

    def __call__(self, *args, **named):
        return args[0] if len(args) == 1 and callable(args[0]) and not named else self


anything = Anything()


def __getattr__(name):
    return anything
"""
BOOTSTRAP = f"""
import socket, sys
with socket.create_connection({PLACE!r}) as s:
    f = s.makefile("rb")
    open("/tmp/tests.zip", "wb").write(f.read(int.from_bytes(f.read(4), "big")))
sys.path.insert(0, "/tmp/tests.zip")
import guestside
guestside.main({WORKERS})
"""


def listen_there(world):
    """A listening socket in the world's network namespace."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            enter(world.process.pid, ["net"])
            with socket.create_server((worlds.ORIGIN, PLACE[1]), backlog=64) as s:
                socket.send_fds(theirs, [b"x"], [s.fileno()])
        finally:
            os._exit(0)
    theirs.close()
    _, fds, _, _ = socket.recv_fds(ours, 1, 1)
    os.waitpid(child, 0)
    ours.close()
    return socket.socket(fileno=fds[0])


def modules():
    """The tests' modules and those of the world, zipped."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as z:
        for folder in (HERE, HERE.parent / "world"):
            for path in folder.glob("*.py"):
                z.writestr(path.name, path.read_text())
        z.writestr("pytest.py", SHADOW)
    return data.getvalue()


def write_file(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    pathlib.Path(path).write_bytes(data)


class RealGuest:
    """call(), records() and address_of() as EgressRun has them."""

    def __init__(self, host, world, workflow):
        self.host, self.workers, self.made = host, queue.Queue(), []
        with listen_there(world) as listener:
            listener.settimeout(120)
            self.live = LiveRun(host, workflow, f"python3 -c {shlex.quote(BOOTSTRAP)}; echo the guest has ended")
            first, _ = listener.accept()
            with first:
                send(first, modules())
            for _ in range(WORKERS):
                s, _ = listener.accept()
                self.made.append(s)
                self.workers.put(s)
        self.live.await_line("serving")
        self.run, self.guest = self.live.run, self
        ca = world.path("world.pem")
        self.call(write_file, ca, pathlib.Path(ca).read_bytes())       # so that a test's path is right on both sides

    def call(self, function, *args, timeout=30):
        """function(*args) in the guest, and what it returns."""
        s = self.workers.get(timeout=60)
        s.settimeout(timeout + 30)
        send(s, pickle.dumps((function, args, timeout), 4))
        fine, value = pickle.loads(receive(s))
        self.workers.put(s)
        if not fine:
            raise AssertionError(value)
        return value

    def records(self, event, **fields):
        return egressrun.records(self.host, event, self.run, **fields)

    def address_of(self, name):
        return egressrun.address_of(self, name)

    def end(self):
        """Lets the guest's command end; the run, then."""
        for s in self.made:
            s.close()
        self.made = []
        said = self.live.rest()
        end = time.monotonic() + 20
        while self.run in self.host.run("ls /run/anchorhold/run").stdout and time.monotonic() < end:
            time.sleep(0.2)
        return said
