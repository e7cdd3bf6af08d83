#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Figures of one run, measured on the booted image:

  - cold start: `anchorctl run --workflow exec -- /bin/true` against a bare boot of the same QEMU, kernel, initrd and
    root to its first command, in turn;
  - where the time of such a run goes;
  - the memory (PSS) of each process of ours while one run idles;
  - what an egress decision costs with 10, 1,000 and 100,000 rules, as ratios, and how long so many take to load (bench-policy.c);
  - connect() with and without the fence's programs, as a ratio;
  - names answered a second, to one run and to several, and what a connection costs that is passed through, over TLS and in the clear (egress.py);
  - inspected and passed-through connections beside squid, mitmproxy and a splice relay (proxies.py).

    bench.py [--rounds N] [--only policy|connects|egress|proxies|start]
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "tests" / "world"), str(TOP / "tests" / "integration")]
import egress  # noqa: E402
import guestchannel  # noqa: E402
import host as hosting  # noqa: E402
import inside  # noqa: E402
import proxies  # noqa: E402
import world as worlds  # noqa: E402

TEMPLATE = "/usr/lib/anchorhold/templates/base"
FOLDER = "/run/bench"


def live_run(host):
    """A run that idles: the process that follows it, and its id."""
    process = host.popen(["anchorctl", "run", "--workflow", "exec", "--", "sh", "-c", "echo up; sleep 600"], user="operator",
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout.readline() == "up\n"
    return process, host.run("ls /run/anchorhold/run").stdout.split()[0]


def bare_command(host, run):
    """The command line of a run's QEMU, with files where the launcher passes descriptors, and without the tap."""
    pid = host.property(f"anchor-vm@{run}.service", "MainPID")
    argv = host.run(f"tr '\\0' '\\n' </proc/{pid}/cmdline").stdout.splitlines()
    bare, skip = [], False
    for option, value in zip(argv, argv[1:] + [""]):
        if skip:
            skip = False
            continue
        if option in ("-add-fd", "-netdev") or (option == "-device" and value.startswith("virtio-net")):
            skip = True
            continue
        if option == "-kernel":
            bare, skip = bare + [option, f"{TEMPLATE}/vmlinuz"], True
        elif option == "-initrd":
            bare, skip = bare + [option, f"{TEMPLATE}/initrd"], True
        elif "node-name=root" in option:
            bare.append(re.sub(r"/dev/fdset/\d+", f"{TEMPLATE}/root.erofs", option))
        elif "node-name=scratch" in option:
            bare.append(re.sub(r"/dev/fdset/\d+", "/var/tmp/bench.scratch", option))
        elif option.startswith("socket,id="):
            name = option.split(",")[1][3:]
            bare.append(re.sub(r"fd=\d+", f"path={FOLDER}/{name}", option))
        else:
            bare.append(option)
    return bare


def bare_boot(host, command):
    """Seconds from exec of QEMU to the end of its first command."""
    host.run(f"mkdir -p {FOLDER}; rm -f {FOLDER}/* /var/tmp/bench.scratch; truncate -s 4G /var/tmp/bench.scratch; "
             "mke2fs -q -F -O ^has_journal -E lazy_itable_init=1 /var/tmp/bench.scratch")
    path = f"/proc/{host.pid}/root{FOLDER}/channel"
    begun = time.monotonic()
    process = host.popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not os.path.exists(path):
        time.sleep(0.002)
    channel = guestchannel.connect(path)
    channel.open(hostname="bare")
    assert channel.run(["/bin/true"]).status == 0
    took = time.monotonic() - begun
    process.kill()
    process.wait()
    return took


def run_true(host):
    """Seconds of the whole command, and the item."""
    begun = time.monotonic()
    host.anchorctl("run", "--workflow", "exec", "--", "/bin/true")
    return time.monotonic() - begun, host.items()[0]["id"]


def stages(host, item):
    """Seconds of each stage of a run, from the item's events."""
    events = [json.loads(line) for line in host.anchorctl("logs", item, "--json=short").stdout.splitlines()]
    marks = []
    for event in events:
        name = {"state": event.get("to"), "note": event.get("kind"), "step": f"step {event.get('phase')}"}.get(event["type"])
        if name:
            marks.append((name, datetime.datetime.fromisoformat(event["time"].replace("Z", "+00:00"))))
    return [(f"{a} → {b}", (later - earlier).total_seconds()) for (a, earlier), (b, later) in zip(marks, marks[1:])]


def memory(host, run):
    """(unit, process, KiB of PSS) of all that runs as a unit of ours, by systemd's own account: daemons, the audit log's journald, and this run's."""
    own = [f"anchor-{name}@{run}" for name in ("proxy", "inject")]
    host.systemctl("start", "anchor-secretd.service", *(f"{unit}.service" for unit in own))    # which a first connection would start
    listed = host.run("""
        systemctl list-units --type=service --state=active --plain --no-legend 'anchor*' 'systemd-journald@anchorhold*' | while read -r unit _; do
                group=$(systemctl show --value -p ControlGroup "$unit")
                [ -n "$group" ] && [ -d "/sys/fs/cgroup$group" ] || continue
                find "/sys/fs/cgroup$group" -name cgroup.procs -exec cat {} + | while read -r pid; do
                        echo "$unit $(awk '/^Pss:/ { print $2 }' "/proc/$pid/smaps_rollup") $(cat "/proc/$pid/comm")"
                done
        done""").stdout
    found = [(unit.removesuffix(".service"), name, int(kib)) for unit, kib, name in (line.split(None, 2) for line in listed.splitlines())]
    units = {unit for unit, _, _ in found}
    missing = {"anchord", "anchor-auditd", "anchor-egressd", "anchor-secretd", *own, f"anchor-vm@{run}", f"anchor-run@{run}"} - units
    assert not missing, missing
    return [(unit.replace(f"@{run}", "@"), name, kib) for unit, name, kib in found]


def show_memory(usage):
    print("\nmemory of one idle run (PSS of each process)")
    for unit, name, kib in sorted(usage, key=lambda each: -each[2]):
        print(f"  {kib / 1024:8.1f} MiB  {unit:<28} {name}")
    for what, of_a_run in (("daemons", False), ("this run", True)):
        print(f"  {sum(kib for unit, _, kib in usage if unit.endswith('@') == of_a_run) / 1024:8.1f} MiB  {what} together")


def policy():
    """Decisions against the number of rules. Each size is measured several times and the best kept: the rest is the machine's other work."""
    done = subprocess.run([TOP / "image" / "in-buildroot", "build/plain/bench/bench-policy"], cwd=TOP, capture_output=True, text=True, check=True)
    sizes = [json.loads(line) for line in done.stdout.splitlines()]
    print("\negress decision, against the one with ten rules")
    for size in sizes:
        print(f"  {size['rules']:7,} rules  ratio {size['decision_ns'] / sizes[0]['decision_ns']:5.2f}  {size['decision_ns']:7.0f} ns"
              f"  loaded in {size['load_ms']:7.1f} ms ({size['bytes'] / 1e6:.1f} MB)")


# ---- connect() with and without the fence ----

CONNECTS = 4000


def time_connects(address, port, n):
    """Nanoseconds of connect(), and of a socket from socket() to close(): medians of n."""
    took, lives = [], []
    for _ in range(n):
        made = time.perf_counter_ns()
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as s:
            # a reset instead of a port in TIME_WAIT
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            begun = time.perf_counter_ns()
            s.connect((address, port))
            took.append(time.perf_counter_ns() - begun)
        lives.append(time.perf_counter_ns() - made)
    return statistics.median(took), statistics.median(lives)


def grant(host, cgroup, address, port):
    """As egressd writes it (ebpf/fence-api.bpf.h), for an hour."""
    expires = (int(time.clock_gettime(time.CLOCK_BOOTTIME)) + 3600) * 10 ** 9
    key = struct.pack("=Q", cgroup) + bytes(10) + b"\xff\xff" + socket.inet_aton(address) + struct.pack("!HB5x", port, 6)
    number = 1 << 62
    for name, k, v in (("live", struct.pack("=Q", number), key), ("grants", key, struct.pack("=QQ", number, expires))):
        host.run(f"bpftool map update pinned /run/anchorhold/maps/{name} key hex {k.hex(' ')} value hex {v.hex(' ')}")


def connects(host, rounds):
    """Medians in nanoseconds, pairs of them, not fenced and fenced, in turn. The peer is the host's own address: loopback without 127.0.0.1, which no grant opens."""
    host.systemctl("start", "anchorhold-runs.slice", "anchor-doctor.service")
    path = inside.cgroup_of(host.pid).parent / "anchorhold.slice/anchorhold-runs.slice/bench"
    path.mkdir()
    try:
        r, w = os.pipe()
        child = os.fork()
        if child == 0:
            inside.enter(host.pid, ["net"])
            address = subprocess.run(["ip", "-j", "-4", "address", "show", "scope", "global"], check=True, stdout=subprocess.PIPE).stdout
            server = socket.create_server((json.loads(address)[0]["addr_info"][0]["local"], 0), backlog=4096)
            address, port = server.getsockname()
            threading.Thread(target=lambda: [server.accept()[0].close() for _ in iter(int, 1)], daemon=True).start()
            grant(host, path.stat().st_ino, address, port)
            home = inside.cgroup_of(os.getpid())
            for _ in range(rounds):
                for place in (home, path):
                    worker = os.fork()                         # sockets are of the cgroup of who makes them
                    if worker == 0:
                        (place / "cgroup.procs").write_text(str(os.getpid()))
                        time_connects(address, port, 200)
                        os.write(w, b"%d %d\n" % time_connects(address, port, CONNECTS))
                        os._exit(0)
                    os.waitpid(worker, 0)
            os._exit(0)
        os.close(w)
        with os.fdopen(r) as f:
            values = [tuple(map(int, line.split())) for line in f]
        os.waitpid(child, 0)
        return values[::2], values[1::2]
    finally:
        path.rmdir()


def show_connects(plain, fenced):
    print("\nTCP to the host itself, with the fence's programs against without (medians, in turn)")
    for name, a, b in zip(("connect()", "socket() to close()"), zip(*plain), zip(*fenced)):
        ratios = [y / x for x, y in zip(a, b)]
        print(f"  {name:<20} ratio of the best {min(b) / min(a):.3f}  of each pair: median {statistics.median(ratios):.3f}  least {min(ratios):.3f}  most {max(ratios):.3f}"
              f"  (without: {min(a) / 1000:.1f} µs)")
    print(flush=True)


def main():
    parser = argparse.ArgumentParser(description="figures of one run")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=["policy", "connects", "egress", "proxies", "start"], help="one part of it")
    arguments = parser.parse_args()
    if arguments.only == "policy":
        policy()
        return 0
    build = TOP / "build" / "bench"
    build.mkdir(parents=True, exist_ok=True)
    world = worlds.World(build / "world")
    world.start()
    host = hosting.start_for_tests("bench", world, [*hosting.load_policies(TOP / "tests" / "integration" / "policy"), *proxies.POLICIES])
    try:
        if arguments.only in (None, "proxies"):
            proxies.figures(host, world, arguments.rounds)
        if arguments.only in (None, "connects"):
            show_connects(*connects(host, max(arguments.rounds, 5)))
        if arguments.only in (None, "egress"):
            egress.figures(host, world.path("world.pem"))
        if arguments.only not in (None, "start"):
            return 0
        process, run = live_run(host)
        command, usage = bare_command(host, run), memory(host, run)
        host.anchorctl("stop", "--all")
        process.wait(30)
        run_true(host)                                         # not counted: everything once from the disk
        bare_boot(host, command)
        bare, ours, parts = [], [], {}
        for number in range(max(arguments.rounds, 5)):
            bare.append(bare_boot(host, command))
            took, item = run_true(host)
            ours.append(took)
            for name, seconds in stages(host, item):
                parts.setdefault(name, []).append(seconds)
            print(f"round {number + 1}: bare boot {bare[-1]:.2f} s, anchorctl run {ours[-1]:.2f} s", flush=True)
    finally:
        host.stop()
        world.stop()

    print("\ncold start, anchorctl run against a bare boot of the same parts (pairs in turn)")
    ratios = [a / b for a, b in zip(ours, bare)]
    print(f"  ratio  median {statistics.median(ratios):.2f}  least {min(ratios):.2f}  most {max(ratios):.2f}  ({len(ratios)} pairs)")
    print("\nwhere a run's time goes, median of the rounds")
    total = sum(statistics.median(values) for values in parts.values())
    for name, values in parts.items():
        print(f"  {statistics.median(values) / total:6.1%}  {statistics.median(values):7.3f} s  {name}")
    show_memory(usage)
    if arguments.only is None:
        policy()
    return 0


if __name__ == "__main__":
    sys.exit(main())
