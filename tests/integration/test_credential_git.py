# SPDX-License-Identifier: LGPL-2.1-or-later
"""Git over HTTPS with rules, from a real run: real git in the guest, which holds no credential, and git's own server, which wants one."""

import json
import pathlib
import re
import subprocess

import gitserver
import pytest

from egressrun import records
from liverun import LiveRun

pytestmark = pytest.mark.quiet("first")

# Each command prints "<< NAME", what it says, and "== NAME STATUS".
GUEST = r"""
export HOME=/tmp GIT_TERMINAL_PROMPT=0 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@x GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@x
ask() { name=$1; shift; echo "<< $name"; "$@" 2>&1; echo "== $name $?"; }
post() { name=$1; shift; echo "<< $name"; curl -sS -m 20 -w '\n%{http_code}\n' "$@" 2>&1; echo "== $name $?"; }
commit() { echo "$1" >>work; git add work; git commit -qm "$1"; }
u=https://git.example.org/private; cd /tmp
git config --global core.compression 0

ask clone git clone -q $u/app.git a
ask clone-v1 git -c protocol.version=1 clone -q $u/app.git b
ask clone-shallow git clone -q --depth 1 $u/app.git s
ask depth git -C s rev-list --count HEAD
ask clone-partial git clone -q --filter=blob:none --no-checkout $u/app.git p
ask missing sh -c 'git -C p rev-list --objects --all --missing=print | grep -c "^?"'
ask partial-checkout git -C p checkout -q main
ask clone-sentinel git clone -q https://x-access-token:$TOKEN@git.example.org/private/lib-two.git t
ask clone-other git clone -q $u/secret.git x
ask clone-lib git clone -q $u/lib.git l
git -C l commit -q --allow-empty -m x
ask push-lib git -C l push origin HEAD:refs/heads/agent/x

cd a
git checkout -q -b agent/topic; commit one
ask push-create git push origin agent/topic
commit two; commit three
ask push-forward git push origin agent/topic
git commit -q --amend -m other
ask push-force git push -f origin agent/topic
git reset -q --hard origin/agent/topic; commit four
ask push-forward-again git push origin agent/topic
ask push-main git push origin HEAD:main
ask push-two git push origin HEAD:refs/heads/agent/second HEAD:refs/heads/other
ask push-delete git push origin :agent/topic
ask push-option git push -o x=y origin HEAD:refs/heads/agent/option
head -c 700000 /dev/urandom >large; git add large; commit large
ask push-large git -c http.postBuffer=65536 push origin HEAD:refs/heads/agent/large
head -c 1500000 /dev/urandom >large; git add large; commit huge
ask push-huge-chunked git -c http.postBuffer=65536 push origin HEAD:refs/heads/agent/huge
ask push-large-refused git -c http.postBuffer=65536 push origin HEAD:main
cd ..

(cd b && (for i in $(seq 200); do printf 'commit refs/heads/mine\ncommitter a <a@x> %s +0000\ndata 2\nx\n' $((1800000000 + i)); done) | git fast-import --quiet)
ask fetch-many git -C b fetch -q origin
ask fetched git -C b rev-parse --verify -q origin/agent/topic

ask clone-scratch git clone -q $u/scratch.git r
cd r
git commit -q --allow-empty -m first; ask scratch-push git push origin HEAD:refs/heads/x
git commit -q --amend --allow-empty -m second; ask scratch-force git push -f origin HEAD:refs/heads/x
head -c 12000000 /dev/urandom >large; git add large; commit large
ask scratch-large git -c http.postBuffer=65536 push origin HEAD:refs/heads/large
ask scratch-delete git push origin :refs/heads/x
cd ..

json='content-type: application/vnd.git-lfs+json'
lfs=$u/app.git/info/lfs/objects/batch
post lfs-download -H "$json" -d '{"operation":"download","objects":[{"oid":"0123","size":5}]}' $lfs
post lfs-upload -H "$json" -d '{"operation":"upload","ref":{"name":"refs/heads/agent/x"},"objects":[{"oid":"0123","size":5}]}' $lfs
post lfs-upload-main -H "$json" -d '{"operation":"upload","ref":{"name":"refs/heads/main"},"objects":[{"oid":"0123","size":5}]}' $lfs
post lfs-upload-large -H "$json" -d '{"operation":"upload","ref":{"name":"refs/heads/agent/x"},"objects":[{"oid":"0123","size":5000000}]}' $lfs
post lfs-twice -H "$json" -d '{"operation":"download","operation":"upload","objects":[]}' $lfs
post lfs-lib -H "$json" -d '{"operation":"download","objects":[]}' $u/lib.git/info/lfs/objects/batch
post dumb $u/app.git/HEAD
post dumb-refs $u/app.git/info/refs
post other-file $u/secret.git/HEAD
post other-fetch --data-binary @/dev/null $u/secret.git/git-upload-pack
post other-escaped $u/secret.git/info/refs?service=git%2Dupload-pack
post other-more "$u/secret.git/info/refs?a=b&service=git-upload-pack"
post smart-refs $u/app.git/info/refs?service=git-upload-pack -o /dev/null
post junk -H 'content-type: application/x-git-upload-pack-request' -d hello $u/app.git/git-upload-pack
post own-token -u x-access-token:own $u/app.git/info/refs?service=git-upload-pack
echo "sentinel $TOKEN"
ask control true
sleep 20
"""


def bare(world, name):
    path = world.path("git", "private", name)
    return path if path.endswith(".git") else path + ".git"


def git(world, name, *argv):
    return subprocess.run(["git", "-c", "safe.directory=*", "-C", bare(world, name), *argv], stdout=subprocess.PIPE, check=True, text=True).stdout.strip()


def static_tokens(host):
    """What doctor says of credentials."""
    return [f["text"] for f in json.loads(host.anchorctl("doctor", "--json=short", check=False).stdout) if f["check"] == "credential" and f["health"] == "warning"]


@pytest.fixture(scope="module")
def ran(host, world, repository):
    """One run that does everything above; what its inject needed at most is looked at before it ends."""
    for name in ("app", "lib", "lib-two", "secret", "scratch"):
        world.add_repository(repository, f"private/{name}.git")
        git(world, name, "config", "uploadpack.allowFilter", "true")
        git(world, name, "config", "receive.advertisePushOptions", "true")
    # a history that a shallow clone cuts
    environment = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@x", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@x", "PATH": "/usr/bin:/bin"}
    parent = git(world, "app", "rev-parse", "main")
    commit = subprocess.run(["git", "-c", "safe.directory=*", "-C", bare(world, "app"), "commit-tree", "-p", parent, "-m", "second", "main^{tree}"],
                            env=environment, stdout=subprocess.PIPE, check=True, text=True).stdout.strip()
    git(world, "app", "update-ref", "refs/heads/main", commit)
    before = static_tokens(host)
    host.seal_credential("test-git", gitserver.TOKEN)
    there = static_tokens(host)
    world.forget_logs()
    try:
        live = LiveRun(host, "exec-git", GUEST)
        live.await_line("== control", 220)
        status = pathlib.Path(f"/proc/{live.pid('anchor-inject')}/status").read_text()
        live.peak = int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) // 1024
        live.text = "".join(live.lines)
        live.item = re.search(r"\bi[0-9a-z]{12}\b", live.text).group(0)
    finally:
        host.run(["anchorctl", "credential", "remove", "--quiet", "test-git"])
    live.doctor = before, there, static_tokens(host)
    live.status = dict(re.findall(r"^== (\S+) (\S+)$", live.text, re.M))
    live.said = dict(re.findall(r"^<< (\S+)\n(.*?)^== \1 ", live.text, re.M | re.S))
    live.main = commit
    host.anchorctl("stop", live.item, check=False)
    return live


def test_doctor_names_a_static_token(ran):
    """While it is there, and not before or after."""
    before, there, after = ran.doctor
    assert [text for text in there if text not in before] == ["test-git is a static token: the same for every run and repository, until its issuer ends it"]
    assert after == before


@pytest.mark.parametrize("name", ["clone", "clone-v1", "clone-shallow", "clone-partial", "partial-checkout", "clone-sentinel", "clone-lib",
                                  "fetch-many", "push-create", "push-forward", "push-forward-again", "push-option", "push-large", "clone-scratch", "scratch-push",
                                  "scratch-force", "scratch-large", "scratch-delete"])
def test_allowed(ran, name):
    assert ran.status[name] == "0", ran.said[name]


@pytest.mark.parametrize("name, said", [
    ("clone-other", "remote error: anchorhold: Not allowed by policy (git-repository, "),
    ("push-lib", "remote error: anchorhold: Not allowed by policy (git-push, "),
    ("push-force", "[remote rejected] agent/topic -> agent/topic (not shown to be a fast-forward, and policy allows nothing else)"),
    ("push-main", "[remote rejected] HEAD -> main (no ref that policy allows to be pushed to)"),
    ("push-two", "[remote rejected] HEAD -> agent/second (another ref of this push was refused)"),
    ("push-two", "[remote rejected] HEAD -> other (no ref that policy allows to be pushed to)"),
    ("push-delete", "[remote rejected] agent/topic (policy allows no deletion)"),
    ("push-huge-chunked", "unpack failed: The pack is larger than the 1048576 bytes that policy allows."),
    ("push-large-refused", "[remote rejected] HEAD -> main (no ref that policy allows to be pushed to)"),
])
def test_refused_in_gits_words(ran, name, said):
    assert ran.status[name] != "0"
    assert said in ran.said[name]


def test_what_became_of_it(ran, world):
    """At the origin: what was allowed is there, and nothing else is."""
    refs = dict(line.split()[::-1] for line in git(world, "app", "for-each-ref", "--format=%(objectname) %(refname)").splitlines())
    assert sorted(refs) == ["refs/heads/agent/large", "refs/heads/agent/option", "refs/heads/agent/topic", "refs/heads/main"]
    assert refs["refs/heads/main"] == ran.main
    assert git(world, "app", "log", "-1", "--format=%s", "agent/topic") == "four"
    assert git(world, "scratch", "for-each-ref", "--format=%(refname)").splitlines() == ["refs/heads/large", "refs/heads/main"]
    assert git(world, "lib", "for-each-ref", "--format=%(refname)").splitlines() == ["refs/heads/main"]
    # of a repository that no rule about git names: a file, which another rule allows and the origin refuses for want of a token
    assert {entry["path"].partition("?")[0] for entry in world.log("git") if "secret" in entry["path"]} == {"/private/secret.git/HEAD"}
    for name in ("app", "scratch"):
        git(world, name, "fsck", "--strict")


def test_kinds_of_clones(ran, world):
    assert ran.said["depth"].strip() == "1"
    assert int(ran.said["missing"]) > 0
    asked = world.log("git")
    assert {entry["headers"].get("Git-Protocol", entry["headers"].get("git-protocol")) for entry in asked} >= {"version=2", "version=1", None}
    gzipped = [e for e in asked if {k.lower(): v for k, v in e["headers"].items()}.get("content-encoding") == "gzip"]
    assert gzipped and all(e["path"].endswith("/git-upload-pack") for e in gzipped)
    assert ran.said["fetched"].strip() == git(world, "app", "rev-parse", "agent/topic")


def test_a_refused_push_does_not_leave(ran, world):
    """What reached the server of pushes to `app` is what was allowed, and of the one that was too large, not all."""
    pushed = [e["size"] for e in world.log("git") if e["path"] == "/private/app.git/git-receive-pack" and e["size"] > 4]
    assert len(pushed) == 5                                        # create, forward, forward-again, option, large
    assert max(pushed) < 1 << 20


def test_token_only_at_the_origin(ran, world):
    sent = [{k.lower(): v for k, v in e["headers"].items()}.get("authorization") for e in world.log("git") if "secret" not in e["path"]]
    assert set(sent) == {gitserver.AUTHORIZATION}
    assert gitserver.TOKEN not in ran.text and re.search(r"^sentinel ghp_\w{36}$", ran.text, re.M)


@pytest.mark.parametrize("name, status, has", [
    ("lfs-download", "200", '"operation": "download"'), ("lfs-upload", "200", '"operation": "upload"'),
    ("lfs-upload-main", "403", "git-ref"), ("lfs-upload-large", "403", "git-pack-size"), ("lfs-twice", "403", "git-unreadable"), ("lfs-lib", "403", "git-lfs"),
    ("dumb", "403", "path"), ("dumb-refs", "403", "git-protocol"), ("other-file", "401", ""),
    ("other-fetch", "200", "ERR anchorhold: Not allowed by policy (git-repository, "), ("other-escaped", "403", "git-protocol"), ("other-more", "403", "git-protocol"), ("smart-refs", "200", ""),
    ("junk", "200", "ERR anchorhold: The request cannot be read"), ("own-token", "200", "ERR anchorhold: This host may be used with this run's own credential only."),
])
def test_single_requests(ran, name, status, has):
    lines = ran.said[name].strip().splitlines()
    assert lines[-1] == status, lines
    assert has in ran.said[name]


def test_memory_is_bounded(ran):
    """A pack of 12 MB went through, and none of it stayed."""
    assert ran.peak < 20


def test_records(host, ran):
    pushes = records(host, "git.push", ran.run)
    allowed = [p for p in pushes if p["verdict"] == "allowed" and p["repository"] == "private/app"]
    assert [(r["ref"], r["change"]) for p in allowed for r in p["refs"]] == [
        ("refs/heads/agent/topic", "create"), ("refs/heads/agent/topic", "fast-forward"), ("refs/heads/agent/topic", "fast-forward"),
        ("refs/heads/agent/option", "create"), ("refs/heads/agent/large", "create")] + [("refs/heads/agent/huge", "create")] * (len(allowed) - 5)
    assert allowed[1]["refs"][0]["before"] == allowed[0]["refs"][0]["after"]
    assert allowed[0]["rule"] == "egress/test-git.json#/allow/0"
    reasons = {p["reason"] for p in pushes if p["verdict"] == "refused"}
    assert reasons == {"git-ref", "git-force", "git-delete", "git-pack-size"}
    fetches = records(host, "git.fetch", ran.run)
    assert {f["repository"] for f in fetches if f["verdict"] == "allowed"} == {"private/app", "private/lib", "private/lib-two", "private/scratch"}
    assert any(f["shallow"] for f in fetches) and any(f["partial"] for f in fetches)
    assert {"git-unreadable", "git-ref", "git-pack-size"} <= {f.get("reason") for f in fetches}
    assert records(host, "credential.used", ran.run, credential="test-git")


def test_policy_tools(host):
    explained = host.anchorctl("policy", "explain", "exec-git", "https://git.example.org/private/app/git-receive-pack", "--method=POST").stdout
    assert "push to refs/heads/agent/*; no deletions, no forced updates" in explained
    assert "secrets: test-git" in explained
    denied = host.anchorctl("policy", "explain", "exec-git", "https://git.example.org/private/lib/info/refs?service=git-receive-pack", check=False)
    assert denied.returncode == 3 and "git-push" in denied.stdout
