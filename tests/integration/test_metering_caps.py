# SPDX-License-Identifier: LGPL-2.1-or-later
"""Caps on the booted image: many calls at once, a smaller call, a last one, and daemons that die in between."""

import json
import re
import subprocess
import time

import pytest
from metering import records, seal_openai

HEAD = r"""
a="-H x-api-key:$ANTHROPIC_API_KEY"
api=https://api.anthropic.com/v1/messages
call() { echo "{\"model\":\"claude-x\",  \"max_tokens\": $1,\"metadata\":{\"user_id\":\"$2\"},\"messages\":[{\"role\":\"user\",\"content\":\"h\\u00e9llo\"}]}"; }
ask() { name=$1; shift; curl -sS -N -m 40 -w "\n== $name %{http_code}\n" $a "$@" $api 2>&1 || echo "== $name failed"; }
"""


def run(host, world, workflow, script, **options):
    seal_openai(host)
    world.forget_logs()
    done = host.exec_run(HEAD + script, workflow=workflow, **options)
    done.item = host.show(re.search(r"\bi[0-9a-z]{12}\b", done.stdout + done.stderr).group(0))
    done.status = re.findall(r"^== (\S+) (\S+)$", done.stdout, re.M)
    done.calls = world.log("provider")
    return done


@pytest.fixture(scope="module")
def raced(host, world):
    """Sixteen calls at once, each of which may cost two fifths of the cap."""
    return run(host, world, "metered-run", r"""
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do ask c$i -d "$(call 2600 slower)" & done
wait
ask after -d "$(call 16 x)"
curl -sS -H "Authorization: Bearer $OPENAI_API_KEY" -D - -d '{"model":"gpt-x","max_completion_tokens":16,"messages":[]}' https://api.openai.com/v1/chat/completions
ask batch https://api.anthropic.com/v1/messages/batches -d '{}'
""")


def test_racing_calls_stay_within_the_cap(raced):
    """Those that may have been made at once fit together; the others never left."""
    granted = [name for name, status in raced.status if status == "200" and name.startswith("c")]
    assert 1 <= len(granted) == len(raced.calls) <= 2
    assert len([name for name, status in raced.status if status == "402" and name.startswith("c")]) == 16 - len(granted)
    assert 0 < raced.item["cost_microusd"] <= 100000


def test_refusal_is_the_providers_own(raced):
    """And says not to try again."""
    # of calls at once, answers may stand on one line
    starts = [found.start() for found in re.finditer(r'\{"type":"error"', raced.stdout)]
    bodies = [json.JSONDecoder().raw_decode(raced.stdout, start)[0] for start in starts]
    over = [b["error"] for b in bodies if b["error"]["type"] == "billing_error"]
    assert over and all(e["reason"] == "over-budget" and e["message"].startswith("over budget: the run's cap of 0.1000 USD") for e in over)
    assert dict(raced.status)["after"] == "402"
    assert "HTTP/1.1 429" in raced.stdout and re.search(r"(?i)^x-should-retry: false", raced.stdout, re.M)
    assert '"code":"insufficient_quota"' in raced.stdout


def test_what_is_not_counted_does_not_leave(raced):
    assert '"reason":"unmetered"' in raced.stdout and not any("batches" in entry["path"] for entry in raced.calls)


def test_item_ends_over_budget(host, raced):
    """For good: there is no second attempt, although the workflow has two."""
    assert raced.returncode == 6
    assert raced.item["state"] == "exhausted" and raced.item["attempt"] == 1
    assert raced.item["reason"].startswith("over budget: the run's cap of 0.1000 USD")
    assert [e["percent"] >= 50 and e["scope"] == "run" for e in records(host, "budget.soft", item=raced.item["id"])] == [True]
    assert len(records(host, "budget.exceeded", item=raced.item["id"])) == 1
    cost = raced.item["budget"]["run"]["cost"]
    assert cost == {"used": raced.item["cost_microusd"], "cap": 100000}
    assert "of $0.10" in host.anchorctl("show", raced.item["id"], "--no-pager").stdout


def test_what_a_stream_never_says_counts_as_reserved(host, world):
    """Beside it the same stream with usage: that counts as said."""
    done = run(host, world, "metered-run", r"""
for more in '' ',"stream_options":{"include_usage":true}'; do
    curl -sS -N -m 40 -H "Authorization: Bearer $OPENAI_API_KEY" -d "{\"model\":\"gpt-x\",\"max_completion_tokens\":300,\"stream\":true,\"messages\":[]$more}" \
        https://api.openai.com/v1/chat/completions
done
""")
    without, said = records(host, "model.call", run=done.item["runs"][0]["id"])
    assert (without["estimated"], without["output_tokens"], without["complete"]) == (True, 300, True)
    assert without["input_tokens"] > said["input_tokens"] > 0    # although it was the shorter request
    assert not said["estimated"] and 0 < said["output_tokens"] < 300
    assert done.item["cost_microusd"] == without["cost_microusd"] + said["cost_microusd"]


def test_a_stream_that_breaks_off_counts_as_reserved(host, world):
    """Although it began with a number. Beside it the same stream to its end: that counts as said."""
    done = run(host, world, "metered-run", r"""
for wish in cut x; do ask $wish -d "{\"model\":\"claude-x\",\"max_tokens\":300,\"stream\":true,\"metadata\":{\"user_id\":\"$wish\"},\"messages\":[]}"; done
""")
    cut, whole = records(host, "model.call", run=done.item["runs"][0]["id"])
    assert (cut["status"], cut["complete"], cut["estimated"], cut["output_tokens"]) == (200, False, True, 300)
    assert cut["input_tokens"] > 0 and cut["cost_microusd"] == 3 * cut["input_tokens"] + 15 * 300
    assert whole["complete"] and not whole["estimated"] and 1 < whole["output_tokens"] < 300
    assert done.item["cost_microusd"] == cut["cost_microusd"] + whole["cost_microusd"]


def test_a_smaller_call(host, world):
    """Only the digits of max_tokens change, and the length with them."""
    done = run(host, world, "metered-lower", 'call 100000 x >/tmp/b; ask one --data-binary @/tmp/b; ask chunked -H "transfer-encoding: chunked" --data-binary @/tmp/b\n')
    sent = done.calls[0]
    wanted = '{"model":"claude-x",  "max_tokens": %d,"metadata":{"user_id":"x"},"messages":[{"role":"user","content":"h\\u00e9llo"}]}\n'
    lowered = sent["body"]["max_tokens"]
    assert done.status[0] == ("one", "200") and 1000 < lowered < 2000
    assert int(sent["headers"]["Content-Length"]) == len(wanted % lowered)
    assert [entry["body"]["max_tokens"] > lowered - 200 for entry in done.calls[1:]] == [True]   # that one was not made longer than what is left
    assert done.item["budget"]["run"]["tokens"]["cap"] == 2000 >= done.item["budget"]["run"]["tokens"]["used"]


def test_one_last_call(host, world):
    """Of the two calls that the item has, one is kept for the last."""
    done = run(host, world, "metered-last", 'ask one -d "$(call 500 x)"; ask last -d "$(call 500 x)"; ask more -d "$(call 16 x)"\n')
    assert done.status == [("one", "200"), ("last", "200"), ("more", "402")]
    assert [entry["body"]["max_tokens"] for entry in done.calls] == [500, 50]
    assert done.returncode == 6 and done.item["reason"].startswith("over budget")


def test_anchord_and_inject_may_die(host, world):
    """No call is refused for that, and each counts once; one that was under way in an inject that died is charged."""
    world.forget_logs()
    script = HEAD + 'ask first -d "$(call 100 x)"; for i in 1 2 3 4 5 6 7 8 9 10; do ask c$i -d "$(call 100 x)"; sleep 0.5; done; ask slow -d "$(call 100 slow)"; ask end -d "$(call 100 x)"\n'
    going = host.popen(["anchorctl", "run", "--workflow", "metered-month", "--", "sh", "-c", script], user="operator", stdout=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while len(world.log("provider")) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    host.systemctl("kill", "--signal=KILL", "anchord.service")
    while not any((e["body"].get("metadata") or {}).get("user_id") == "slow" for e in world.log("provider")) and time.monotonic() < deadline + 60:
        time.sleep(0.05)
    host.systemctl("kill", "--signal=KILL", "anchor-inject@*.service")
    out = going.communicate(timeout=120)[0]
    out = out.decode() if isinstance(out, bytes) else out
    status = dict(re.findall(r"^== (\S+) (\S+)$", out, re.M))
    item = host.show(next(i["id"] for i in host.items() if i["workflow"] == "metered-month"))
    assert status["end"] == "200" and status.get("slow") != "200", out
    assert set(status.values()) <= {"200", "000", "failed"}, out   # none was refused
    rows = json.loads(host.anchorctl("cost", item["id"], "--json=short").stdout)
    assert sum(row["calls"] for row in rows) == 13 == len(world.log("provider"))
    assert sum(row["estimated"] for row in rows) == 1
    assert item["budget"]["workflow"]["cost"]["used"] == item["cost_microusd"]
