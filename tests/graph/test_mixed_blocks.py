"""Mixes of blocks: against every mix of two layers, by hand, and what is refused (mixed-blocks)."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from ridgeline.errors import InputError
from ridgeline.graph.load import load
from ridgeline.graph.model import Graph
from ridgeline.graph.ops import AttentionOp, OpRole
from ridgeline.lower.inference import serve
from ridgeline.scenario.serving_words import deployed
from ridgeline.seams.registry import technique
from ridgeline.techniques.graphs.mixed_blocks import ATTENTION, FEED, OPTIONS, MixedBlocks

LLAMA = load("llama-3.1-8b")
ONE = technique("graphs", "mixed-blocks(seconds=0.6)")


def first(layers: int) -> Graph:
    return replace(LLAMA.graph, layers=LLAMA.graph.layers[:layers])


def test_options_are_cheaper_the_more_goes() -> None:
    graph = first(1)
    for part in OPTIONS:
        table = MixedBlocks().table(graph, graph.layers[0], part)
        losses, seconds, held = zip(*table, strict=True)
        assert losses[0] == 0.0
        assert losses[-1] == 1.0
        assert seconds[-1] == held[-1] == 0.0
        assert sorted(seconds, reverse=True) == list(seconds)
        assert sorted(held, reverse=True) == list(held)


@pytest.mark.parametrize(("seconds", "held"), [(0.7, 1.0), (0.45, 1.0), (1.0, 0.5), (0.6, 0.4)])
def test_no_mix_of_two_layers_loses_less(seconds: float, held: float) -> None:
    graph, one = first(2), MixedBlocks(seconds=seconds, held=held)
    tables = [one.table(graph, name, part) for name in graph.layers for part in OPTIONS]
    limits = [share * sum(table[0][row] for table in tables) for row, share in ((1, seconds), (2, held))]
    least = min(
        sum(each[0] for each in picks)
        for picks in product(*tables)
        if all(sum(each[row] for each in picks) <= limit for row, limit in zip((1, 2), limits, strict=True))
    )
    chosen = [names for pair in one.mix(graph) for names in zip(OPTIONS, pair, strict=True)]
    picked = [table[OPTIONS[part].index(name)] for table, (part, name) in zip(tables, chosen, strict=True)]
    assert sum(each[0] for each in picked) == pytest.approx(least, rel=2e-3)
    for row, limit in zip((1, 2), limits, strict=True):
        assert sum(each[row] for each in picked) <= limit * (1 + 1e-6)


def test_no_limit_changes_nothing() -> None:
    assert MixedBlocks(seconds=1.0).rewrite(LLAMA.graph) == LLAMA.graph


def test_a_file_of_losses_says_which_layer_keeps_its_feed_forward(tmp_path: Path) -> None:
    """Half of four layers' time is left; layers 1 and 2 lose a thousand times as much at every option but the first."""
    rows = [
        f"{layer},{part},{option},{0 if number == 0 else (1000 if layer in (1, 2) else 1)}"
        for layer in range(4)
        for part in (ATTENTION, FEED)
        for number, option in enumerate(OPTIONS[part])
    ]
    path = tmp_path / "losses.csv"
    path.write_text("layer,part,option,loss\n" + "\n".join(rows))
    mix = MixedBlocks(losses=str(path)).mix(first(4))
    assert mix[1] == mix[2] == (OPTIONS[ATTENTION][0], OPTIONS[FEED][0])
    assert mix[0] != mix[1] != mix[3]
    path.write_text("layer,part,option,loss\n9,feed,0.5,1\n")
    with pytest.raises(InputError, match="columns layer"):
        MixedBlocks(losses=str(path)).mix(first(4))


def test_blocks_have_the_weights_of_their_options(tmp_path: Path) -> None:
    """Two key heads of 128 and a tenth of 14,336, 1,536 by 256; then one product each."""
    path = tmp_path / "losses.csv"
    wanted = {(0, ATTENTION): "2", (0, FEED): "0.1", (1, ATTENTION): "linear", (1, FEED): "none"}
    rows = [
        f"{layer},{part},{option},{0 if option == name else 9}"
        for (layer, part), name in wanted.items()
        for option in OPTIONS[part]
    ]
    path.write_text("layer,part,option,loss\n" + "\n".join(rows))
    graph = replace(ONE, losses=str(path)).rewrite(first(2))
    small, plain = (graph.blocks[name] for name in graph.layers)
    assert small.params == 2 * 4096 + 4096 * (4096 + 2 * 2 * 128) + 4096 * 4096 + 3 * 4096 * 1536
    assert [op.kv_heads for op in small.ops if isinstance(op, AttentionOp)] == [2]
    assert plain.params == 4096 + 4096 * 4096
    assert len(plain.boundaries) == 0
    served = serve(replace(LLAMA, graph=graph), deployed(tp=2))
    assert [len(kind.pieces) > 0 for kind in served.kinds] == [True, True]
    down = small.gemm(OpRole.DOWN)
    assert down is not None
    assert down.k == 1536


def test_what_is_refused() -> None:
    assert "one feed-forward" in MixedBlocks().refusal(load("mixtral-8x7b").graph)
    assert "key heads" in MixedBlocks().refusal(load("llama-2-7b").graph)
