#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""The demo: boots the image, files one work item for a real agent, and shows what came of it.

    demo.py [--agent pi|claude|codex] [--keep]

Everything on the host's side is what would run against the real provider. The world beside it (tests/world) plays
the provider, a git server and the DNS, under the real names, in a network namespace without a way out. The host is told
of that world's resolver, CA and network, and of nothing else; that its git server may be reached is said by the operator,
to the one run.

What was to be shown and could not be ends it with status 1 and is named at the end. SIGINT, SIGTERM and SIGHUP end its
host and its world; what a SIGKILL leaves, the next demo removes.
"""

import argparse
import datetime
import fcntl
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests" / "world"))
import host as hosting  # noqa: E402
import world as worlds  # noqa: E402

BUILD = TOP / "build" / "demo"
NAME = "demo"
OWNER = pathlib.Path("/run/anchorhold-demo.lock")
ANTHROPIC = ("api.anthropic.com", worlds.REAL_KEY, r"sk-ant-api03-[\w-]+")
OPENAI = ("api.openai.com", worlds.OPENAI_KEY, r"sk-proj-[\w-]+")
# The workflow, the provider's name, the key that this wants, and the shape of what stands in its place in the guest.
AGENTS = {"pi": ("code-fix", *ANTHROPIC), "claude": ("code-fix-claude", *ANTHROPIC), "codex": ("code-fix-codex", *OPENAI)}
TASK = "The test suite of this repository fails. Find the cause, fix it, and commit the fix."
GIT = "git.example.org:443"
NEVER = ("paste.example.net", "169.254.169.254")        # what the provider's script has the agent try in vain
DENIALS = ("egress.deny", "dns.refused", "conn.deny")
PROBE_SECONDS = 180
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
START = time.monotonic()


class Ended(SystemExit):
    """By a signal."""


class Shown:
    """What the demo promises to show, and what of it could not be."""

    def __init__(self):
        self.missing = []

    def expect(self, good, what):
        if not good:
            self.missing.append(what)
            print(f"! not as it should be: {what}", flush=True)
        return bool(good)

    def status(self):
        return 1 if self.missing else 0


# ---- what is printed ----

def colours():
    """no-color.org: a variable that is empty says nothing."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def title(text):
    bold, faint, plain = ("\033[1m", "\033[2m", "\033[0m") if colours() else ("", "", "")
    print(f"\n{bold}== {text}{plain} {faint}({time.monotonic() - START:.0f} s){plain}", flush=True)


def shown(host, *command, user="operator"):
    """A command on the booted host, its output on this terminal as it comes. The exit status."""
    sys.stdout.flush()
    if os.environ.get("NO_COLOR"):
        command = ("env", "NO_COLOR=1", *command)
    return subprocess.run(host.argv(command, user), stdin=subprocess.DEVNULL, check=False).returncode


def await_state(get, seconds, what):
    """Waits for a state, with a line now and then. What get() said last."""
    begun = told = time.monotonic()
    while not (value := get()) and time.monotonic() - begun < seconds:
        if time.monotonic() - told > 8:
            told = time.monotonic()
            print(f"… {what}: {told - begun:.0f} s", flush=True)
        time.sleep(0.2)
    return value


def await_enter():
    try:
        input("\nThe host is up; in another terminal: image/exec demo bash, and there anchorctl. Enter ends it.\n")
    except EOFError:
        print("Nobody can press Enter here, for standard input has ended: the host goes down.")


# ---- the run ----

def show_host(host, show):
    """The accelerator is what the probe finds, as on every host."""
    accelerator = await_state(lambda: (host.status().get("accelerator") or {}).get("accel"), PROBE_SECONDS, "can microVMs run under KVM?")
    show.expect(accelerator, "whether microVMs run under KVM")
    shown(host, "anchorctl", "doctor")


def allow_git(host, item):
    """The operator's word, as soon as there is a run to say it of: what it may reach is decided when it begins. Whether it holds."""
    done = None

    def said():
        nonlocal done
        done = host.anchorctl("policy", "allow", item, GIT, check=False)
        return done.returncode == 0 or not host.show(item)["state"] in ("submitted", "queued", "leased", "running")

    title(f"the operator, to this run alone: anchorctl policy allow {item} {GIT}")
    await_state(said, 300, "no run yet")
    print((done.stdout + done.stderr).strip())
    return done.returncode == 0


def show_run(host, workflow, show):
    """The item, at its rest; None if it did not get there."""
    command = ("anchorctl", "submit", "--workflow", workflow, "--repo", hosting.REPOSITORY, "--base", "main", "--task", TASK)
    title(f"the work item: {' '.join(command[:4])} …")
    if not show.expect(shown(host, *command) == 0 and host.items(), "a work item"):
        return None
    item = host.items()[0]["id"]
    show.expect(allow_git(host, item), "the operator's rule for the git server")

    title(f"the run: anchorctl logs --follow {item}")
    status = shown(host, "anchorctl", "logs", "--follow", item)
    title("the item: its runs, its history, what it cost")
    shown(host, "anchorctl", "show", item)
    item = host.show(item)
    if not show.expect(status == 0 and item["state"] == "in_review", f"a run that ends in review (it is {item['state']})"):
        print(host.journal("-p", "warning", "-n", "40"))
        return None
    show.expect(item["cost_microusd"] > 0, "what it cost")
    return item


# ---- what came of it ----

def moment(text):
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))


def spans(events):
    """(name, seconds) of each boot and step."""
    begun = {}
    for event in events:
        name = f"step {event.get('name')} ({event.get('run')})"
        if event["type"] == "step" and event["phase"] == "started":
            begun[name] = moment(event["time"])
        elif event["type"] == "step" and name in begun:
            yield name, (moment(event["time"]) - begun.pop(name)).total_seconds()
        elif event["type"] == "note" and event.get("kind") == "booting":
            begun["boot"] = moment(event["time"])
        elif event["type"] == "note" and event.get("kind") == "booted" and "boot" in begun:
            yield f"boot of the microVM ({event.get('run')})", (moment(event["time"]) - begun.pop("boot")).total_seconds()


def show_time(events, show):
    """How long each state and step lasted, from the item's events."""
    title("where the time went")
    marks = [event for event in events if event["type"] in ("state", "step", "note")]
    told = list(spans(marks))
    for name, took in told:
        print(f"{took:8.1f} s  {name}")
    if marks:
        total = (moment(marks[-1]["time"]) - moment(marks[0]["time"])).total_seconds()
        print(f"{total - sum(took for _, took in told):8.1f} s  all else: units and networks up and down, the repository in, the bundle out and checked")
        print(f"{total:8.1f} s  from submission to review")
    kinds = [name.split(" (")[0] for name, _ in told]
    show.expect(kinds.count("boot of the microVM") >= 2 and {"step agent", "step check"} <= set(kinds), "where the time went")


def show_tests(events, show):
    """The first and the last word of the test program: in the agent's microVM, and in the fresh one."""
    title("the tests, before and after")
    said = [(event["run"], line) for event in events if event["type"] == "output" and event["stream"] in ("agent", "check")
            for line in event["data"].splitlines() if re.fullmatch(r"test-csv: \d+ of \d+ cases passed", line)]
    for label, (run, line) in zip(("before", "after "), (said[0], said[-1]) if said else ()):
        print(f"{label}  {line}   (run {run})")
    counts = [re.findall(r"\d+", line) for _, line in said]
    show.expect(said and counts[0][0] != counts[0][1], "a test that fails before")
    show.expect(said and counts[-1][0] == counts[-1][1] and said[0][0] != said[-1][0], "tests that pass after, in a microVM of their own")


def show_change(host, item, show):
    title("the change")
    shown(host, "anchorctl", "result", item, "--diff")
    diff = host.anchorctl("result", item, "--diff", check=False).stdout
    show.expect(re.search(r"^\+[^+]", diff, re.MULTILINE), "the diff")


def permissions(host, workflow):
    """(rule, what) of all that the workflow's egress policy allows, from the files that the host has."""
    def load(kind, name):
        return json.loads(host.run(f"cat /etc/anchorhold/policy/{kind}/{name}.json 2>/dev/null || cat /usr/lib/anchorhold/policy/{kind}/{name}.json").stdout)

    name = load("workflows", workflow)["egress"]
    for i, rule in enumerate(load("egress", name)["allow"]):
        more = "".join(f", {key} {' '.join(rule[key])}" for key in ("methods", "paths") if key in rule)
        yield f"egress/{name}.json allow/{i}", f"{rule['name']} port {', '.join(map(str, rule['ports']))}, tls: {rule.get('tls', 'pass')}{more}"


def show_reach(host, item, workflow, provider, show):
    title("what the run could reach, by its policy; all else is denied")
    records = json.loads(host.anchorctl("policy", "log", item, "--json=short", user="root").stdout)
    live = [record for record in records if record["event"] == "policy.changed"]
    rules = list(permissions(host, workflow))
    for label, what in rules:
        print(f"  {label:32}  {what}")
    for record in live:
        print(f"  {'live':32}  {record['data'].get('rule', '?')}, for this run, by {record['actor']} at {record['time']}")
    show.expect(rules and live, "what the run could reach")

    title("what it reached, and what it tried in vain")
    shown(host, "anchorctl", "policy", "log", item, user="root")
    reached = {record["data"].get("name") for record in records if record["event"] == "egress.allow"}
    denied = {record["data"].get("name") for record in records if record["event"] in DENIALS and record["data"].get("rule")}
    show.expect(reached == {provider, GIT.partition(":")[0]},
                f"that it reached the provider and the git server alone (it reached {', '.join(sorted(reached)) or 'nothing'})")
    show.expect(denied >= set(NEVER), f"what it tried and was denied (it was denied {', '.join(sorted(denied)) or 'nothing'})")


def show_key(world, real, shape, show):
    title("the key")
    keys = {entry["x_api_key"] or entry["authorization"].removeprefix("Bearer ") for entry in world.log("provider")}
    for key in keys:
        print(f"the provider received   {str(key)[:32]}…")
    if show.expect(keys == {real}, "that the provider received the real key, and no other"):
        print("which is the real key. What the guest held in its place:")
    sentinels = {found for entry in world.log("provider") for found in re.findall(shape, json.dumps(entry["body"]))}
    for sentinel in sentinels:
        print(f"the sentinel            {sentinel[:32]}…")
    show.expect(sentinels and real not in sentinels, "the sentinel that the guest saw in place of the key")


def show_all(host, world, agent, show):
    workflow, provider, real, shape = AGENTS[agent]
    shown_item = show_run(host, workflow, show)
    if shown_item:
        item = shown_item["id"]
        events = [json.loads(line) for line in host.anchorctl("logs", item, "--json=short").stdout.splitlines()]
        show_time(events, show)
        show_tests(events, show)
        show_change(host, item, show)
        show_reach(host, item, workflow, provider, show)
        title("the record: every step above, hash-chained")
        show.expect(shown(host, "anchorctl", "audit", "verify", user="root") == 0, "an audit log that verifies")
        show_key(world, real, shape, show)
    title("done" if not show.missing else "done, and NOT everything is as it should be")
    for what in show.missing:
        print(f"! {what}")


# ---- one demo at a time, which leaves nothing ----

def end_by_signal():
    def on_signal(number, frame):
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)     # what is torn down is torn down to its end
        raise Ended(128 + number)

    for each in SIGNALS:
        signal.signal(each, on_signal)


def be_the_one():
    """The lock that says that a demo lives; the kernel takes it back. None if another has it."""
    owner = open(OWNER, "a", encoding="ascii")
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner.close()
        return None
    return owner


def run_demo(agent, keep):
    BUILD.mkdir(parents=True, exist_ok=True)
    repository = hosting.make_repository(BUILD / "csvsum")
    world = worlds.World(BUILD / "world")
    world.forget_logs()
    world.add_repository(repository, "csvsum.git")
    show = Shown()
    try:
        title("the world: a model provider, a git server and DNS, in a namespace of their own")
        print("They stand in for the real ones under their names: the provider is a script that knows this one task, its key is worth nothing,\n"
              "and what it counts costs nothing. The agent, and all that is between it and them, is what it is on a host.")
        world.start()
        title("boot the image")
        host = hosting.start_in_world(NAME, world, repository)
        host.seal_credential("openai", worlds.OPENAI_KEY)
        show_host(host, show)
        show_all(host, world, agent, show)
        if keep:
            await_enter()
    finally:
        try:
            hosting.remove_boot(NAME)
        finally:
            world.stop()
    return show.status()


def main():
    parser = argparse.ArgumentParser(description="one coding run, end to end")
    parser.add_argument("--agent", choices=sorted(AGENTS), default=os.environ.get("AGENT") or "pi")
    parser.add_argument("--keep", action="store_true", help="leave the host running until Enter is pressed")
    arguments = parser.parse_args()

    owner = be_the_one()
    if not owner:
        print(f"another demo is under way ({OWNER})", file=sys.stderr)
        return 1
    with owner:
        if hosting.remove_boot(NAME):
            print("removed the host of an earlier demo that was killed")
        end_by_signal()
        return run_demo(arguments.agent, arguments.keep)


if __name__ == "__main__":
    sys.exit(main())
