# SPDX-License-Identifier: LGPL-2.1-or-later
"""Guests that write what a terminal would obey, and guests that use up whatever they can: the operator sees text, other runs go
on, and the daemons are afterwards what they were before. (Malformed policy, unknown names: test_run_anchorctl.py; bundles:
test_run_import.py; the guest channel: test_run_rogue_guest.py; both look at the daemons as this file does.)"""

import json
import os
import pty
import re
import select
import shlex
import time
import tty

import pytest
from daemons import DAEMONS, Daemons
from host import REPOSITORY
from waiting import wait_for

# Colours, a title, a cleared screen, the same with C1 bytes and C1 characters, backspaces, bidi overrides and isolates, line
# separators, and what is no UTF-8 in five ways.
HOSTILE = (b"\x1b[31mred\x1b]0;title\x07\x1b[2J\x1bP+q\x1b\\ \x9b1m \xc2\x9b31m \xc2\x85 \x08\x08\x7f\r \xe2\x80\xae evil \xe2\x81\xa6 \xd8\x9c "
           b"\xe2\x80\xa8 \xef\xbf\xbe \xff\xfe \xc0\xaf \xed\xa0\x80 \xf4\x90\x80\x80 \xe2\x80")
DECEPTIVE = {*range(0x80, 0xa0), 0x61c, 0x200e, 0x200f, *range(0x2028, 0x202f), *range(0x2066, 0x206a)}
# What anchorctl itself writes to a terminal: a progress line that goes, and dim text.
OWN = re.compile(rb"\r\x1b\[K|\x1b\[2m|\x1b\[0m")


def octal(data):
    """For printf(1)."""
    return "".join(f"\\{byte:03o}" for byte in data)


def printf(text, *more):
    return f"printf '{text}'" + "".join(f" {m}" for m in more)


def bad(data):
    """What of this must not reach a terminal."""
    text = OWN.sub(b"", data).decode(errors="surrogateescape")
    return [c for c in text if (ord(c) < 0x20 and c not in "\n\t") or ord(c) == 0x7f or ord(c) in DECEPTIVE or 0xdc80 <= ord(c) <= 0xdcff]


def assert_clean(data, *marks):
    assert not bad(data), (bad(data), data[-3000:])
    for mark in marks:
        assert mark.encode() in data, (mark, data[-3000:])


def on_terminal(host, *args, user="operator", timeout=120):
    """What `anchorctl ARGS` writes to a terminal."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    process = host.popen(["anchorctl", *args], user=user, stdout=theirs, stderr=theirs)
    os.close(theirs)
    data, end = b"", time.monotonic() + timeout
    try:
        while time.monotonic() < end:
            if not select.select([ours], [], [], 0.5)[0]:
                continue
            piece = os.read(ours, 65536)
            if not piece:
                break
            data += piece
    except OSError:
        pass                                          # EIO: the other side was closed
    finally:
        os.close(ours)
        process.kill()
        process.wait()
    return data


def item_of(output):
    return re.search(rb"i[0-9a-z]{12}", output).group().decode()


def captured(host, *args, user="operator"):
    done = host.run(["anchorctl", *args], user=user, check=False, text=False, timeout=60)
    return done.stdout + done.stderr


# In the guest of exec-net: names, hosts, paths and server names of hostile bytes, by every road that the policy log tells of.
ASK = r"""
import socket, struct, sys
evil = bytes.fromhex(sys.argv[1])[:60]
def send(kind, address, data):
    try:
        with socket.socket(socket.AF_INET, kind) as s:
            s.settimeout(1.5)
            s.connect(address)
            s.sendall(data)
            return s.recv(4096)
    except OSError as error:
        return str(error).encode()
for label in b"mark-plain", b"mark-dns" + evil[:40]:
    send(socket.SOCK_DGRAM, ("10.255.255.1", 53), struct.pack(">6H", 7, 256, 1, 0, 0, 0) + bytes([len(label)]) + label + b"\7example\0" + struct.pack(">2H", 1, 1))
proxy = ("10.255.255.1", 3128)
send(socket.SOCK_STREAM, proxy, b"CONNECT mark-connect" + evil + b".example:443 HTTP/1.1\r\n\r\n")
send(socket.SOCK_STREAM, proxy, b"GET http://mark-get" + evil + b"/ HTTP/1.1\r\nHost: x\r\n\r\n")
there = socket.gethostbyname("www.example.org")
send(socket.SOCK_STREAM, (there, 80), b"GET /mark-path" + evil + b" HTTP/1.1\r\nHost: mark-host" + evil + b"\r\n\r\n")
send(socket.SOCK_STREAM, (there, 80), evil + b"\r\n\r\n")
name = b"mark-sni" + evil
sni = struct.pack(">HBH", len(name) + 3, 0, len(name)) + name
extensions = struct.pack(">2H", 0, len(sni)) + sni
body = b"\3\3" + bytes(32) + b"\0" + struct.pack(">2H", 2, 0x1301) + b"\1\0" + struct.pack(">H", len(extensions)) + extensions
hello = b"\1" + struct.pack(">I", len(body))[1:] + body
send(socket.SOCK_STREAM, (there, 443), b"\x16\3\1" + struct.pack(">H", len(hello)) + hello)
print("asked", flush=True)
"""


def start(host, workflow, script):
    return host.popen(["anchorctl", "run", "--workflow", workflow, "-q", "--", "sh", "-c", script], user="operator", stdout=-1, stderr=-2)


@pytest.fixture(scope="module", autouse=True)
def before_all(host):
    return host.journal_end()


@pytest.fixture(scope="module", autouse=True)
def flooding(host, before_all):
    """The flood for the first time, while the other tests' runs go on."""
    return start(host, "exec-small", FLOOD)


@pytest.fixture(scope="module")
def talker(host):
    """A run whose guest writes hostile text to both streams and asks for hostile names; what the operator saw of it on a terminal."""
    script = (f"{printf('mark-out' + octal(HOSTILE) + '.')}; {printf('mark-err' + octal(HOSTILE) + '.')} >&2; "
              f"python3 -c {shlex.quote(ASK)} {HOSTILE.hex()}; exit 3")
    seen = on_terminal(host, "run", "--workflow", "exec-net", "--", "sh", "-c", script)
    return seen, item_of(seen)


AGENT = "; ".join([
    "cd /workspace/repo",
    printf('{"type":"mark-json","text":"\\134u001b[31m\\134u202e"}\\n'),
    printf('{"type":"mark-raw","text":"' + octal(HOSTILE) + '"}\\n'),
    printf(octal(HOSTILE) + "\\n") + ' >"$(' + printf("mark-name" + octal(HOSTILE.replace(b"/", b""))) + ')"',
    printf("mark-content" + octal(HOSTILE) + "\\n") + " >>README.md",
    "git add -A",
    'git commit -q -m "$(' + printf("mark-subject" + octal(HOSTILE) + "\\n\\nmark-body" + octal(HOSTILE)) + ')"',
])


@pytest.fixture(scope="module")
def committer(host):
    """A run whose agent puts hostile text into its JSON, a commit's message, a file and the file's name."""
    seen = on_terminal(host, "run", "--workflow", "script-agent", "--repo", REPOSITORY, "--base", "main", "--task", AGENT)
    return seen, item_of(seen)


def test_the_check_itself_sees_it():
    """The control: each of these bytes and characters, alone, is something to complain of."""
    for piece in (b"\x1b[31m", b"\x07", b"\x9b1m", b"\xc2\x9b", b"\x08", b"\x7f", b"\r", b"\xe2\x80\xae", b"\xe2\x81\xa6", b"\xd8\x9c", b"\xe2\x80\xa8",
                  b"\xff", b"\xc0\xaf", b"\xed\xa0\x80"):
        assert piece in HOSTILE and bad(b"x" + piece + b"x")
    assert not bad("plain text, umlauts äöü, 漢字\n\t".encode())


def test_output_of_a_guest(host, talker):
    seen, item = talker
    assert_clean(seen, "mark-out\\x1b[31mred", "mark-err\\x1b[31mred", "\\u{202e}", "\\xff\\xfe")
    assert_clean(on_terminal(host, "logs", item), "mark-out", "mark-err")
    assert_clean(captured(host, "logs", item), "mark-out", "mark-err")
    assert_clean(on_terminal(host, "show", item, "--no-pager"), "exit")
    assert_clean(on_terminal(host, "show", item, "--json=pretty"))


def test_policy_log(host, talker):
    _, item = talker
    for more in ((), ("--blocked",), ("--json=short",)):
        assert_clean(on_terminal(host, "policy", "log", item, "--no-pager", *more, user=None))
    denied = json.loads(captured(host, "policy", "log", item, "--blocked", "--json=short", user=None))
    told = json.dumps(denied)
    # what is no name and no request is refused as such, without its bytes; a name that is one is there
    assert len(denied) >= 2 and "mark-plain.example" in told, told
    run = denied[0]["run"]
    # the records themselves, as journalctl writes them without any care of its own
    raw = host.run(["journalctl", "--namespace=anchorhold", "--no-pager", "-o", "cat", f"ANCHORHOLD_RUN={run}"], text=False).stdout
    assert_clean(raw, "mark-plain.example")
    raw = host.run(["journalctl", "--no-pager", "-a", "-o", "cat", *(f"-u anchor-{u}@{run}.service" for u in ("proxy", "run", "vm", "net")),
                    "-u", "anchord.service", "-u", "anchor-egressd.service"], text=False).stdout
    assert_clean(raw)


def test_commit_and_agents_json(host, committer):
    seen, item = committer
    assert_clean(seen, "mark-json", "mark-raw")
    shown = host.show(item)
    assert shown["state"] in ("in_review", "failed", "exhausted"), shown
    assert_clean(on_terminal(host, "show", item, "--no-pager"))
    assert_clean(on_terminal(host, "logs", item), "mark-raw")
    assert_clean(on_terminal(host, "list", "--all", "--no-pager"), item)
    assert shown["state"] == "in_review", shown["reason"]
    assert_clean(on_terminal(host, "result", item))
    assert_clean(on_terminal(host, "result", item, "--diff", "--no-pager"), "mark-content\\x1b[31m", "mark-name")
    # into a file goes what can be applied: the control that the bytes did come as far as this
    assert b"mark-content" + HOSTILE in captured(host, "result", item, "--diff")


# ---- guests that use up what they can ----

# Its disk, most of the output that it may send, then processes until nothing works in there any more.
FLOOD = ("dd if=/dev/zero of=/fill bs=1M 2>&1 | tail -n 1; df -k / | tail -n 1; yes 'a line of a flood' | head -c 3500000; echo flooded; "
         "f() { f | f & }; f 2>/dev/null; sleep 600")


# Connects twenty times to each path, until its input ends.
HOLD = r"""
my @held;
for my $path (@ARGV) { for (1 .. 20) { socket(my $s, AF_UNIX, SOCK_STREAM, 0) or die; connect($s, sockaddr_un($path)) or die "$path: $!"; push @held, $s } }
$| = 1; print "held\n"; <STDIN>;
"""


@pytest.fixture(scope="module")
def exhausting(host, flooding, talker, committer):
    """The flood once more, beside a run that behaves; what the daemons were before, when they had seen it once."""
    flooding.communicate(timeout=100)
    daemons = Daemons(host)
    before = daemons.measure()
    flood, beside = start(host, "exec-small", FLOOD), start(host, "exec", "sleep 5; echo fine")
    fine = beside.communicate(timeout=100)[0], beside.returncode
    flooded = flood.communicate(timeout=100)[0], flood.returncode
    return daemons, before, flooded, fine


def test_another_run_finishes_beside_the_flood(exhausting):
    _, _, _, (output, status) = exhausting
    assert (output, status) == (b"fine\n", 0)


def test_the_flood_ends_with_a_reason(host, exhausting):
    _, _, (output, status), _ = exhausting
    assert status == 1 and b" 100% /\n" in output and b"flooded" in output
    assert_clean(output)
    assert 3500000 < len(output) < 4 << 20
    shown = host.show(next(item["id"] for item in host.items() if item["workflow"] == "exec-small"))
    assert shown["state"] == "exhausted"
    # the last when the guest's own kernel, out of memory, chose the command's shell to end
    assert re.search("time limit|guest-silent|killed by signal 9", shown["reason"]), shown["reason"]


def test_no_unit_failed(host, before_all, exhausting):
    assert host.systemctl("list-units", "--failed", "--plain", "--no-legend", "anchor*").stdout == ""
    assert host.failures(before_all) == []
    # the control: a unit that fails and is forgotten as those of a run are
    host.run("systemd-run --quiet --wait --collect --unit=anchor-that-fails.service false", check=False)
    assert host.failures(before_all) == [("anchor-that-fails.service", "exit-code")]
    assert host.run("ls /run/anchorhold/run /run/netns", check=False).stdout.split() == ["/run/anchorhold/run:", "/run/netns:"]
    assert host.run("pgrep -f qemu-system", check=False).stdout == ""


def test_daemons_are_what_they_were(exhausting):
    daemons, before, _, _ = exhausting
    daemons.await_as_before(before)


def test_the_measure_notices(host, exhausting):
    """The control: connections that stay open show, in each daemon."""
    daemons = exhausting[0]
    before = daemons.measure()
    holder = host.popen(["perl", "-MSocket", "-e", HOLD, *(f"/run/anchorhold/{sock}" for sock in DAEMONS.values())], stdin=-1, stdout=-1)
    try:
        assert holder.stdout.readline() == b"held\n"
        wait_for(lambda: set(daemons.grown(before)) == set(DAEMONS), 10, lambda: str(daemons.grown(before)))
    finally:
        holder.communicate()
    daemons.await_as_before(before)
