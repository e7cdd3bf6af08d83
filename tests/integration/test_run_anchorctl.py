# SPDX-License-Identifier: LGPL-2.1-or-later
"""anchorctl on the booted image: exit statuses, bad input, rights, live output, stop and hold."""

import json
import re
import signal
import time

import pytest

import host as hosting
from waiting import wait_for

OK, FAILED, USAGE, REFUSED, NOT_FOUND, CONFLICT = range(6)
CODE = ("--workflow", "code-fix", "--task", "Nothing")


def expect(host, status, *args, **options):
    done = host.anchorctl(*args, check=False, **options)
    assert done.returncode == status, f"anchorctl {' '.join(args)}: status {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def test_exec_passes_output_and_status(host):
    done = expect(host, OK, "run", "--workflow", "exec", "-q", "--", "sh", "-c",
                  "echo out; echo err >&2; printf '\\033]0;title\\007\\n'; printf %s \"$0\"", "--task")
    assert done.stdout == "out\n\\x1b]0;title\\x07\n--task"
    assert done.stderr == "err\n"

    done = expect(host, FAILED, "run", "--workflow", "exec", "--", "sh", "-c", "exit 7")
    assert "7" in done.stderr and "anchorctl show i" in done.stderr
    item = re.search(r"i[0-9a-z]{12}", done.stderr).group()
    shown = host.show(item)
    assert shown["state"] in ("failed", "exhausted") and "7" in shown["reason"]

    # the same command again is another item
    again = expect(host, OK, "submit", "--workflow", "exec", "--", "true").stdout.strip()
    assert re.fullmatch(r"i[0-9a-z]{12}", again) and again != item
    wait_for(lambda: host.show(again)["state"] == "closed")


def test_bad_input(host):
    done = expect(host, NOT_FOUND, "run", "--workflow", "nothing", "--", "true")
    assert 'no workflow "nothing"' in done.stderr
    done = expect(host, NOT_FOUND, "submit", *CODE, "--repo", "/nonexistent")
    assert "/nonexistent" in done.stderr
    done = expect(host, NOT_FOUND, "submit", *CODE, "--repo", "/usr")
    assert "not a git repository" in done.stderr
    done = expect(host, NOT_FOUND, "submit", *CODE, "--repo", hosting.REPOSITORY, "--base", "v99")
    assert 'no commit "v99"' in done.stderr
    expect(host, NOT_FOUND, "submit", *CODE, "--repo", hosting.REPOSITORY, "--base", "0" * 40)
    expect(host, USAGE, "submit", *CODE)
    expect(host, USAGE, "submit", "--workflow", "exec")
    expect(host, USAGE, "submit", "--workflow", "exec", "--nothing")
    for verb in ("run", "submit"):
        before = len(host.items())
        done = expect(host, USAGE, verb, "--workflow", "exec", "-t", "Mend it", "--", "true")
        assert "this workflow has no agent: it takes no task" in done.stderr
        assert len(host.items()) == before
    expect(host, OK, "run", "--workflow", "exec", "--", "true")          # the control
    expect(host, NOT_FOUND, "show", "i000000000000")
    expect(host, NOT_FOUND, "logs", "--follow", "i000000000000")
    expect(host, NOT_FOUND, "stop", "i000000000000")
    expect(host, NOT_FOUND, "policy", "log", "r000000000000", user=None)


def check_findings(host, policies):
    """(file, pointer) of what policy check finds, but for the templates that other files of tests make when they need them."""
    later = {f"template {workflow['template']} is not installed" for kind, _, workflow in policies if kind == "workflows" and workflow["template"] != "base"}
    done = host.anchorctl("policy", "check", "--json=short", check=False)
    found = [f for f in json.loads(done.stdout) if f["level"] == "error"]
    assert done.returncode == (FAILED if found else OK)
    return [(f["file"], f["pointer"]) for f in found if f["reason"].split(" (")[0] not in later]


def test_malformed_policy_file(host, policies):
    path = "/etc/anchorhold/policy/workflows/broken.json"
    host.write(path, '{"template": "base", "repository": false, "steps": [{"name": "x", "kind": "exec", "timeout": "1 fortnight"}]}')
    try:
        done = expect(host, FAILED, "policy", "check")
        assert f"{path}:1: /steps/0/timeout: must be a duration" in done.stdout
        assert check_findings(host, policies) == [(path, "/steps/0/timeout")]

        done = expect(host, REFUSED, "submit", "--workflow", "broken", "--", "true")
        assert path in done.stderr and "/steps/0/timeout" in done.stderr
        # others are not affected
        expect(host, OK, "run", "--workflow", "exec", "--", "true")
    finally:
        host.run(["rm", path])
    assert check_findings(host, policies) == []


def test_policy_check_looks_for_templates(host, policies):
    """What submit refuses, the check of the files says before."""
    path = "/etc/anchorhold/policy/workflows/elsewhere.json"
    workflow = json.loads(host.run("cat /usr/lib/anchorhold/policy/workflows/exec.json").stdout)
    host.write(path, json.dumps({**workflow, "template": "nowhere"}))
    try:
        done = expect(host, FAILED, "policy", "check")
        assert f"{path}:1: /template: template nowhere is not installed" in done.stdout
        done = expect(host, FAILED, "submit", "--workflow", "elsewhere", "--", "true")
        assert "template nowhere is not installed" in done.stderr
        assert check_findings(host, policies) == [(path, "/template")]
        host.write(path, json.dumps({**workflow, "template": "base"}))
        assert check_findings(host, policies) == []
    finally:
        host.run(["rm", path])


def test_every_reason_to_wait_is_listed(host):
    """Two at once: a hold that somebody set, and programs that nobody watches."""
    expect(host, OK, "stop", "--all", "--hold")
    host.systemctl("stop", "anchor-warden.service")
    try:
        wait_for(lambda: "anchor-warden" in json.loads(expect(host, OK, "status", "--json=short").stdout)["enforcers"]["bpf"], 10)
        waiting = expect(host, OK, "submit", "--workflow", "exec", "--", "true").stdout.strip()
        wait_for(lambda: host.show(waiting)["state"] == "queued")
        why = [line for line in expect(host, OK, "list").stdout.splitlines() if line.startswith("No run starts: ")]
        assert len(why) == 2 and why[0].startswith("No run starts: bpf: ") and why[1].startswith("No run starts: on hold"), why
        host.systemctl("start", "anchor-warden.service")
        wait_for(lambda: len([line for line in expect(host, OK, "list").stdout.splitlines() if line.startswith("No run starts: ")]) == 1, 10)
    finally:
        host.systemctl("start", "anchor-warden.service")
        expect(host, OK, "release")
    wait_for(lambda: host.show(waiting)["state"] == "closed", 60)
    assert "No run starts" not in expect(host, OK, "list").stdout


def test_one_item_is_one_line(host):
    """Of a list in a pipe, with the whole command; on a terminal no line is longer than that is wide."""
    command = "true\n\033]0;x\007" + "long " * 1000 + "end"
    item = expect(host, OK, "submit", "--workflow", "exec", "--", "sh", "-c", command).stdout.strip()
    lines = expect(host, OK, "list", "--all", "--no-legend").stdout.splitlines()
    assert len(lines) == len(host.items())
    [line] = [line for line in lines if line.startswith(item)]
    assert line.endswith("sh -c true\\x0a\\x1b]0;x\\x07" + "long " * 1000 + "end")
    shown = host.run(f"stty cols 100; script -qec 'stty cols 100; anchorctl list --all --no-pager' /dev/null </dev/null", user="operator", check=False).stdout
    [line] = [line for line in shown.replace("\r", "").splitlines() if item in line]
    assert len(line) <= 100 and line.endswith("\u2026"), line
    expect(host, OK, "stop", item) if host.show(item)["state"] in ("queued", "leased", "running") else None


def test_only_operators(host):
    done = expect(host, REFUSED, "list", user="stranger")
    assert "anchorhold-operators" in done.stderr
    expect(host, OK, "list", user="operator")
    # what needs nobody's leave
    expect(host, OK, "policy", "explain", "code-fix", "api.anthropic.com:443", user="stranger")
    expect(host, REFUSED, "policy", "explain", "code-fix", "paste.example.net:443", user="stranger")
    expect(host, REFUSED, "policy", "explain", "exec", "api.anthropic.com:443", user="stranger")


def test_authority(host):
    """Who may use the API may submit only if authority.json says so; the rest is not affected."""
    path = "/etc/anchorhold/authority.json"
    run = ("submit", "--workflow", "exec", "--", "true")
    try:
        for submit, words in (({"groups": ["adm", "anchorhold-tap"]}, "only members of adm or anchorhold-tap may submit"),
                              ({"groups": []}, "lists no group"), ({"groups": ["a b"]}, "has a finding")):
            host.write(path, json.dumps({"submit": submit}))
            done = expect(host, REFUSED, *run)
            assert words in done.stderr, done.stderr
            expect(host, OK, "list")
            # root could change the file
            expect(host, OK, *run, user=None)
        # control: the same operator, in a group of the list
        host.write(path, json.dumps({"submit": {"groups": ["adm", "operator"]}}))
        expect(host, OK, *run)
    finally:
        host.run(["rm", "-f", path])
    expect(host, OK, *run)
    wait_for(lambda: all(i["state"] == "closed" for i in host.items()[:5]))


@pytest.mark.quiet
def test_stop_and_hold(host):
    runs = [host.popen(["anchorctl", "run", "--workflow", "exec", "--", "sleep", "600"], user="operator") for _ in range(2)]
    try:
        live = wait_for(lambda: (found := [i for i in host.items() if i["state"] == "running"]) and len(found) == 2 and found)

        expect(host, OK, "stop", live[0]["id"], "--reason", "enough")
        wait_for(lambda: host.show(live[0]["id"])["state"] == "cancelled")
        expect(host, CONFLICT, "stop", live[0]["id"])
        assert host.show(live[1]["id"])["state"] == "running"

        begin = time.monotonic()
        done = expect(host, OK, "stop", "--all", "--hold")
        assert "1 item stopped" in done.stderr
        wait_for(lambda: not host.run("pgrep -f qemu-system", check=False).stdout)
        assert time.monotonic() - begin < 6
        assert [r.wait(timeout=20) for r in runs] == [FAILED, FAILED]

        waiting = expect(host, OK, "submit", "--workflow", "exec", "--", "true").stdout.strip()
        time.sleep(2)
        assert host.show(waiting)["state"] == "queued"
    finally:
        for run in runs:
            run.kill()
        expect(host, OK, "release")
    wait_for(lambda: host.show(waiting)["state"] == "closed")


def test_follow_survives_anchord(host):
    run = host.popen(["anchorctl", "run", "--workflow", "exec", "-q", "--", "sh", "-c", "for i in 1 2 3 4 5 6; do echo $i; sleep 2; done"],
                     user="operator", stdout=-1, text=True)
    assert run.stdout.readline() == "1\n"
    host.systemctl("kill", "--signal=KILL", "anchord.service")
    rest, _ = run.communicate(timeout=90)
    assert rest == "2\n3\n4\n5\n6\n"
    assert run.returncode == OK


def test_interrupt_leaves_the_run(host):
    run = host.popen("anchorctl run --workflow exec -- sh -c 'echo up; sleep 6; echo done' & echo $!; wait %1",
                     user="operator", stdout=-1, stderr=-1, text=True)
    pid = run.stdout.readline().strip()
    assert run.stdout.readline() == "up\n"
    host.run(["kill", f"-{signal.SIGINT.name[3:]}", pid])
    _, err = run.communicate(timeout=20)
    assert run.returncode == 130
    item = re.search(r"anchorctl stop (i[0-9a-z]{12})", err).group(1)
    assert host.show(item)["state"] == "running"
    done = expect(host, OK, "logs", "--follow", item)
    assert done.stdout == "up\ndone\n"


def test_sign_of_life(host):
    """A run that prints nothing says on stderr that it is there: lines in a pipe, a status line on a terminal."""
    run = host.popen(["anchorctl", "run", "--workflow", "exec", "--", "sh", "-c", "sleep 22; echo done"],
                     user="operator", stdout=-1, stderr=-1, text=True)
    item = wait_for(lambda: (newest := host.items()[0])["state"] in ("queued", "leased", "running") and newest["id"])
    runs = {
        "pipe": run,
        "quiet": host.popen(["anchorctl", "logs", "--follow", "--quiet", item], user="operator", stdout=-1, stderr=-1, text=True),
        # 30 columns, later 20; what is on stdout is not on the terminal
        "terminal": host.popen("TERM=xterm script --quiet --return --command \"stty cols 30; (sleep 20; stty cols 20 </dev/tty) & "
                               f"anchorctl logs --follow {item} >/tmp/sign-of-life\" /dev/null", user="operator", stdout=-1, stderr=-1),
        "dumb": host.popen(f"TERM=dumb script --quiet --return --command \"anchorctl logs --follow {item}\" /dev/null",
                           user="operator", stdout=-1, stderr=-1),
    }
    said = {name: run.communicate(timeout=120) for name, run in runs.items()}
    assert {name: run.returncode for name, run in runs.items()} == dict.fromkeys(runs, OK)

    out, err = said["pipe"]
    assert out == "done\n"
    lines = [line for line in err.splitlines() if line.startswith("…")]
    assert len(lines) >= 2 and "\r" not in err and "\033" not in err
    first, second = (int(re.fullmatch(r"… running, exec: (\d+) s", line)[1]) for line in lines[-2:])
    assert 8 <= first <= 12 and 8 <= second - first <= 12, lines       # nine, by the clock of each line, cut to whole seconds
    assert said["quiet"] == ("done\n", "")

    drawn = said["terminal"][0].decode()
    status = re.findall(r"… [^\r\n\033]*", drawn)
    assert len(status) > 15 and max(map(len, status)) <= 29
    assert all(len(line) <= 19 for line in status[-4:]) and "…" in status[-1][1:]
    # each is taken back: no status line ends in a line feed, and the screen's last word is the host's
    assert not re.search(r"… [^\r\n\033]*\r?\n", drawn)
    assert host.run(["cat", "/tmp/sign-of-life"]).stdout == "done\n"

    dumb = said["dumb"][0].decode()
    # it counts from the step's begin, and is silent from its own
    assert "\033" not in dumb and re.search(r"… running, exec: (9|1\d|2[0-2]) s\r\n", dumb), dumb


def test_doctor_and_status(host):
    done = expect(host, OK, "doctor", user=None)
    assert "bad" not in done.stdout
    status = json.loads(expect(host, OK, "status", "--json=short").stdout)
    assert set(status["enforcers"].values()) == {"ok"}
    with host.stopped("anchor-secretd"):
        done = wait_for(lambda: (d := host.anchorctl("doctor", check=False, user=None)).returncode == FAILED and d)
        assert "anchor-secretd.socket is inactive" in done.stdout
    wait_for(host.is_enforced)


def test_policy_log_and_audit(host):
    done = host.exec_run("for i in 1 2 3 4 5 6 7; do getent hosts nowhere.example.com; done; true")
    assert done.returncode == OK
    item = re.search(r"i[0-9a-z]{12}", done.stderr).group()
    run = host.show(item)["runs"][0]["id"]
    for subject in (item, run):
        records = json.loads(expect(host, OK, "policy", "log", subject, "--blocked", "--json=short", user=None).stdout)
        refused = [r for r in records if r["event"] == "dns.refused" and r["data"]["name"] == "nowhere.example.com"]
        assert refused and refused[0]["run"] == run and refused[0]["data"]["rule"]
        table = expect(host, OK, "policy", "log", subject, "--blocked", user=None).stdout
        assert re.search(r"denied .*lookup of nowhere\.example\.com: no-rule", table)
        # records that stand for many: how often, and in how many records; the same from the end of the whole log
        times = sum(r["data"].get("count", 1) for r in records)
        assert times > len(records) and table.splitlines()[-1] == f"Refused {times} times, in {len(records)} records.", table
        whole = expect(host, OK, "policy", "log", subject, user=None).stdout.splitlines()[-1]
        assert re.fullmatch(rf"\d+ records; refused {times} times, in {len(records)} of them\.", whole), whole
    assert "intact" in expect(host, OK, "audit", "verify", user=None).stdout
    assert "may not read the audit log" in expect(host, REFUSED, "audit", "verify", user="operator").stderr


def test_policy_explain_takes_a_run_or_its_item(host):
    run = host.popen(["anchorctl", "run", "--workflow", "exec-net", "--", "sleep", "600"], user="operator", stdout=-1, stderr=-1)
    item = wait_for(lambda: (newest := host.items()[0])["state"] == "running" and newest["id"])
    target = ("www.example.org:443", "--json=short")
    of_item = json.loads(expect(host, OK, "policy", "explain", item, *target).stdout)
    assert of_item == json.loads(expect(host, OK, "policy", "explain", of_item["run"], *target).stdout)
    assert of_item["run"] == host.show(item)["runs"][0]["id"] and of_item["verdict"] == "pass"
    expect(host, REFUSED, "policy", "explain", item, "nowhere.example.com:443")
    expect(host, OK, "stop", item)
    run.communicate(timeout=30)
    assert "no run of" in expect(host, NOT_FOUND, "policy", "explain", item, *target).stderr
