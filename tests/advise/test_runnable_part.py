"""Where no program has the whole best stack, the best part of it that one program runs."""

from __future__ import annotations

import pytest

import ridgeline as rl
from ridgeline.advise.composing import NOWHERE


@pytest.mark.parametrize("name", ["advise-7b-v100-nvme", "advise-deepseek-v3-slo"])
def test_a_part_is_of_the_stack_helps_and_helps_no_more_than_all(name: str) -> None:
    advice = rl.advise(f"examples/{name}.toml").value
    assert advice.stack_effort == NOWHERE
    part = advice.part
    assert part is not None
    assert part.programs != NOWHERE
    steps = [one.written for one in advice.stack]
    assert 0 < len(part.words) < len(advice.stack_words)
    assert any(one in part.words for one in steps)
    assert part.value is not None
    inverse = advice.objective == "goodput"
    assert (part.value <= advice.best * 1.01) if inverse else (part.value >= advice.best * 0.99)
    assert (part.gain is None) == (advice.stack_gain is None)


def test_a_stack_that_a_program_runs_has_no_part() -> None:
    advice = rl.advise("examples/advise-mixtral-24gb.toml").value
    assert advice.stack_effort not in ("", NOWHERE)
    assert advice.part is None
