# SPDX-License-Identifier: LGPL-2.1-or-later
"""Credentials of the kind github-app on the booted image: tokens are minted when a run needs one, renewed, and revoked once it is over, whatever dies meanwhile."""

import json
import pathlib

import pytest

from egressrun import records
from liverun import LiveRun
from waiting import wait_for

BODY = '{"permissions":{"contents":"write","pull_requests":"read"},"repositories":["widgets"]}'
UPSTREAM = ("--upstream", "acme/widgets")
LIST = "/var/lib/anchorhold/secret/tokens"

# Who the token is of, by both places in turn, again and again; each on a connection of its own.
CLIENT = r"""
import base64, http.client, os, time
key, n = os.environ["APP_TOKEN"], 0
print("key", key, flush=True)
while True:
    auth = "Basic " + base64.b64encode(("x-access-token:" + key).encode()).decode() if n % 2 else "Bearer " + key
    n += 1
    try:
        c = http.client.HTTPSConnection("github.example.org", timeout=30)
        c.request("GET", "/whoami", headers={"Authorization": auth}); r = c.getresponse()
        print("call", r.status, r.getheader("Anchorhold-Reason"), r.read().decode(), flush=True)
    except (OSError, http.client.HTTPException) as e: print("cut", flush=True)
    time.sleep(0.3)
"""
ONCE = "curl -sS -H \"Authorization: Bearer $APP_TOKEN\" https://github.example.org/whoami; echo"


def answer(world, **state):
    """What the API does from now on."""
    path = pathlib.Path(world.path("github.json"))
    path.with_suffix(".new").write_text(json.dumps(state))
    path.with_suffix(".new").rename(path)


def log(world, method=None, **fields):
    return [e for e in world.log("github") if (method is None or e["method"] == method) and all(e.get(k) == v for k, v in fields.items())]


def minted(world):
    return [e for e in log(world) if "minted" in e]


def revoked(world):
    """The DELETEs that ended a token."""
    return [e["token"] for e in log(world, "DELETE", known=True, mode="ok")]


def events(host, event):
    lines = host.run(["journalctl", "--namespace=anchorhold", "--no-pager", "-o", "json", f"ANCHORHOLD_EVENT={event}"]).stdout.splitlines()
    return [json.loads(json.loads(line)["ANCHORHOLD_DATA"]) for line in lines]


def on_list(host):
    return host.run(f"find {LIST} -name 't????????????' | wc -l").stdout.strip()


@pytest.fixture(scope="module")
def app(host, world):
    """The app's key on the host; the API says no."""
    host.run(["anchorctl", "credential", "add", "--quiet", "test-app"], input=pathlib.Path(world.path("app.pem")).read_text())
    answer(world, mint="401")
    yield
    answer(world)


@pytest.fixture(scope="module")
def live(host, world, app):
    world.forget_logs()
    run = LiveRun(host, "exec-app", f"cat >/c.py <<'X'\n{CLIENT}\nX\nexec python3 /c.py", *UPSTREAM)
    run.key = run.await_line("key ").split()[-1]
    yield run
    host.anchorctl("stop", "--all", check=False)
    run.rest()


def test_no_other_value_is_taken(host, world, app):
    """What is in PEM and no key of an app is refused when it is given; a key for a credential that is no app's, and the reverse, when a run would get it."""
    bad = "-----BEGIN PRIVATE KEY-----\nbm9wZQ==\n-----END PRIVATE KEY-----\n"
    done = host.run(["anchorctl", "credential", "rotate", "test-app"], input=bad, check=False)
    assert done.returncode == 2 and "a key that cannot be read" in done.stderr
    assert "github-app" in host.anchorctl("credential", "list").stdout


@pytest.mark.parametrize("options, reason", [
    ((), "names none (anchorctl submit --upstream=OWNER/NAME)"),
    (("--upstream", "elsewhere/widgets"), "mints no token for the repository elsewhere/widgets"),
    (("--upstream", "widgets"), "must be OWNER/NAME"),
])
def test_a_run_without_a_right_repository_does_not_start(host, app, options, reason):
    done = host.anchorctl("run", "--workflow", "exec-app", *options, "--", "true", check=False)
    assert done.returncode != 0 and reason in done.stdout + done.stderr


@pytest.mark.parametrize("mode, kind, text", [
    ("401", "refused", "the API answered 401: A JSON web token could not be decoded"),
    ("403", "refused", "the API answered 403: Resource not accessible by integration"),
    ("422", "refused", "the API answered 422: The permissions requested"),
    ("503", "refused", "the API answered 503"),
    ("garbage", "malformed", "there is no token in the answer"),
    ("no-expiry", "malformed", "does not say when the token expires"),
    ("no-http", "unreachable", "does not answer with HTTP"),
    ("huge", "unreachable", "more than 64 KiB"),
    ("close", "unreachable", "broke off"),
    ("slow", "unreachable", "did not answer in time (its answer)"),
    ("wider", "wider", "for more than was asked: administration"),
])
def test_no_token(host, world, live, mode, kind, text):
    """The guest is told, it is on record, and nothing of the request leaves."""
    before = len(log(world, path="/whoami"))
    answer(world, mint=mode)
    line = live.await_line(text)
    assert line.startswith("call 502 token-unavailable ")
    assert text in json.loads(line.split(" ", 3)[3])["error"]["message"]
    wait_for(lambda: any(text in r["detail"] and r["credential"] == "test-app" for r in records(host, "token.failed", live.run, reason=kind)))
    assert len(log(world, path="/whoami")) == before


def test_minted(host, world, live):
    """For the item's repository and with the permissions of the file, by a proof that openssl finds right; the guest never sees the token."""
    answer(world, life=12)
    line = live.await_line("call 200")
    answered = json.loads(line.split(" ", 3)[3])
    assert answered["repository"] == "acme/widgets" and answered["permissions"] == {"contents": "write", "pull_requests": "read", "metadata": "read"}
    assert answered["token"] == live.key
    asked = log(world, "POST", mode="ok")
    assert {e["body"] for e in asked} == {BODY} and {e["jwt"] for e in log(world, "POST", path=asked[0]["path"]) if "jwt" in e} == {"good"}
    assert {e["jwt"] for e in log(world, "GET", path="/repos/acme/widgets/installation")} == {"good"}
    record = records(host, "token.minted", live.run)[-1]
    assert record["repository"] == "acme/widgets" and record["permissions"] == {"contents": "write", "pull_requests": "read"}
    live.token = minted(world)[-1]["minted"]
    assert live.token not in "".join(live.lines) and live.token.startswith("ghs_")
    assert {e["token"] for e in log(world, path="/whoami")} <= {e["minted"] for e in minted(world)}      # no sentinel has arrived


@pytest.mark.quiet
def test_renewed_before_it_expires(world, live):
    """Twice, and no call fails meanwhile."""
    seen = len(live.lines)
    for life in ({"life": 12}, {}):                   # the last one is for an hour
        n = len(minted(world))
        answer(world, **life)
        while len(minted(world)) == n:
            live.await_line("call ")
    for _ in range(4):
        live.await_line("call 200")
    assert {line.split()[1] for line in live.lines[seen:]} == {"200"}
    tokens = [e["minted"] for e in minted(world)]
    assert len(set(tokens)) == len(tokens)
    assert all(token not in "".join(live.lines) for token in tokens)
    spare = [b["expiry"] - a["time"] for a, b in zip(minted(world)[-2:], minted(world)[-3:-1])]
    assert all(0 < s < 6 for s in spare), spare        # with a quarter of its life left


@pytest.mark.parametrize("unit", ["anchor-inject@", "anchor-secretd", "anchord"])
def test_a_crash_mints_no_other(host, world, live, unit):
    n, unit = len(minted(world)), f"{unit}{live.run if unit.endswith('@') else ''}.service"
    host.systemctl("kill", "--signal=KILL", unit)
    wait_for(lambda: host.is_active(unit) == "active")
    for _ in range(4):
        live.await_line("call 200")
    assert len(minted(world)) == n
    last = minted(world)[-1]["minted"]
    assert log(world, path="/whoami")[-1]["token"] == last


def test_a_rotated_key_needs_no_new_token(host, world, live):
    n = len(minted(world))
    host.run(["anchorctl", "credential", "rotate", "--quiet", "test-app"], input=pathlib.Path(world.path("app.pem")).read_text())
    live.await_line("call 200")
    live.await_line("call 200")
    assert len(minted(world)) == n


def test_revoked_at_the_end(host, world, live):
    """Each token that had not expired, once."""
    assert log(world, "DELETE") == []
    host.anchorctl("stop", "--all")
    live.rest()
    live_ones = {e["minted"] for e in minted(world) if e["expiry"] > e["time"] + 3000}
    wait_for(lambda: set(revoked(world)) >= live_ones, 40)
    wait_for(lambda: on_list(host) == "0")
    wait_for(lambda: host.run(f"systemctl list-units --all --no-legend 'anchor*{live.run}*' | wc -l").stdout.strip() == "0")
    assert set(revoked(world)) == live_ones and len(revoked(world)) == len(live_ones)
    # and what came without a word of when it expires, which may be good for something
    assert {e["token"] for e in log(world, "DELETE", known=False)} == {"ghs_" + "x" * 36}
    done = {r["token"] for r in records(host, "token.revoked", live.run, status=204)}
    assert len(done) == len(live_ones) and done <= {r["token"] for r in records(host, "token.minted", live.run)}


def one_run(host, world, **state):
    """A run that uses a token and ends, and what was minted for it."""
    world.forget_logs()
    answer(world, **state)
    done = host.anchorctl("run", "--workflow", "exec-app", *UPSTREAM, "--", "sh", "-c", ONCE)
    assert '"repository": "acme/widgets"' in done.stdout
    token, = [e["minted"] for e in minted(world)]
    return token


def test_a_revocation_survives_every_crash(host, world, app):
    """The API is down at the end of the run; then every daemon is killed, and what does not survive a reboot is gone. It is revoked all the same, once."""
    token = one_run(host, world, revoke="503")
    wait_for(lambda: log(world, "DELETE"), 40)
    run = host.show(host.items()[0]["id"])["runs"][0]["id"]
    assert any("503" in r["detail"] if "detail" in r else "503" in r["reason"] for r in records(host, "token.failed", run))

    answer(world, revoke="slow")
    seen = len(log(world, "DELETE"))
    wait_for(lambda: len(log(world, "DELETE")) > seen, 40)
    for unit in (f"anchor-inject@{run}.service", "anchord.service", "anchor-secretd.service"):
        host.systemctl("kill", "--signal=KILL", unit, check=False)
    with host.stopped("anchor-secretd"):
        host.run("rm -f /run/anchor-secretd/*")         # as after a reboot
    assert on_list(host) == "1" and revoked(world) == []

    answer(world)
    wait_for(lambda: revoked(world) == [token], 40)
    wait_for(lambda: on_list(host) == "0")
    assert len(log(world, "DELETE", mode="ok")) == 1
    assert records(host, "token.revoked", run)[0]["status"] == 204
    wait_for(lambda: host.run(f"systemctl list-units --all --no-legend 'anchor*{run}*' | wc -l").stdout.strip() == "0")


def test_nothing_is_readable(host, world, app):
    """Neither the key nor a token: in no record, in no file; what is on the list is sealed."""
    token = one_run(host, world, revoke="503")
    assert on_list(host) == "1"
    # a file may go meanwhile; any other that is not read is a failure
    everything = host.run("journalctl --no-pager --namespace='*' -o export --all; "
                          "find /var/lib/anchorhold /run/anchor* -xdev -type f -exec cat {} + 2>/run/unread; "
                          "! grep -v ': No such file or directory$' /run/unread", text=False, timeout=120).stdout
    line = pathlib.Path(world.path("app.pem")).read_text().splitlines()[5]
    assert token.encode() not in everything and line.encode() not in everything
    assert b"token.minted" in everything                                                    # the control: it was looked through
    assert host.run(f"stat -c '%U %a' {LIST}").stdout == "anchor-secret 700\n"
    assert host.run(["cat", f"{LIST}/key-test-app"], user="operator", check=False).returncode == 1
    answer(world)
    wait_for(lambda: revoked(world) == [token], 40)


def test_a_removed_key_ends_it(host, world, app):
    host.run(["anchorctl", "credential", "remove", "--quiet", "test-app"])
    refused = host.anchorctl("run", "--workflow", "exec-app", *UPSTREAM, "--", "true", check=False)
    assert refused.returncode != 0 and "anchorctl credential add test-app" in refused.stdout + refused.stderr
    host.run(["anchorctl", "credential", "add", "--quiet", "test-app"], input=pathlib.Path(world.path("app.pem")).read_text())
    token = one_run(host, world)
    wait_for(lambda: revoked(world) == [token], 40)


def test_a_key_removed_while_a_token_is_made(host, world, app):
    """The API answers when the key is gone: the run has no use of that token, which is revoked at its end. With the key there again it gets another."""
    world.forget_logs()
    answer(world, hold=True)
    run = LiveRun(host, "exec-app", f"cat >/c.py <<'X'\n{CLIENT}\nX\nexec python3 /c.py", *UPSTREAM)
    try:
        wait_for(lambda: log(world, "POST"))
        before = host.property("anchor-secretd.service", "InvocationID")
        removing = host.popen(["anchorctl", "credential", "remove", "--quiet", "test-app"])
        wait_for(lambda: host.property("anchor-secretd.service", "InvocationID") != before and host.is_active("anchor-secretd.service") == "active")
        answer(world)
        line = run.await_line("removed from this host meanwhile")
        assert line.startswith("call 502 token-unavailable ")
        assert removing.wait(timeout=60) == 0
        run.await_line("call 403 credential-revoked")
        run.await_line("call 403 credential-revoked")
        token = minted(world)[0]["minted"]
        assert len(minted(world)) == 1 and log(world, path="/whoami") == []
        wait_for(lambda: records(host, "token.failed", run.run, reason="removed"))
        assert len(records(host, "token.minted", run.run)) == 1

        host.run(["anchorctl", "credential", "add", "--quiet", "test-app"], input=pathlib.Path(world.path("app.pem")).read_text())
        run.await_line("call 200")
        assert len(minted(world)) == 2 and token not in {e["token"] for e in log(world, path="/whoami")}
        assert revoked(world) == []
    finally:
        answer(world)
        host.anchorctl("stop", "--all", check=False)
        run.rest()
    wait_for(lambda: set(revoked(world)) == {e["minted"] for e in minted(world)}, 40)
