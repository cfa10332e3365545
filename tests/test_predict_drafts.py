"""A model that drafts: its share of a step, its memory, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ridgeline.cli.main import run
from ridgeline.cost.machine import machine
from ridgeline.errors import PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.plan.deployment import Deployment, Role
from ridgeline.predict.drafts import drafted, simulate_drafted
from ridgeline.predict.serving import simulate_serving
from ridgeline.serving.traffic.asked import asked_traffic

TARGET, WHERE = load("llama-3.1-8b"), cluster("2xH100-SXM")
CHAIN = Deployment(tp=2, draft_tokens=3, acceptance=0.7)
TRAFFIC = asked_traffic({"rate": 4.0, "prompt": (256, 256), "output": (64, 64), "requests": 40})[0]


def made(draft: str, **words: float) -> Deployment:
    at = {"batch": 4.0, "context": 512.0} | words
    return drafted(TARGET, load(draft), machine(WHERE), CHAIN, **at)


def test_weights_and_cache_are_those_of_the_draft_divided_as_the_target() -> None:
    """Llama-3.2-1B: 16 layers of 8 heads of 64 keys and values, 16 x 8 x 128 x 2 bytes a token, half on each device."""
    one = made("llama-3.2-1b")
    assert one.draft_token_bytes == 16 * 8 * 128 * 2 / 2
    assert one.draft_bytes == pytest.approx(load("llama-3.2-1b").graph.params * 2 / 2, rel=0.02)


def test_a_larger_draft_takes_a_larger_share_and_a_model_itself_less_than_a_step_of_all_its_drafts() -> None:
    small, same = made("llama-3.2-1b").draft_share, made("llama-3.1-8b").draft_share
    assert small is not None
    assert same is not None
    assert 0.02 < small < same <= 1.0
    assert same > 0.8  # weights are read once in either


def test_the_cache_shrinks_by_what_the_draft_holds() -> None:
    report = simulate_drafted(TARGET, load("llama-3.2-1b"), WHERE, [CHAIN], TRAFFIC)
    plain = simulate_serving(TARGET, WHERE, [replace(CHAIN, draft_share=0.1)], TRAFFIC)
    one, (held,), (alone,) = report.deployments[0], report.capacities, plain.capacities
    assert held.weights_bytes == pytest.approx(alone.weights_bytes + one.draft_bytes)
    assert held.token_bytes == pytest.approx(alone.token_bytes + one.draft_token_bytes)
    assert held.cache_tokens == int((alone.cache_bytes - one.draft_bytes) / held.token_bytes)
    again = simulate_serving(TARGET, WHERE, [one], TRAFFIC)
    assert again.metrics == report.metrics
    assert any("llama-3.2-1b drafts a token in" in text for text in report.assumed)


def test_what_is_not_modelled_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PlanError, match="a model that drafts is not modelled with a pool"):
        Deployment(draft_tokens=2, acceptance=0.5, draft_bytes=1.0, role=Role.DECODE)
    simulate = ["simulate", "gpt2", "--on", "1xH100-SXM", "--rate", "1"]
    words = ["--draft-tokens", "2", "--acceptance", "0.5", "--draft-model"]
    for asked, told in (
        ([*simulate, "--draft-model", "gpt2"], "'--draft-model': is about draft_tokens"),
        ([*simulate, *words, "gpt3000"], "field '--draft-model': unknown model 'gpt3000'"),
        ([*simulate, *words, "gpt2", "--draft-share", "0.1"], "is what draft_model is asked for"),
        (["plan", *simulate[1:], "--serve", *words, "gpt2"], "field '--draft-model': a search takes its share"),
    ):
        assert run(asked) == 2
        assert told in capsys.readouterr().err
