# SPDX-License-Identifier: LGPL-2.1-or-later
"""A policy file inside a workspace is data, never policy."""

import json


def test_policy_file_in_a_workspace_is_data(host):
    """Files that would allow everything, wherever a workspace could have them, on the operator's side and in a guest: nothing reads them."""
    evil = json.dumps({"allow": [{"name": "paste.example.net", "ports": [443]}]})
    places = ["policy/egress/test-networks.json", "etc/anchorhold/policy/egress/test-networks.json", ".anchorhold/policy/egress/test-networks.json",
              ".anchorhold.json", "anchorhold/policy/egress/test-networks.json", "egress/test-networks.json", ".srt-settings.json", "srt-settings.json"]
    workspace = "/var/home/operator/workspace"
    for place in places:
        host.run(["mkdir", "-p", (workspace + "/" + place).rsplit("/", 1)[0]])
        host.write(workspace + "/" + place, evil)
    before = json.loads(host.anchorctl("policy", "explain", "--json=short", "exec-networks", "paste.example.net:443", check=False).stdout)
    assert before["verdict"] == "deny"
    command = "cd %s && HOME=%s ANCHORHOLD_POLICY=. XDG_CONFIG_HOME=. exec anchorctl policy explain --json=short exec-networks paste.example.net:443" % (workspace, workspace)
    inside = host.run(["sh", "-c", command], user="operator", check=False)
    assert inside.returncode == 3 and json.loads(inside.stdout) == before

    # a run that starts there, and whose guest has them all, is refused what they would allow
    script = " && ".join("mkdir -p $(dirname {0}/{1}) && echo '{2}' > {0}/{1}".format(top, place, evil) for top in ("/work", "/etc/anchorhold", "") for place in places[:5])
    script += "; curl -sS -m 5 -o /dev/null https://paste.example.net/ && echo REACHED; curl -sS -m 10 -o /dev/null -k https://www.example.org/ && echo CONTROL"
    done = host.run(["sh", "-c", "cd %s && exec anchorctl run --workflow exec-networks -- sh -c \"$0\"" % workspace, script], user="operator", check=False, timeout=180)
    assert "CONTROL" in done.stdout and "REACHED" not in done.stdout, done.stdout + done.stderr
    host.run(["rm", "-rf", workspace])
