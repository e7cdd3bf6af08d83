# SPDX-License-Identifier: LGPL-2.1-or-later
"""Waiting for what comes soon, in one place, so that no test goes on without it."""

import time


def wait_for(what, seconds=60, explain=lambda: "waited in vain"):
    """What `what` returns as soon as that is true. If it is not in time the test fails, with what `explain` says."""
    end = time.monotonic() + seconds
    while True:
        if result := what():
            return result
        assert time.monotonic() < end, explain()
        time.sleep(0.1)
