"""A model that drafts: its share of a step, its memory, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from ridgeline.cli.main import run
from ridgeline.cost.machine import machine
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.plan.deployment import Role
from ridgeline.predict.drafts import _pace, drafted, drafted_for, simulate_drafted
from ridgeline.predict.serving import simulate_serving
from ridgeline.scenario.serving_words import deployed, replaced
from ridgeline.seams.serving import Speculation, of
from ridgeline.serving.clock import last_stage
from ridgeline.serving.engine import engine
from ridgeline.serving.metrics import decode_parts
from ridgeline.serving.traffic.asked import asked_traffic

TARGET, WHERE = load("llama-3.1-8b"), cluster("2xH100-SXM")
CHAIN = deployed(tp=2, draft_tokens=3, acceptance=0.7)
TRAFFIC = asked_traffic({"rate": 4.0, "prompt": (256, 256), "output": (64, 64), "requests": 40})[0]


def made(draft: str, **words: float) -> Speculation:
    at = {"batch": 4.0, "context": 512.0, "prompt": 256.0} | words
    return of(drafted(TARGET, load(draft), machine(WHERE), CHAIN, **at), Speculation)


def test_weights_and_cache_are_those_of_the_draft_divided_as_the_target() -> None:
    """Llama-3.2-1B: 16 layers of 8 heads of 64 keys and values, 16 x 8 x 128 x 2 bytes a token, half on each device."""
    one = made("llama-3.2-1b")
    assert one.token_bytes == 16 * 8 * 128 * 2 / 2
    assert one.held_bytes == pytest.approx(load("llama-3.2-1b").graph.params * 2 / 2, rel=0.02)


def test_a_larger_draft_takes_a_larger_share_and_a_model_itself_less_than_a_step_of_all_its_drafts() -> None:
    small, same = made("llama-3.2-1b").share, made("llama-3.1-8b").share
    assert small is not None
    assert same is not None
    assert 0.02 < small < same <= 1.0
    assert same > 0.8  # weights are read once in either


def test_the_cache_shrinks_by_what_the_draft_holds() -> None:
    report = simulate_drafted(load("llama-3.2-1b"), TARGET, WHERE, [CHAIN], TRAFFIC)
    plain = simulate_serving(TARGET, WHERE, [replaced(CHAIN, draft_share=0.1)], TRAFFIC)
    one, (held,), (alone,) = report.deployments[0], report.capacities, plain.capacities
    drafts = of(one, Speculation)
    assert held.weights_bytes == pytest.approx(alone.weights_bytes + drafts.held_bytes)
    assert held.token_bytes == pytest.approx(alone.token_bytes + drafts.token_bytes)
    assert held.cache_tokens == int((alone.cache_bytes - drafts.held_bytes) / held.token_bytes)
    again = simulate_serving(TARGET, WHERE, [one], TRAFFIC)
    assert again.metrics == report.metrics
    assert any("llama-3.2-1b drafts a token in" in text for text in report.assumed)


def test_a_draft_reads_every_prompt_before_the_first_token() -> None:
    """Prompts of a model that drafts for itself take twice their time on the device."""
    share = made("llama-3.1-8b").prompt_share
    assert share == pytest.approx(1.0)
    none, all_of_it = (
        simulate_serving(TARGET, WHERE, [replaced(CHAIN, draft_share=0.1, draft_prompt_share=each)], TRAFFIC)
        for each in (0.0, 1.0)
    )
    assert "drafts" not in none.prefill_parts
    parts = all_of_it.prefill_parts
    device = sum(seconds for name, seconds in parts.items() if name not in ("host", "drafts"))
    assert parts["drafts"] == pytest.approx(device)
    more = all_of_it.metrics.ttft.p50 - none.metrics.ttft.p50
    assert more >= 0.9 * device


@pytest.mark.parametrize("draft", ["llama-3.2-1b", None])
def test_pools_both_hold_what_drafts_and_send_its_cache(draft: str | None) -> None:
    """The prefill pool reads prompts with the draft too: its cache travels with the model's."""
    pools = [replace(CHAIN, tp=1, role=role) for role in (Role.PREFILL, Role.DECODE)]
    run = simulate_serving if draft is None else partial(simulate_drafted, load(draft))
    report = run(model=TARGET, cluster=WHERE, deployments=pools, traffic=TRAFFIC)
    plain = simulate_serving(TARGET, WHERE, [replaced(one, draft_tokens=0) for one in pools], TRAFFIC)
    extra = 1 / 32 if draft is None else 16 * 8 * 128 * 2 / (32 * 8 * 256 * 2)
    for held, alone in zip(report.capacities, plain.capacities, strict=True):
        assert held.token_bytes == pytest.approx(alone.token_bytes * (1 + extra))
        assert held.weights_bytes > alone.weights_bytes
    assert report.replay.moves == plain.replay.moves > 0
    unread = [replaced(one, draft_prompt_share=0.0) for one in report.deployments]
    assert report.metrics.ttft.p50 > simulate_serving(TARGET, WHERE, unread, TRAFFIC).metrics.ttft.p50


def test_of_a_pipeline_the_last_stage_holds_the_draft_and_each_batch_waits_for_it() -> None:
    one = replace(CHAIN, tp=1, pp=2)
    where = machine(WHERE)
    known = drafted(TARGET, load("llama-3.2-1b"), where, one, batch=4.0, context=512.0, prompt=256.0)
    alone = made("llama-3.2-1b")
    assert of(known, Speculation).held_bytes == pytest.approx(
        2 * alone.held_bytes
    )  # not divided over stages, nor over tp 2
    made_one = engine(TARGET, where, known)
    rule = made_one.rule(made_one.tables(longest_prompt=256, longest=512))
    assert rule["hops"] == 1
    assert [last_stage(SimpleNamespace(hops=float(rule["hops"])), filled) for filled in (False, True)] == [
        1.0,
        2.0,
    ]
    simulate_drafted(load("llama-3.2-1b"), TARGET, WHERE, [one], TRAFFIC)


def test_what_is_not_modelled_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    simulate = ["simulate", "gpt2", "--on", "1xH100-SXM", "--rate", "1"]
    words = ["--draft-tokens", "2", "--acceptance", "0.5", "--draft-model"]
    for asked, told in (
        ([*simulate, "--draft-model", "gpt2"], "'--draft-model': is about draft_tokens"),
        ([*simulate, *words, "gpt3000"], "field '--draft-model': unknown model 'gpt3000'"),
        ([*simulate, *words, "gpt2", "--draft-share", "0.1"], "is what draft_model is asked for"),
        ([*simulate, *words, "gpt2", "--draft-prompt-share", "0.1"], "is what draft_model is asked for"),
    ):
        assert run(asked) == 2
        assert told in capsys.readouterr().err


def test_a_search_gives_every_deployment_the_share_of_its_own_batch(capsys: pytest.CaptureFixture[str]) -> None:
    """The batch with which all ranks keep pace: as many tokens a second as the traffic asks for, and no fewer do."""
    share_of = drafted_for(TARGET, load("llama-3.2-1b"), WHERE, TRAFFIC)
    slow, quick = (of(share_of(one), Speculation) for one in (replace(CHAIN, tp=1), CHAIN))
    assert slow.share != quick.share
    assert slow.held_bytes == pytest.approx(2 * quick.held_bytes)
    one = engine(TARGET, machine(WHERE), CHAIN)
    batch = _pace(one, 2000.0, 300.0, 256.0)
    step_s = sum(decode_parts(one, one.tables(longest_prompt=301, longest=301), batch, 300.0).values())
    assert batch * of(one.deployment, Speculation).gained / step_s == pytest.approx(2000.0, rel=1e-3)
    asked = ["plan", "llama-3.1-8b", "--serve", "--on", "2xH100-SXM", "--rate", "4", "--requests", "20", "--json"]
    words = ["--draft-tokens", "3", "--acceptance", "0.7", "--draft-model", "llama-3.2-1b"]
    assert run([*asked, *words]) == 0
    assert "llama-3.2-1b drafts in its share of a step at the batch" in capsys.readouterr().out
    assert run(["plan", *asked[1:3], "--rent", "H100-SXM=2", *asked[5:], *words]) == 2
    assert "a draft's share of a step differs from device to device" in capsys.readouterr().err
