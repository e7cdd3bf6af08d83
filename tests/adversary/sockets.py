# SPDX-License-Identifier: LGPL-2.1-or-later
"""Ways to get a packet to a host without asking: each is a function that returns when it believes to have sent one, and raises OSError.

run(place) tries all of them, each in a process of its own: as root or as whoever `place` says, in a cgroup of a run, outside of them, or
(this file is all that it needs) in a guest. The target is an address that nobody is granted, with a listener on TCP 80.
`closed` says what has to deny a row on a host:

- fence: the programs on the cgroup, whatever privileges who tries has;
- unit: the unit's seccomp filter, user and namespaces, since no program of the fence sees it;
- gift: nothing, as it takes an accomplice outside of the slice who hands his own socket in (docs/operate.md, "What the fence does not see").
"""

import ctypes
import errno
import fcntl
import json
import os
import select
import signal
import socket
import struct

libc = ctypes.CDLL(None, use_errno=True)
UDPLITE, MPTCP, SCTP, DCCP, SO_MARK, IP_TRANSPARENT, IP_OPTIONS = 136, 262, 132, 33, 36, 19, 4
TCP_FASTOPEN_CONNECT, MSG_FASTOPEN, AF_UNSPEC, CLONE_NEWNET = 30, 0x20000000, 0, 0x40000000
SETUP, ENTER, OP_SENDMSG, OP_SOCKET, OP_CONNECT = 425, 426, 9, 45, 16
PIDFD_OPEN, PIDFD_GETFD, BPF, PTRACE = 434, 438, 321, 101
IPV6_DSTOPTS, TCP_REPAIR = 59, 19
AF_PACKET, AF_ALG, AF_VSOCK, AF_XDP = 17, 38, 40, 44


def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def new(family, kind, protocol=0):
    s = socket.socket(family, kind, protocol)
    s.settimeout(1.5)
    return s


def tcp(target, protocol=0, family=socket.AF_INET, port=80):
    with new(family, socket.SOCK_STREAM, protocol) as s:
        s.connect((target, port))


def udp_send(target, family=socket.AF_INET, port=9999):
    with new(family, socket.SOCK_DGRAM) as s:
        s.sendto(b"x", (target, port))


def udp_connect(target, protocol=0):
    with new(socket.AF_INET, socket.SOCK_DGRAM, protocol) as s:
        s.connect((target, 9999))
        s.send(b"x")


def udplite_send(target):
    with new(socket.AF_INET, socket.SOCK_DGRAM, UDPLITE) as s:
        s.sendto(b"x", (target, 9999))


def fast_open(target):
    with new(socket.AF_INET, socket.SOCK_STREAM) as s:
        s.sendto(b"x", MSG_FASTOPEN, (target, 80))


def fast_open_connect(target):
    with new(socket.AF_INET, socket.SOCK_STREAM) as s:
        s.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1)
        s.connect((target, 80))
        s.send(b"x")


def unspecified(target):
    """sendto() with an address whose family is AF_UNSPEC: taken for AF_INET."""
    with new(socket.AF_INET, socket.SOCK_DGRAM) as s:
        address = struct.pack("=HH4s8x", AF_UNSPEC, socket.htons(9999), socket.inet_aton(target))
        checked(libc.sendto(s.fileno(), b"x", 1, 0, address, len(address)))


def raw(target, protocol):
    with new(socket.AF_INET, socket.SOCK_RAW, protocol) as s:
        s.sendto(b"\x08\0\xf7\xff" + bytes(4), (target, 0))


def raw_with_header(target):
    with new(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as s:
        head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 28, 0, 0, 64, 17, 0, bytes(4), socket.inet_aton(target))
        s.sendto(head + struct.pack("!HHHH", 9, 9999, 8, 0), (target, 0))


def ping(target):
    with new(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as s:
        s.sendto(b"\x08\0\0\0" + bytes(4), (target, 0))


def source_route(target, level, option, value):
    with new(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.setsockopt(level, option, value)
        s.sendto(b"x", (target, 9999))


def route_option(target):
    return bytes([131, 7, 4]) + socket.inet_aton(target) + b"\1"


def source_route_by_cmsg(target):
    with new(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.sendmsg([b"x"], [(socket.IPPROTO_IP, 7, route_option(target))], 0, (target, 9999))   # IP_RETOPTS


def mark(target):
    source_route(target, socket.SOL_SOCKET, SO_MARK, 1)


def transparent(target):
    with new(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.setsockopt(socket.IPPROTO_IP, IP_TRANSPARENT, 1)
        s.bind(("192.0.2.77", 0))
        s.sendto(b"x", (target, 9999))


def bound(target):
    with new(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("0.0.0.0", 0))
        s.sendto(b"x", (target, 9999))


def device(target):
    source_route(target, socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")


def other_namespace(target):
    """A socket of a new network namespace, which no rule of this one's is about; its loopback is what it can reach."""
    child = os.fork()
    if child == 0:
        try:
            checked(libc.unshare(CLONE_NEWNET))
            new(socket.AF_INET, socket.SOCK_DGRAM).close()
            os._exit(0)
        except OSError as error:
            os._exit(error.errno or 255)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        raise OSError(status, os.strerror(status))


class Ring:
    """io_uring as small as it can be: one entry, submitted and awaited. With SQPOLL a thread of the kernel submits."""

    def __init__(self, sqpoll=False):
        params = ctypes.create_string_buffer(struct.pack("=IIIII", 0, 0, 2 if sqpoll else 0, 0, 1000), 120)
        self.fd = checked(libc.syscall(SETUP, 4, params))
        self.sqpoll = sqpoll
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        self.sq = struct.unpack_from("=IIIIIII", params.raw, 40)       # head tail mask entries flags dropped array
        self.cq = struct.unpack_from("=IIIIII", params.raw, 80)        # head tail mask entries overflow cqes
        self.ring = libc.mmap(None, 4096, 3, 0x8001, self.fd, 0)
        self.sqes = libc.mmap(None, 4096, 3, 0x8001, self.fd, 0x10000000)

    def word(self, offset):
        return ctypes.c_uint32.from_address(self.ring + offset)

    def call(self, opcode, fd, address, offset, length=0):
        sqe = struct.pack("=BBHiQQII", opcode, 0, 0, fd, offset, address, length, 0)
        ctypes.memset(self.sqes, 0, 64)
        ctypes.memmove(self.sqes, sqe, len(sqe))
        tail = self.word(self.sq[1]).value
        self.word(self.sq[6] + 4 * (tail & self.word(self.sq[2]).value)).value = 0
        self.word(self.sq[1]).value = tail + 1
        checked(libc.syscall(ENTER, self.fd, 0 if self.sqpoll else 1, 1, 3 if self.sqpoll else 1, None, 0))
        at = self.cq[5] + 16 * (self.word(self.cq[0]).value & self.word(self.cq[2]).value)
        result = ctypes.c_int32.from_address(self.ring + at + 8).value
        self.word(self.cq[0]).value += 1
        if result < 0:
            raise OSError(-result, os.strerror(-result))
        return result


def uring_send(target):
    """One datagram, by IORING_OP_SENDMSG."""
    ring = Ring()
    try:
        with new(socket.AF_INET, socket.SOCK_DGRAM) as s:
            address = ctypes.create_string_buffer(struct.pack("=HH4s8x", socket.AF_INET, socket.htons(9999), socket.inet_aton(target)), 16)
            data = ctypes.create_string_buffer(b"x", 1)
            vector = ctypes.create_string_buffer(struct.pack("=QQ", ctypes.addressof(data), 1), 16)
            message = ctypes.create_string_buffer(struct.pack("=QI4xQQQQi4x", ctypes.addressof(address), 16, ctypes.addressof(vector), 1, 0, 0, 0), 56)
            ring.call(OP_SENDMSG, s.fileno(), ctypes.addressof(message), 0, 1)
    finally:
        os.close(ring.fd)


def uring_packet(_):
    """A packet socket that no filter of socket() sees made."""
    ring = Ring()
    try:
        os.close(ring.call(OP_SOCKET, AF_PACKET, 0, socket.SOCK_RAW, 0))
    finally:
        os.close(ring.fd)


def uring(target, sqpoll=False, make=False):
    ring = Ring(sqpoll)
    try:
        fd = ring.call(OP_SOCKET, socket.AF_INET, 0, socket.SOCK_STREAM, 0) if make else None
        s = socket.socket(fileno=fd) if make else new(socket.AF_INET, socket.SOCK_STREAM)
        with s:
            s.setblocking(True)
            address = ctypes.create_string_buffer(struct.pack("=HH4s8x", socket.AF_INET, socket.htons(80), socket.inet_aton(target)), 16)
            ring.call(OP_CONNECT, s.fileno(), ctypes.addressof(address), 16)
    finally:
        os.close(ring.fd)


def extension_header(_, target6):
    with new(socket.AF_INET6, socket.SOCK_DGRAM) as s:
        s.setsockopt(socket.IPPROTO_IPV6, IPV6_DSTOPTS, b"\0\0\1\4\0\0\0\0")
        s.sendto(b"x", (target6, 9999))


def by_interface(target, index):
    with new(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.sendmsg([b"x"], [(socket.IPPROTO_IP, 8, struct.pack("=i8x", index))], 0, (target, 9999))     # IP_PKTINFO


def repair(target):
    """A connection that was never opened: TCP_REPAIR makes one out of nothing."""
    with new(socket.AF_INET, socket.SOCK_STREAM) as s:
        s.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
        s.connect((target, 80))
        s.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 0)
        s.send(b"x")


def abstract(name):
    with new(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        s.connect("\0" + name)


# ---- what no program on a cgroup sees ----

def udp_packet(target):
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 28, 0, 0, 64, 17, 0, bytes(4), socket.inet_aton(target))
    return head + struct.pack("!HHHH", 9, 9999, 8, 0)


def packet(target, device, kind):
    with socket.socket(AF_PACKET, kind, 0) as s:
        frame = b"\xff" * 6 + b"\2\0\0\0\0\2\x08\0" if kind == socket.SOCK_RAW else b""
        s.sendto(frame + udp_packet(target), (device, 0x0800, 0, 0, b"\xff" * 6))


def rule(family=socket.AF_INET):
    """A rule of routing, made and taken away: for an address that nobody has."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as s:
        s.settimeout(1.5)
        for kind, flags in ((32, 0x605), (33, 5)):
            body = struct.pack("=BBBBBBBBI", family, 32, 0, 0, 254, 0, 0, 1, 0) + struct.pack("=HH4sHHI", 8, 1, socket.inet_aton("192.0.2.99"), 8, 6, 4479)
            s.send(struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body)
            error = -struct.unpack_from("=i", s.recv(4096), 16)[0]
            if error:
                raise OSError(error, os.strerror(error))


def nftables():
    """The tables of this namespace, for which it takes what changing them takes."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as s:
        s.settimeout(1.5)
        s.send(struct.pack("=IHHIIBBH", 20, 10 << 8 | 1, 0x301, 1, 0, 0, 0, 0))                 # NFT_MSG_GETTABLE, all of them
        answer = s.recv(65536)
        if struct.unpack_from("=H", answer, 4)[0] == 2 and (error := -struct.unpack_from("=i", answer, 16)[0]):
            raise OSError(error, os.strerror(error))


def other_families(_):
    """Any socket of a family that no other row is about."""
    tried = set(range(1, 46)) - {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, AF_PACKET, AF_ALG, AF_VSOCK, AF_XDP}
    last = None
    for family in sorted(tried):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
            try:
                return socket.socket(family, kind, 0).close()
            except OSError as error:
                last = error
    raise last


def vsock(_):
    with new(AF_VSOCK, socket.SOCK_STREAM) as s:
        s.connect((2, 9999))


def tun(_):
    fd = os.open("/dev/net/tun", os.O_RDWR)
    try:
        fcntl.ioctl(fd, 0x400454CA, struct.pack("16sH22x", b"anchoradv0", 0x1001))
    finally:
        os.close(fd)


def enter_namespace(pid):
    checked(libc.setns(checked(libc.syscall(PIDFD_OPEN, pid, 0)), CLONE_NEWNET))


def taken(target, pid, fd):
    with socket.socket(fileno=checked(libc.syscall(PIDFD_GETFD, checked(libc.syscall(PIDFD_OPEN, pid, 0)), fd, 0))) as s:
        s.settimeout(1.5)
        s.connect((target, 80))


def trace(pid):
    checked(libc.syscall(PTRACE, 0x4206, pid, 0, 0))               # PTRACE_SEIZE; undone when who seized it ends


def pinned(path):
    name = ctypes.create_string_buffer(path.encode())
    os.close(checked(libc.syscall(BPF, 7, struct.pack("=QII", ctypes.addressof(name), 0, 0), 16)))


def beside_pinned(path):
    """May it write where the programs are pinned? Then it may unpin them."""
    os.mkdir(path + "-adversary")
    os.rmdir(path + "-adversary")


# ---- sockets that somebody else made ----

def connect_given(target, fd):
    with socket.socket(fileno=os.dup(fd)) as s:
        s.settimeout(1.5)
        s.connect((target, 80))


def connect_passed(target, fd):
    with socket.socket(fileno=os.dup(fd)) as channel:
        channel.settimeout(1.5)
        _, fds, _, _ = socket.recv_fds(channel, 1, 1)
    with socket.socket(fileno=fds[0]) as s:
        s.settimeout(1.5)
        s.connect((target, 80))


class Place:
    """Where it is tried from: what to aim at and what there is to take. `victim`: a process outside with a socket, and that socket's number;
    `made` a socket made before; `channel` a Unix socket from which one can be received."""

    def __init__(self, target, target6, device, victim, made, channel, program="/sys/fs/bpf/anchorhold/prog/connect4"):
        self.target, self.target6, self.device, self.index = target, target6, device, socket.if_nametoindex(device)
        self.victim, self.made, self.channel, self.program = victim, made, channel, program


def attempts(p):
    """[(name, what closes it, function)]"""
    target = p.target
    hexed = socket.inet_aton(target).hex()
    hexed = hexed[:4] + ":" + hexed[4:]
    six = {"family": socket.AF_INET6}
    fence = [
        ("TCP", lambda: tcp(target)),
        ("MPTCP", lambda: tcp(target, MPTCP)),
        ("SCTP", lambda: tcp(target, SCTP)),
        ("DCCP", lambda: socket.socket(socket.AF_INET, 6, DCCP).connect((target, 80))),
        ("TCP fast open, MSG_FASTOPEN", lambda: fast_open(target)),
        ("TCP fast open, TCP_FASTOPEN_CONNECT", lambda: fast_open_connect(target)),
        ("repaired TCP (TCP_REPAIR)", lambda: repair(target)),
        ("UDP connect", lambda: udp_connect(target)),
        ("UDP sendto", lambda: udp_send(target)),
        ("UDP sendto, AF_UNSPEC", lambda: unspecified(target)),
        ("UDP, IP_PKTINFO", lambda: by_interface(target, p.index)),
        ("TCP, IPv4-mapped IPv6", lambda: tcp("::ffff:" + target, **six)),
        ("UDP, IPv4-mapped IPv6", lambda: udp_send("::ffff:" + target, socket.AF_INET6)),
        ("TCP, IPv6", lambda: tcp(p.target6, **six)),
        ("UDP, IPv6", lambda: udp_send(p.target6, socket.AF_INET6)),
        ("UDP, IPv6 and an extension header", lambda: extension_header(target, p.target6)),
        ("TCP, NAT64", lambda: tcp("64:ff9b::" + hexed, **six)),
        ("TCP, 6to4", lambda: tcp("2002:" + hexed + "::1", **six)),
        ("TCP, IPv6 link-local", lambda: new(socket.AF_INET6, socket.SOCK_STREAM).connect(("fe80::1", 80, 0, p.index))),
        ("TCP, metadata", lambda: tcp("169.254.169.254")),
        ("TCP, 0.0.0.0", lambda: tcp("0.0.0.0", port=4479)),
        ("TCP, ::", lambda: tcp("::", port=4479, **six)),
        ("UDP, link-local", lambda: udp_send("169.254.0.9")),
        ("UDP, broadcast", lambda: udp_send("255.255.255.255")),
        ("UDP, multicast", lambda: udp_send("224.0.0.251")),
        ("io_uring connect", lambda: uring(target)),
        ("io_uring connect, SQPOLL", lambda: uring(target, sqpoll=True)),
        ("io_uring socket and connect", lambda: uring(target, make=True)),
        ("io_uring sendmsg", lambda: uring_send(target)),
        ("UDP-Lite connect", lambda: udp_connect(target, UDPLITE)),
        ("UDP-Lite sendto", lambda: udplite_send(target)),
        ("raw ICMP", lambda: raw(target, socket.IPPROTO_ICMP)),
        ("raw UDP", lambda: raw(target, socket.IPPROTO_UDP)),
        ("raw SCTP", lambda: raw(target, SCTP)),
        ("raw, own header", lambda: raw_with_header(target)),
        ("raw IPv6", lambda: new(socket.AF_INET6, socket.SOCK_RAW, 253).sendto(b"x" * 8, (p.target6, 0))),
        ("ping socket", lambda: ping(target)),
        ("source route, setsockopt", lambda: source_route(target, socket.IPPROTO_IP, IP_OPTIONS, route_option(target))),
        ("source route, cmsg", lambda: source_route_by_cmsg(target)),
        ("SO_MARK", lambda: mark(target)),
        ("SO_BINDTODEVICE", lambda: device(target)),
        ("IP_TRANSPARENT and a made-up source", lambda: transparent(target)),
        ("bind", lambda: bound(target)),
        ("socket in a new namespace", lambda: other_namespace(target)),
        ("abstract Unix socket", lambda: abstract("anchor-test-stream")),
    ]
    unit = [
        ("AF_PACKET, whole frame", lambda: packet(target, p.device, socket.SOCK_RAW)),
        ("AF_PACKET, datagram", lambda: packet(target, p.device, socket.SOCK_DGRAM)),
        ("AF_XDP", lambda: socket.socket(AF_XDP, socket.SOCK_RAW, 0).close()),
        ("AF_NETLINK, a rule of routing", rule),
        ("AF_NETLINK, nftables", nftables),
        ("AF_VSOCK", lambda: vsock(target)),
        ("AF_ALG", lambda: socket.socket(AF_ALG, socket.SOCK_SEQPACKET, 0).close()),
        ("any other family", lambda: other_families(target)),
        ("io_uring packet socket", lambda: uring_packet(target)),
        ("setns to another's network", lambda: enter_namespace(p.victim[0])),
        ("pidfd_getfd of another's socket", lambda: taken(target, *p.victim)),
        ("ptrace of another", lambda: trace(p.victim[0])),
        ("TUN device", lambda: tun(target)),
        ("a pinned program opened", lambda: pinned(p.program)),
        ("written beside a pinned program", lambda: beside_pinned(os.path.dirname(p.program))),
    ]
    gift = [
        ("socket made before entering", lambda: connect_given(target, p.made)),
        ("socket received by SCM_RIGHTS", lambda: connect_passed(target, p.channel)),
    ]
    return [(name, closed, function) for closed, rows in (("fence", fence), ("unit", unit), ("gift", gift)) for name, function in rows]


def outcome(function, confine=None, seconds=25):
    """"ok", the error's name, or the signal's, of a function in a process of its own."""
    r, w = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if confine:
                confine()
            try:
                function()
                result = "ok"
            except OSError as error:
                result = errno.errorcode.get(error.errno or 0, "timeout" if isinstance(error, TimeoutError) else type(error).__name__)
            os.write(w, result.encode())
        finally:
            os._exit(0)
    os.close(w)
    ready, _, _ = select.select([r], [], [], seconds)
    result = os.read(r, 64).decode() if ready else "no answer"
    os.close(r)
    if not ready:
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if not result:
        result = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "ended"
    return result


def run(place, kinds=("fence", "unit"), confine=None):
    """[[name, result], …]"""
    return [[name, outcome(function, confine)] for name, closed, function in attempts(place) if closed in kinds]


def fetch(name):
    """A page over TLS: only the origin itself can give that."""
    import http.client                                         # which a guest has, and a unit's namespace has not
    connection = http.client.HTTPSConnection(name, timeout=4)
    connection.request("GET", "/")
    if connection.getresponse().status != 200:
        raise OSError(errno.EPROTO, "not the page")
    connection.close()


def main(target, target6, device, allowed):
    """In a guest: all rows, with a connection that is allowed before and after."""
    def passed(channel):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as s:
            socket.send_fds(channel, [b"x"], [s.fileno()])

    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    ours, theirs = socket.socketpair()
    passed(theirs)
    place = Place(target, target6, device, (os.getpid(), made.fileno()), made.fileno(), ours.fileno())
    rows = [["control", outcome(lambda: fetch(allowed))]] + run(place, ("fence", "unit", "gift"))
    rows.append(["control at the end", outcome(lambda: fetch(allowed))])
    for row in rows:
        print("@@ " + json.dumps(row), flush=True)
