"""`simulate` of a pool of devices that come and go: every rule of assignment side by side."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace

from ridgeline.api.answer import Answer
from ridgeline.errors import InputError
from ridgeline.report.blocks import Block, Line, Table


def simulate_pool(given: SimpleNamespace) -> Answer:
    """Prints what each rule makes of the same jobs; with `--technique` of one alone."""
    from ridgeline.facts.job_pools import job_pool
    from ridgeline.predict.job_pools import pool_world
    from ridgeline.seams.assignment import ASSIGNMENTS, JobAssignment
    from ridgeline.seams.registry import names, technique
    from ridgeline.training.job_pool import run_pools

    said = {name: value for name, value in given.words.items() if value is not None and name != "technique"}
    if given.on is not None or said:
        wrong = next(iter(said), "on").replace("_", "-")
        raise InputError("says nothing of a pool of jobs; leave it out", field=f"--{wrong}")
    asked = given.words.get("technique")
    rules = [technique(ASSIGNMENTS, text) for text in ([asked] if asked else names(ASSIGNMENTS))]
    world = pool_world(job_pool(given.subject))
    found = run_pools(world, [one for one in rules if isinstance(one, JobAssignment)])

    def shown() -> list[Block]:
        rows = [
            (one.policy, f"{one.completed_share:.1%}", f"{one.high_completed_share:.1%}", f"{one.moves_s:,.0f} s",
             f"{one.broken:,} of {one.started:,}", f"{one.busy_share:.0%}")
            for one in found
        ]  # fmt: skip
        columns = ("rule", "in time", "of priority", "lost to links", "broken off", "busy")
        many = f"{len(world.jobs):,} jobs, {len(world.absences):,} devices"
        return [Line(text=many), Table(columns=columns, rows=tuple(rows))]

    return Answer(lambda: {"rows": [asdict(one) for one in found]}, shown, value=found)
