# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the tests of metering share."""

import json

import world as world_module


def seal_openai(host):
    """The second provider's key, once a boot."""
    host.seal_credential_once("openai", world_module.OPENAI_KEY)


def records(host, event, **fields):
    """The data of the audit records of one event, of a run or an item."""
    matches = [f"ANCHORHOLD_{name.upper()}={value}" for name, value in fields.items()]
    lines = host.run(["journalctl", "--namespace=anchorhold", "--no-pager", "-o", "json", f"ANCHORHOLD_EVENT={event}", *matches]).stdout.splitlines()
    return [json.loads(json.loads(line)["ANCHORHOLD_DATA"]) for line in lines]
