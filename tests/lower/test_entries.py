"""Entries that stand for far keys, and keys chosen in blocks: DeepSeek-V4 and MiniMax-M3 as they are served."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.cli.main import run
from ridgeline.cost.formats import Formats
from ridgeline.cost.layer_questions import compressed_layer, layer_sizes
from ridgeline.cost.machine import machine
from ridgeline.errors import ModelError, PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.build import build
from ridgeline.graph.load import catalog_config, load
from ridgeline.lower.inference import serve
from ridgeline.lower.pieces import Core, HyperConnection, LayerKind, Product
from ridgeline.scenario.serving_words import deployed
from ridgeline.serving.capacity import token_bytes
from ridgeline.serving.engine import Engine, engine

PRO, FLASH, M3 = load("deepseek-v4-pro"), load("deepseek-v4-flash"), load("minimax-m3")
EIGHT = machine(cluster("8xB200-SXM"))


def kinds(model: object, tp: int = 1) -> dict[str, LayerKind]:
    return {kind.name: kind for kind in serve(model, deployed(tp=tp)).kinds}  # type: ignore[arg-type]


def core(kind: LayerKind) -> Core:
    return next(piece for piece in kind.pieces if isinstance(piece, Core))


@pytest.mark.parametrize(("model", "total", "active"), [(PRO, 1.6e12, 49e9), (FLASH, 284e9, 13e9), (M3, 428e9, 26e9)])
def test_parameters_are_those_that_were_published(model: object, total: float, active: float) -> None:
    dims = model.dims  # type: ignore[attr-defined]
    assert dims["parameters"] == pytest.approx(total, rel=0.02)
    assert dims["active_parameters"] == pytest.approx(active, rel=0.07)


def test_layers_are_of_three_kinds() -> None:
    assert [FLASH.graph.layers.count(f"{name}-moe") for name in ("near", "chosen", "compressed")] == [2, 21, 20]
    assert [PRO.graph.layers.count(f"{name}-moe") for name in ("near", "chosen", "compressed")] == [0, 30, 31]
    assert [M3.graph.layers.count(name) for name in ("dense", "sparse-moe")] == [3, 57]


@pytest.mark.parametrize("tp", [1, 8])
@pytest.mark.parametrize(("model", "name", "kind"), [
    (PRO, "chosen-moe", "csa"), (PRO, "compressed-moe", "hca"), (FLASH, "chosen-moe", "csa"), (M3, "sparse-moe", "msa"),
])  # fmt: skip
def test_products_are_those_of_the_measured_layers(model: object, name: str, kind: str, tp: int) -> None:
    """What is priced as products is what the operator tables' whole layers hold, and the widths are theirs."""
    layer = kinds(model, tp)[name]
    held = sum(p.n * p.k for p in layer.pieces if isinstance(p, Product) and p.part in ("attention", "out"))
    known = {"csa": "DeepSeek-V4-Pro" if model is PRO else "DeepSeek-V4-Flash", "hca": "DeepSeek-V4-Pro"}
    sizes = layer_sizes(kind, known.get(kind, "MiniMax-M3"), core(layer).heads, 2.0)
    assert held == pytest.approx(float(sizes["elements"]), rel=0.01)
    entries = core(layer).entries
    assert entries is not None
    assert (entries.kind, entries.window, entries.top) == (kind, sizes["window"], sizes["top"])
    assert entries.index_heads * (kind != "hca") == sizes["index_heads"]


def test_an_entry_is_kept_for_every_four_or_128_tokens_and_windows_for_a_sequence() -> None:
    """In 16 bits 512 x 2 bytes an entry, and 132 for the index key of one that is chosen; a window of 128 keys."""
    wide = Formats()
    layers = kinds(PRO)
    assert token_bytes([layers["chosen-moe"]], wide) == (30 * (1024 + 132) / 4, 30 * 128 * 1024)
    assert token_bytes([layers["compressed-moe"]], wide) == (31 * 1024 / 128, 31 * 128 * 1024)
    narrow = Formats(cache="fp8")
    assert token_bytes([layers["compressed-moe"]], narrow)[0] == pytest.approx(31 * 584 / 128)
    assert token_bytes(kinds(FLASH).values(), wide)[1] == 43 * 128 * 1024
    assert token_bytes([kinds(M3)["sparse-moe"]], wide)[0] == 57 * (4 * 256 * 2 + 256)
    assert token_bytes([kinds(M3, 8)["sparse-moe"]], wide)[0] == 57 * (1 * 256 * 2 + 256)  # at least one key head


def test_streams_are_mixed_around_both_parts() -> None:
    mixes = [piece for piece in kinds(PRO)["chosen-moe"].pieces if isinstance(piece, HyperConnection)]
    assert [(one.width, one.streams, one.before) for one in mixes] == [(7168, 4, True), (7168, 4, False)] * 2


def made(model: object, **words: object) -> Engine:
    return engine(model, EIGHT, deployed(tp=8, engine="SGLang", **words))  # type: ignore[arg-type]


@pytest.mark.parametrize(("model", "name"), [(PRO, "chosen-moe"), (PRO, "compressed-moe"), (M3, "sparse-moe")])
def test_a_core_is_what_a_whole_layer_takes_beyond_one_that_sees_nothing(model: object, name: str) -> None:
    one = made(model, weights="bf16")
    prices, layer = one.steps.prices, kinds(model, 8)[name]
    attention = core(layer)
    assert attention.entries is not None
    contexts = np.array([1.0, 1024.0, 32_768.0, 524_288.0])
    seconds = prices.decode(attention, np.full(4, 16.0), contexts).mid
    assert (np.diff(seconds) >= 0).all()  # few keys hide behind the launches of their layer
    kind = attention.entries.kind
    known = "MiniMax-M3" if kind == "msa" else "DeepSeek-V4-Pro"
    whole = [
        float(prices.ask(compressed_layer(kind, 16.0, 1.0, attention.heads, cached=at, decode=True, model=known)).mid)
        for at in (0.0, 524_287.0)
    ]
    assert seconds[-1] - seconds[0] == pytest.approx(whole[1] - whole[0], rel=1e-6)
    prompts = prices.prefill(attention, 1.0, np.array([1024.0, 4096.0]), np.zeros(2)).mid
    assert prompts[1] > 2 * prompts[0] > 0


def test_experts_alone_are_of_four_bits(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["simulate", "deepseek-v4-flash", "--on", "8xB200-SXM", "--tp", "8", "--rate", "1", "--requests", "4"]
    assert run([*asked, "--engine", "sglang"]) == 0
    told = capsys.readouterr().out
    assert "routed experts are w4a8_mxfp4_mxfp8, as in the checkpoint" in told
    one = made(FLASH, weights="w4a8_mxfp4_mxfp8", other_weights="fp8_block")
    assert one.formats.of("shared") == "fp8_block"
    assert one.capacity.weights_bytes == pytest.approx(19e9, rel=0.1)  # 277e9 at 0.53 byte, others at 1, over 8


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(PlanError, match="or entries, is not modelled"):
        serve(PRO, deployed(tp=8, kv_ranks=2))
    config = {**catalog_config("deepseek-v4-flash"), "compress_ratios": [3] * 44}
    with pytest.raises(ModelError, match="compress_ratios"):
        build(config, name="x", source="x")
