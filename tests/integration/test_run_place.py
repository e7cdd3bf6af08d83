# SPDX-License-Identifier: LGPL-2.1-or-later
"""How the tests take anchord's place and give it back. A file of its own: anchord itself ends each run that it does not know."""

import contextlib
import socket
import threading


@contextlib.contextmanager
def callers(host, names):
    """Clients that give systemd no rest: there is always one at each socket that is open."""
    paths, stopped = [f"/proc/{host.pid}/root/run/anchorhold/{name}.sock" for name in names], threading.Event()

    def call():
        while not stopped.wait(0.01):
            for path in paths:
                with socket.socket(socket.AF_UNIX) as s, contextlib.suppress(OSError):
                    s.setblocking(False)
                    s.connect(path)

    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def test_the_place_is_given_back_and_taken_under_calls(host, anchord):
    """A client's call in the middle of it cancels a stop of the sockets; it is taken up again."""
    def program():
        return host.property("anchord.service", "ExecStart")

    with callers(host, ("api", "run-api", "spec")):
        for _ in range(3):
            assert anchord.shell("echo here") == "here\n" and "/run/anchord-call." in program()
            anchord.restore()
            assert "/usr/libexec/anchorhold/anchord " in program() and host.is_enforced()
            anchord.take()
