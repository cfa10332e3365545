"""Encoders as served models, and experts padded to the fullest one: by hand, and against rows as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ridgeline.cost.machine import machine
from ridgeline.cost.seconds import unfitted
from ridgeline.errors import PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.lower.pieces import ElementwisePiece, Experts, Product
from ridgeline.scenario.serving_words import deployed
from ridgeline.serving.engine import Engine, engine
from ridgeline.serving.host_experts import cores
from ridgeline.techniques.placement.padded import PaddedDispatch


class FlopPrices:
    """A second a FLOP; passes are free."""

    skew = 0.0

    def ask(self, asked: Any) -> Any:
        return unfitted(np.asarray(asked.flop, dtype=float))

    def product(self, piece: Product, rows: Any) -> Any:
        return unfitted(2.0 * piece.n * piece.k * np.asarray(rows, dtype=float))

    def stream(self, piece: ElementwisePiece, rows: Any) -> Any:
        return unfitted(0.0 * np.asarray(rows, dtype=float))


def test_all_experts_compute_the_rows_of_the_fullest() -> None:
    """Two ranks of 100 tokens, half for one of 8 experts: buffers of 50; 2 x 2 x 100 x 400 x 16 with the mask.

    Four experts on a rank of 2 x 50 rows each, 2 x 100 x (16 x 32 + 32 x 16) a rank's expert.
    """
    piece = Experts(hidden=16, inner=32.0, top_k=1, count=8, ranks=2, gated=False)
    found = PaddedDispatch(fullest=0.5).computed(piece, FlopPrices(), np.array([200.0]), 2)
    assert found.mid[0] == pytest.approx(2 * 2 * 100 * 400 * 16 + 4 * 2 * 100 * 2 * 16 * 32)


def test_even_loads_pad_nothing() -> None:
    """128 tokens over 8 experts: buffers of 16; a skew of 1 gives the first 1 / 2.718 of them."""
    assert PaddedDispatch().buffer_rows(8, 1, np.array([128.0]), 0.0).tolist() == [16.0]
    assert PaddedDispatch().buffer_rows(8, 1, np.array([128.0]), 1.0).tolist() == [48.0]
    assert PaddedDispatch(fullest=1.0).buffer_rows(8, 1, np.array([128.0]), 0.0).tolist() == [128.0]


def served(model: str, **words: Any) -> Engine:
    return engine(load(model), machine(cluster("4xA100-SXM-80GB")), deployed(token_budget=8192, **words))


def test_padding_takes_longer_the_fuller_the_fullest() -> None:
    plain = served("switch-base-128-encoder", dp=4, ep=4)
    some, most = (
        served("switch-base-128-encoder", dp=4, ep=4, technique=(f"padded-dispatch(fullest={share})",))
        for share in (0.02, 0.2)
    )
    seconds = [one.tables(longest_prompt=512, longest=513).group.mid[-1] for one in (plain, some, most)]
    assert seconds[0] < seconds[1] < seconds[2]


def test_an_encoder_attends_in_both_directions() -> None:
    """512 tokens see 512 each: as many pairs as a decoder's after 256 cached tokens."""
    one = served("switch-base-128-encoder")
    ((_, core),) = cores(one.steps.served)[:1]
    assert not core.causal
    from dataclasses import replace

    tokens, none = np.array([512.0]), np.array([0.0])
    both = one.steps.prices.prefill(core, 8.0, tokens, none)
    after = one.steps.prices.prefill(replace(core, causal=True), 8.0, tokens, np.array([256.0]))
    assert both.mid[0] == after.mid[0] > one.steps.prices.prefill(replace(core, causal=True), 8.0, tokens, none).mid[0]


def test_an_encoder_makes_no_tokens() -> None:
    with pytest.raises(PlanError, match=r"is an encoder, .* say output 1 \(asked: 7\)"):
        served("switch-base-128-encoder").tables(longest_prompt=100, longest=107)
    with pytest.raises(PlanError, match="encoder-decoder"):
        served("t5-base")
