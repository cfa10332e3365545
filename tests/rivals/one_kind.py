"""Small fleets of one kind of whole instance, drawn at random, and what differs between two replays of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from reference_serving import Fleet
from test_serving_reference import (
    ROUTERS,
    Case,
    differences,
    prepared,
    random_engines,
    random_tables,
    random_traffic,
    shared,
)

from ridgeline.plan.deployment import Role
from ridgeline.scenario.serving_words import replaced

CASES = 50  # of a batch
Values = Callable[[np.random.Generator, int], dict[str, Any]]


@dataclass
class OneKind(Case):
    """A fleet whose instances all follow one rule."""

    def common(self) -> dict[str, Any]:
        """What every reference instance of the fleet is made of."""
        (one,), (table,) = self.engines, self.tables
        record = one.rule(table)
        return {
            "kind": 0, "rule": {name: record[name].item() for name in record.dtype.names}, "tables": table,
            "graphs": one.graphs, "extra_s": one.policy.exposed_host_s, "role": "whole",
        }  # fmt: skip

    @property
    def count(self) -> int:
        """Instances of the fleet [1]."""
        return self.engines[0].deployment.instances


def drawn_fleet(seed: int, salt: int, values: Values, *, absent: tuple[str, ...], **words: Any) -> dict[str, Any]:
    """The parts of a `Case` of two to four instances; `values` draws their rule, given the tokens of a block."""
    draw = np.random.default_rng((seed, salt))
    block = int(draw.integers(1, 9))
    engines = random_engines(draw, 1, block)[:1]
    tables, asked = [random_tables(draw)], shared(draw, engines, random_traffic(draw, block))
    prepared(draw, engines)
    (one,) = engines
    one.deployment = replaced(one.deployment, instances=int(draw.integers(2, 5)), role=Role.WHOLE, **words)
    one.values |= dict.fromkeys(absent, 0)
    one.values |= {"ranks": 1, "gained": 1.0, "draft_share": 0.0, "draft_prompt": 0.0, "balance": 1.0}
    one.values |= {"period": block, "growth_blocks": 1}
    one.values |= values(draw, block)
    return {"engines": engines, "tables": tables, "traffic": asked, "router": ROUTERS[int(draw.integers(2))]}


def compared_batch(
    batch: int, case_of: Callable[[int], OneKind], counter: str, count: Callable[[Fleet], int],
    happened: Callable[[OneKind, Fleet, int], dict[str, bool]],
) -> tuple[list[str], Counter[str]]:  # fmt: skip
    """What differs in one batch of cases, `counter` of the replay among it, and in how many of them what happened."""
    wrong, seen = [], Counter[str]()
    for seed in range(batch * CASES, (batch + 1) * CASES):
        case = case_of(seed)
        names, slow = differences(case)
        many = count(slow)
        if getattr(case.compiled(), counter) != many:
            names.append(counter)
        wrong += [f"case {seed}: {', '.join(names)}"] if names else []
        seen.update(name for name, true in happened(case, slow, many).items() if true)
    return wrong, seen
