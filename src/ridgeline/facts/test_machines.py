"""Machines of published tests, where the history of their repository tells them, from `data/test_machines.tsv`."""

from __future__ import annotations

import re

from ridgeline.facts import store
from ridgeline.facts.readings import tell_recipe


def ran_on(where: str, accelerator: str) -> str | None:
    """The catalog's machine that a test ran on; None where its source does not tell.

    `where` is the path of the test's results, `accelerator` the device that they are of.
    """
    for row in store.read_tsv("test_machines.tsv"):
        if row["accelerator"] == accelerator and f"/{row['test']}/" in where:
            tell_recipe(re.escape(row["test"]), where, f"machine = {row['machine']} ({row['source']})")
            return row["machine"]
    return None
