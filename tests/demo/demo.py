#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""The demo: boots the image, files one work item for a real agent, and shows what came of it.

    demo.py [--agent pi|claude] [--keep]

Everything on the host's side is what would run against the real provider. The world beside it (tests/world) plays
the provider, a git server and the DNS, under the real names, in a network namespace without a way out.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import time

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests" / "world"))
import host as hosting  # noqa: E402
import world as worlds  # noqa: E402

BUILD = TOP / "build" / "demo"
WORKFLOWS = {"pi": "code-fix", "claude": "code-fix-claude"}
TASK = "The test suite of this repository fails. Find the cause, fix it, and commit the fix."
START = time.monotonic()


def title(text):
    bold, faint, plain = ("\033[1m", "\033[2m", "\033[0m") if sys.stdout.isatty() and "NO_COLOR" not in os.environ else ("", "", "")
    print(f"\n{bold}== {text}{plain} {faint}({time.monotonic() - START:.0f} s){plain}", flush=True)


def shown(host, *command, user="operator"):
    """A command on the booted host, its output on this terminal as it comes. The exit status."""
    sys.stdout.flush()
    return subprocess.run(host.argv(command, user), stdin=subprocess.DEVNULL, check=False).returncode


def await_enter():
    try:
        input("\nThe host is up; in another terminal: image/exec demo bash, and there anchorctl. Enter ends it.\n")
    except EOFError:
        print("Nobody can press Enter here, for standard input has ended: the host goes down.")


def main():
    parser = argparse.ArgumentParser(description="one coding run, end to end")
    parser.add_argument("--agent", choices=sorted(WORKFLOWS), default=os.environ.get("AGENT") or "pi")
    parser.add_argument("--keep", action="store_true", help="leave the host running until Enter is pressed")
    arguments = parser.parse_args()

    BUILD.mkdir(parents=True, exist_ok=True)
    repository = hosting.make_repository(BUILD / "csvsum")
    world = worlds.World(BUILD / "world")
    world.forget_logs()
    world.add_repository(repository, "csvsum.git")
    host = None
    try:
        title("the world: a model provider, a git server and DNS, in a namespace of their own")
        print("They stand in for the real ones under their names: the provider is a script that knows this one task, its key is worth nothing,\n"
              "and what it counts costs nothing. The agent, and all that is between it and them, is what it is on a host.")
        world.start()
        title("boot the image")
        host = hosting.start_in_world("demo", world, repository=repository)
        shown(host, "anchorctl", "doctor")
        status = show_run(host, world, WORKFLOWS[arguments.agent])
        if arguments.keep:
            await_enter()
    finally:
        if host:
            host.stop()
        world.stop()
    return status


def show_run(host, world, workflow):
    title(f"the run: anchorctl run --workflow {workflow}")
    status = shown(host, "anchorctl", "run", "--workflow", workflow, "--repo", hosting.REPOSITORY, "--base", "main",
                   "--task", TASK)
    item = host.items()[0]["id"]

    title("the item: its runs, its history, what it cost")
    shown(host, "anchorctl", "show", item)
    if status:
        print(host.journal("-p", "warning", "-n", "40"))
        return status
    events = [json.loads(line) for line in host.anchorctl("logs", item, "--json=short").stdout.splitlines()]
    show_time(events)
    failed = show_tests(events)
    title("the change")
    shown(host, "anchorctl", "result", item, "--diff")
    title("what the run reached, and what it tried in vain")
    shown(host, "anchorctl", "policy", "log", item, user="root")
    title("the record: every step above, hash-chained")
    failed |= shown(host, "anchorctl", "audit", "verify", user="root")
    title("the key")
    failed |= show_key(world)
    title("done" if not failed else "done, and NOT everything is as it should be")
    return failed


def show_time(events):
    """How long each state and step lasted, from the item's events."""
    title("where the time went")
    marks = [(event["time"], event) for event in events if event["type"] in ("state", "step", "note")]
    begun, told = {}, 0.0
    for when, event in marks:
        at = datetime.datetime.fromisoformat(when.replace("Z", "+00:00"))
        name = f"{event.get('name')} ({event.get('run')})"
        if event["type"] == "step" and event["phase"] == "started":
            begun[name] = at
        elif event["type"] == "step" and name in begun:
            took = (at - begun.pop(name)).total_seconds()
            told += took
            print(f"{took:8.1f} s  step {name}")
        elif event["type"] == "note" and event.get("kind") == "booting":
            begun["boot"] = at
        elif event["type"] == "note" and event.get("kind") == "booted" and "boot" in begun:
            took = (at - begun.pop("boot")).total_seconds()
            told += took
            print(f"{took:8.1f} s  boot of the microVM ({event.get('run')})")
    if marks:
        first, last = (datetime.datetime.fromisoformat(marks[i][0].replace("Z", "+00:00")) for i in (0, -1))
        total = (last - first).total_seconds()
        print(f"{total - told:8.1f} s  all else: units and networks up and down, the repository in, the bundle out and checked")
        print(f"{total:8.1f} s  from submission to review")


def show_tests(events):
    """The first and the last word of the test program: in the agent's microVM, and in the fresh one."""
    title("the tests, before and after")
    said = [(event["run"], line) for event in events if event["type"] == "output" and event["stream"] in ("agent", "check")
            for line in event["data"].splitlines() if re.fullmatch(r"test-csv: \d+ of \d+ cases passed", line)]
    if not said:
        print("the agent ran no test: nothing to compare")
        return 1
    for label, (run, line) in (("before", said[0]), ("after ", said[-1])):
        print(f"{label}  {line}   (run {run})")
    return 0 if said[0][1] != said[-1][1] else 1


def show_key(world):
    keys = {entry["x_api_key"] or entry["authorization"] for entry in world.log("provider")}
    for key in keys:
        print(f"the provider received   {key[:32]}…")
    if keys != {worlds.REAL_KEY}:
        print("and that is NOT the real key alone")
        return 1
    print("which is the real key. What the guest held in its place:")
    sentinels = {found for entry in world.log("provider") for found in re.findall(r"sk-ant-api03-[\w-]+", json.dumps(entry["body"]))}
    for sentinel in sentinels:
        print(f"the sentinel            {sentinel[:32]}…")
    return 0 if sentinels and worlds.REAL_KEY not in sentinels else 1


if __name__ == "__main__":
    sys.exit(main())
