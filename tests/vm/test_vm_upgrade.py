# SPDX-License-Identifier: LGPL-2.1-or-later
"""A host is upgraded while it works, and to an image that does not work: a story in the order of the file, told by one machine."""

import pytest

import docs
import images as next_images
import vmhost
from waiting import wait_for

GO = "go.example.org"
SCRIPT = f"echo up; until getent hosts {GO}; do sleep 1; done; echo over"
CREDENTIAL = "anthropic"
SEALED = ["test", "-s", f"/var/lib/anchorhold/credentials/{CREDENTIAL}"]
CONFLICT = 5


def let_go(machine, item):
    wait_for(lambda: machine.operator("policy", "allow", item, f"{GO}:443", check=False).returncode == 0, 180, lambda: machine.show(item))
    wait_for(lambda: machine.show(item)["state"] == "closed", 180, lambda: machine.show(item))


class Story:
    """What is known of the machine at each step."""

    def __init__(self, machine):
        self.machine = machine
        self.ends, self.stays = (machine.operator("submit", "--workflow", "wait", "--", "sh", "-c", SCRIPT).stdout.strip() for _ in range(2))
        self.machine_id = machine.run("cat /etc/machine-id").stdout

    def is_up(self, item):
        return self.machine.show(item)["state"] == "running" and "up" in self.machine.operator("logs", item).stdout

    def let_go(self, item):
        """An operator allows what the guest waits for; until the item has come to rest."""
        let_go(self.machine, item)


@pytest.fixture(scope="module")
def story(machine):
    return Story(machine)


@pytest.fixture(scope="module")
def two_runs(story):
    """Two runs at work, in microVMs of their own."""
    for item in (story.ends, story.stays):
        wait_for(lambda item=item: story.is_up(item), 300, lambda item=item: story.machine.show(item))
    return story.ends, story.stays


@pytest.fixture(scope="module")
def staged(machine, story, two_runs, digests):
    """The second image, fetched and staged beside the two runs."""
    story.machine.operator("credential", "add", "--quiet", CREDENTIAL, input="sk-ant-of-the-first-image")
    command = docs.command("upgrade.md", "anchorctl host upgrade docker:", **{"docker://registry.example/anchorhold:stable": machine.next_image(2)})
    return machine.timed("staging", lambda: machine.run(command, timeout=900))


@pytest.fixture(scope="module")
def upgraded(machine, story, staged):
    """`host upgrade --apply` beside the runs, of the image that was named last: one run ends in time, the other is handed back; and then the second image is up. What
    was seen meanwhile."""
    before, starts = machine.boot_id(), machine.starts()
    machine.next_image(2)
    apply = machine.popen(docs.command("upgrade.md", "anchorctl host upgrade --apply"), stdout=-1, stderr=-2, text=True)
    drain = wait_for(lambda: machine.status()["drain"], 120)
    third = machine.operator("submit", "--workflow", "exec", "--", "/bin/true").stdout.strip()
    story.let_go(story.ends)
    seen = {"drain": drain, "third": third, "while_drained": machine.items()[third], "lives_on": machine.show(story.stays)["state"],
            "template": machine.status()["templates"]["base"]}
    machine.operator("host", "drain", "--within=0s", check=False)      # the reboot may be there before its answer
    machine.timed("going down", lambda: wait_for(lambda: machine.starts() > starts, 300))
    machine.timed("coming up", lambda: machine.await_complete(before, 600))
    seen["said"], _ = apply.communicate(timeout=60)
    seen["starts"] = machine.starts() - starts
    return seen


def test_upgrade_is_staged_beside_live_runs(machine, story, staged, digests):
    """What is on the disk suffices, so no layer that was here was fetched again."""
    assert f"sha256:{digests[2]} is staged" in staged.stderr
    assert machine.deployments() == {"staged": digests[2], "booted": digests[1]}
    assert [machine.show(item)["state"] for item in (story.ends, story.stays)] == ["running", "running"]
    table = machine.run(docs.command("upgrade.md", "anchorctl host status")).stdout
    assert [line.split()[0] for line in table.splitlines()] == ["ROLE", "staged", "booted"] and digests[2] in table
    said = machine.audit("host.upgrade")[-1]
    assert (said["digest"], said["from"]) == (digests[2], digests[1])


def test_unsigned_image_is_not_staged(machine, staged, digests):
    """The control is the signed one beside it."""
    machine.run(f"cp -r {machine.next_image(3).removeprefix('dir:')} /run/unsigned && rm /run/unsigned/signature-1")
    refused = machine.operator("host", "upgrade", "dir:/run/unsigned", check=False, timeout=300)
    assert refused.returncode == 1 and "signature" in refused.stderr, refused.stderr
    assert machine.deployments() == {"staged": digests[2], "booted": digests[1]}


def test_host_is_drained_and_the_next_image_is_up(machine, upgraded, digests):
    assert upgraded["drain"]["reason"] == "upgrade" and upgraded["while_drained"] == "queued" and upgraded["lives_on"] == "running"
    assert "is staged" in upgraded["said"]
    assert upgraded["starts"] == 1
    assert machine.run(f"cat /etc/issue /{next_images.MARK}").stdout == "image 2\n2\n"
    assert machine.deployments() == {"booted": digests[2], "rollback": digests[1]}
    assert machine.audit("host.healthy")[-1]["digest"] == digests[2]
    assert machine.status()["drain"] is None


def test_items_of_the_first_image_are_finished_by_the_second(machine, story, upgraded):
    """What ended in the drain has one run; what was handed back has another, in the same attempt, and was queued once for it, on the guest template of the
    image that is up now."""
    templates = [upgraded["template"], machine.status()["templates"]["base"]]
    assert templates[0] != templates[1]
    wait_for(lambda: story.is_up(story.stays), 300, lambda: machine.show(story.stays))
    story.let_go(story.stays)
    wait_for(lambda: machine.items()[upgraded["third"]] == "closed", 120)
    for item, runs in ((story.ends, 1), (story.stays, 2)):
        shown = machine.show(item)
        assert shown["template_digest"] == templates[runs - 1]
        assert shown["attempt"] == 1 and len(shown["runs"]) == runs, shown
        assert [each["to"] for each in shown["history"]].count("queued") == runs, shown["history"]


def test_what_the_host_knows_outlives_the_image(machine, story, upgraded):
    """/var is the same one; in /etc what the host has is kept, and what it left alone follows the image."""
    machine.is_whole()
    assert machine.run("cat /etc/machine-id").stdout == story.machine_id
    assert machine.run("ls /etc/anchorhold/policy/workflows").stdout == "wait.json\n"
    machine.run(SEALED)
    assert len(machine.run("journalctl --list-boots -q").stdout.splitlines()) == 2
    assert machine.run("systemctl --failed --no-legend --plain").stdout == ""


@pytest.fixture(scope="module")
def fallen_back(machine, story, upgraded, digests):
    """The third image lies where the second one was, as a tag is moved, and fails its health check: until the second one is up again, with nobody's help
    from the timer on."""
    wait_for(lambda: not machine.status()["runs"], 300)
    machine.operator("credential", "remove", "--quiet", CREDENTIAL)
    machine.next_image(2)
    machine.run(f"mount --bind {vmhost.NEXT}/3 {vmhost.NEXT}/2")
    before, starts, items = machine.boot_id(), machine.starts(), machine.items()
    machine.run([*docs.command("upgrade.md", "systemctl start host-upgrade"), "--no-block"])
    machine.timed("a broken image, and back", lambda: machine.await_complete(before, 1200))
    return {"starts": machine.starts() - starts, "items": {item: state for item, state in machine.items().items() if item not in items}}


def test_broken_image_is_left_unattended(machine, fallen_back, digests):
    assert fallen_back["starts"] == 2                              # boots: of the broken one, and of the one that works
    assert machine.deployments() == {"booted": digests[2], "rollback": digests[3]}
    assert machine.run(f"cat /etc/issue /{next_images.MARK}").stdout == "image 2\n2\n"
    said = machine.audit("host.rolled_back")[-1]
    assert said["digest"] == digests[3] and "/bin/true" in said["reason"]
    assert not machine.status()["hold"]
    assert machine.operator("run", "--workflow", "exec", "--", "/bin/true", timeout=300).returncode == 0


def test_upgrades_by_themselves_have_a_window(machine, fallen_back):
    """Off unless somebody wants it; then the next one is between two and four."""
    timer = "host-upgrade.timer"
    assert machine.is_active(timer) == "inactive"
    machine.run(docs.command("upgrade.md", "systemctl enable --now host-upgrade"))
    try:
        following = machine.run(["systemctl", "show", "--value", "--timestamp=utc", "-p", "NextElapseUSecRealtime", timer]).stdout
        assert following.split()[2][:2] in ("02", "03"), following
        machine.run(["test", "-L", f"/etc/systemd/system/timers.target.wants/{timer}"])
    finally:
        machine.run(["systemctl", "disable", "--now", timer])


def test_rejected_image_does_not_come_back(machine, fallen_back, digests):
    """Neither by another upgrade nor by a rollback to where it still lies. The control is the same command with the second image."""
    assert set(machine.host_status()["rejected"]) == {digests[3]}
    for words in (("upgrade", machine.next_image(3)), ("rollback",)):
        refused = machine.operator("host", *words, check=False)
        assert refused.returncode == CONFLICT and f"sha256:{digests[3]} was rejected by this host" in refused.stderr, refused.stderr
    assert machine.deployments() == {"booted": digests[2], "rollback": digests[3]}
    assert "runs it already" in machine.operator("host", "upgrade", machine.next_image(2)).stderr


def test_accepted_image_is_staged_again(machine, fallen_back, digests):
    """As one that this host has never tried. The control is the test before: the same command, refused."""
    machine.operator("host", "accept", digests[3])
    try:
        assert machine.audit("host.accepted")[-1]["digest"] == digests[3]
        assert not machine.host_status().get("rejected")
        staged = machine.operator("host", "upgrade", machine.next_image(3), timeout=900)
        assert f"sha256:{digests[3]} is staged" in staged.stderr
        assert machine.deployments()["staged"] == digests[3] and machine.deployments()["booted"] == digests[2]
        assert [each["health"] for each in machine.host_status()["deployments"] if each["digest"] == digests[3]][0] == "untried"
    finally:
        machine.run("! test -e /run/ostree/staged-deployment || ostree admin undeploy 0", check=False)
    assert machine.deployments() == {"booted": digests[2], "rollback": digests[3]}


def test_what_a_later_image_wrote_is_read(machine, fallen_back):
    """Its ledger has a level, a column and a table that this image does not know, its audit log an event; both are whole, and go on."""
    assert machine.operator("version").stdout == "anchorhold 0.1\n"
    assert machine.ledger("SELECT what FROM later") == "of a later image"
    assert machine.ledger("SELECT later FROM item LIMIT 1") == "later"
    assert machine.audit("host.later") == [{"what": "something"}]
    machine.is_whole()
    assert sorted(fallen_back["items"].values()) == ["closed", "exhausted"]          # its health check's, and this image's own


def test_removed_credential_stays_removed(machine, fallen_back):
    """The control is the upgrade before, which kept it."""
    assert machine.run(SEALED, check=False).returncode == 1
