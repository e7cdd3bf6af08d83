# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names and connections once more, from a real microVM: root of a guest's own kernel, its own resolver and network code, in place of the stand-in.

The tests are those of the other files, with another `run`: what they try is called in the guest (realguest.py). At the end of it, when the run is over: what
the log says, what nftables counted and what the eBPF programs counted are the same.
"""

import json
import pathlib
import re
import socket
import threading

import pytest

import test_egress_http
import test_egress_resolution
import world as worlds
from waiting import wait_for
from firstbytes import NAME
from inside import reach, tcp, udp, unix
from realguest import RealGuest
from test_run_fence import UNITS
from test_egress_http import half_closed, test_guest_ends_first, works  # noqa: F401
from test_egress_names import (test_any_resolver_over_udp_and_tcp, test_deny_exfiltration_in_labels, test_deny_ipv6_even_with_an_address_and_a_route,  # noqa: F401
                               test_deny_other_types_even_of_an_allowed_name, test_deny_reverse_lookup, test_deny_routers_and_neighbours,
                               test_edns_versions_and_options, test_empty_for_an_allowed_name, test_pipelined_questions_are_answered_in_order,
                               test_reason_of_a_refusal_for_who_knows_edns)
from test_egress_proxy import (test_connect_must_carry_its_name, test_deny_an_ambiguous_hello, test_deny_another_name_in_a_second_hello,  # noqa: F401
                               test_deny_another_protocol_than_the_ports, test_deny_connect, test_deny_the_same_protocols_on_other_ports,
                               test_deny_what_a_hello_says, test_hello_in_pieces, test_hello_with_the_name, test_postgres_turns_to_tls, test_redirect_to_a_denied_host,
                               test_relay_inside_the_guest_wins_nothing, test_server_speaks_first)
from test_egress_resolution import (Names, get, test_alias_of_an_unlisted_name, test_circle_of_aliases_ends, test_deny_alias_of_a_bad_address,  # noqa: F401
                                    test_deny_bad_addresses_with_the_worst_reason, test_deny_names_that_resolve_to_what_is_not_reached,
                                    test_deny_rebinding, test_good_address_beside_bad_ones_is_used_and_the_bad_are_told, test_host_with_ipv6)


@pytest.fixture(scope="module")
def run(host, world):
    it = RealGuest(host, world, "exec-names")
    ids = [(module, module.RUN) for module in (test_egress_http, test_egress_resolution)]
    for module, _ in ids:
        module.RUN = it.run
    yield it
    for module, before in ids:
        module.RUN = before
    host.anchorctl("stop", "--all", check=False)
    it.end()


@pytest.fixture(scope="module")
def guest(run):
    return run


@pytest.fixture(scope="module")
def names(world):
    yield Names(world, "res.example.org")
    world.set_zone(worlds.ZONE)


@pytest.fixture
def control(guest, names):
    yield
    assert get(guest, names.add({"A": [worlds.ORIGIN]})) == (200, None)


# ---- very many ----

def brief(address, n):
    """n connections that say one byte and are gone, answered or not; how many were made."""
    made = 0
    for _ in range(n):
        with socket.socket() as s:
            made += s.connect_ex((address, 9000)) == 0
            s.send(b"x")
    return made


def test_thousands_of_connections_and_egress_goes_on(host, run, www, world):
    """2,000 that the guest ends by half, and 10,000 that are over at once."""
    assert run.call(half_closed, www, 9000, 2000, b"x", timeout=100) == (2000, 2000)
    assert wait_for(lambda: works(run, www, world.path("world.pem")), 20)
    made = []
    threads = [threading.Thread(target=lambda: made.append(run.call(brief, www, 2000, timeout=170))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [2000] * 5
    assert wait_for(lambda: works(run, www, world.path("world.pem")), 20)
    assert host.is_active(f"anchor-proxy@{run.run}.service") == "active"


# ---- what was counted ----

OUR_TESTS = {"tested"}                                                    # the agreement check's and the fence's own, which go on all the while


def verdicts():
    """The names of what the programs count, in the order of their numbers. Not read at import: the guest has no such file."""
    return re.findall(r"\[FENCE_\w+\] = \"(\w+)\"", (pathlib.Path(__file__).parents[2] / "supervisor/net/fence-counts.c").read_text())


def programs(host, run):
    """What the eBPF programs count for a run, as anybody reads it who may look into their map."""
    [cgroup] = host.run(f"stat -c %i /sys/fs/cgroup/anchorhold.slice/anchorhold-runs.slice/anchorhold-runs-{run}.slice").stdout.split()
    entries = json.loads(host.run(["bpftool", "-j", "map", "dump", "pinned", "/sys/fs/bpf/anchorhold/maps/run_verdicts"]).stdout)
    found, names = {}, verdicts()
    for entry in entries:
        key = bytes(int(b, 16) for b in entry["key"])
        if int.from_bytes(key[:8], "little") == int(cgroup):
            found[names[int.from_bytes(key[8:12], "little")]] = sum(int.from_bytes(bytes(int(b, 16) for b in cpu["value"]), "little") for cpu in entry["values"])
    return {name: n for name, n in found.items() if n and name not in OUR_TESTS}


def rules(host, run):
    """(packets that were rejected, by the rules' counters; the same, by destination; those refused for their source) of the run's namespace."""
    listed = json.loads(host.run(["nsenter", f"--net=/run/netns/anchor-{run}", "--", "nft", "-j", "list", "ruleset"]).stdout)["nftables"]
    rejected = forged = 0
    for family, rule in ((entry["rule"]["family"], entry["rule"]["expr"]) for entry in listed if "rule" in entry):
        if family == "inet" and any("reject" in e for e in rule):
            rejected += sum(e["counter"]["packets"] for e in rule if "counter" in e)
        # of frames, only that rule looks into the network header, which nft shows as such; its kernel may be one that cannot answer
        if any(e.get("match", {}).get("left", {}).get("payload", {}).get("base") == "nh" for e in rule) and any("reject" in e or "drop" in e for e in rule):
            forged += sum(e["counter"]["packets"] for e in rule if "counter" in e)
    [denied] = [entry["set"] for entry in listed if entry.get("set", {}).get("name") == "denied"]
    by = {}
    for element in denied.get("elem", []):
        protocol, address, port = element["elem"]["val"]["concat"]
        by[{"tcp": 6, "udp": 17, "icmp": 1}.get(protocol, protocol), address, port] = element["elem"]["counter"]["packets"]
    return rejected, by, forged


def forge(n):
    """Datagrams under an address that is not the guest's."""
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as s:
        for _ in range(n):
            s.sendto(b"\x45\0\0\x1c\0\0\0\0\x40\x11\0\0" + socket.inet_aton("10.255.255.9") + socket.inet_aton("192.0.2.9") +
                     b"\x9c\x40\x04\xd2\0\x08\0\0", ("192.0.2.9", 0))
    return n


def knock(udp_packets, tcp_packets):
    """Sent to addresses that stand for no name; how many were answered with a refusal."""
    refused = 0
    for kind, n, place in ((socket.SOCK_DGRAM, udp_packets, ("192.0.2.7", 1234)), (socket.SOCK_STREAM, tcp_packets, ("192.0.2.8", 80))):
        for _ in range(n):
            with socket.socket(socket.AF_INET, kind) as s:
                s.settimeout(5)
                try:
                    s.connect(place)
                    s.send(b"x")
                    s.recv(1)
                except ConnectionRefusedError:
                    refused += 1
                except OSError as error:
                    refused += error.errno in (13, 113)               # ICMP says: prohibited
    return refused


ATTEMPTS = [tcp(worlds.OTHER, 443)] * 7 + [udp(worlds.OTHER, 53)] * 5 + [tcp("127.0.0.1", 80)] * 3 + [tcp("169.254.169.254", 80)] * 2 + \
    [("socket", "AF_INET", "SOCK_RAW", 1)] * 4 + [unix("@anchor-adversary")] * 6
COUNTED = {"connect_no_grant": 7 + 5, "connect_never": 3 + 2, "create_refused": 4, "unix_abstract": 6}


def test_log_equals_nftables_and_the_programs(host, run, www):
    """Of a run that is over: each denial is in the log once, whichever layer it met, and what could not be told one by one is there as a number."""
    host.systemctl("start", f"anchor-proxy@{run.run}.service", f"anchor-inject@{run.run}.service")
    assert run.call(knock, 60, 30, timeout=100) == 90
    assert run.call(forge, 40) == 40
    ports = 25
    before = sum(r["count"] for r in run.records("egress.deny", name=NAME, port=2222))
    for _ in range(ports):
        assert run.call(test_egress_http.exchange, www, 2222, b"x", 5, False) == "ConnectionResetError"

    counts = programs(host, run.run)
    units = [unit for unit in UNITS if host.is_active(f"{unit}@{run.run}.service") == "active"]
    assert len(units) >= 3
    for unit in units:
        assert "ok" not in reach(run.live.pid(unit), ATTEMPTS, net=host.pid, drop=False)
    for name, n in COUNTED.items():
        counts[name] = counts.get(name, 0) + n * len(units)
    assert programs(host, run.run) == counts                      # each attempt was counted, as what it is

    rejected, by, forged = rules(host, run.run)
    run.end()
    [totals] = wait_for(lambda: run.records("egress.totals"), 20)
    # the programs': as the kernel had it
    assert {name: n for name, n in totals["fence"].items() if name not in OUR_TESTS} == counts
    # nftables': as the kernel had it, by destination, and record by record with what was lost on the way
    assert totals["rejected"] == rejected == sum(by.values()) >= 90
    assert {(d["protocol"], d["name"], d["port"]): d["packets"] for d in totals["denied"]} == by
    told = run.records("conn.deny", rule="guest-network")
    assert sum(d["count"] for d in told) == totals["logged"] and totals["logged"] + totals["unlogged"] == rejected
    told = run.records("conn.deny", rule="guest-source", reason="forged-source", source="10.255.255.9")
    assert sum(d["count"] for d in told) == forged == totals["dropped"]["other_source"] == totals["forged"]["logged"] == 40
    told = run.records("conn.deny", rule="guest-frame")
    assert sum(d["count"] for d in told) == totals["frames"]["logged"] and totals["frames"]["logged"] + totals["frames"]["unlogged"] == totals["dropped"]["not_ipv4"]
    # egressd's: told every ten seconds, the rest when the run is released
    denied = lambda: sum(r["count"] for r in run.records("egress.deny", name=NAME, port=2222)) - before
    assert wait_for(lambda: denied() == ports, 20), denied()
    # every connection that was granted was closed, and none was made without
    granted = [r for r in run.records("egress.allow") if "grant" in r]
    # (those that were open when the run ended are one record with their number)
    assert wait_for(lambda: sum(r.get("count", 1) for r in run.records("conn.close")) == len({r["grant"] for r in granted}), 20)
    assert len({r["grant"] for r in granted}) <= counts["connect_allowed"] <= sum(len(r["addresses"]) for r in granted)
    # and the operator is told so
    log = host.anchorctl("policy", "log", run.run, "--no-pager", user=None).stdout
    kept = sum(n for name, n in counts.items() if name != "connect_allowed")
    frames = totals["dropped"]["not_ipv4"]
    frames = f", {frames} dropped that were not IPv4" if frames else ""
    assert f"in all, {rejected} packets turned away by the guest's network, {forged} dropped for a forged source address{frames}, {kept} attempts or packets of the run's own processes by the fence" in log
