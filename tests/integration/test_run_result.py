# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whole runs with real agents: what gets to review, and what only claims that it should."""

import re
import subprocess

import provider
import pytest
import world as world_module
from host import REPOSITORY
from metering import records, seal_openai
from waiting import wait_for

UUID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
TASK = "The test suite of this repository fails. Find the cause, fix it, and commit the fix."


def run_agent(host, workflow, task, check=True):
    """anchorctl run with the demo's repository; its result and the item."""
    before = {item["id"] for item in host.items()}
    done = host.anchorctl("run", "--workflow", workflow, "--repo", REPOSITORY, "--base", "main", "--task", task,
                          check=check, timeout=600)
    done.item = host.show(next(item["id"] for item in host.items() if item["id"] not in before))
    return done


def added_lines(host, item):
    """What the item's result adds, without indentation."""
    diff = host.anchorctl("result", item, "--diff").stdout
    return [line.strip("+ ") for line in diff.splitlines() if line.startswith("+") and not line.startswith("+++")]


def files_of(host, item):
    """The sum of each file that is kept of an item."""
    return host.run(f"cd /var/lib/anchorhold/items/{item} && sha256sum *").stdout


@pytest.fixture(scope="module")
def fixed(host):
    done = run_agent(host, "code-fix", TASK)
    done.files = files_of(host, done.item["id"])
    return done


def result_bundle(host, item, tmp_path):
    """The item's bundle as a repository on the test machine."""
    bundle = tmp_path / "result.bundle"
    host.anchorctl("result", item, "--bundle", "/var/home/operator/result.bundle")
    bundle.write_bytes(host.run("cat /var/home/operator/result.bundle; rm /var/home/operator/result.bundle", text=False).stdout)
    subprocess.run(["git", "init", "--quiet", tmp_path / "r"], check=True)
    subprocess.run(["git", "-C", tmp_path / "r", "fetch", "--quiet", bundle, "refs/anchorhold/result:refs/heads/result"], check=True)
    subprocess.run(["git", "-C", tmp_path / "r", "checkout", "--quiet", "result"], check=True)
    return tmp_path / "r"


def test_a_fix_ends_in_review(host, fixed, repository, tmp_path):
    """With a commit on top of the base whose tests pass, also here."""
    item = fixed.item
    assert fixed.returncode == 0 and item["state"] == "in_review"
    assert [run["stage"] for run in item["runs"]] == ["work", "verify"]
    checkout = result_bundle(host, item["id"], tmp_path)
    head = subprocess.check_output(["git", "-C", checkout, "rev-parse", "HEAD"], text=True).strip()
    base = subprocess.check_output(["git", "-C", repository, "rev-parse", "main"], text=True).strip()
    assert head == item["result_commit"] and item["base"] == base
    subprocess.run(["git", "-C", checkout, "merge-base", "--is-ancestor", base, head], check=True)
    assert subprocess.run(["make", "check"], cwd=checkout, capture_output=True, check=False).returncode == 0
    assert subprocess.run(["git", "-C", checkout, "checkout", "--quiet", base], check=False).returncode == 0
    assert subprocess.run(["make", "clean", "check"], cwd=checkout, capture_output=True, check=False).returncode != 0   # the control


def test_the_diff_is_the_change(host, fixed):
    assert added_lines(host, fixed.item["id"]) == ["return put(r, c);"]


def test_cost_and_control_host(host, fixed, world):
    assert fixed.item["cost_microusd"] > 0
    assert any(entry["path"].startswith("/csvsum.git/info/refs") for entry in world.log("git"))


def test_same_command_again_is_another_item(host, fixed):
    submitted = host.anchorctl("submit", "--workflow", "code-fix", "--repo", REPOSITORY, "--base", "main", "--task", TASK)
    again = submitted.stdout.split()[-1]
    wait_for(lambda: host.show(again)["state"] == "running")
    host.anchorctl("stop", again)
    assert again != fixed.item["id"]
    first, second = host.show(fixed.item["id"]), host.show(again)
    assert first == fixed.item and files_of(host, again) != files_of(host, first["id"]) == fixed.files
    assert second["state"] == "cancelled" and second["result_commit"] is None
    assert second["runs"] and not {run["id"] for run in first["runs"]} & {run["id"] for run in second["runs"]}


# What it commits is another thing each time, and it says what.
OWN = "cd /workspace/repo && tee own </proc/sys/kernel/random/uuid && git add own && git commit -q -m own"


def test_same_command_twice_at_once_is_two_results(host, tmp_path):
    """Both to the end: each item has its own runs, and the result that its own guest made."""
    items = [host.anchorctl("submit", "--workflow", "script-agent", "--repo", REPOSITORY, "--base", "main", "--task", OWN).stdout.split()[-1]
             for _ in range(2)]
    wait_for(lambda: all(host.show(item)["state"] not in ("submitted", "queued", "leased", "running", "verifying") for item in items), 150,
             lambda: str([host.show(item) for item in items]))
    shown = [host.show(item) for item in items]
    assert [item["state"] for item in shown] == ["in_review", "in_review"], shown
    assert len({item["result_commit"] for item in shown}) == 2
    assert len({run["id"] for item in shown for run in item["runs"]}) == 4
    for item in shown:
        said = set(UUID.findall(host.anchorctl("logs", item["id"]).stdout))
        (tmp_path / item["id"]).mkdir()
        checkout = result_bundle(host, item["id"], tmp_path / item["id"])
        assert len(said) == 1 and said == {(checkout / "own").read_text().strip()}
        assert f"+{said.pop()}" in host.anchorctl("result", item["id"], "--diff").stdout.splitlines()
        assert subprocess.check_output(["git", "-C", checkout, "rev-parse", "HEAD"], text=True).strip() == item["result_commit"]


def test_a_repository_of_sha256(host, tmp_path):
    """To the end as well: guest, import, the verifying microVM, and what is fetched."""
    where = "/var/home/operator/sha256"
    git = f"git -C {where} -c user.name=o -c user.email=o@example.org"
    host.run(f"git init -q -b main --object-format=sha256 {where} && echo one >{where}/file && {git} add file && {git} commit -q -m one", user="operator")
    try:
        done = host.anchorctl("run", "--workflow", "script-agent", "--repo", where, "--task", OWN, check=False, timeout=300)
        item = host.show(host.items()[0]["id"])
        assert done.returncode == 0 and item["state"] == "in_review", (done.stdout, done.stderr)
        assert [run["stage"] for run in item["runs"]] == ["work", "verify"] and len(item["base"]) == len(item["result_commit"]) == 64, item
        host.anchorctl("result", item["id"], "--bundle", "/var/home/operator/result.bundle")
        host.run(f"{git} fetch -q /var/home/operator/result.bundle refs/anchorhold/result && {git} merge-base --is-ancestor {item['base']} {item['result_commit']}",
                 user="operator")
    finally:
        host.run(f"rm -rf {where} /var/home/operator/result.bundle")


def test_folders_and_modes(host):
    """Where a harness says that its agent starts and a step says that it does, and with the modes that its files are to have."""
    script = "pwd; stat -c '%a %n' /root/private /root/tool /root/plain; /root/tool"
    host.anchorctl("run", "--workflow", "script-placed", "--task", script, timeout=300)
    said = host.anchorctl("logs", host.items()[0]["id"]).stdout.splitlines()
    expected = ["/usr/share", "600 /root/private", "755 /root/tool", "644 /root/plain", "tool", "/usr/lib", "/root"]
    assert [line for line in said if line in expected] == expected, said


# The first is a script in the agent's place, the second a real agent whose model says so.
LIES = {"lie-about-tests": ("script-check", provider.as_shell(provider.lie_about_tests())), "lie-about-everything": ("fix-once", f"{TASK} script:lie-about-everything")}


@pytest.mark.parametrize("lie", LIES)
def test_a_guest_that_only_claims_success_does_not_get_there(host, lie):
    """make and the compiler were replaced, then git and the shell as well: the check passes in that microVM, and fails in the second one."""
    done = run_agent(host, *LIES[lie], check=False)
    assert done.returncode == 1
    assert done.item["state"] in ("failed", "exhausted")
    # the control: each lie was believed where it was told
    assert [(run["stage"], run["outcome"]) for run in done.item["runs"]] == [("work", "ok"), ("verify", "failed")], done.item
    assert "in_review" not in [change["to"] for change in done.item["history"]]


def test_no_commit_is_no_result(host):
    done = run_agent(host, "script-check", "true", check=False)
    assert done.returncode == 1 and done.item["state"] in ("failed", "exhausted")
    assert "in_review" not in [change["to"] for change in done.item["history"]]


# Where each asks its provider, and the key that this wants.
OTHERS = {"claude": ("/v1/messages", world_module.REAL_KEY), "codex": ("/v1/responses", world_module.OPENAI_KEY)}


@pytest.mark.parametrize("agent", OTHERS)
def test_another_agent(host, world, agent):
    """The same with another agent: nothing about an agent is in the supervisor, only in its harness file. Each of its calls is counted with the
    tokens that the provider said, and carried the real key of that provider."""
    path, key = OTHERS[agent]
    seal_openai(host)
    world.forget_logs()
    done = run_agent(host, f"fix-once-{agent}", TASK)
    item = done.item
    assert done.returncode == 0 and item["state"] == "in_review" and item["agent"] == agent
    assert added_lines(host, item["id"]) == ["return put(r, c);"]
    asked = [entry for entry in world.log("provider") if entry["method"] == "POST"]
    assert {entry["path"].split("?")[0] for entry in asked} == {path}
    assert {entry["x_api_key"] or entry["authorization"].removeprefix("Bearer ") for entry in asked} == {key}
    calls = records(host, "model.call", run=item["runs"][0]["id"])
    assert len(calls) == len(asked) == sum(used["calls"] for used in item["usage"]) >= 8
    assert all(call["status"] == 200 and call["input_tokens"] > 0 and call["output_tokens"] > 0 and not call["estimated"] for call in calls)
    assert item["cost_microusd"] == sum(call["cost_microusd"] for call in calls) > 0
