# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where the real key is not while a run uses it, and what two runs at once see of each other."""

import json
import os
import pathlib
import re
import resource
import socket
import time

import pytest
import world as world_module

from inside import call, reach, take_place
from liverun import LiveRun, processes
from waiting import wait_for

REAL = world_module.REAL_KEY.encode()
READ = 4 << 20


def contains(path, needles, start=0, size=None):
    """Which of the needles are in a file (or in `size` bytes of it from `start`)."""
    found, tail = set(), b""
    with open(path, "rb", buffering=0) as f:
        f.seek(start)
        while size is None or size > 0:
            try:
                piece = f.read(READ if size is None else min(READ, size))
            except OSError:
                break
            if not piece:
                break
            if size is not None:
                size -= len(piece)
            data = tail + piece
            found |= {n for n in needles if n in data}
            tail = data[-256:]
    return found


def memory_contains(pid, needles):
    """Which of the needles are in a process's writable memory: for QEMU that is the guest's whole RAM, and QEMU's own."""
    found = set()
    for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, flags = line.split()[:2]
        if "rw" in flags and "[vvar" not in line:
            start, end = (int(x, 16) for x in span.split("-"))
            found |= contains(f"/proc/{pid}/mem", needles, start, end - start)
    return found


def dump_guest_memory(path):
    """The guest's RAM as QEMU itself dumps it, by QMP, into a memory file whose descriptor is returned."""
    dump = os.memfd_create("guest-memory")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(60)
        sock.connect(path)
        replies = sock.makefile("r", encoding="utf-8")

        def ask(command, fds=(), **arguments):
            socket.send_fds(sock, [json.dumps({"execute": command, "arguments": arguments}).encode()], fds)
            while "return" not in (reply := json.loads(replies.readline())):
                assert "error" not in reply, reply

        assert "QMP" in json.loads(replies.readline())
        ask("qmp_capabilities")
        ask("getfd", [dump], fdname="dump")
        ask("dump-guest-memory", paging=False, protocol="fd:dump")
    return dump


@pytest.fixture(scope="module")
def using(host):
    """A run that has called the provider with its sentinel, has written it to its disk, and now waits."""
    live = LiveRun(host, "exec-model", 'echo "sentinel $ANTHROPIC_API_KEY" | tee /root/note; sync; '
                   'curl -sS -o /dev/null -w "call %{http_code}\\n" -H "x-api-key: $ANTHROPIC_API_KEY" https://api.anthropic.com/v1/models; '
                   "sleep 300")
    live.sentinel = live.await_line("sentinel ").split()[-1].encode()
    live.await_line("call 200")
    yield live
    host.anchorctl("stop", "--all", check=False)
    live.rest()


def test_the_guests_memory_has_the_sentinel_and_not_the_key(host, using):
    dump = dump_guest_memory(f"/proc/{host.pid}/root/run/anchorhold/run/{using.run}/qmp")
    assert os.fstat(dump).st_size > 256 << 20
    assert contains(f"/proc/self/fd/{dump}", {REAL, using.sentinel}) == {using.sentinel}
    os.close(dump)


def test_qemus_memory_has_the_sentinel_and_not_the_key(using):
    assert memory_contains(using.pid("anchor-vm"), {REAL, using.sentinel}) == {using.sentinel}


def test_inject_is_where_the_key_is(using):
    """The control for the search itself: it finds the key in the one process of the run that has it."""
    assert REAL in memory_contains(using.pid("anchor-inject"), {REAL})


@pytest.mark.parametrize("unit", ["anchor-proxy", "anchor-run"])
def test_other_processes_of_the_run_do_not_have_the_key(using, unit):
    assert REAL not in memory_contains(using.pid(unit), {REAL})


def test_the_runs_disks_do_not_have_the_key(using):
    pid, found, disks = using.pid("anchor-vm"), set(), 0
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        if fd.is_file():
            disks += 1
            found |= contains(fd, {REAL, using.sentinel})
    assert disks >= 2 and found == {using.sentinel}


def test_host_files_do_not_have_the_key(host, using):
    """Everything below /var and /run but the credential mounts of the two services that have the key, where the same search finds it. The control: it
    finds the sentinel in the run's output, which is kept, and in a file that was put into each of the two trees, and beside those mounts."""
    mounts = [f"/run/credentials/{unit}.service" for unit in ("anchor-secretd", f"anchor-inject@{using.run}")]
    for mount in mounts:
        host.run(["mountpoint", "--quiet", mount])
    planted = {"/var/lib/planted-by-test", "/run/planted-by-test", "/run/credentials/planted-by-test/key"}
    try:
        for path in planted:
            host.write(path, using.sentinel, mode=0o600)
        lines = host.run(["grep", "-roaFZ", "--devices=skip", "-e", REAL.decode(), "-e", using.sentinel.decode(), "/var", "/run"],
                         check=False, timeout=120).stdout.splitlines()
    finally:
        host.run(["rm", "-rf", *planted, "/run/credentials/planted-by-test"])
    found = {tuple(line.split("\0")) for line in lines}
    owner = {path: next((mount for mount in mounts if path.startswith(f"{mount}/")), None) for path, _ in found}
    with_sentinel = {path for path, what in found if what == using.sentinel.decode() and not owner[path]}
    assert planted < with_sentinel and any(path.startswith("/var/lib/anchorhold/items/") for path in with_sentinel), with_sentinel
    with_key = {path for path, what in found if what == REAL.decode()}
    assert {owner[path] for path in with_key} == set(mounts), with_key


@pytest.mark.parametrize("part, control", [("cmdline", "anchor-run\0{run}\0"), ("environ", "INVOCATION_ID=")])
def test_command_lines_and_environments_do_not_have_the_key(host, using, part, control):
    texts = {pid: (pathlib.Path("/proc") / pid / part).read_bytes() for pid in processes(host)}
    assert [pid for pid, text in texts.items() if control.format(run=using.run).encode() in text]
    assert len(texts) > 10 and not [pid for pid, text in texts.items() if REAL in text]


# ---- what a unit that was taken over could use up ----

UNITS = ["anchor-vm", "anchor-run", "anchor-netlog", "anchor-check", "anchor-probe", "anchor-proxy", "anchor-inject"]
SCRATCH = "/var/lib/anchorhold/scratch"
FILL = 8 << 20


def file_limit(pid):
    return int(re.search(r"^Max file size +([0-9]+) +\1 ", pathlib.Path(f"/proc/{pid}/limits").read_text(), re.M).group(1))


def fill(pid):
    """{folder: bytes} of all that a process in the place of that one could write, with its limit of a file's size, into unnamed or named files."""
    limit = file_limit(pid)
    r, w = os.pipe()
    child = os.fork()
    if child == 0:
        written = {}
        try:
            take_place(pid, ["mnt"], False, True)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            for folder, folders, _ in os.walk("/"):
                folders[:] = [f for f in folders if (folder, f) not in (("/", "proc"), ("/", "sys")) and not os.path.islink(os.path.join(folder, f))]
                if os.access(folder, os.W_OK | os.X_OK):
                    written[folder] = fill_folder(folder)
            for folder in ("/tmp", "/var/tmp", "/dev/shm", SCRATCH):
                written[folder] = written.get(folder) or fill_folder(folder)
            os.write(w, json.dumps(written).encode())
        except BaseException as error:  # noqa: BLE001  the test reads it
            os.write(w, json.dumps(repr(error)).encode())
        finally:
            os._exit(0)
    os.close(w)
    with os.fdopen(r, "rb") as f:
        written = json.loads(f.read())
    os.waitpid(child, 0)
    assert isinstance(written, dict), written
    return {folder: size for folder, size in written.items() if size > 0}


def fill_folder(folder):
    size, path = 0, f"{folder}/filled-by-test"
    for flags, name in ((os.O_TMPFILE | os.O_RDWR, folder), (os.O_CREAT | os.O_RDWR, path)):
        try:
            fd = os.open(name, flags, 0o600)
        except OSError:
            continue
        try:
            while size < FILL:
                size += os.write(fd, bytes(65536))
        except OSError:
            pass
        os.close(fd)
        if flags & os.O_CREAT:
            os.unlink(path)
        if size:
            return size
    return 0


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_has_nowhere_to_put_files(host, using, unit):
    """But QEMU the folder of its disk and anchor-run that of the result; those make no file any more, which the next tests ask."""
    pid = using.pid(unit)
    size = file_limit(pid)
    written = fill(pid)
    assert set(written) <= {"anchor-vm": {SCRATCH}, "anchor-run": {"/var/tmp"}, "anchor-probe": {f"/run/anchorhold-probe/{using.run}"}}.get(unit, set())
    if unit == "anchor-vm":
        assert size == disk_size(pid) and written
    elif unit == "anchor-run":
        assert 64 << 20 <= size <= 4 << 30 and written        # which is also the control: what can be written to is found
    else:
        assert size == 64 << 10 and sum(written.values()) <= size


def disk_size(pid):
    (size,) = {os.stat(fd).st_size for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir() if os.readlink(fd).startswith(f"{SCRATCH}/")}
    return size


def save_memory(path, filename):
    """None, or what QEMU says, when it is told by QMP to write a page of the guest's memory into a file."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(60)
        sock.connect(path)
        replies = sock.makefile("r", encoding="utf-8")
        for command, arguments in (("qmp_capabilities", {}), ("pmemsave", {"val": 0, "size": 4096, "filename": filename})):
            sock.sendall(json.dumps({"execute": command, "arguments": arguments}).encode())
            while not {"return", "error"} & (reply := json.loads(replies.readline())).keys():
                pass
    return reply.get("error", {}).get("desc")


def test_qemu_makes_no_file(host, using):
    """Not where its disk is, nor anywhere else; what it may open it does. The guest goes on writing to its disk."""
    qmp = f"/proc/{host.pid}/root/run/anchorhold/run/{using.run}/qmp"
    for folder in (SCRATCH, "/tmp", "/var/tmp", "/dev/shm", "/run"):
        assert "open" in (save_memory(qmp, f"{folder}/made-by-qemu") or ""), folder
    assert save_memory(qmp, "/dev/null") is None               # the control
    assert host.run(["find", SCRATCH, "-mindepth", "1"]).stdout == ""


def test_a_unit_has_a_share_of_the_audit_log(host, using):
    """Beyond which it is refused, alone, and the log says so."""
    data = {"reason": "x" * 45000}
    since = host.run("date +%s").stdout.strip()
    said = reach(using.pid("anchor-check"), [call("audit", "Audit.Append", event="enforcement.mismatch", data=data) for _ in range(50)])
    assert set(said) == {"ok", "Unavailable"} and 20 < said.count("ok") < 48 and said[-1] == "Unavailable", said
    limited = wait_for(lambda: host.run(f"journalctl --namespace=anchorhold --no-pager -o cat --since=@{since} ANCHORHOLD_EVENT=audit.limited").stdout)
    assert limited == f"anchor-check@{using.run}.service has used up its share of the audit log (total): what more it sends is refused\n"
    # the controls: another unit of that run, and who is none
    assert reach(using.pid("anchor-run"), [call("audit", "Audit.Append", event="run.guest", data={"kind": "test"})]) == ["ok"]
    host.run(["varlinkctl", "call", "/run/anchorhold/audit.sock", "io.anchorhold.Audit.Append",
              json.dumps({"event": "approval.recorded", "item": "i3k9x0a1b2c3d", "data": {"verdict": "approved"}})])


def test_what_is_left_beside_the_disks_goes_with_a_run(host):
    host.run(f"mkdir -m 700 {SCRATCH}/left && echo x >{SCRATCH}/left/file && chown -R mail {SCRATCH}/left && echo x >{SCRATCH}/other")
    live = LiveRun(host, "exec", "dd if=/dev/zero of=/root/much bs=1M count=200 && sync && rm /root/much && echo written")
    said = live.rest()
    assert "written" in said                                  # the control: a disk is written to as before
    wait_for(lambda: host.run(["find", SCRATCH, "-mindepth", "1"]).stdout == "", 20)


def exit_code(host, unit, since):
    """How PID 1 says that the main process of a unit ended by SIGABRT: "killed", or "dumped" if it left a core."""
    found = wait_for(lambda: re.findall(r"Main process exited, code=(\w+), status=6/ABRT", host.journal(f"--unit={unit}", f"--since=@{since}")), 20)
    return found[-1]


def test_a_crash_leaves_no_core(host, using):
    """Of neither process that has the key; a unit that may does, which is the control."""
    since = host.run("date +%s").stdout.strip()
    for unit in ("anchor-secretd.service", f"anchor-inject@{using.run}.service"):
        host.systemctl("kill", "--signal=ABRT", unit)
        assert exit_code(host, unit, since) == "killed"
    host.run("mkdir /run/core && systemd-run --quiet --wait --collect --expand-environment=no --unit=core.service -p LimitCORE=infinity -p WorkingDirectory=/run/core -- sh -c 'kill -ABRT $$'; rm -r /run/core")
    assert exit_code(host, "core.service", since) == "dumped"
    wait_for(lambda: host.is_active("anchor-secretd.service") == "active", 20)


def test_records_do_not_have_the_key(host, using):
    everything = host.run("journalctl --no-pager --namespace='*' -o export --all; "
                          "find /var/lib/anchorhold -type f -exec cat {} +", text=False, timeout=120).stdout
    assert REAL not in everything
    assert using.sentinel in everything                        # the control: the guest printed it, so its output has it


LISTEN = """
import select, socket, sys, time
socks = []
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    s = socket.socket(socket.AF_INET, kind)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("0.0.0.0", 8080))
    if kind == socket.SOCK_STREAM: s.listen(8)
    socks.append(s)
print("listening", flush=True)
open("/listening", "w").close()
end = time.time() + float(sys.argv[1])
while time.time() < end:
    for s in select.select(socks, [], [], 0.5)[0]:
        data = s.accept()[0].recv(100) if s.type == socket.SOCK_STREAM else s.recv(100)
        print("got", data.decode(), flush=True)
print("end", flush=True)
"""

SEND = """
import socket, sys
for address in sys.argv[2:]:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        s = socket.socket(socket.AF_INET, kind)
        s.settimeout(1)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        try:
            s.connect((address, 8080))
            s.send(sys.argv[1].encode())
        except OSError as error:
            print(address, kind, error, flush=True)
print("sent", flush=True)
"""


def test_two_runs_at_once_do_not_meet(host, world):
    """Same addresses, same ports, same names: a listener in one gets no byte from the other, and its own."""
    one = LiveRun(host, "exec-net", f"cat >/l.py <<'X'\n{LISTEN}\nX\ncat >/s.py <<'X'\n{SEND}\nX\n"
                  "python3 /l.py 90 & until [ -e /listening ]; do sleep 0.1; done; python3 /s.py from-one 127.0.0.1 10.255.255.2; wait")
    one.await_line("listening")
    two = LiveRun(host, "exec-net", f"cat >/s.py <<'X'\n{SEND}\nX\n"
                  "python3 /s.py from-two 10.255.255.2 10.255.255.1 10.255.255.3 255.255.255.255 198.18.0.1 198.18.0.2 224.0.0.1; "
                  "curl -sS -m 5 http://www.example.org/; echo asked")
    said = two.rest()
    time.sleep(1)
    assert one.process.poll() is None                                       # it listened all the while
    host.anchorctl("stop", host.items()[1]["id"])
    heard = one.rest()
    assert one.run != two.run
    assert "sent" in said and "hello from www.example.org" in said          # it did run, and could reach what it may
    assert heard.count("got from-one") == 4                                 # the control: both kinds, both addresses
    assert "from-two" not in heard and "\nend\n" not in heard
