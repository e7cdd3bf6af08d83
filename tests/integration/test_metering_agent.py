# SPDX-License-Identifier: LGPL-2.1-or-later
"""A real agent whose budget is used up before it is done."""

from test_run_result import TASK, added_lines, run_agent


def test_an_agent_over_budget_leaves_what_it_did(host):
    """Seven calls lead to the commit; the eighth is refused, and what was committed can be fetched."""
    done = run_agent(host, "fix-budget", TASK, check=False)
    assert done.returncode == 6 and done.item["state"] == "exhausted", done.stdout + done.stderr
    assert done.item["reason"].startswith("over budget: the run's cap of 7 requests")
    assert sum(u["calls"] for u in done.item["usage"]) == 7
    assert done.item["result_commit"]
    assert added_lines(host, done.item["id"]) == ["return put(r, c);"]
