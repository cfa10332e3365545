"""Techniques that go together, and the model that they make."""

from __future__ import annotations

import pytest

from ridgeline.errors import PlanError
from ridgeline.graph.load import load
from ridgeline.seams import registry
from ridgeline.seams.registry import technique
from ridgeline.seams.resolve import rewritten, together


def test_a_technique_that_rewrites_nothing_is_never_passed_over() -> None:
    with pytest.raises(PlanError, match="muon is one of the optimizers"):
        rewritten(load("gpt2"), ("muon",))


def test_a_slot_has_one_owner() -> None:
    with pytest.raises(PlanError, match="adamw and muon both fill 'optimizers'; leave one of them out"):
        together([technique("optimizers", "adamw"), technique("optimizers", "muon")])
    both = (technique("optimizers", "adamw"), technique("schedules", "1f1b"))
    assert together(both) == both


def test_a_model_without_techniques_is_itself() -> None:
    model = load("gpt2")
    assert rewritten(model, ()) is model


def test_a_key_of_two_families_is_refused_with_both(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"losses": {"twice": "one:Loss"}, "queues": {"twice": "other:Queue"}}
    monkeypatch.setattr(registry, "modules", lambda family: known.get(family, {}))
    with pytest.raises(PlanError, match=r"one of the losses \(one:Loss\) and one of the queues \(other:Queue\)"):
        registry.listed("twice")
