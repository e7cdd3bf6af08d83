# SPDX-License-Identifier: LGPL-2.1-or-later
"""HTTP/2 through inject: curl in a microVM, and an origin that speaks it. The provider's name leads to that origin for this file."""

import base64
import json
import re
import time

import pytest
import world as world_module

from liverun import LiveRun

pytestmark = pytest.mark.quiet("first")
REAL = world_module.REAL_KEY
N_PARALLEL, N_PIECES, N_EVENTS, UPLOAD = 20, 4, 20, 16 << 20
GRPC = base64.b64encode(b"\0\0\0\0\5hello").decode()

# curl does not read on while nothing comes to be sent: so this speaks HTTP/2 itself. A message of gRPC, then the wait for its return, and so on.
TURNS = r"""
import os, socket, ssl, struct, sys, time
def frame(kind, flags, stream, data=b""): return struct.pack(">I", len(data))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + data
def field(name, value): return bytes([16, len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
def exactly(n):
    data = b""
    while len(data) < n:
        piece = s.recv(n - len(data))
        if not piece: sys.exit("the connection ended")
        data += piece
    return data
def read():
    while True:
        head = exactly(9)
        kind, flags, data = head[3], head[4], exactly(int.from_bytes(head[:3], "big"))
        if kind == 4 and not flags & 1: s.sendall(frame(4, 1, 0))
        if kind in (0, 1, 3, 7): return kind, flags, data
context = ssl.create_default_context()
context.set_alpn_protocols(["h2"])
name = "api.anthropic.com"
s = context.wrap_socket(socket.create_connection((name, 443), 20), server_hostname=name)
fields = [(":method", "POST"), (":scheme", "https"), (":authority", name), (":path", "/v1/models?do=turns"),
          ("x-api-key", os.environ["ANTHROPIC_API_KEY"]), ("content-type", "application/grpc+json"), ("te", "trailers")]
s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0) + frame(1, 4, 1, b"".join(field(*f) for f in fields)))
print("turns head", read()[0])
for i in range(int(sys.argv[1])):
    message = b"\0\0\0\0\x09question%d" % i
    since = time.time()
    s.sendall(frame(0, 0, 1, message))
    kind, flags, data = read()
    print("turn", data == message, "%.3f" % (time.time() - since))
s.sendall(frame(0, 1, 1))
print("turns end", *read()[:2])
"""

# Each request prints a line "== NAME STATUS VERSION" after its answer.
GUEST = "turns='" + TURNS + "'\n" + r"""
api=https://api.anthropic.com/v1/models
key="x-api-key: $ANTHROPIC_API_KEY"
ask() { name=$1; shift; curl -sS -N -m 30 -w "\n== $name %{http_code} %{http_version}\n" "$@" 2>&1 || echo "== $name failed"; }
stamp() { python3 -uc 'import sys, time
for line in sys.stdin:
    if line.strip(): print(sys.argv[1], "%.3f" % time.time(), line.strip())' "$1"; }
echo "sentinel $ANTHROPIC_API_KEY"
ask first -D - -H "$key" $api
ask none $api
ask old --http1.1 -H "$key" $api
ask cookie -H "cookie: k=$ANTHROPIC_API_KEY" $api
ask query "$api?key=$ANTHROPIC_API_KEY"
ask elsewhere -H "$key" https://www.example.org/
ask foreign -H "x-api-key: sk-ant-somebody-elses-key" $api
ask method -X DELETE -H "$key" $api
ask path -H "$key" https://api.anthropic.com/admin
ask dots --path-as-is -H "$key" "$api/../admin"
ask fronting -H 'host: www.example.org' -H "$key" $api
ask here -H "$key" "$api?part=here" --next -sS -w '\n== there %{http_code} %{http_version} %{num_connects}\n' -H 'host: www.example.org' -H "$key" "$api?part=there" \
        --next -sS -w '\n== again %{http_code} %{http_version} %{num_connects}\n' -H "$key" "$api?part=again"
ask mixed -H "$key" -H "cookie: k=$ANTHROPIC_API_KEY" $api --next -sS -w '\n== after %{http_code} %{http_version}\n' -H "$key" $api
ask reset -H "$key" "$api?do=reset"
ask early -H "$key" -d "$(head -c 3000 /dev/zero | tr '\0' x)" "$api?do=early"
curl -sS -N -m 30 -H "$key" "$api?do=events" | stamp event
python3 -c "$turns" """ + str(N_PIECES) + r"""
echo """ + GRPC + r""" | base64 -d >/tmp/message
ask grpc -D /tmp/head -o /tmp/reply -H "$key" -H 'content-type: application/grpc' -H 'te: trailers' --data-binary @/tmp/message "$api?do=turns"
cmp /tmp/message /tmp/reply && echo "grpc same"; tr -d '\r' </tmp/head | sed 's/^/grpc /'
for i in $(seq """ + str(N_PARALLEL) + r"""); do
    head -c 20000 /dev/urandom >/tmp/body.$i
    printf 'url="%s?do=echo&n=%s"\nheader="%s"\ndata-binary="@/tmp/body.%s"\noutput="/tmp/back.%s"\nwrite-out="== parallel %%{http_code} %%{http_version}\\n"\nnext\n' \
        $api $i "$key" $i $i
done | sed '$d' >/tmp/parallel
curl -sS -Z --parallel-max """ + str(N_PARALLEL) + r""" -K /tmp/parallel
for i in $(seq """ + str(N_PARALLEL) + r"""); do cmp /tmp/body.$i /tmp/back.$i && echo "same"; done
head -c """ + str(UPLOAD) + r""" /dev/zero | ask upload -T - -X POST -H "$key" "$api?do=hold"
echo == done
sleep 4
"""


@pytest.fixture(scope="module")
def ran(host, world):
    """One run that asks for everything above."""
    world.forget_logs()
    world.set_zone({**world_module.ZONE, "api.anthropic.com": {"A": [world_module.H2], "ttl": 1}})
    try:
        run = LiveRun(host, "exec-model", GUEST)
        run.await_line("== done", 150)
        status = open(f"/proc/{run.pid('anchor-inject')}/status", encoding="ascii").read()
        run.peak = int(re.search(r"^VmHWM:\s+(\d+) kB", status, re.M).group(1))
        run.out = run.rest()
    finally:
        world.set_zone(world_module.ZONE)
    run.status = dict(re.findall(r"^== (\S+) (\d+ \S+)$", run.out, re.M))
    run.sentinel = re.search(r"^sentinel (\S+)$", run.out, re.M).group(1)
    run.log = world.log("h2")
    run.requests = [entry for entry in run.log if "headers" in entry]
    return run


def fields_of(ran, part):
    """The header fields of the requests whose path has that in it."""
    return [dict(entry["headers"]) for entry in ran.requests if part in dict(entry["headers"])[":path"]]


def test_version_is_the_origins(ran):
    assert ran.status["first"] == ran.status["none"] == "200 2"
    assert ran.status["old"] == "200 1.1"
    assert ran.status["elsewhere"] == "403 1.1"                # www.example.org speaks HTTP/1.1 only


def test_origin_gets_the_real_key_and_the_guest_does_not(ran):
    first = fields_of(ran, "/v1/models")[0]
    assert first["x-api-key"] == REAL and first[":authority"] == "api.anthropic.com" and first["accept-encoding"] == "identity"
    assert f"GET with {ran.sentinel}\n" in ran.out and "GET with none\n" in ran.out
    assert REAL not in ran.out
    assert "alt-svc" not in ran.out


def test_no_sentinel_ever_arrives(ran, world):
    assert len(ran.requests) > N_PARALLEL
    for log in (ran.log, world.log("origin")):
        assert ran.sentinel not in json.dumps(log)


@pytest.mark.parametrize("name, status, reason", [
    ("cookie", "403 2", "credential-misuse"), ("query", "403 2", "credential-misuse"), ("foreign", "403 2", "foreign-credential"),
    ("method", "403 2", "credential-scope"), ("path", "403 2", "credential-scope"), ("dots", "400 2", "path"),
    ("fronting", "421 2", "fronting"), ("mixed", "403 2", "credential-misuse"),
])
def test_refused(ran, name, status, reason):
    assert ran.status[name] == status
    answer = ran.out[:ran.out.index(f"\n== {name} ")].splitlines()[-1]
    assert json.loads(answer)["error"]["reason"] == reason


def test_a_refusal_leaves_the_connection_alone(ran):
    assert ran.status["after"] == "200 2"


def test_every_authority_is_compared(ran):
    """One that is not the connection's is refused on a connection that has served and goes on to serve."""
    assert ran.status["here"] == "200 2"
    assert re.findall(r"^== (there|again) (.*)$", ran.out, re.M) == [("there", "421 2 0"), ("again", "200 2 0")]
    assert fields_of(ran, "part=here") and fields_of(ran, "part=again") and not fields_of(ran, "part=there")
    assert {fields[":authority"] for fields in fields_of(ran, "/v1/models")} == {"api.anthropic.com"}


def test_resets_and_early_answers(ran):
    assert "== reset failed" in ran.out
    assert ran.status["early"] == "413 2" and "too much" in ran.out


def test_events_come_at_once(ran):
    """By the two clocks' own difference, which the fastest event shows at most; the first ones came before there was a reader."""
    late = [float(at) - float(sent) for at, sent in re.findall(r"^event (\S+) data: (\S+)$", ran.out, re.M)]
    assert len(late) == N_EVENTS
    assert max(late[-8:]) - min(late[-8:]) < 0.2, late


def test_pieces_pass_both_ways(ran):
    """The answer to each is there before the next is sent, although it ends in what a value could begin with."""
    turns = re.findall(r"^turn (\S+) (\S+)$", ran.out, re.M)
    assert len(turns) == N_PIECES and all(same == "True" for same, _ in turns), turns
    assert all(float(seconds) < 2 for _, seconds in turns), turns
    assert "turns head 1\n" in ran.out and "turns end 1 5\n" in ran.out   # HEADERS, at the end with END_STREAM


def test_grpc(ran):
    assert ran.status["grpc"] == "200 2" and "grpc same" in ran.out
    assert "grpc grpc-status: 0\n" in ran.out
    assert [fields["te"] for fields in fields_of(ran, "do=turns") if fields.get("content-type") == "application/grpc"] == ["trailers"]


def test_parallel_streams(ran):
    assert ran.out.count("== parallel 200 2\n") == N_PARALLEL
    assert len(re.findall(r"^same$", ran.out, re.M)) == N_PARALLEL
    connections = [entry["connection"] for entry in ran.requests if "do=echo" in dict(entry["headers"])[":path"]]
    assert len(connections) == N_PARALLEL and len(set(connections)) < N_PARALLEL


def test_a_slow_origin_holds_the_upload_up(ran):
    """... and nothing lies in between: 16 MiB came, after three seconds without any window."""
    assert ran.status["upload"] == "200 2" and f"{UPLOAD} bytes" in ran.out
    assert ran.peak < 48 * 1024


def test_audit(host, ran):
    def records(event):
        lines = host.run(["journalctl", "--namespace=anchorhold", "--no-pager", "-o", "json", f"ANCHORHOLD_RUN={ran.run}",
                          f"ANCHORHOLD_EVENT={event}"]).stdout.splitlines()
        return [json.loads(json.loads(line)["ANCHORHOLD_DATA"]) for line in lines]

    assert [record["credential"] for record in records("credential.used")] == ["anthropic"]
    assert records("credential.misuse")
    assert {"fronting", "foreign-credential", "credential-scope", "path"} <= {record["reason"] for record in records("conn.deny")}
    # the connections, and what was asked for on them: no rule about the name has a method or a path
    assert records("egress.allow")
    asked = [request for record in records("egress.requests") for request in record["requests"] if request[1] == "/v1/models"]
    assert sum(request[2] for request in asked) >= N_PARALLEL
    end = time.monotonic() + 10
    while not records("conn.close") and time.monotonic() < end:
        time.sleep(0.2)
    assert records("conn.close")
