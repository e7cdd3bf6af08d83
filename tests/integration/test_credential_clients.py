# SPDX-License-Identifier: LGPL-2.1-or-later
"""Real clients in a microVM, with a sentinel: Node's fetch and WebSocket, Python's requests and websockets, gRPC; what each sends, to the byte, and what it
gets. And that each tool trusts the run's CA by the variable or the store that it has for that, Java among them. What they do is in clients.py."""

import base64
import hashlib
import json
import pathlib
import re
import shutil
import subprocess

import pytest

import clients
from clients import GOLDEN, H2, WIRE
from egressrun import records
from templates import TOP, make_template

REAL = "client-REALCLIENTREALCLIENTREALCLIENTREALCLIENT"
BUNDLE = "/etc/ssl/certs/ca-certificates.crt"


@pytest.fixture(scope="module")
def template(host):
    """What every guest has, and more clients; Node is that of an agent."""
    made = subprocess.run([TOP / "image" / "client-root"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    folder = make_template(host, "clients", {"vmlinuz": None, "initrd": None, "root.erofs": pathlib.Path(made) / "root.erofs", "agents/pi.erofs": None})
    yield
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def ran(host, world, template):
    """One run of everything in clients.py."""
    host.seal_credential_once("test-client", REAL)
    world.forget_logs()
    done = host.anchorctl("run", "--workflow", "exec-client", "--", "python3", "-c", pathlib.Path(clients.__file__).read_text(), check=False, timeout=800)
    found = re.search(r"^RESULT (.*)$", done.stdout, re.M)
    assert found, done.stdout + done.stderr
    result = json.loads(found.group(1))
    result["text"] = done.stdout + done.stderr
    result["wire"], result["h2"] = world.log("wire"), world.log("h2")
    result["run"] = host.show(re.search(r"\bi[0-9a-z]{12}\b", result["text"]).group(0))["runs"][0]["id"]
    return result


def heads(ran, part):
    return [entry for entry in ran["wire"] if part in entry.get("head", "").partition("\r\n")[0]]


def check_head(head, version, *lines):
    """To the byte, but for their order and the client's version."""
    got = sorted(re.sub(version, "VERSION", line) for line in head.split("\r\n"))
    assert got == sorted([*lines, "Host: " + WIRE, "Accept-Encoding: identity", ""])


def check_answers(said, key):
    """What came back has the sentinel wherever the origin put the value, and is whole."""
    assert said["golden"] == f"{hashlib.sha256(GOLDEN).hexdigest()} {len(GOLDEN)}\n"
    assert said["upload"] is True and said["pieces"] is True
    for reflected in (said["reflect"], said["gzip"]):
        assert reflected["plain"] == reflected["percent"] == reflected["escaped"] == key
        assert [base64.b64decode(text) for text in reflected["base64"]] == [prefix + key.encode() + b"!!" for prefix in (b"", b"u:", b"me:")]
    assert said["refused"] == [403, "foreign-credential"]


def test_fetch(ran):
    said = ran["fetch"]
    check_answers(said, ran["key"])
    assert said["cookie"] == ["key=" + ran["key"]] and said["events"] == 5
    [golden] = heads(ran, "/fetch?")
    check_head(golden["head"], r"(?<=user-agent: )node$", "POST /fetch?a=b%20c HTTP/1.1", "x-wire-key: " + REAL, f"Content-Length: {len(GOLDEN)}", "accept: */*",
               "accept-language: *", "sec-fetch-mode: cors", "user-agent: VERSION")
    assert (golden["size"], golden["sha256"]) == (len(GOLDEN), hashlib.sha256(GOLDEN).hexdigest())


def test_requests(ran):
    said = ran["requests"]
    check_answers(said, ran["key"])
    assert said["cookie"] == "key=" + ran["key"]
    [golden] = heads(ran, "/requests?")
    check_head(golden["head"], r"(?<=User-Agent: python-requests/)\S+$", "POST /requests?a=b%20c HTTP/1.1", "x-wire-key: " + REAL, f"Content-Length: {len(GOLDEN)}",
               "Accept: */*", "User-Agent: python-requests/VERSION")
    assert (golden["size"], golden["sha256"]) == (len(GOLDEN), hashlib.sha256(GOLDEN).hexdigest())


def test_bearer_and_chunks(ran):
    """Each of the two posted a body of which it said the size, with a token, and one of which it did not."""
    uploads = heads(ran, "/hash")
    assert len(uploads) == 4 and {entry["size"] for entry in uploads} == {1500000}
    assert sum(bool(re.search(rf"^authorization: Bearer {REAL}\r$", entry["head"], re.M | re.I)) for entry in uploads) == 2
    assert sum("transfer-encoding: chunked" in entry["head"].lower() for entry in uploads) == 2


def test_grpc(ran):
    said = ran["grpc"]
    assert said["unary"] is True and said["large"] is True
    assert said["key"] == ran["key"] and said["bearer"] == "Bearer " + ran["key"]
    assert said["turns"] == [f"question {i}" for i in range(5)] and (said["rest"], said["code"]) == (0, "OK")
    assert said["refused"][0] == "PERMISSION_DENIED"


def test_grpc_to_the_byte(ran):
    first = next(entry for entry in ran["h2"] if ["x-wire-key", REAL] in entry.get("headers", ()) and [":path", "/wire.Test/Unary"] in entry["headers"])
    fields = dict(first["headers"])
    assert len(fields) == len(first["headers"])
    assert re.match(r"grpc-python/\S+ grpc-c/\S+ ", fields.pop("user-agent"))
    assert re.fullmatch(r"\d+[unmSMH]", fields.pop("grpc-timeout"))
    assert fields == {":method": "POST", ":scheme": "https", ":authority": H2, ":path": "/wire.Test/Unary", "te": "trailers", "content-type": "application/grpc",
                      "x-wire-key": REAL, "accept-encoding": "identity"}
    [end] = [entry for entry in ran["h2"] if "ended" in entry and (entry["connection"], entry["stream"]) == (first["connection"], first["stream"])]
    assert end["body"].encode("latin-1") == b"\0" + len(GOLDEN).to_bytes(4, "big") + GOLDEN
    [talk] = [entry for entry in ran["h2"] if entry.get("ended") == "/wire.Test/Talk"]
    questions = [b"question %d" % i for i in range(5)]
    assert talk["body"].encode("latin-1") == b"".join(b"\0" + len(text).to_bytes(4, "big") + text for text in questions)
    tokens = [dict(entry["headers"]).get("authorization") for entry in ran["h2"] if "headers" in entry]
    assert tokens.count("Bearer " + REAL) == 1


def test_websocket(ran):
    """Upgraded from HTTP/1.1, by Node and by Python: messages of every kind, a ping, the end, and no extension although both offer one."""
    said = ran["socket"]
    assert said["got"] == [ran["key"], True, ""] and said["close"] == [1000, True] and said["extensions"] == ""
    said = ran["websockets"]
    assert (said["key"], said["same"], said["pong"], said["extensions"], said["close"]) == (ran["key"], True, True, [], [1000, "done"]), said
    upgrades = heads(ran, "/ws")
    assert len(upgrades) == 2
    for entry in upgrades:
        assert "x-wire-key: " + REAL in entry["head"].split("\r\n") and "extensions" not in entry["head"].lower()


def test_websocket_messages_to_the_byte(ran):
    got = [(entry["message"], entry["size"]) for entry in ran["wire"] if "message" in entry]
    key = (hashlib.sha256(b"key").hexdigest(), 3)
    assert got.count(key) == 2 and (hashlib.sha256(b"").hexdigest(), 0) in got
    assert sum(size == 200000 for _, size in got) == 2


def take_frames(data):
    """[(first byte, payload)] of a server."""
    frames, at = [], 0
    while at < len(data):
        size, more = data[at + 1], {126: 2, 127: 8}.get(data[at + 1], 0)
        if more:
            size = int.from_bytes(data[at + 2:at + 2 + more], "big")
        frames.append((data[at], data[at + 2 + more:at + 2 + more + size]))
        at += 2 + more + size
    return frames


def test_websocket_by_extended_connect(ran):
    """On a stream of HTTP/2 (RFC 8441), offered because the origin takes it."""
    said = ran["extended"]
    data = base64.b64decode(said["data"])
    assert said["status"] == 200 and said["extensions"] == ""
    frames = take_frames(base64.b64decode(said["got"]))
    assert frames[0] == (0x81, ran["key"].encode())
    assert (0x8a, b"ping") in frames and frames[-1] == (0x88, b"\x03\xe8")
    assert b"".join(payload for first, payload in frames[1:] if not first & 8) == data
    [head] = [dict(entry["headers"]) for entry in ran["h2"] if [":protocol", "websocket"] in entry.get("headers", ())]
    assert head[":method"] == "CONNECT" and head[":path"] == "/ws" and head["x-wire-key"] == REAL and "sec-websocket-extensions" not in head
    sent = [(entry["frame"], entry["message"]) for entry in ran["h2"] if "frame" in entry]
    assert sent[0] == (0x81, hashlib.sha256(b"key").hexdigest()) and sent[-1] == (0x88, hashlib.sha256(b"\x03\xe8").hexdigest())


def test_no_sentinel_arrives_and_no_value_comes_back(host, ran):
    assert re.fullmatch(r"client-[A-Za-z0-9_-]{40}", ran["key"])
    seen = json.dumps([ran["wire"], ran["h2"]])
    assert REAL in seen and ran["key"] not in seen
    assert ran["key"] in ran["text"] and REAL not in ran["text"]
    assert "refused" not in json.dumps([(entry.get("head"), entry.get("headers")) for entry in ran["wire"] + ran["h2"]]).lower()
    assert [record["name"] for record in records(host, "credential.used", ran["run"], credential="test-client")]


@pytest.mark.parametrize("name", clients.TOOLS)
def test_store_by_variable(ran, name):
    """With what every step has in that variable the tool believes the origin, and with another CA there it does not: so it is that variable which it goes by."""
    (right, said), (wrong, otherwise) = ran["stores"][name]
    assert right, said
    assert not wrong, otherwise


def test_variables(ran):
    assert ran["environment"] == {**dict.fromkeys([*clients.TOOLS, "CARGO_HTTP_CAINFO"], BUNDLE), "NODE_EXTRA_CA_CERTS": "/run/anchorhold/ca.pem"}


def test_java(ran):
    """Its default store is one that keytool finds intact, with the run's CA in it; a JRE believes the origin by it, and without one does not."""
    assert ran["java"]["has"] and ran["java"]["count"], ran["java"]["said"]
    (right, said), (wrong, otherwise) = ran["java"]["tries"]
    assert right and not wrong and "trustAnchors" in otherwise, (said, otherwise)
    asked = heads(ran, "/java")[0]
    assert re.search(r"^User-Agent: Java/\d", asked["head"], re.M)


def test_a_bundle_made_anew(ran):
    """What a package does that brings a CA: the bundle is written afresh, and Java's store with it."""
    said = ran["anew"]
    assert said["curl"].endswith("status 200") and clients.JAVA_TRUSTED in said["java"], said
