# SPDX-License-Identifier: LGPL-2.1-or-later
"""Ways to get a packet to a host without asking: each is a function that returns when it believes to have sent one, and raises OSError.

`run(target)` tries all of them. Root is who tries, in the place of a run's process; outside the fence each works, or
fails for a reason of its own. The target is an address that no run is granted, with a listener on TCP 80.
"""

import ctypes
import errno
import os
import socket
import struct

libc = ctypes.CDLL(None, use_errno=True)
UDPLITE, MPTCP, SO_MARK, IP_TRANSPARENT, IP_OPTIONS = 136, 262, 36, 19, 4
TCP_FASTOPEN_CONNECT, MSG_FASTOPEN, AF_UNSPEC, CLONE_NEWNET = 30, 0x20000000, 0, 0x40000000
SETUP, ENTER, OP_SOCKET, OP_CONNECT = 425, 426, 45, 16


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


def attempts(target):
    mapped, nat64 = f"::ffff:{target}", "64:ff9b::" + socket.inet_aton(target).hex()[:4] + ":" + socket.inet_aton(target).hex()[4:]
    return [
        ("TCP", lambda: tcp(target)),
        ("MPTCP", lambda: tcp(target, MPTCP)),
        ("TCP fast open, MSG_FASTOPEN", lambda: fast_open(target)),
        ("TCP fast open, TCP_FASTOPEN_CONNECT", lambda: fast_open_connect(target)),
        ("UDP connect", lambda: udp_connect(target)),
        ("UDP sendto", lambda: udp_send(target)),
        ("UDP sendto, AF_UNSPEC", lambda: unspecified(target)),
        ("TCP, IPv4-mapped IPv6", lambda: tcp(mapped, family=socket.AF_INET6)),
        ("UDP, IPv4-mapped IPv6", lambda: udp_send(mapped, socket.AF_INET6)),
        ("TCP, NAT64", lambda: tcp(nat64, family=socket.AF_INET6)),
        ("TCP, 0.0.0.0", lambda: tcp("0.0.0.0", port=4479)),
        ("TCP, ::", lambda: tcp("::", family=socket.AF_INET6, port=4479)),
        ("UDP, link-local", lambda: udp_send("169.254.0.9")),
        ("UDP, broadcast", lambda: udp_send("255.255.255.255")),
        ("UDP, multicast", lambda: udp_send("224.0.0.251")),
        ("io_uring connect", lambda: uring(target)),
        ("io_uring connect, SQPOLL", lambda: uring(target, sqpoll=True)),
        ("io_uring socket and connect", lambda: uring(target, make=True)),
        ("UDP-Lite connect", lambda: udp_connect(target, UDPLITE)),
        ("UDP-Lite sendto", lambda: udplite_send(target)),
        ("raw ICMP", lambda: raw(target, socket.IPPROTO_ICMP)),
        ("raw UDP", lambda: raw(target, socket.IPPROTO_UDP)),
        ("raw, own header", lambda: raw_with_header(target)),
        ("ping socket", lambda: ping(target)),
        ("source route, setsockopt", lambda: source_route(target, socket.IPPROTO_IP, IP_OPTIONS, route_option(target))),
        ("source route, cmsg", lambda: source_route_by_cmsg(target)),
        ("SO_MARK", lambda: mark(target)),
        ("SO_BINDTODEVICE", lambda: device(target)),
        ("IP_TRANSPARENT and a made-up source", lambda: transparent(target)),
        ("bind", lambda: bound(target)),
        ("socket in a new namespace", lambda: other_namespace(target)),
    ]


def run(target):
    """[[name, "ok" or the error's name], …]"""
    results = []
    for name, function in attempts(target):
        try:
            function()
            result = "ok"
        except OSError as error:
            result = errno.errorcode.get(error.errno or 0, type(error).__name__)
        results.append([name, result])
    return results
