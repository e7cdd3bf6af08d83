# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a process can reach that has taken the place of one of a unit's: its cgroup, namespaces and user.

That is more than an attacker who took over the unit's process has, who is under its seccomp filter as well; so what is
refused here is refused by the fence, the unit's file system, or modes and groups.
"""

import ctypes
import errno
import json
import os
import pathlib
import re
import socket
import struct

CLONE = {"mnt": 0x00020000, "pid": 0x20000000, "net": 0x40000000}
libc = ctypes.CDLL(None, use_errno=True)


def name_of(error):
    return "ok" if error == 0 else errno.errorcode.get(error, str(error))


def attempt(what):
    """'ok', or the error's name, of ("connect"|"send", family, type, protocol, address), ("call", family, type, protocol, address, method, parameters)
    or ("socket", family, type, protocol)."""
    kind, family, sock_type, protocol = what[:4]
    try:
        with socket.socket(getattr(socket, family), getattr(socket, sock_type), protocol) as s:
            s.settimeout(2)
            if kind == "socket":
                return "ok"
            address = what[4] if isinstance(what[4], str) else tuple(what[4])
            if isinstance(address, str) and address.startswith("@"):
                address = "\0" + address[1:]
            if kind == "connect":
                s.connect(address)
            elif kind == "call":
                s.connect(address)
                return ask(s, *what[5:])
            else:
                s.sendto(b"x", address)
            return "ok"
    except OSError as error:
        return name_of(error.errno or 0) if error.errno else type(error).__name__


def ask(s, method, parameters):
    """'ok', or the last part of the error's name, of one varlink call."""
    s.sendall(json.dumps({"method": method, "parameters": parameters}).encode() + b"\0")
    answer = b""
    while not answer.endswith(b"\0"):
        part = s.recv(65536)
        if not part:
            return "closed"
        answer += part
    return json.loads(answer[:-1]).get("error", "ok").rpartition(".")[2]


def tcp(address, port):
    return ("connect", "AF_INET6" if ":" in address else "AF_INET", "SOCK_STREAM", 0, (address, port))


def udp(address, port, kind="send"):
    return (kind, "AF_INET6" if ":" in address else "AF_INET", "SOCK_DGRAM", 0, (address, port))


def unix(path, sock_type="SOCK_STREAM", kind="connect"):
    return (kind, "AF_UNIX", sock_type, 0, path)


def call(daemon, which, /, **parameters):
    return ("call", "AF_UNIX", "SOCK_STREAM", 0, f"/run/anchorhold/{daemon}.sock", "io.anchorhold." + which, parameters)


def enter(pid, namespaces):
    """setns() into those of a process of the test machine's numbering; into a pid namespace with a fork as well."""
    fds = [(os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC), CLONE[name]) for name in namespaces]
    for fd, flag in fds:
        if libc.setns(fd, flag) < 0:
            raise OSError(ctypes.get_errno(), "setns")


def in_child(function):
    """The list that a function returns in a child of its own."""
    r, w = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(r)
            os.write(w, json.dumps(function()).encode())
        except BaseException as error:  # noqa: BLE001  the test reads it
            os.write(w, json.dumps(f"{type(error).__name__}: {error}").encode())
        finally:
            os._exit(0)
    os.close(w)
    with os.fdopen(r, "rb") as f:
        data = f.read()
    os.waitpid(child, 0)
    answer = json.loads(data)
    assert isinstance(answer, list), answer
    return answer


def take_capabilities(status):
    """Those that the process with that /proc/PID/status has, and no others."""
    sets = [int(re.search(rf"^{name}:\s+(\w+)", status, re.M).group(1), 16) for name in ("CapEff", "CapPrm", "CapInh")]
    words = [each >> shift & 0xffffffff for shift in (0, 32) for each in sets]
    if libc.syscall(126, struct.pack("=Ii", 0x20080522, 0), struct.pack("=6I", *words)) < 0:   # capset
        raise OSError(ctypes.get_errno(), "capset")


def take_place(pid, namespaces, cgroup, drop):
    """Becomes, for what it can reach, a process of the unit whose main process is `pid`; with `drop`, with its user, groups and capabilities."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    uid, gid = (int(re.search(rf"^{key}:\s+(\d+)", status, re.M).group(1)) for key in ("Uid", "Gid"))
    groups = [int(g) for g in re.search(r"^Groups:(.*)$", status, re.M).group(1).split()]
    if cgroup:
        path = cgroup_of(pid)
        (path / "cgroup.procs").write_text(str(os.getpid()))
    enter(pid, namespaces)
    if drop:
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        take_capabilities(status)


def cgroup_of(pid):
    mount = re.search(r"^\S+ \S+ \S+ (\S+) (\S+) .* - cgroup2 ", pathlib.Path("/proc/self/mountinfo").read_text(), re.M)
    below = re.search(r"^0::(.*)$", pathlib.Path(f"/proc/{pid}/cgroup").read_text(), re.M).group(1)
    return pathlib.Path(mount.group(2)) / os.path.relpath(below, mount.group(1))


def reach(pid, attempts, net=None, cgroup=True, drop=True, mnt=True):
    """The results of `attempts`, made in the place of a unit's process `pid`; `net` is the process whose network
    namespace it has instead."""
    def there():
        if net is not None:
            enter(net, ["net"])
        take_place(pid, [*(["mnt"] if mnt else []), *(["net"] if net is None else []), "pid"], cgroup, drop)
        return in_child(lambda: [attempt(a) for a in attempts])    # in the pid namespace, so that a server can ask who this is

    return in_child(there)
