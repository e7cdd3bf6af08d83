# SPDX-License-Identifier: LGPL-2.1-or-later
"""Streams of HTTP/2 side by side: with two credentials, each has a connection of its own to the origin; and a live change of the policy cuts those that it
does not allow, and no others."""

import json
import re

import pytest
import world as world_module

from egressrun import records
from liverun import LiveRun
from waiting import wait_for

REAL, SECOND = world_module.REAL_KEY, "REALSECOND-0123456789abcdef-REALSECOND"
N_PARALLEL = 6

# Each request prints a line "== NAME STATUS VERSION".
GUEST = r"""
api=https://api.anthropic.com/v1/models
first="x-api-key: $ANTHROPIC_API_KEY" second="x-second-key: $SECOND"
say='\n== %s %%{http_code} %%{http_version}\n'
w() { printf "$say" "$1"; }
curl -sS -m 30 -w "$(w none)" "$api?part=none" --next -sS -m 30 -w "$(w first)" -H "$first" "$api?part=first" --next -sS -m 30 -w "$(w between)" "$api?part=between" \
    --next -sS -m 30 -w "$(w second)" -H "$second" "$api?part=second" --next -sS -m 30 -w "$(w again)" -H "$first" "$api?part=again" 2>&1
for i in $(seq """ + str(N_PARALLEL) + r"""); do
    for header in "$first" "$second"; do
        printf 'url="%s?do=echo&part=many"\nheader="%s"\ndata="%s"\noutput="/dev/null"\nwrite-out="== many %%{http_code} %%{http_version}\\n"\nmax-time=30\nnext\n' $api "$header" x
    done
done | sed '$d' >/tmp/many
curl -sS -Z -K /tmp/many 2>&1
printf 'url="%s?do=events"\nheader="%s"\noutput="/tmp/%s"\nno-buffer\nnext\n' $api/stays "$first" stays $api/goes "$first" goes | sed '$d' >/tmp/events
curl -sS -N -Z -K /tmp/events 2>&1
for n in stays goes; do echo "== events $n $(grep -c '^data' /tmp/$n)"; done
curl -sS -m 30 -w "$(w after-stays)" -H "$first" $api/stays; curl -sS -m 30 -w "$(w after-goes)" -H "$first" $api/goes
echo == done
"""


@pytest.fixture(scope="module")
def ran(host, world):
    """While two streams of events are under way, an operator denies the path of one of them."""
    world.forget_logs()
    host.seal_credential("test-second", SECOND)
    world.set_zone({**world_module.ZONE, "api.anthropic.com": {"A": [world_module.H2], "ttl": 1}})

    def requests():
        return [{**dict(entry["headers"]), "connection": entry["connection"]} for entry in world.log("h2") if "headers" in entry]

    try:
        run = LiveRun(host, "exec-paths", GUEST)
        wait_for(lambda: len([r for r in requests() if "do=events" in r[":path"]]) == 2, 90, explain=lambda: "".join(run.lines))
        run.said = json.loads(host.anchorctl("policy", "deny", run.run, '{"name": "api.anthropic.com", "paths": ["/v1/models/goes"]}', "--json=short").stdout)
        run.out = run.rest()
    finally:
        world.set_zone(world_module.ZONE)
        host.run(["anchorctl", "credential", "remove", "--quiet", "test-second"])
    assert "== done" in run.out, run.out
    run.requests = requests()
    return run


def status(ran, name):
    # curl ends what it says behind an answer with no new line
    return re.findall(rf"== {name} (\d+ \d(?:\.\d)?)", ran.out)


def of(ran, part):
    return [request for request in ran.requests if request[":path"].endswith(part)]


def test_each_credential_has_its_connection(ran):
    """The client sends again by itself what would have shared it; what carries none goes along."""
    assert [status(ran, name) for name in ("none", "first", "between", "second", "again")] == [["200 2"]] * 5, ran.out
    [none], [first], [between], [second], [again] = (of(ran, "part=" + name) for name in ("none", "first", "between", "second", "again"))
    assert first["x-api-key"] == again["x-api-key"] == REAL and second["x-second-key"] == SECOND
    assert none["connection"] == first["connection"] == between["connection"]
    assert len({first["connection"], second["connection"], again["connection"]}) == 3


def test_no_connection_has_carried_two(ran):
    """Also of many at a time."""
    assert status(ran, "many") == ["200 2"] * 2 * N_PARALLEL, ran.out
    first = {request["connection"] for request in ran.requests if "x-api-key" in request}
    second = {request["connection"] for request in ran.requests if "x-second-key" in request}
    assert first and second and not first & second


def test_only_what_is_denied_is_cut(host, ran):
    stays, goes = of(ran, "stays?do=events"), of(ran, "goes?do=events")
    assert stays[0]["connection"] == goes[0]["connection"]
    counts = dict(re.findall(r"^== events (\S+) (\d+)$", ran.out, re.M))
    assert ran.said["changed"] and ran.said["cut"] == 1
    assert int(counts["stays"]) == 20 and int(counts["goes"]) < 20 and "was not closed cleanly" in ran.out, ran.out
    assert status(ran, "after-stays") == ["200 2"] and status(ran, "after-goes") == ["403 2"]
    assert [r["path"] for r in records(host, "conn.deny", ran.run, reason="policy-changed")] == ["/v1/models/goes"]


def test_each_grant_has_its_end(host, ran):
    """With what went over its connection: also of those that were open when the run ended."""
    assert wait_for(lambda: records(host, "egress.released", ran.run), 30)
    granted = {r["grant"] for r in records(host, "egress.allow", ran.run) if "grant" in r}

    def ends():
        return records(host, "conn.close", ran.run)

    wait_for(lambda: {r["grant"] for r in ends()} == granted, 10, ends)
    assert len(ends()) == len(granted) > 3
    assert all("reason" not in r and r["bytes_in"] > 0 and r["bytes_out"] > 0 for r in ends()), ends()
