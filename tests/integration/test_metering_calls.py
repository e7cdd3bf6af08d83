# SPDX-License-Identifier: LGPL-2.1-or-later
"""What model calls used, on the booted image: each API, streamed or not, broken off, failed, and what anchorctl says of it."""

import json
import re
import subprocess

import pytest
from metering import records, seal_openai
from waiting import wait_for

GUEST = r"""
ask() { name=$1; shift; curl -sS -N -m 20 -w "\n== $name %{http_code}\n" -H 'content-type: application/json' "$@" 2>&1 || echo "== $name failed"; }
a="-H x-api-key:$ANTHROPIC_API_KEY"
o="Authorization: Bearer $OPENAI_API_KEY"
messages='"messages":[{"role":"user","content":"hello"}]'
anthropic=https://api.anthropic.com/v1 openai=https://api.openai.com/v1
ask document $a -d "{\"model\":\"claude-x\",\"max_tokens\":10,$messages}" "$anthropic/messages?beta=true"
ask stream $a -d "{\"model\":\"claude-x\",\"max_tokens\":10,\"stream\":true,$messages}" $anthropic/messages
ask cut $a -d "{\"model\":\"claude-x\",\"max_tokens\":10,\"stream\":true,\"metadata\":{\"user_id\":\"cut\"},$messages}" $anthropic/messages
ask fail $a -d "{\"model\":\"claude-x\",\"max_tokens\":10,\"metadata\":{\"user_id\":\"fail\"},$messages}" $anthropic/messages
ask count $a -d "{\"model\":\"claude-x\",$messages}" $anthropic/messages/count_tokens
ask chat -H "$o" -d "{\"model\":\"gpt-x\",$messages}" $openai/chat/completions
ask chat-usage -H "$o" -d "{\"model\":\"gpt-x\",\"stream\":true,\"stream_options\":{\"include_usage\":true},$messages}" $openai/chat/completions
ask chat-without -H "$o" -d "{\"model\":\"gpt-x\",\"stream\":true,$messages}" $openai/chat/completions
ask responses -H "$o" -d "{\"model\":\"gpt-x\",\"input\":\"hello\"}" $openai/responses
ask responses-stream -H "$o" -d "{\"model\":\"gpt-x\",\"stream\":true,\"input\":\"hello\"}" "$openai/responses?x=y"
ask cached $a -d "{\"model\":\"claude-x\",\"max_tokens\":10,\"metadata\":{\"user_id\":\"cached\"},$messages}" $anthropic/messages
ask slow $a -d "{\"model\":\"claude-x\",\"max_tokens\":10,\"metadata\":{\"user_id\":\"slow\"},$messages}" $anthropic/messages
"""

TEXT = "There is nothing to do, and that is all there is to say about it."


@pytest.fixture(scope="module")
def ran(host, world):
    seal_openai(host)
    world.forget_logs()
    done = host.exec_run(GUEST, workflow="metered")
    assert "== slow" in done.stdout, done.stdout + done.stderr
    done.item = host.show(re.search(r"\bi[0-9a-z]{12}\b", done.stdout + done.stderr).group(0))
    done.status = dict(re.findall(r"^== (\S+) (\S+)$", done.stdout, re.M))
    done.calls = records(host, "model.call", run=done.item["runs"][0]["id"])
    done.sizes = [len(json.dumps(entry["body"], separators=(",", ":"))) for entry in world.log("provider") if "count_tokens" not in entry["path"]]
    return done


def test_every_call_is_one_record(ran):
    """Also what failed and what broke off; counting tokens is none."""
    assert [call["provider"] for call in ran.calls] == ["anthropic"] * 4 + ["openai"] * 5 + ["anthropic"] * 2
    assert [call["status"] for call in ran.calls] == [200, 200, 200, 529] + [200] * 7
    assert ran.status["fail"] == "529" and ran.status["count"] == "200"
    assert len({call["call"] for call in ran.calls}) == len(ran.calls)


def test_numbers_are_the_answers_own(ran):
    for call, size in list(zip(ran.calls, ran.sizes))[:2]:
        assert (call["model"], call["input_tokens"], call["estimated"], call["complete"]) == ("claude-x", size // 4, False, True)
        assert call["output_tokens"] > 1
    for index in (4, 5, 7, 8):
        call, size = ran.calls[index], ran.sizes[index]
        assert call["model"] == "gpt-x" and not call["estimated"]
        assert call["cache_read_tokens"] == size // 4 // 4
        assert call["input_tokens"] == size // 4 - call["cache_read_tokens"]
        assert call["output_tokens"] == len(TEXT) // 4


def test_caches_and_latency(ran):
    cached, slow = ran.calls[9:]
    assert (cached["cache_write_tokens"], cached["cache_read_tokens"]) == (70, 110)
    assert (slow["cache_write_tokens"], slow["cache_read_tokens"]) == (0, 0)
    assert 1_000_000 <= slow["latency_us"] < 20_000_000           # the provider took one second
    assert all(0 < call["latency_us"] < 20_000_000 for call in ran.calls)


def test_what_was_not_said_is_estimated(ran):
    cut, without = ran.calls[2], ran.calls[6]
    assert cut["estimated"] and not cut["complete"]
    assert cut["input_tokens"] == ran.sizes[2] // 4        # that was said before it broke off
    assert cut["output_tokens"] == 1 + 2                   # one was said, then came "csvsum"
    assert without["estimated"] and without["complete"] and without["model"] == "gpt-x"
    assert without["input_tokens"] == -(-ran.sizes[6] // 4)
    assert without["output_tokens"] == -(-len(TEXT) // 4)
    failed = ran.calls[3]
    assert not failed["estimated"] and failed["cost_microusd"] == failed["output_tokens"] == 0


def test_cost_by_the_table_and_which_entry(ran):
    prices = {"anthropic": (3, 15, 0.3, 3.75), "openai": (2.5, 15, 0.25, 0)}
    for call in ran.calls:
        into, out, cached, written = prices[call["provider"]]
        cost = call["input_tokens"] * into + call["output_tokens"] * out + call["cache_read_tokens"] * cached + call["cache_write_tokens"] * written
        assert cost <= call["cost_microusd"] < cost + 1
        assert (call["price"], call["prices_version"]) == ("default", "2026-11")


def test_anchorctl_cost(host, ran):
    total = sum(call["cost_microusd"] for call in ran.calls)
    by_run = json.loads(host.anchorctl("cost", ran.item["id"], "--json=short").stdout)
    assert {row["model"] for row in by_run} == {"claude-x", "", "gpt-x"}   # what failed named no model
    assert sum(row["cost_microusd"] for row in by_run) == total == ran.item["cost_microusd"]
    assert sum(row["calls"] for row in by_run) == 11 and sum(row["failed"] for row in by_run) == 1
    assert sum(row["estimated"] for row in by_run) == 2
    for by, key in (("workflow", "workflow"), ("day", "day"), ("model", "model"), ("item", "item")):
        rows = json.loads(host.anchorctl("cost", "--by", by, "--json=short").stdout)
        assert all(key in row for row in rows) and sum(row["cost_microusd"] for row in rows) >= total
    [metered] = [row for row in json.loads(host.anchorctl("cost", "--by=workflow", "--json=short").stdout) if row["workflow"] == "metered"]
    assert metered["cost_microusd"] == total
    text = host.anchorctl("cost", ran.item["id"], "--no-pager").stdout
    assert "gpt-x" in text and "11 calls, 2 of them estimated" in text
    assert json.loads(host.anchorctl("cost", "--by=day", "--since=2100-01-01", "--json=short").stdout) == []
    assert host.anchorctl("cost", "i000000000000", check=False).returncode == 4


BEGIN = """
curl -sS -m 20 -H "x-api-key:$ANTHROPIC_API_KEY" -H 'content-type: application/json' \\
    -d '{"model":"claude-x","max_tokens":10,"metadata":{"user_id":"slowest"},"messages":[]}' https://api.anthropic.com/v1/messages >/dev/null 2>&1 &
"""


def check_broken_off(host, item):
    """One call, of which nobody has heard the answer, is on record in both places."""
    [call] = records(host, "model.call", run=item["runs"][0]["id"])
    assert (call["status"], call["complete"], call["estimated"], call["output_tokens"]) == (0, False, True, 0)
    assert call["input_tokens"] > 0 and call["cost_microusd"] == 3 * call["input_tokens"]
    [row] = json.loads(host.anchorctl("cost", item["id"], "--json=short").stdout)
    assert (row["calls"], row["estimated"], row["cost_microusd"]) == (1, 1, call["cost_microusd"])


def begin_call(host, world, then):
    """A run of that script after a call to which the provider has not answered yet: what shows its output, and its item."""
    seal_openai(host)
    world.forget_logs()
    going = host.popen(["anchorctl", "run", "--workflow", "metered", "--", "sh", "-c", BEGIN + then], user="operator", stdout=subprocess.PIPE)
    wait_for(lambda: world.log("provider"))
    return going, next(i["id"] for i in host.items() if i["workflow"] == "metered" and i["state"] == "running")


def test_call_under_way_when_the_agent_leaves(host, world):
    going, item = begin_call(host, world, "until getent hosts leave.example.org; do sleep 0.2; done\n")
    host.anchorctl("policy", "allow", item, "leave.example.org:443")
    going.communicate(timeout=60)
    assert [entry["path"] for entry in world.log("provider")] == ["/v1/messages"]
    check_broken_off(host, host.show(item))


def test_call_under_way_when_an_operator_stops_the_run(host, world):
    going, item = begin_call(host, world, "wait\n")
    host.anchorctl("stop", item)
    going.communicate(timeout=60)
    check_broken_off(host, host.show(item))


def test_auditd_may_die(host, world):
    """No record of a call is lost for that, and none is there twice."""
    seal_openai(host)
    world.forget_logs()
    script = 'for i in 1 2 3 4 5 6 7 8; do curl -sS -m 20 -o /dev/null -w "%{http_code}\\n" -H "x-api-key:$ANTHROPIC_API_KEY" ' \
             '-d \'{"model":"claude-x","max_tokens":10,"messages":[]}\' https://api.anthropic.com/v1/messages; sleep 0.3; done\n'
    going = host.popen(["anchorctl", "run", "--workflow", "metered", "--", "sh", "-c", script], user="operator", stdout=subprocess.PIPE)
    for calls in (2, 5):
        wait_for(lambda calls=calls: len(world.log("provider")) >= calls)
        host.systemctl("kill", "--signal=KILL", "anchor-auditd.service")
    out = going.communicate(timeout=120)[0]
    item = host.show(next(i["id"] for i in host.items() if i["workflow"] == "metered"))
    assert (out.decode() if isinstance(out, bytes) else out).split().count("200") == 8 == len(world.log("provider")), out
    calls = [call["call"] for call in records(host, "model.call", run=item["runs"][0]["id"])]
    assert len(calls) == len(set(calls)) == 8
    assert sum(row["calls"] for row in json.loads(host.anchorctl("cost", item["id"], "--json=short").stdout)) == 8
