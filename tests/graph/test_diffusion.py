"""U-Nets of diffusion models: parameters of the published networks, products by hand."""

from __future__ import annotations

import pytest

from ridgeline.errors import UnknownNameError
from ridgeline.graph.diffusion import UNETS, unet
from ridgeline.graph.flop import model_flop_per_token
from ridgeline.graph.ops import AttentionOp
from ridgeline.graph.workload import Workload
from ridgeline.lower.shard import Sharder
from ridgeline.lower.work import Attention, Gemm, Layout, Phase

ATTENDING = ((5, 320, 64), (5, 640, 32), (5, 1280, 16), (1, 1280, 8))  # blocks, channels and side of each level


@pytest.mark.parametrize(("name", "params"), [("stable-diffusion-1", 859_520_964), ("stable-diffusion-2", 865_910_724)])
def test_parameters_are_those_of_the_released_weights(name: str, params: int) -> None:
    assert unet(name).graph.params == params


def test_products_of_one_image_are_the_published_ones_and_the_attention_cores() -> None:
    """339e9 multiplications without the cores (arXiv:2305.15798, table of SDM-v1.4)."""
    cores = sum(count * 2 * side**2 * (side**2 + 77) * wide for count, wide, side in ATTENDING)
    whole = model_flop_per_token(unet("stable-diffusion-1").graph, 1.0) / 2
    assert whole - cores == pytest.approx(339e9, rel=2e-3)


def test_pixels_attend_to_pixels_and_to_words() -> None:
    graph = unet("stable-diffusion-2").graph
    block = next(block for block in graph.blocks.values() if block.name == "block-640-640-32-1")
    work = Sharder(Workload(seq_len=1, global_batch=3), Layout(micro_batch=3)).block(block)
    cores = {piece.name: piece for piece in work if isinstance(piece, Attention) and piece.phase is Phase.FORWARD}
    own, text = cores["self0_core"], cores["text0_core"]
    assert (own.sequences, own.heads, own.q_tokens, own.kv_tokens, own.mean_context) == (3, 10, 1024, 1024, 1024)
    assert (text.q_tokens, text.kv_tokens, text.mean_context) == (1024, 77, 77)
    keys = [piece for piece in work if isinstance(piece, Gemm) and piece.name == "text0_k"]
    assert [piece.phase for piece in keys] == [Phase.FORWARD, Phase.BACKWARD_WEIGHT]  # words get no gradient
    assert (float(keys[0].m), keys[0].n, keys[0].k) == (3 * 77, 640, 1024)


def test_every_skip_is_read_once() -> None:
    """What going up reads besides its own input is what going down left: 12 tensors of four levels."""
    graph = unet("stable-diffusion-2").graph
    joined = [name for name in graph.layers if name.startswith("up-block")]
    wide, skips = 1280, []
    for name in joined:
        _, _, channels, out, _, _ = name.split("-")
        skips.append(int(channels) - wide)
        wide = int(out)
    assert skips == [1280, 1280, 1280, 1280, 1280, 640, 640, 640, 320, 320, 320, 320]


def test_activations_of_an_image_are_those_measured() -> None:
    """NVIDIA's runs of MLPerf Training 5.0 held 30.02 GiB at 32 images a device, 55.00 GiB at 64."""
    graph = unet("stable-diffusion-2").graph
    ops = [op for name in graph.layers for op in graph.blocks[name].ops] + [*graph.embedding, *graph.head]
    held = [saved for op in ops for saved in op.saved if saved.kernel != "unfused"]
    kept = sum(saved.elements * (saved.element_bytes or 2.0) for saved in held)
    assert kept / 2**30 == pytest.approx((55.005 - 30.025) / 32, rel=0.02)


def test_cores_of_an_image_keep_to_their_own_length() -> None:
    graph = unet("stable-diffusion-1").graph
    assert all(op.positions for name in graph.layers for op in graph.blocks[name].ops if isinstance(op, AttentionOp))
    assert model_flop_per_token(graph, 1.0) == model_flop_per_token(graph, 4096.0)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="stable-diffusion-2"):
        unet("stable-diffusion-9")
    assert set(UNETS) == {"stable-diffusion-1", "stable-diffusion-2", "stable-diffusion-xl"}
