"""Masked-diffusion decoding: tokens, steps and refreshes by hand, and a step of a block beside one of a token."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.cost.machine import machine
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.scenario.serving_words import deployed
from ridgeline.serving.engine import Engine, engine
from ridgeline.serving.metrics import decode_parts, prefill_parts
from ridgeline.serving.replay import replay_tables
from ridgeline.serving.traffic.traffic import traffic
from ridgeline.techniques.speculation.masked_diffusion import MaskedDiffusion


def made(text: str) -> Engine:
    return engine(load("llada-8b"), machine(cluster("1xH100-SXM")), deployed(technique=(text,), instances=1))


def replayed(text: str, output: int) -> tuple[float, int]:
    """Seconds from the first token to the last, and iterations."""
    one, asked = made(text), traffic(np.zeros(1), np.array([64]), np.array([output]))
    found = replay_tables([one], [one.tables(longest_prompt=64, longest=64 + 2 * output)], asked)
    return float(found.end_s[0] - found.first_s[0]), found.iterations


def test_a_step_computes_a_block_and_gains_what_is_settled() -> None:
    one = MaskedDiffusion(block=32, settled=4.0)
    assert (one.drafted, one.gained, one.held(32, 1e9, 1e6)) == (31, 4.0, (0.0, 0.0))
    assert MaskedDiffusion(block=2, settled=4.0).gained == 2.0


def test_steps_are_tokens_over_settled_ones() -> None:
    few, many = (replayed(f"masked-diffusion(settled={n},refreshed=false)", 257) for n in (4, 1))
    assert many[1] - 1 == pytest.approx(4 * (few[1] - 1), abs=1)
    assert many[0] == pytest.approx(4 * few[0], rel=0.02)


def test_a_refresh_a_block_is_a_pass_over_the_sequence() -> None:
    """Of 8 steps a block each takes an eighth of a pass over 1,024 tokens more."""
    step, prompts = MaskedDiffusion(settled=4.0).shares(made("masked-diffusion(settled=4)"))
    plain = made("masked-diffusion(settled=4,refreshed=false)")
    tables = plain.tables(longest_prompt=1024, longest=1056)
    passed, alone = (
        sum(seconds for name, seconds in parts.items() if name != "host")
        for parts in (prefill_parts(plain, tables, 1024.0), decode_parts(plain, tables, 1.0, 1024.0))
    )
    assert step == pytest.approx(passed / alone / 8)
    assert prompts == 0.0
    assert MaskedDiffusion(block=1).shares(plain) == (0.0, 0.0)


def test_all_of_a_sequence_takes_its_arithmetic() -> None:
    """1,024 tokens through 7.5e9 weights are 15 TFLOP, of which an H100 does less than 0.99e15 a second."""
    seconds, steps = replayed("masked-diffusion(block=1024,refreshed=false)", 9)
    assert seconds / (steps - 1) > 2 * 7.5e9 * 1024 / 0.99e15
    block, _ = replayed("masked-diffusion(block=32,refreshed=false)", 9)
    assert block < seconds / 2
