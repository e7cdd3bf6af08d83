# SPDX-License-Identifier: LGPL-2.1-or-later
"""What root in a real guest cannot reach: each attempt fails within a second, in a way that a program understands, and stands in
the policy log with the rule that decided. Beside it, the same to an allowed host succeeds.
(On a machine whose kernel cannot answer, what a network of root's own in the guest sends gets no answer, and is in the log all the same.)

How the single parts decide is in test_run_egress.py and test_run_net.py, with a stand-in for the guest.
"""

import json
import re
import time

import pytest

import frames
import world as worlds

# Each attempt prints a line of JSON: what, how it ended, and after how long.
GUEST = r"""
import ctypes, errno, json, os, socket, struct, subprocess, sys, time

def tcp(host, port):
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.settimeout(3)
        s.connect(address)
        return "connected"

def http(host, port):
    with socket.create_connection((host, port), 3) as s:
        s.sendall(b"GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % host.encode())
        return s.recv(4096).split(b"\r\n")[0].decode()

def proxy(target):
    with socket.create_connection(("10.255.255.1", 3128), 3) as s:
        s.sendall(b"CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (target.encode(), target.encode()))
        return s.recv(4096).split(b"\r\n")[0].decode()

def tcp_from(source, host, port):
    with socket.create_connection((host, port), 3, (source, 0)):
        return "connected"

def mapped(name, port):
    return tcp("::ffff:" + socket.getaddrinfo(name, port)[0][4][0], port)

def udp(host, port, source=None):
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        s.settimeout(3)
        if source:
            s.bind((source, 0))
        s.connect(address)
        s.send(b"hello")
        return "answer of %d bytes" % len(s.recv(4096))

def spread(host, port, *ways):
    # to a broadcast address or a group
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(3)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        if "bound" in ways:
            s.bind(("10.255.255.2", 0))
        if "device" in ways:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0")
        if "interface" in ways:
            s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("10.255.255.2"))
        if "connected" in ways:
            s.connect((host, port))
            s.send(b"hello")
        else:
            s.sendto(b"hello", socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0][4])
        return "sent" if "only" in ways else "answer of %d bytes" % len(s.recv(4096))

def group_on_lo():
    # inside the guest, groups are no business of the host's
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as r, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        r.bind(("239.1.2.3", 4000))
        r.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton("239.1.2.3") + socket.inet_aton("127.0.0.1"))
        r.settimeout(3)
        s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        s.sendto(b"hello", ("239.1.2.3", 4000))
        return r.recv(4096).decode()

def undo():
    # takes off what the guest's own kernel refuses such packets with: BPF_PROG_QUERY, BPF_PROG_GET_FD_BY_ID, BPF_PROG_DETACH
    def bpf(command, attr):
        attr = ctypes.create_string_buffer(attr, 128)
        r = libc.syscall(321, command, attr, 128)
        if r < 0:
            raise OSError(ctypes.get_errno(), "bpf")
        return r, attr.raw
    libc = ctypes.CDLL(None, use_errno=True)
    cgroup = os.open("/sys/fs/cgroup", os.O_RDONLY)
    ids = (ctypes.c_uint32 * 8)()
    n = struct.unpack_from("I", bpf(16, struct.pack("4IQI", cgroup, 1, 0, 0, ctypes.addressof(ids), 8))[1], 24)[0]
    for each in ids[:n]:
        program = bpf(13, struct.pack("I", each))[0]
        bpf(9, struct.pack("4I", cgroup, program, 1, 0))
    return "%d detached" % n

def dns(name, qtype=1):
    query = struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + b"".join(bytes([len(l)]) + l.encode() for l in name.split(".")) + b"\0" + struct.pack("!2H", qtype, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(3)
        s.connect(("10.255.255.1", 53))
        s.send(query)
        return "rcode %d" % (s.recv(4096)[3] & 15)

def lookup(name):
    return socket.getaddrinfo(name, 443)[0][4][0]

def ping(host):
    body = struct.pack("!BBHHH", 8, 0, 0, 7, 1)
    body = body[:2] + struct.pack("!H", 0xffff - sum(struct.unpack("!4H", body))) + body[4:]
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as s:
        s.settimeout(3)
        s.sendto(body, (host, 0))
        while True:
            answer = s.recv(4096)
            if answer[20] != 8:
                return "icmp %d/%d" % (answer[20], answer[21])

def ping6(host):
    address = socket.getaddrinfo(host, 0, socket.AF_INET6)[0][4]
    with socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6) as s:
        s.settimeout(3)
        s.sendto(struct.pack("!BBHHH", 128, 0, 0, 7, 1), address)
        while True:
            answer, sender = s.recvfrom(4096)
            if answer[0] in (1, 129) and sender[0].split("%")[0] == address[0].split("%")[0]:
                return "icmp %d/%d" % (answer[0], answer[1])

def own_network():
    # IPv6 of root's own, with the gateway as a neighbour, whether it wants to be one or not; and a second IPv4 address
    [gateway] = [line.split()[3] for line in open("/proc/net/arp") if line.startswith("10.255.255.1 ")]
    for command in ("sysctl -qw net.ipv6.conf.eth0.accept_dad=0", "sysctl -qw net.ipv6.conf.eth0.disable_ipv6=0",
                    "ip -6 address add 2001:db8:1::2/64 dev eth0 nodad", "ip -6 route add default via 2001:db8:1::1 dev eth0",
                    *("ip -6 neighbour replace %s lladdr %s dev eth0 nud permanent" % (address, gateway) for address in ("2001:db8:1::1", "fe80::1")),
                    "ip address add 10.9.9.2/24 dev eth0"):
        subprocess.run(command.split(), check=True)
    return "set up"

for kind, *arguments in json.loads(sys.argv[1]):
    begin = time.monotonic()
    try:
        end = globals()[kind](*arguments)
    except socket.gaierror as e:
        end = {socket.EAI_FAIL: "EAI_FAIL", socket.EAI_AGAIN: "EAI_AGAIN", socket.EAI_NONAME: "EAI_NONAME"}.get(e.errno, str(e))
    except OSError as e:
        end = errno.errorcode.get(e.errno, str(e))
    print(json.dumps([[kind, *arguments], end, time.monotonic() - begin]), flush=True)
"""

REFUSED, FILTERED, FORBIDDEN = {"ECONNREFUSED"}, {"ECONNREFUSED", "EHOSTUNREACH", "EACCES"}, {"HTTP/1.1 403 Forbidden"}
NO_IPV6 = {"ENETUNREACH", "EADDRNOTAVAIL", "EAFNOSUPPORT", "EAI_NONAME", "EACCES"}

# What, how it is to end, and its record: the name and the port there (no port: a lookup). No record: it never leaves the guest's kernel.
DENIED = [
    (("dns", "paste.example.net"), {"rcode 5"}, ("paste.example.net", None)),
    (("dns", "a2V5.attacker.example.com", 16), {"rcode 5"}, ("a2v5.attacker.example.com", None)),
    (("lookup", "metadata.google.internal"), {"EAI_FAIL", "EAI_AGAIN", "EAI_NONAME"}, ("metadata.google.internal", None)),
    (("proxy", "paste.example.net:443"), FORBIDDEN, ("paste.example.net", 443)),
    (("proxy", f"{worlds.OTHER}:443"), FORBIDDEN, (worlds.OTHER, 443)),
    (("proxy", "169.254.169.254:80"), FORBIDDEN, ("169.254.169.254", 80)),
    (("tcp", worlds.OTHER, 443), REFUSED, (worlds.OTHER, 443)),
    (("tcp", worlds.ORIGIN, 443), REFUSED, (worlds.ORIGIN, 443)),            # an allowed host, by its address
    (("tcp", "1.1.1.1", 443), REFUSED, ("1.1.1.1", 443)),
    (("tcp", "169.254.169.254", 80), REFUSED, ("169.254.169.254", 80)),
    (("tcp", "2852039166", 81), REFUSED, ("169.254.169.254", 81)),
    (("tcp", "0xa9fea9fe", 82), REFUSED, ("169.254.169.254", 82)),
    (("tcp", "0251.0376.0251.0376", 83), REFUSED, ("169.254.169.254", 83)),
    (("tcp", "169.254.43518", 84), REFUSED, ("169.254.169.254", 84)),
    (("tcp", "::ffff:169.254.169.254", 85), REFUSED, ("169.254.169.254", 85)),
    (("tcp", "fd00:ec2::254", 80), NO_IPV6, None),
    (("tcp", "64:ff9b::a9fe:a9fe", 80), NO_IPV6, None),
    (("tcp", "2002:a9fe:a9fe::1", 80), NO_IPV6, None),
    (("tcp", "fe80::1%eth0", 80), NO_IPV6, None),
    (("http", "metadata.example.org", 80), FORBIDDEN, ("metadata.example.org", 80)),   # an allowed name that resolves to it
    (("http", "host.example.org", 80), FORBIDDEN, ("host.example.org", 80)),           # and one that resolves to the host
    (("tcp", worlds.GATEWAY, 22), REFUSED, (worlds.GATEWAY, 22)),
    (("tcp", "10.255.255.1", 22), REFUSED, ("10.255.255.1", 22)),
    (("tcp", "10.255.255.1", 15001), REFUSED, ("10.255.255.1", 15001)),
    (("udp", worlds.ORIGIN, 443), FILTERED, (worlds.ORIGIN, 443)),
    (("udp", "8.8.8.8", 123), FILTERED, ("8.8.8.8", 123)),
    (("udp", "169.254.169.254", 80), FILTERED, ("169.254.169.254", 80)),
    (("udp", worlds.GATEWAY, 514), FILTERED, (worlds.GATEWAY, 514)),
    # nobody may answer these, so the guest's own kernel refuses them, however they are sent
    *((("spread", address, 4001, *ways), {"EPERM"}, None)
      for address in ("255.255.255.255", "10.255.255.3", "224.0.0.1", "224.0.0.251", "239.255.255.250")
      for ways in ((), ("connected",), ("bound",), ("device",), ("interface",))),
    (("spread", "ff02::1%eth0", 4001), NO_IPV6, None),
    (("spread", "ff0e::1", 4001), NO_IPV6, None),
    (("ping", worlds.ORIGIN), {"icmp 3/13", "EHOSTUNREACH"}, (worlds.ORIGIN, 0)),
    (("ping", "169.254.169.254"), {"icmp 3/13", "EHOSTUNREACH"}, ("169.254.169.254", 0)),
]
ALLOWED = [(("dns", "www.example.org"), "rcode 0"), (("tcp", "www.example.org", 443), "connected"), (("http", "www.example.org", 80), "HTTP/1.1 200 OK"),
           (("proxy", "www.example.org:443"), "HTTP/1.1 200 Connection established"), (("group_on_lo",), "hello")]
# Last, since it cannot be undone: root in the guest takes that refusal away. Then the host drops what is sent.
UNDONE = [(("undo",), "1 detached"), *((("spread", address, 4002, "only"), "sent") for address in ("255.255.255.255", "10.255.255.3", "224.0.0.251", "239.255.255.250"))]
# And then root sets up a network of its own.
OWN_NETWORK = [(("own_network",), "set up"), (("mapped", "www.example.org", 443), "connected")]
OWN_IPV6 = ["2001:db8::1", "fe80::1%eth0", "fd00:ec2::254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "2001:4860:4860::8888"]
# Of this, the host's kernel has to answer frames.
DENIED_FRAMES = [
    *((("tcp", address, 4003), REFUSED, (address.split("%")[0], 4003)) for address in OWN_IPV6),
    *((("udp", address, 53), FILTERED, (address.split("%")[0], 53)) for address in OWN_IPV6),
    *((("ping6", address), {"icmp 1/1"}, (address.split("%")[0], 0)) for address in OWN_IPV6),
    (("tcp_from", "10.9.9.2", worlds.OTHER, 4004), REFUSED, (worlds.OTHER, 4004)),
    (("tcp_from", "10.9.9.2", "169.254.169.254", 80), REFUSED, ("169.254.169.254", 80)),
    (("udp", "8.8.8.8", 4004, "10.9.9.2"), FILTERED, ("8.8.8.8", 4004)),
]
# Nobody is there: the guest's own kernel says so, and what is in the log is whom it asked.
DENIED_OWN = [*DENIED_FRAMES, (("tcp", "2001:db8:1::7", 4003), {"EHOSTUNREACH"}, ("ff02::1:ff00:7", 0))]


@pytest.fixture(scope="module")
def tried(host):
    """How every attempt ended, from root in one guest; and the policy log of its run."""
    attempts = json.dumps([attempt for attempt, *_ in ALLOWED + DENIED + UNDONE + OWN_NETWORK + DENIED_OWN])
    done = host.anchorctl("run", "--workflow", "exec-net", "--", "python3", "-c", GUEST, attempts, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    ended = {tuple(attempt): (end, seconds) for attempt, end, seconds in map(json.loads, done.stdout.splitlines())}
    item = re.search(r"i[0-9a-z]{12}", done.stderr).group()
    return ended, item


@pytest.fixture(scope="module")
def answered(host):
    return frames.are_answered(host)


@pytest.mark.parametrize("attempt, end", ALLOWED + OWN_NETWORK, ids=[" ".join(map(str, a)) for a, _ in ALLOWED + OWN_NETWORK])
def test_allowed(tried, attempt, end):
    assert tried[0][attempt][0].lower() == end.lower()


@pytest.mark.parametrize("attempt, ends, _", DENIED + DENIED_OWN, ids=[" ".join(map(str, a)) for a, *_ in DENIED + DENIED_OWN])
def test_deny_within_a_second(tried, answered, attempt, ends, _):
    end, seconds = tried[0][attempt]
    if not answered and attempt in [frame for frame, *_ in DENIED_FRAMES]:
        assert end == "timed out", (end, seconds)
    else:
        assert end in ends and seconds < 1, (end, seconds)


@pytest.mark.parametrize("attempt, end", UNDONE, ids=[" ".join(map(str, a)) for a, _ in UNDONE])
def test_root_may_undo_what_its_own_kernel_refuses(tried, attempt, end):
    """The host's rules drop it all the same: see the next test."""
    assert tried[0][attempt][0] == end


def test_each_denial_is_in_the_policy_log(host, tried):
    """With its rule. What the namespace's ruleset rejects is written when the run's network goes."""
    wanted = {record for *_, record in DENIED + DENIED_OWN if record} | {attempt[1:3] for attempt, _ in UNDONE[1:]}
    end = time.monotonic() + 10
    while True:
        log = json.loads(host.anchorctl("policy", "log", tried[1], "--json=short", user=None).stdout)
        seen = {(r["data"]["name"].lower(), None if r["event"] == "dns.refused" else r["data"]["port"])
                for r in log if r["event"].endswith((".deny", ".refused")) and r["data"]["rule"]}
        if wanted <= seen or time.monotonic() > end:
            break
        time.sleep(0.5)
    assert wanted <= seen, (wanted - seen, sorted(seen, key=str))
    assert {r["data"]["rule"] for r in log if r["event"] == "conn.deny" and r["data"]["name"].startswith(("2001:", "fe80:", "fd00:"))} == {"guest-frame"}
    assert {(r["data"]["name"], r["data"]["port"]) for r in log if r["event"] == "conn.deny" and r["data"].get("source") == "10.9.9.2"} >= {
        (worlds.OTHER, 4004), ("169.254.169.254", 80), ("8.8.8.8", 4004)}
    assert [r for r in log if r["event"] == "egress.allow" and r["data"]["name"] == "www.example.org" and r["data"]["rule"]]
